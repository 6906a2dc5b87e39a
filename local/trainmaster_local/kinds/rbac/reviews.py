"""Reviews are answered and never stored: access reviews (`kubectl auth can-i`, `whoami`) and token requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError, invalid, not_found
from trainmaster_local.apiserver.apimachinery.objectmeta import rfc3339
from trainmaster_local.apiserver.http.auth import Attributes
from trainmaster_local.apiserver.resources import Object, Registry, ResourceType, Subresource, SubresourceCall, User
from trainmaster_local.apiserver.schema.official import definition
from trainmaster_local.auth import ISSUER, Authorizer, Tokens, groups_of

Json = dict[str, Any]

_AUTHORIZATION = "io.k8s.api.authorization.v1"
_AUTHENTICATION = "io.k8s.api.authentication.v1"
_MIN_SECONDS = 600
_MAX_SECONDS = 1 << 32


def _attributes(user: User, spec: Json) -> Attributes:
    """Returns the attributes in a review's spec."""
    if "nonResourceAttributes" in spec:
        asked = spec["nonResourceAttributes"]
        return Attributes(user, asked.get("verb", ""), path=asked.get("path", ""))
    asked = spec.get("resourceAttributes") or {}
    return Attributes(
        user,
        verb=asked.get("verb", ""),
        group=asked.get("group", ""),
        resource=asked.get("resource", ""),
        subresource=asked.get("subresource", ""),
        namespace=asked.get("namespace", ""),
        name=asked.get("name", ""),
    )


def _review_errors(obj: Json) -> list[FieldError]:
    spec = obj.get("spec") or {}
    given = [name for name in ("resourceAttributes", "nonResourceAttributes") if name in spec]
    if len(given) == 2:
        detail = "cannot be specified in combination with resourceAttributes"
        return [FieldError.invalid("spec.nonResourceAttributes", spec[given[1]], detail)]
    if not given:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [FieldError.invalid("spec.resourceAttributes", None, detail)]
    return []


def _decided(call: SubresourceCall, user: User) -> Object:
    assert call.body is not None
    decision = Authorizer(call.api).authorize(_attributes(user, call.body["spec"]))
    status: Json = {"allowed": decision.allowed}
    if decision.reason:
        status["reason"] = decision.reason
    return {**call.body, "status": status}


async def _answer_self(call: SubresourceCall) -> Object:
    return _decided(call, call.user)


def _user_info(user: User) -> Json:
    info: Json = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    info["groups"] = list(groups_of(user))
    if user.extra:
        info["extra"] = {name: list(values) for name, values in user.extra.items()}
    return info


async def _answer_whoami(call: SubresourceCall) -> Object:
    assert call.body is not None
    return {**call.body, "status": {"userInfo": _user_info(call.user)}}


def _review(
    group: str,
    package: str,
    kind: str,
    answer: Callable[[SubresourceCall], Awaitable[Object]],
    *,
    validated: bool = True,
) -> ResourceType:
    return ResourceType(
        group=group,
        version="v1",
        kind=kind,
        plural=f"{kind.lower()}s",
        singular=kind.lower(),
        namespaced=False,
        verbs=("create",),
        zero={"metadata": {}, "spec": {}, "status": {}},
        schema=definition(f"{package}.{kind}"),
        validate_create=_review_errors if validated else lambda obj: [],
        answer=answer,
    )


REVIEW_TYPES = (
    _review("authorization.k8s.io", _AUTHORIZATION, "SelfSubjectAccessReview", _answer_self),
    _review("authentication.k8s.io", _AUTHENTICATION, "SelfSubjectReview", _answer_whoami, validated=False),
)


def serve_tokens(registry: Registry, tokens: Tokens) -> None:
    """Serves `serviceaccounts/token`, which needs the cluster's secret.

    The kubelet gets the tokens of pods from it, and `kubectl create token` uses it.
    """

    async def request(call: SubresourceCall) -> Object:
        account = call.api.peek("serviceaccounts", call.name, call.namespace)
        if account is None:
            raise not_found("", "serviceaccounts", call.name)
        spec = dict((call.body or {}).get("spec") or {})
        seconds = spec.setdefault("expirationSeconds", 3600)
        if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
            below = seconds < _MIN_SECONDS
            detail = "may not specify a duration " + ("less than 10 minutes" if below else "larger than 2^32 seconds")
            error = FieldError.invalid("spec.expirationSeconds", seconds, detail)
            raise invalid("authentication.k8s.io", "TokenRequest", call.name, [error])
        spec["audiences"] = spec.get("audiences") or [ISSUER]
        pod = _bound_pod(call, spec.get("boundObjectRef"))
        token, ends = tokens.issue(account, seconds=seconds, audiences=spec["audiences"], pod=pod)
        metadata = {
            "name": call.name,
            "namespace": call.namespace,
            "creationTimestamp": rfc3339(call.api.clock()),
        }
        status = {"token": token, "expirationTimestamp": rfc3339(ends)}
        version = "authentication.k8s.io/v1"
        return {"kind": "TokenRequest", "apiVersion": version, "metadata": metadata, "spec": spec, "status": status}

    token = Subresource("token", "TokenRequest", "authentication.k8s.io", "v1", handle=request)
    registry.attach("serviceaccounts", token)


def _bound_pod(call: SubresourceCall, reference: Json | None) -> Json | None:
    """Returns the pod that a token is bound to. Raises ApiError 404 if it is gone, 422 if another pod has its name."""
    if reference is None or reference.get("kind") != "Pod":
        return None
    name = reference.get("name", "")
    pod = call.api.peek("pods", name, call.namespace)
    if pod is None:
        raise not_found("", "pods", name)
    uid = reference.get("uid", "")
    if uid and uid != pod["metadata"]["uid"]:
        problem = f"the UID in the bound object reference ({uid}) does not match the UID in record."
        problem += " The object might have been deleted and then recreated"
        error = FieldError.invalid("spec.boundObjectRef.uid", uid, problem)
        raise invalid("authentication.k8s.io", "TokenRequest", call.name, [error])
    return pod
