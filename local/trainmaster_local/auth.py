"""Decides which user may do what: role-based access control over stored roles and bindings, and service-account tokens.

`Authorizer` decides as kubernetes `plugin/pkg/auth/authorizer/rbac` does: an action without a matching rule is denied,
and members of `system:masters` may do everything. `Tokens` issues and reads the bearer tokens of service accounts:
signed JWTs with Kubernetes' claims, so that client libraries can read them. The signature is an HMAC with a secret of
the cluster's process, so tokens are invalid once the cluster has ended.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster_local.apiserver.http.auth import Attributes, Decision
from trainmaster_local.apiserver.resources import User

if TYPE_CHECKING:
    from trainmaster_local.apiserver.api import Api

Json = dict[str, Any]

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
ISSUER = "https://kubernetes.default.svc.cluster.local"
_RBAC = "rbac.authorization.k8s.io"


def service_account_user(namespace: str, name: str, uid: str = "", extra: Json | None = None) -> User:
    """Returns a service account's user, with its groups."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return User(f"system:serviceaccount:{namespace}:{name}", groups, uid, extra or {})


def groups_of(user: User) -> tuple[str, ...]:
    """Returns a user's groups, with the group of all authenticated, or of all unauthenticated, users."""
    everyone = UNAUTHENTICATED if user.name == "system:anonymous" else AUTHENTICATED
    return user.groups if everyone in user.groups else (*user.groups, everyone)


