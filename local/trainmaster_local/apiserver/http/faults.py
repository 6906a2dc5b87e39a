"""Faults are rules that delay requests, fail them, or end their watches, for tests.

A rule matches by verb and resource (`*` for any), and acts a given number of times, always, or with a probability.
Tests set rules in process (`Faults.add`). Faults affect only clients, not calls in process.

A test may also set `Faults.hook`, which sees every request before it is carried out and may return a fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from trainmaster_local.apiserver.apimachinery import errors
from trainmaster_local.apiserver.apimachinery.errors import ApiError


@dataclass
class Fault:
    """A rule acts on requests of `verb` on `resource` (`pods`, `statefulsets.apps`, `pods/status`).

    `latency` (seconds) delays the request; then `code` replaces the server's answer (409 Conflict, 410 Expired, 429
    with `retry_after` seconds, 500, 503; 0: none). `drop` ends matching watches after that many seconds. `count` is how
    often the rule still acts (None: without limit), and `probability` is its chance to act on a request. With the verb
    `discover` it hides the document of a group's version (`scheduling.volcano.sh/v1beta1`), which a real server shows
    only a moment after it begins to serve the types.
    """

    verb: str = "*"
    resource: str = "*"
    name: str = "*"
    latency: float = 0.0
    code: int = 0
    retry_after: int = 1
    drop: float | None = None
    count: int | None = None
    probability: float = 1.0
    after: bool = False
    """The fault acts after the request was carried out, so the client can't know whether it was."""

    def matches(self, verb: str, resource: str, name: str) -> bool:
        return (
            self.count != 0
            and self.verb in ("*", verb)
            and self.resource in ("*", resource)
            and self.name in ("*", name)
        )

    def error(self, resource: str, name: str) -> ApiError | None:
        """Returns Kubernetes' error for the fault; None if the fault only delays or drops."""
        plural, _, group = resource.partition(".")
        if self.code == 409:
            return errors.conflict(group, plural, name)
        if self.code == 410:
            return errors.expired("The resourceVersion for the provided watch is too old.")
        if self.code == 429:
            problem = "Too many requests, please try again later."
            return errors.too_many_requests(problem, self.retry_after)
        if self.code == 500:
            return errors.internal("etcdserver: request timed out")
        if self.code == 503:
            return ApiError(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        return None


Hook = Callable[[str, str, str, str], Fault | None]
"""A function of a request's verb, resource, name and namespace; it returns the fault for the request, or None."""


class Faults:
    """These rules are in force."""

    def __init__(self, random_: random.Random | None = None) -> None:
        self.rules: list[Fault] = []
        self.hook: Hook | None = None
        # Called when a request with an `after` fault has been carried out, before it is answered.
        self.carried_out: Callable[[], None] = _nothing
        self._random = random_ or random.Random()

    def add(self, fault: Fault) -> Fault:
        self.rules.append(fault)
        return fault

    def clear(self) -> None:
        self.rules.clear()
        self.hook, self.carried_out = None, _nothing

    @property
    def idle(self) -> bool:
        """Returns whether no fault can act."""
        return not self.rules and self.hook is None

    def match(self, verb: str, resource: str, name: str, namespace: str = "") -> Fault | None:
        """Returns the first rule that acts on this request, and reduces its count."""
        struck = self.hook(verb, resource, name, namespace) if self.hook is not None else None
        if struck is not None:
            return struck
        for fault in self.rules:
            if fault.matches(verb, resource, name) and self._random.random() < fault.probability:
                if fault.count is not None:
                    fault.count -= 1
                return fault
        return None

    def hides(self, path: str) -> bool:
        """Returns whether a rule hides this document of discovery, and reduces its count."""
        version = path.strip("/").removeprefix("apis/")
        rule = next((one for one in self.rules if (one.verb, one.resource) == ("discover", version)), None)
        if rule is None or rule.count == 0:
            return False
        rule.count = None if rule.count is None else rule.count - 1
        return True


def _nothing() -> None:
    return None
