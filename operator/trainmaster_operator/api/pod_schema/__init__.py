"""What Kubernetes says of a pod, so that a podTemplate's mistake gets its sentence before anything is written.

`types` has every field of a pod, from `types.json` (made by `make generate` from Kubernetes' own definitions); `fields`
checks names and types against it; `values` has the forms of names, labels, quantities and ports; `by_type` checks the
values of mappings wherever they stand; `relations` checks containers, volumes and tolerations as Kubernetes' validation
does, and `resources` requests and limits. `openapi` is the part that the CRD has. All checks read what the user wrote,
so that a sentence names the user's own field; podTemplate's directives and nulls pass.

A field that Kubernetes doesn't have is refused only where it is like one that it has, or belongs elsewhere: the cluster
may be newer than the table, and its own refusal becomes a sentence in the status.
"""

from trainmaster_operator.api.pod_schema.fields import check_fields
from trainmaster_operator.api.pod_schema.openapi import pod_spec_schema
from trainmaster_operator.api.pod_schema.relations import (
    AGENT_CONTAINER,
    WORKER_CONTAINER,
    check_relations,
)
from trainmaster_operator.api.pod_schema.resources import WorkerResources, requests_and_limits, worker_resources

__all__ = [
    "AGENT_CONTAINER",
    "WORKER_CONTAINER",
    "WorkerResources",
    "check_fields",
    "check_relations",
    "pod_spec_schema",
    "requests_and_limits",
    "worker_resources",
]
