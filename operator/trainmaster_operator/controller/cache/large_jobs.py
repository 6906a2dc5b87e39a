"""Large jobs are read and decided on in one thread, one after the other.

The thread doesn't make Python faster, but it releases the interpreter every 5 ms (sys.getswitchinterval), so that the
event loop continues to serve all other jobs. Waiting jobs are kept as keys only, and each object is read again when the
thread gets to it. So 200 large jobs that are listed together need only as much memory as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trainmaster_operator.api.limits import MAX_BYTES, MAX_OTHER_BYTES
from trainmaster_operator.api.trimming import LEFT_OUT
from trainmaster_operator.controller.apiserver.cluster import LARGE_JOBS, Cluster, RawObject
from trainmaster_operator.controller.apiserver.errors import ClusterError, NotFound
from trainmaster_operator.controller.cache.records import JobKey, read_spec, spec_version
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.workqueue import WorkQueue
from trainmaster_operator.wire.values import mapping

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class LargeJobThread:
    """Runs work in one separate thread, because the work would block the event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large jobs")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Returns or raises the result of `work`.

        `work` must not use the store, or anything else that the event loop changes.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Release the thread without waiting for running work."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class LargeJobs:
    """Reads the large specs that the store doesn't read itself. `add` is passed to the store as `read_large`."""

    def __init__(self, cluster: Cluster, thread: LargeJobThread) -> None:
        self._cluster = cluster
        self._thread = thread
        self._queue: WorkQueue[JobKey] = WorkQueue()
        self.add = self._queue.add

    async def run(self, store: Store) -> None:
        """Read until cancelled. A failed read is repeated with the job's own back-off."""
        async for key, _ in self._queue:
            try:
                await self._read(store, key)
            except NotFound:
                # The job was deleted meanwhile; the watch or the next sweep shows the deletion.
                self._queue.forget(key)
            except ClusterError as error:
                wait = self._queue.add_rate_limited(key)
                logger.warning("%s: the job can't be read, next try in %.1f s: %s", key, wait, error)
            except Exception as error:
                # An object that no reader can handle must affect only this job, because all large jobs need this task.
                self._queue.forget(key)
                store.record_unreadable(key, error)
            else:
                self._queue.forget(key)
            finally:
                self._queue.done(key)

    async def _read(self, store: Store, key: JobKey) -> None:
        if not store.awaits_spec(key):
            return
        raw = _standing_in(await self._cluster.get(LARGE_JOBS, key.namespace, key.name))
        store.record_spec(
            key, spec_version(mapping(raw.get("metadata"))), await self._thread.run(lambda: read_spec(raw, key.name))
        )


def _standing_in(raw: RawObject) -> RawObject:
    """Returns the job with a long text in each field that was too large to read, so that its size is refused."""
    spec = mapping(raw.get("spec"))
    texts = {field: " " * (MAX_BYTES.get(field, MAX_OTHER_BYTES) + 1) for field in spec.get(LEFT_OUT) or ()}
    return {**raw, "spec": {name: value for name, value in spec.items() if name != LEFT_OUT} | texts}
