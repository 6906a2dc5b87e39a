"""Checks a podTemplate as Kubernetes would check the pod, before anything is written.

`fields` checks names and types against `types.json`, which `make generate` makes from Kubernetes' own definitions.
`relations` checks values, and how containers, volumes, ports and tolerations fit together; `resources` checks requests
and limits. All checks read the user's own text, so that each sentence names the user's own field. podTemplate's
directives and nulls pass.

A field that Kubernetes doesn't have is refused only if it resembles a known one or belongs elsewhere. The cluster may
be newer than the table; the API server's own refusal then appears in the status.
"""

from trainmaster_operator.api.pod_schema.fields import check_fields
from trainmaster_operator.api.pod_schema.relations import (
    AGENT_CONTAINER,
    WORKER_CONTAINER,
    check_relations,
)
from trainmaster_operator.api.pod_schema.resources import WorkerResources, requests_and_limits, worker_resources
