"""Each request is authenticated, impersonated (`kubectl --as`) and authorized here."""

from __future__ import annotations

import dataclasses
import re

from aiohttp import web

from trainmaster_local.apiserver.apimachinery import errors
from trainmaster_local.apiserver.http.auth import ANONYMOUS, Attributes, Authenticator, Authorizer, refusal
from trainmaster_local.apiserver.http.routes import Route
from trainmaster_local.apiserver.resources import SYSTEM, User

MASTERS = "system:masters"
_AUTHENTICATED = "system:authenticated"


class Access:
    """Without an authenticator every user is the administrator; without an authorizer every action is allowed."""

    def __init__(self, authenticator: Authenticator | None, authorizer: Authorizer | None) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer

    def authenticate(self, request: web.BaseRequest) -> User:
        """Returns the user of the request. Raises ApiError 401 for an unknown token."""
        if self._authenticator is None:
            return SYSTEM
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if not token:
            return ANONYMOUS
        user = self._authenticator.authenticate(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise errors.unauthorized()
        if _AUTHENTICATED not in user.groups:
            user = dataclasses.replace(user, groups=(*user.groups, _AUTHENTICATED))
        return self._impersonated(request, user)

    def _impersonated(self, request: web.BaseRequest, user: User) -> User:
        """Returns the user that `kubectl --as` names, if `user` may impersonate it.

        This follows k8s.io/apiserver `pkg/endpoints/filters/impersonation`.
        """
        name = request.headers.get("Impersonate-User", "")
        groups = tuple(request.headers.getall("Impersonate-Group", []))
        if not name:
            if groups:
                raise errors.internal(f"requested {list(groups)} without impersonating a user")
            return user
        account = re.fullmatch("system:serviceaccount:([^:]+):([^:]+)", name)
        if account:
            namespace = account[1]
            self.permit(
                Attributes(user, "impersonate", resource="serviceaccounts", name=account[2], namespace=namespace)
            )
            groups = groups or ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        else:
            self.permit(Attributes(user, "impersonate", resource="users", name=name))
        for group in groups:
            self.permit(Attributes(user, "impersonate", resource="groups", name=group))
        everyone = () if name == ANONYMOUS.name or _AUTHENTICATED in groups else (_AUTHENTICATED,)
        return User(name, (*groups, *everyone))

    def authorize(self, user: User, route: Route) -> None:
        """Raises ApiError 403 if `user` may not send this request about a resource."""
        namespace = route.namespace
        if route.resource == "namespaces" and not route.group:
            namespace = route.name
        self.permit(
            Attributes(
                user,
                route.verb,
                route.group,
                route.version,
                route.resource,
                route.subresource,
                route.name,
                namespace,
            )
        )

    def permit(self, attributes: Attributes) -> None:
        """Raises ApiError 403 if the action isn't allowed."""
        if self._authorizer is None or MASTERS in attributes.user.groups:
            return
        decision = self._authorizer.authorize(attributes)
        if not decision.allowed:
            raise refusal(attributes, decision.reason)
