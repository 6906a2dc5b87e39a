"""Checks a podTemplate as Kubernetes would check the pod, before anything is written.

`fields` checks names and types against `types.json`, which `make generate` generates from Kubernetes' own definitions.
`relations` checks values, and how containers, volumes, ports and tolerations fit together. `resources` checks requests
and limits. All checks read the podTemplate as the user wrote it, so that each message names a field that the user
wrote. Directives and nulls in podTemplate are allowed.

An unknown field is refused only if it resembles a known field or belongs elsewhere, because the cluster may be newer
than the table. If the API server refuses the field, its message appears in the status.
"""

from trainmaster_operator.api.pod_schema.fields import check_fields
from trainmaster_operator.api.pod_schema.relations import AGENT_CONTAINER, WORKER_CONTAINER, check_relations
from trainmaster_operator.api.pod_schema.resources import Amounts, requests_and_limits
