"""Each job has ConfigMaps that keep its logs, evidence and stacks after its pods are deleted.

The ConfigMaps are deleted with the job, and their content label excludes them from the operator's watch. A write reads
the ConfigMap and merges the new data into it; after a conflict, the write is repeated. A ConfigMap that the job doesn't
own is left unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from trainmaster_operator.api.evidence import clean
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, Cluster, whole
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, Conflict, NotFound
from trainmaster_operator.controller.cache.views import owner_uid
from trainmaster_operator.controller.watching.resync import CONTENT_LABEL
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.wire.limits import MAX_EVIDENCE_BYTES
from trainmaster_operator.wire.names import JOB_NAME_LABEL, JOB_UID_LABEL, MANAGED_BY_LABEL
from trainmaster_operator.wire.ranks import RankState

logger = logging.getLogger(__name__)

# Number of tries for one write. A job's pods end at similar times, so writes of their output can conflict.
WRITES = 5

Data = Mapping[str, str]


@dataclass(frozen=True)
class JobConfigMaps:
    """Writes the ConfigMaps of jobs.

    `keep_output`: whether the operator's setting allows workers' output to be kept.
    """

    cluster: Cluster
    keep_output: bool = True

    def allow_output(self, job: Job) -> bool:
        """Returns whether a job's output is kept (runPolicy.keepLogs). An unreadable spec doesn't allow it."""
        return self.keep_output and job.spec is not None and job.spec.run_policy.keep_logs

    async def write(
        self, job: Job, name: str, content: str, change: Callable[[Data], Mapping[str, str | None]]
    ) -> Data:
        """Writes the changes that `change` returns for the current data; None removes an entry. Raises ClusterError.

        Returns the ConfigMap's new data, which is empty if nothing was written.
        """
        for _ in range(WRITES - 1):
            with suppress(AlreadyExists, Conflict, NotFound):
                return await self._write_once(job, name, content, change)
        return await self._write_once(job, name, content, change)

    async def _write_once(
        self, job: Job, name: str, content: str, change: Callable[[Data], Mapping[str, str | None]]
    ) -> Data:
        try:
            found = await self.cluster.get(whole(CONFIG_MAPS), job.namespace, name)
        except NotFound:
            data = _merged({}, change({}))
            await self.cluster.create(CONFIG_MAPS, job.namespace, {**_owned_by(job, name, content), "data": data})
            return data
        metadata = found["metadata"]
        if owner_uid(metadata) != job.uid:
            logger.info("%s/%s: ConfigMap %s belongs to somebody else", job.namespace, job.name, name)
            return {}
        before = {str(key): str(text) for key, text in (found.get("data") or {}).items()}
        changes = change(before)
        if not changes:
            return {}
        place = {"uid": metadata["uid"], "resourceVersion": metadata.get("resourceVersion")}
        await self.cluster.patch(CONFIG_MAPS, job.namespace, name, {"metadata": place, "data": changes})
        return _merged(before, changes)


def _merged(data: Data, changes: Mapping[str, str | None]) -> Data:
    return {key: text for key, text in {**data, **changes}.items() if text is not None}


def _owned_by(job: Job, name: str, content: str) -> dict[str, object]:
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}
    labels = {JOB_NAME_LABEL: job.name, JOB_UID_LABEL: job.uid, MANAGED_BY_LABEL: "trainmaster", CONTENT_LABEL: content}
    metadata = {
        "name": name,
        "namespace": job.namespace,
        "labels": labels,
        "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
    }
    return CONFIG_MAPS.body(metadata=metadata)


def kept_state(state: RankState, *, withheld: bool = False) -> dict[str, object]:
    """Returns a rank's state for people, without control characters and without the limits for detecting a hang."""
    text = "" if withheld else clean(state.text, MAX_EVIDENCE_BYTES)
    shown = state._replace(state=clean(state.state, 1), text=text, limit_seconds=0.0, limit="", patient=False)
    return shown.to_wire()
