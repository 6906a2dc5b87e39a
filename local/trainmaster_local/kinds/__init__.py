"""The built-in types of the local cluster: `BUILTIN_TYPES`, which a cluster adds to the API server's registry.

Each module defines types as data and hooks (`apiserver.resources.ResourceType`) and follows Kubernetes 1.36 in its
defaults, messages and columns. To learn how a type is made, read `core/configuration` first, then `pods`.

- `core`, `pods`, `apps`, `policy`, `rbac`: the types, by Kubernetes' groups.
- `columns` and `meta_validation`: columns and checks that many types share.
- `bootstrap`: creates the objects that a new cluster has from the start.

`rbac.reviews.serve_tokens` adds the token requests, which need the cluster's secret.
"""

from __future__ import annotations

from trainmaster_local.apiserver.resources import ResourceType
from trainmaster_local.kinds.apps.deployments import DEPLOYMENT, REPLICA_SET
from trainmaster_local.kinds.apps.stateful_sets import CONTROLLER_REVISION, STATEFUL_SET
from trainmaster_local.kinds.core.claims import STORAGE_TYPES
from trainmaster_local.kinds.core.configuration import CONFIGURATION_TYPES
from trainmaster_local.kinds.core.events import EVENT_TYPES
from trainmaster_local.kinds.core.namespaces import NAMESPACE_TYPES
from trainmaster_local.kinds.core.nodes import NODE_TYPES
from trainmaster_local.kinds.core.services import SERVICE
from trainmaster_local.kinds.pods.pod import POD
from trainmaster_local.kinds.policy.admission_policies import ADMISSION_TYPES
from trainmaster_local.kinds.policy.network_policies import NETWORK_POLICY
from trainmaster_local.kinds.rbac.reviews import REVIEW_TYPES
from trainmaster_local.kinds.rbac.roles import RBAC_TYPES

__all__ = ["BUILTIN_TYPES"]

BUILTIN_TYPES: tuple[ResourceType, ...] = (
    *NAMESPACE_TYPES,
    *NODE_TYPES,
    POD,
    SERVICE,
    *CONFIGURATION_TYPES,
    *EVENT_TYPES,
    *STORAGE_TYPES,
    STATEFUL_SET,
    DEPLOYMENT,
    REPLICA_SET,
    CONTROLLER_REVISION,
    NETWORK_POLICY,
    *RBAC_TYPES,
    *ADMISSION_TYPES,
    *REVIEW_TYPES,
)
