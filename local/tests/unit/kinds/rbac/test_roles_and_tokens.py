"""Role-based access control (kubernetes `plugin/pkg/auth/authorizer/rbac`) and service-account tokens work."""

from __future__ import annotations

from typing import Any

import pytest

from local.tests.unit.kinds.api import NOW, pod, started
from trainmaster_local.apiserver.api import Api, ApiError, Options
from trainmaster_local.apiserver.http.auth import Attributes
from trainmaster_local.apiserver.resources import User
from trainmaster_local.auth import MASTERS, Authorizer, Tokens, service_account_user

ROBOT = service_account_user("default", "robot")
GROUP = "rbac.authorization.k8s.io"


async def bind(api: Api, rules: list[dict[str, Any]], subject: dict[str, Any], *, cluster: bool = False) -> None:
    kind, namespace = ("ClusterRole", "") if cluster else ("Role", "default")
    await api.create(f"{kind.lower()}s.{GROUP}", {"metadata": {"name": "r"}, "rules": rules}, namespace)
    binding = {"metadata": {"name": "b"}, "roleRef": {"kind": kind, "name": "r"}, "subjects": [subject]}
    await api.create(f"{kind.lower()}bindings.{GROUP}", binding, namespace)


def may(api: Api, user: User, verb: str, resource: str, namespace: str = "default", **more: str) -> bool:
    return Authorizer(api).authorize(Attributes(user, verb, resource=resource, namespace=namespace, **more)).allowed


async def test_nothing_is_allowed_by_default_and_everything_to_masters() -> None:
    api = await started()
    assert not may(api, ROBOT, "get", "pods")
    assert may(api, User("root", (MASTERS,)), "delete", "nodes", "")


async def test_role_holds_in_its_namespace_for_its_verbs_and_resources() -> None:
    api = await started()
    rule = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}
    await bind(api, [rule], {"kind": "ServiceAccount", "name": "robot", "namespace": "default"})
    assert may(api, ROBOT, "get", "pods")
    assert may(api, ROBOT, "get", "pods", subresource="log")
    assert not may(api, ROBOT, "get", "pods", subresource="exec")
    assert not may(api, ROBOT, "delete", "pods")
    assert not may(api, ROBOT, "get", "pods", "kube-system")
    assert not may(api, ROBOT, "get", "pods", "")
    assert not may(api, ROBOT, "get", "statefulsets", group="apps")
    assert not may(api, service_account_user("kube-system", "robot"), "get", "pods")


async def test_names_limit_a_rule() -> None:
    api = await started()
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "resourceNames": ["mine"]}
    await bind(api, [rule], {"kind": "Group", "name": "system:serviceaccounts:default"}, cluster=True)
    assert may(api, ROBOT, "get", "pods", name="mine")
    assert not may(api, ROBOT, "get", "pods", name="yours")
    assert not may(api, ROBOT, "list", "pods")


async def test_paths_that_are_no_resources() -> None:
    api = await started()
    await bind(
        api, [{"nonResourceURLs": ["/metrics/*"], "verbs": ["get"]}], {"kind": "User", "name": "bob"}, cluster=True
    )
    authorizer = Authorizer(api)
    assert authorizer.authorize(Attributes(User("bob"), "get", path="/metrics/x")).allowed
    assert not authorizer.authorize(Attributes(User("bob"), "get", path="/logs")).allowed
    assert authorizer.authorize(Attributes(User("bob"), "get", path="/apis/apps/v1")).allowed


async def test_review_says_which_binding_allowed() -> None:
    api = await started()
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    await bind(api, [rule], {"kind": "User", "name": "bob"})
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
    options = Options(user=User("bob"))
    answer = await api.create("selfsubjectaccessreviews.authorization.k8s.io", {"spec": spec}, options=options)
    assert answer["status"] == {
        "allowed": True,
        "reason": 'RBAC: allowed by RoleBinding "b/default" of Role "r" to User "bob"',
    }


async def test_token_lives_as_long_as_its_time_its_account_and_its_pod() -> None:
    now = [NOW]
    tokens = Tokens(clock=lambda: now[0])
    api = await started(tokens)
    await api.create("serviceaccounts", {"metadata": {"name": "robot"}}, "default")
    await api.create("pods", pod(), "default")
    body = {"spec": {"expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}}
    answer = await api.create("serviceaccounts", body, "default", name="robot", subresource="token")
    token = answer["status"]["token"]
    user = tokens.authenticate(token, api)
    assert user is not None
    assert user.name == "system:serviceaccount:default:robot"
    assert user.groups[:2] == ("system:serviceaccounts", "system:serviceaccounts:default")
    assert user.extra["authentication.kubernetes.io/pod-name"] == ("p",)
    foreign, _ = tokens.issue(api.peek("serviceaccounts", "robot", "default"), audiences=["somebody-else"])
    assert tokens.authenticate(foreign, api) is None
    now[0] += 600
    assert tokens.authenticate(token, api) is None
    now[0] -= 1
    assert tokens.authenticate(token, api) is not None
    await api.delete("pods", "p", "default")
    assert tokens.authenticate(token, api) is None


@pytest.mark.parametrize("change", [lambda t: t[:-2] + "xx", lambda t: t + ".x", lambda t: "", lambda t: "a.b.c"])
async def test_changed_token_is_nobodys(change: Any) -> None:
    tokens = Tokens(clock=lambda: NOW)
    account = {"metadata": {"namespace": "default", "name": "robot", "uid": "u"}}
    token, _ = tokens.issue(account)
    assert tokens.authenticate(token) is not None
    assert tokens.authenticate(change(token)) is None
    assert Tokens(clock=lambda: NOW).authenticate(token) is None


async def test_token_shorter_than_ten_minutes_is_refused() -> None:
    api = await started()
    await api.create("serviceaccounts", {"metadata": {"name": "robot"}}, "default")
    with pytest.raises(ApiError, match="may not specify a duration less than 10 minutes"):
        body = {"spec": {"expirationSeconds": 60}}
        await api.create("serviceaccounts", body, "default", name="robot", subresource="token")
