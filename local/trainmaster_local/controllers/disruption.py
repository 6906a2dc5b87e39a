"""PodDisruptionBudgets: how many of their pods an eviction may take now (`pkg/controller/disruption`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.api import Api
from trainmaster_local.controllers.loop import Controller, Key
from trainmaster_local.controllers.pods import controller_of, is_finished, is_ready, is_terminating
from trainmaster_local.kinds.meta_validation import selects

Object = Mapping[str, Any]

BUDGETS = "poddisruptionbudgets.policy"
_SETS = {"StatefulSet": "statefulsets.apps", "ReplicaSet": "replicasets.apps"}


class DisruptionController(Controller):
    """Keeps the status of budgets."""

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self.watch(BUDGETS)
        self.watch("pods", self._budgets_of)

    def _budgets_of(self, pod: Object) -> tuple[Key, ...]:
        namespace = pod["metadata"]["namespace"]
        budgets = self.api.peek_all(BUDGETS, namespace)
        return tuple((namespace, budget["metadata"]["name"]) for budget in budgets)

    async def reconcile(self, key: Key) -> float | None:
        budget = self.api.peek(BUDGETS, key[1], key[0])
        if budget is None:
            return None
        selector = budget["spec"].get("selector") or {}
        pods = [
            pod
            for pod in self.api.peek_all("pods", key[0])
            if selects(selector, pod["metadata"].get("labels") or {}) and not is_finished(pod)
        ]
        expected = self._expected(pods)
        healthy = sum(1 for pod in pods if is_ready(pod) and not is_terminating(pod))
        spec = budget["spec"]
        if spec.get("maxUnavailable") is not None:
            desired = max(0, expected - _share(spec["maxUnavailable"], expected))
        else:
            desired = _share(spec.get("minAvailable", 1), expected)
        status = {
            "observedGeneration": int(budget["metadata"].get("generation") or 1),
            "disruptionsAllowed": max(0, healthy - desired),
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
        }
        old = budget.get("status") or {}
        if any(old.get(name) != value for name, value in status.items()):
            body = {**budget, "status": {**old, **status}}
            await self.api.update(BUDGETS, body, key[0], subresource="status", options=self.options)
        return None

    def _expected(self, pods: list[dict[str, Any]]) -> int:
        """The replicas of the pods' controllers; pods without one count for themselves."""
        total = 0
        seen: set[str] = set()
        for pod in pods:
            reference = controller_of(pod)
            resource = _SETS.get(reference["kind"]) if reference else None
            if reference is None or resource is None:
                total += 1
            elif reference["uid"] not in seen:
                seen.add(reference["uid"])
                owner = self.api.peek(resource, reference["name"], pod["metadata"]["namespace"])
                total += int(((owner or {}).get("spec") or {}).get("replicas", 1))
        return total


def _share(value: Any, total: int) -> int:
    """A number, or a percentage of the total rounded up."""
    if isinstance(value, str) and value.endswith("%"):
        return -(-total * int(value[:-1]) // 100)
    return int(value)
