"""The built-in types of the local cluster: `BUILTIN_TYPES`, to be added to the API server's registry.

Each module holds types that belong together, as data and hooks (`apiserver.resources.ResourceType`); the words of every
refusal, the defaults and the columns are Kubernetes 1.36's. What needs the cluster's secret is added by
`reviews.serve_tokens`, what a new cluster has from the start is created by `bootstrap.bootstrap`.

Begin with `configuration`, which is short. Beside it are `namespaces`, `nodes`, `services`, `events`, `claims`,
`policies` with `network_policies`, `rbac`, `admission_policies`, `reviews`; `pods/` and `workloads/` are the largest.
`columns`, `meta_validation` and `schemas` are what many types share. `protobuf` reads the bodies that `kubectl create`
sends.
"""

from __future__ import annotations

from trainmaster_local.apiserver.resources import ResourceType
from trainmaster_local.kinds.admission_policies import ADMISSION_TYPES
from trainmaster_local.kinds.claims import STORAGE_TYPES
from trainmaster_local.kinds.configuration import CONFIGURATION_TYPES
from trainmaster_local.kinds.events import EVENT_TYPES
from trainmaster_local.kinds.namespaces import NAMESPACE_TYPES
from trainmaster_local.kinds.network_policies import NETWORK_POLICY
from trainmaster_local.kinds.nodes import NODE_TYPES
from trainmaster_local.kinds.pods.pod import POD
from trainmaster_local.kinds.rbac import RBAC_TYPES
from trainmaster_local.kinds.reviews import REVIEW_TYPES
from trainmaster_local.kinds.services import SERVICE
from trainmaster_local.kinds.workloads.deployments import DEPLOYMENT, REPLICA_SET
from trainmaster_local.kinds.workloads.stateful_sets import CONTROLLER_REVISION, STATEFUL_SET

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