class Authorizer:
    """The authorizer decides by the objects in `api` at the moment of the request."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def authorize(self, attributes: Attributes) -> Decision:
        if MASTERS in attributes.user.groups:
            return Decision(True)
        for rule, source in self._rules(attributes.user, attributes.namespace):
            if _allows(rule, attributes):
                return Decision(True, f"RBAC: allowed by {source}")
        return Decision(False)

    def _rules(self, user: User, namespace: str) -> Iterator[tuple[Json, str]]:
        """Yields each rule that applies to the user in the namespace, with a description of its binding."""
        for binding in self._api.peek_all(f"clusterrolebindings.{_RBAC}"):
            if subject := _subject(binding, user, ""):
                name = binding["metadata"]["name"]
                reference = binding["roleRef"]
                source = f'ClusterRoleBinding "{name}" of ClusterRole "{reference["name"]}" to {subject}'
                for rule in self._role_rules(reference, ""):
                    yield rule, source
        if not namespace:
            return
        for binding in self._api.peek_all(f"rolebindings.{_RBAC}", namespace):
            if subject := _subject(binding, user, namespace):
                name, reference = binding["metadata"]["name"], binding["roleRef"]
                source = f'RoleBinding "{name}/{namespace}" of {reference["kind"]} "{reference["name"]}" to {subject}'
                for rule in self._role_rules(reference, namespace):
                    yield rule, source

    def _role_rules(self, reference: Json, namespace: str) -> list[Json]:
        if reference["kind"] == "Role":
            role = self._api.peek(f"roles.{_RBAC}", reference["name"], namespace)
        else:
            role = self._api.peek(f"clusterroles.{_RBAC}", reference["name"])
        return (role or {}).get("rules") or []


def _subject(binding: Json, user: User, namespace: str) -> str:
    """Returns the binding's subject that matches the user, as a decision's reason names it; empty if none matches."""
    groups = groups_of(user)
    for subject in binding.get("subjects") or []:
        kind, name = subject["kind"], subject["name"]
        if (kind == "User" and name == user.name) or (kind == "Group" and name in groups):
            return f'{kind} "{name}"'
        if kind == "ServiceAccount":
            space = subject.get("namespace") or namespace
            if user.name == f"system:serviceaccount:{space}:{name}":
                return f'ServiceAccount "{name}/{space}"'
    return ""


def _allows(rule: Json, attributes: Attributes) -> bool:
    if not _covers(rule.get("verbs"), attributes.verb):
        return False
    if attributes.path:
        return any(
            url in ("*", attributes.path) or (url.endswith("*") and attributes.path.startswith(url[:-1]))
            for url in rule.get("nonResourceURLs") or []
        )
    names = rule.get("resourceNames") or []
    return (
        _covers(rule.get("apiGroups"), attributes.group)
        and _covers_resource(rule.get("resources") or [], attributes)
        and (not names or attributes.name in names)
    )


def _covers(allowed: Sequence[str] | None, value: str) -> bool:
    return "*" in (allowed or ()) or value in (allowed or ())


def _covers_resource(resources: Sequence[str], attributes: Attributes) -> bool:
    wanted = {"*", attributes.resource}
    if attributes.subresource:
        wanted = {"*", f"{attributes.resource}/{attributes.subresource}", f"*/{attributes.subresource}"}
    return any(resource in wanted for resource in resources)


class Tokens:
    """This class issues tokens of service accounts, and identifies their users."""

    def __init__(self, *, clock: Callable[[], float] = time.time, secret: bytes | None = None) -> None:
        self._clock = clock
        self._secret = secret or secrets.token_bytes(32)

    def issue(
        self,
        account: Json,
        *,
        seconds: int = 3600,
        audiences: Sequence[str] = (),
        pod: Json | None = None,
    ) -> tuple[str, float]:
        """Returns a ServiceAccount's token, bound to a Pod if one is given, and its end in seconds since the epoch."""
        metadata = account["metadata"]
        now = int(self._clock())
        bound: Json = {
            "namespace": metadata["namespace"],
            "serviceaccount": {"name": metadata["name"], "uid": metadata["uid"]},
        }
        if pod is not None:
            bound["pod"] = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            if node := pod["spec"].get("nodeName"):
                bound["node"] = {"name": node}
        claims = {
            "aud": list(audiences) or [ISSUER],
            "exp": now + seconds,
            "iat": now,
            "nbf": now,
            "iss": ISSUER,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": bound,
            "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
        }
        signed = f"{_encode({'alg': 'HS256', 'typ': 'JWT'})}.{_encode(claims)}"
        return f"{signed}.{self._sign(signed)}", float(now + seconds)

    def authenticate(self, token: str, api: Api | None = None) -> User | None:
        """Returns a token's user, or None.

        Returns None for a foreign or expired token, for another audience, or (with `api`) if the token's object is
        gone.
        """
        signed, _, signature = token.rpartition(".")
        if not signed or not hmac.compare_digest(signature, self._sign(signed)):
            return None
        claims = _decode(signed.partition(".")[2])
        if claims is None or not claims["nbf"] <= self._clock() < claims["exp"]:
            return None
        if ISSUER not in claims["aud"]:
            return None
        bound = claims["kubernetes.io"]
        account, namespace = bound["serviceaccount"], bound["namespace"]
        if api is not None and not self._still_there(api, bound):
            return None
        extra: dict[str, tuple[str, ...]] = {"authentication.kubernetes.io/credential-id": (f"JTI={claims['jti']}",)}
        for kind in ("pod", "node"):
            for part, value in bound.get(kind, {}).items():
                extra[f"authentication.kubernetes.io/{kind}-{part}"] = (value,)
        return service_account_user(namespace, account["name"], account["uid"], extra)

    @staticmethod
    def _still_there(api: Api, bound: Json) -> bool:
        owners = [("serviceaccounts", bound["serviceaccount"])]
        if "pod" in bound:
            owners.append(("pods", bound["pod"]))
        for resource, reference in owners:
            found = api.peek(resource, reference["name"], bound["namespace"])
            if found is None or found["metadata"]["uid"] != reference["uid"]:
                return False
        return True

    def _sign(self, text: str) -> str:
        return _base64(hmac.new(self._secret, text.encode(), hashlib.sha256).digest())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _encode(part: Json) -> str:
    return _base64(json.dumps(part, separators=(",", ":")).encode())


def _decode(part: str) -> Json | None:
    try:
        decoded: Json = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        return None
    return decoded
