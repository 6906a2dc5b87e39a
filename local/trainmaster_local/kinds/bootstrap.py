"""Creates a new cluster's initial objects: namespaces, roles, priority classes and the API's own Service.

The roles are the commonly bound ones of kubernetes `plugin/pkg/auth/authorizer/rbac/bootstrappolicy`: the four roles
for users, and the rights that all users have.
"""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.api import Api
from trainmaster_local.auth import AUTHENTICATED, MASTERS, UNAUTHENTICATED
from trainmaster_local.kinds.rbac.roles import GROUP

Json = dict[str, Any]

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_CORE = [
    "configmaps",
    "endpoints",
    "persistentvolumeclaims",
    "pods",
    "pods/log",
    "pods/status",
    "resourcequotas",
    "serviceaccounts",
    "services",
]
_APPS = [
    "controllerrevisions",
    "deployments",
    "deployments/scale",
    "replicasets",
    "replicasets/scale",
    "statefulsets",
    "statefulsets/scale",
]
_PUBLIC_PATHS = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY_PATHS = ["/api", "/api/*", "/apis", "/apis/*", *_PUBLIC_PATHS, "/openapi", "/openapi/*"]


def _rule(groups: list[str], resources: list[str], verbs: list[str]) -> Json:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs}


def _view() -> list[Json]:
    return [
        _rule([""], [*_CORE, "bindings", "events", "namespaces"], _READ),
        _rule(["apps"], _APPS, _READ),
        _rule(["policy"], ["poddisruptionbudgets"], _READ),
        _rule(["networking.k8s.io"], ["networkpolicies"], _READ),
    ]


def _edit() -> list[Json]:
    written = [name for name in _CORE if name not in ("pods/log", "pods/status", "resourcequotas")]
    return [
        *_view(),
        _rule([""], ["secrets"], [*_READ, *_WRITE]),
        _rule([""], [*written, "pods/eviction", "pods/proxy", "events", "serviceaccounts/token"], _WRITE),
        _rule([""], ["pods/proxy"], _READ),
        _rule(["apps"], [name for name in _APPS if name != "controllerrevisions"], _WRITE),
        _rule(["policy"], ["poddisruptionbudgets"], _WRITE),
        _rule(["networking.k8s.io"], ["networkpolicies"], _WRITE),
        _rule(["coordination.k8s.io"], ["leases"], [*_READ, *_WRITE]),
    ]


def _admin() -> list[Json]:
    return [
        *_edit(),
        _rule([GROUP], ["roles", "rolebindings"], [*_READ, *_WRITE]),
        _rule(["authorization.k8s.io"], ["localsubjectaccessreviews"], ["create"]),
    ]


_ROLES: dict[str, list[Json]] = {
    "cluster-admin": [_rule(["*"], ["*"], ["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}],
    "admin": _admin(),
    "edit": _edit(),
    "view": _view(),
    "system:basic-user": [
        _rule(["authorization.k8s.io"], ["selfsubjectaccessreviews", "selfsubjectrulesreviews"], ["create"]),
        _rule(["authentication.k8s.io"], ["selfsubjectreviews"], ["create"]),
    ],
    "system:discovery": [{"nonResourceURLs": _DISCOVERY_PATHS, "verbs": ["get"]}],
    "system:public-info-viewer": [{"nonResourceURLs": _PUBLIC_PATHS, "verbs": ["get"]}],
    "system:node-proxier": [_rule([""], ["endpoints", "nodes", "services"], ["list", "watch"])],
}
_BINDINGS: dict[str, tuple[str, ...]] = {
    "cluster-admin": (MASTERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
}


def bootstrap_objects() -> list[tuple[str, str, Json]]:
    """Returns `(resource, namespace, object)` in the order of creation."""
    label = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    objects: list[tuple[str, str, Json]] = [("namespaces", "", {"metadata": {"name": name}}) for name in NAMESPACES]
    for name, rules in _ROLES.items():
        objects.append((f"clusterroles.{GROUP}", "", {"metadata": {"name": name, "labels": label}, "rules": rules}))
    for name, groups in _BINDINGS.items():
        binding = {
            "metadata": {"name": name, "labels": label},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": group} for group in groups],
        }
        objects.append((f"clusterrolebindings.{GROUP}", "", binding))
    port = {"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}
    kubernetes = {
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": "10.96.0.1", "ports": [port]},
    }
    return [*objects, ("services", "default", kubernetes)]


async def bootstrap(api: Api) -> None:
    """Creates the missing objects; existing ones stay unchanged."""
    for resource, namespace, obj in bootstrap_objects():
        if api.peek(resource, obj["metadata"]["name"], namespace) is None:
            await api.create(resource, obj, namespace)
