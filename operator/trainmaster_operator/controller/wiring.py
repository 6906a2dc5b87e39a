"""Constructs the parts of a leading operator, each after its dependencies.

If two parts would depend on each other, they share an object instead:

- the queue: the store fills it, and the reconciler empties it;
- the list of watched types: `GangWatcher` adds types, and `Resync` reads them;
- `AgentsSecrets`: streams report missing Secrets, and `ChildWriter` creates them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.controller.apiserver.cluster import JOBS, NETWORK_POLICIES, STATEFUL_SETS, Cluster
from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.cache.large_jobs import LargeJobs, LargeJobThread
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.keeping.config_maps import JobConfigMaps
from trainmaster_operator.controller.keeping.evidence import EvidenceKeeper
from trainmaster_operator.controller.keeping.last_output import LastOutput
from trainmaster_operator.controller.keeping.logs import KeptLogs, PodLogs
from trainmaster_operator.controller.keeping.stacks import StacksKeeper
from trainmaster_operator.controller.keys import AgentsSecrets
from trainmaster_operator.controller.leaders.streams import LeaderStreams, StreamEvents
from trainmaster_operator.controller.leaders.targets import DirectReach, ProxyReach, Reach
from trainmaster_operator.controller.lookups import LOOKUPS, Lookups
from trainmaster_operator.controller.observability.metrics import OperatorMetrics
from trainmaster_operator.controller.reconciler import Decide, Reconciler
from trainmaster_operator.controller.recording.outbox import Outbox
from trainmaster_operator.controller.recording.recorder import HistoryRecorder
from trainmaster_operator.controller.recording.sender import Sender
from trainmaster_operator.controller.settings import OperatorSettings
from trainmaster_operator.controller.watching.gangs import GangWatcher
from trainmaster_operator.controller.watching.resync import WATCHED, Resync
from trainmaster_operator.controller.watching.watcher import Watcher, WatchEvent
from trainmaster_operator.controller.workqueue import WorkQueue
from trainmaster_operator.controller.writing.agent_config_maps import AgentConfigMaps
from trainmaster_operator.controller.writing.children import ChildWriter
from trainmaster_operator.controller.writing.executor import Executor
from trainmaster_operator.controller.writing.status import EventRecorder
from trainmaster_operator.reconciling.decision import CollectStacks
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.rendering import AgentConfigMap, NetworkPeers
from trainmaster_operator.rendering import Settings as RenderingSettings


@dataclass(frozen=True)
class Parts:
    """Holds the parts that `app` runs, reads or closes."""

    store: Store
    queue: WorkQueue[JobKey]
    resync: Resync
    gangs: GangWatcher
    watcher: Watcher
    large_jobs: LargeJobs
    thread: LargeJobThread
    reach: Reach
    streams: LeaderStreams
    agents: AgentConfigMaps
    evidence: EvidenceKeeper
    last_output: LastOutput
    stacks: StacksKeeper
    recorder: HistoryRecorder | None
    reconciler: Reconciler

    async def close(self) -> None:
        """End the background work of the parts."""
        for part in (self.last_output, self.evidence, self.stacks, self.streams, self.gangs, self.reach):
            await part.close()
        if self.recorder is not None:
            # `close` still sends waiting records, for a limited time.
            await self.recorder.close()
        await self.thread.close()


def construct_parts(
    settings: OperatorSettings,
    decide: Decide,
    connection: ApiConnection,
    cluster: Cluster,
    keys: SigningKeys,
    metrics: OperatorMetrics,
    leads: Callable[[], bool] = lambda: True,
) -> Parts:
    """Construct the parts without reading or starting anything. `leads` returns whether this operator still leads."""
    queue: WorkQueue[JobKey] = WorkQueue()
    thread = LargeJobThread()
    large_jobs = LargeJobs(cluster, thread)
    store = Store(queue.add, keys, read_large=large_jobs.add, count_unreadable=metrics.count_unreadable)
    recorder = _recorder(settings, cluster, store, thread, metrics, leads)
    kept_logs, kept_evidence = (recorder.kept_logs, recorder.kept_evidence) if recorder is not None else (None, None)
    config_maps, pod_logs = JobConfigMaps(cluster, settings.keep_logs), PodLogs(cluster)
    logs = KeptLogs(config_maps, pod_logs, limit=settings.kept_log_bytes, on_kept=kept_logs)
    evidence = EvidenceKeeper(config_maps, store, pod_logs.tail, on_kept=kept_evidence)
    last_output = LastOutput(store, pod_logs, logs, evidence)
    stacks = StacksKeeper(config_maps)
    secrets = AgentsSecrets(cluster, keys)
    agents = AgentConfigMaps(cluster, store, zipapp_bytes(), settings.namespaces, interval=settings.resync_seconds)
    direct = settings.reach == "direct" or (settings.reach == "auto" and connection.in_cluster)
    reach: Reach = DirectReach(settings.agent_port) if direct else ProxyReach(cluster, settings.agent_port)
    events = StreamEvents(
        progressed=lambda key, first: queue.add_after(key, 0.0 if first else settings.progress_seconds),
        stalled=evidence.record_stall,
        answered=stacks.record,
        printed=last_output.report,
        unauthorized=secrets.doubt,
        failed=lambda fault: metrics.stream_faults.labels(fault=fault).inc(),
    )
    streams = LeaderStreams(reach, store, keys, events)

    def ask_for_stacks(key: JobKey, job: Job, action: CollectStacks) -> None:
        stacks.collect(job, action, lambda: streams.collect(key, action.request))

    executor = Executor(
        cluster,
        store,
        keys,
        ChildWriter(cluster, store, secrets, agents),
        agents,
        EventRecorder(cluster, time.time),
        push=streams.push,
        ask_for_stacks=ask_for_stacks,
        logs=logs,
        evidence=evidence,
        last_output=last_output,
        written=recorder.written if recorder is not None else lambda job: None,
        progress_seconds=settings.progress_seconds,
    )
    watched = [*WATCHED, *([NETWORK_POLICIES] if settings.job_network_policies else [])]
    resync = Resync(cluster, store, watched, settings.namespaces, interval=settings.resync_seconds)

    def receive(event: WatchEvent) -> None:
        kind, resource, raw = event
        if kind == "DELETED":
            store.delete(resource, raw)
            if resource == STATEFUL_SETS:
                agents.set_is_gone()
            return
        store.upsert(resource, raw)
        if recorder is not None and resource == JOBS:
            recorder.watched(raw)

    def restarted() -> None:
        metrics.watch_restarts.inc()
        resync.soon()

    gangs = GangWatcher(connection, cluster, store, watched, settings.namespaces, receive=receive, relisted=resync.soon)
    watcher = Watcher(
        connection,
        cluster,
        settings.namespaces,
        tuple(watched),
        receive=receive,
        listed=resync.soon,
        restarted=restarted,
    )
    lookups = Lookups(cluster, store, LOOKUPS)
    peers = NetworkPeers(settings.lease_namespace, settings.operator_labels, settings.metrics_namespaces)
    rendering = RenderingSettings(
        agent=AgentConfigMap(agents.name),
        replace_after_seconds=settings.replace_after_seconds,
        keep_logs=settings.keep_logs,
        network_peers=peers if settings.job_network_policies else None,
        keys=keys,
    )
    reconciler = Reconciler(
        store,
        queue,
        executor,
        streams,
        lookups,
        metrics,
        decide,
        rendering,
        kept_by_job=(lookups, executor, logs, evidence, last_output, stacks),
        thread=thread,
        want=gangs.want,
    )
    return Parts(
        store=store,
        queue=queue,
        resync=resync,
        gangs=gangs,
        watcher=watcher,
        large_jobs=large_jobs,
        thread=thread,
        reach=reach,
        streams=streams,
        agents=agents,
        evidence=evidence,
        last_output=last_output,
        stacks=stacks,
        recorder=recorder,
        reconciler=reconciler,
    )


def _recorder(
    settings: OperatorSettings,
    cluster: Cluster,
    store: Store,
    thread: LargeJobThread,
    metrics: OperatorMetrics,
    leads: Callable[[], bool],
) -> HistoryRecorder | None:
    if settings.history_url is None:
        return None
    outbox = Outbox(metrics.count_records)
    sender = Sender(settings.history_url, settings.history_token_file, outbox, metrics.count_records, leads)
    return HistoryRecorder(
        outbox, sender, cluster, store, settings.namespaces, thread, seconds=settings.history_seconds
    )
