"""Constructs the parts of a leading operator, each after its dependencies.

If two parts would depend on each other, they share an object instead:

- the queue: the store fills it, and the reconciler empties it;
- the list of watched types: `GangWatcher` adds types, and `Resync` reads them;
- `AgentsSecrets`: streams report missing Secrets, and `ChildWriter` creates them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.controller.apiserver.cluster import JOBS, NETWORK_POLICIES, STATEFUL_SETS, Cluster
from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.cache.large_jobs import LargeJobs, LargeJobThread
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.keeping.config_maps import JobConfigMaps
from trainmaster_operator.controller.keeping.ending_pods import LastOutput
from trainmaster_operator.controller.keeping.evidence import EvidenceKeeper
from trainmaster_operator.controller.keeping.logs import KeptLogs, PodLogs
from trainmaster_operator.controller.keeping.stacks import StacksKeeper
from trainmaster_operator.controller.keys import AgentsSecrets
from trainmaster_operator.controller.leaders.streams import LeaderStreams, StreamEvents
from trainmaster_operator.controller.leaders.targets import Reach
from trainmaster_operator.controller.lookups import Lookups
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
from trainmaster_operator.rendering import AgentConfigMap, NetworkPeers
from trainmaster_operator.rendering import Settings as RenderingSettings


class Parts:
    """Holds the parts that `app` runs and reads. `leads` returns whether this operator still leads."""

    def __init__(
        self,
        settings: OperatorSettings,
        decide: Decide,
        connection: ApiConnection,
        cluster: Cluster,
        keys: SigningKeys,
        metrics: OperatorMetrics,
        leads: Callable[[], bool],
    ) -> None:
        namespaces, sweep_seconds = settings.namespaces, settings.resync_seconds
        queue = self.queue = WorkQueue[JobKey]()
        thread = LargeJobThread()
        self.large_jobs = LargeJobs(cluster, thread)
        store = self.store = Store(
            queue.add, keys, read_large=self.large_jobs.add, count_unreadable=metrics.count_unreadable
        )
        recorder = None
        if settings.history_url is not None:
            outbox = Outbox(metrics.count_records)
            sender = Sender(settings.history_url, settings.history_token_file, outbox, metrics.count_records, leads)
            recorder = HistoryRecorder(
                outbox, sender, cluster, store, namespaces, thread, seconds=settings.history_seconds
            )
        self.recorder = recorder
        config_maps, pod_logs = JobConfigMaps(cluster, settings.keep_logs), PodLogs(cluster)
        kept_logs, kept_evidence = (recorder.kept_logs, recorder.kept_evidence) if recorder else (None, None)
        logs = KeptLogs(config_maps, pod_logs, limit=settings.kept_log_bytes, on_kept=kept_logs)
        evidence = EvidenceKeeper(config_maps, store, pod_logs, on_kept=kept_evidence)
        last_output = LastOutput(store, pod_logs, logs, evidence)
        stacks = StacksKeeper(config_maps, ask=lambda key, request: streams.collect(key, request))
        secrets = AgentsSecrets(cluster, keys)
        agents = self.agents = AgentConfigMaps(cluster, store, zipapp_bytes(), namespaces, interval=sweep_seconds)
        direct = settings.reach == "direct" or (settings.reach == "auto" and connection.in_cluster)
        events = StreamEvents(
            progressed=lambda key, first: queue.add_after(key, 0.0 if first else settings.progress_seconds),
            stalled=evidence.record_stall,
            answered=stacks.record,
            printed=last_output.report,
            unauthorized=secrets.doubt,
            failed=lambda fault: metrics.stream_faults.labels(fault=fault).inc(),
        )
        reach = Reach(settings.agent_port, proxy=None if direct else cluster)
        streams = self.streams = LeaderStreams(reach, store, keys, events)
        executor = Executor(
            cluster,
            store,
            keys,
            ChildWriter(cluster, store, secrets, agents),
            agents,
            EventRecorder(cluster, time.time),
            push=streams.push,
            ask_for_stacks=stacks.collect,
            logs=logs,
            evidence=evidence,
            last_output=last_output,
            written=recorder.written if recorder is not None else lambda job: None,
            progress_seconds=settings.progress_seconds,
        )
        watched = [*WATCHED, *([NETWORK_POLICIES] if settings.job_network_policies else [])]
        resync = self.resync = Resync(cluster, store, watched, namespaces, interval=sweep_seconds)
        sweep_soon = resync.asked.set

        def receive(event: WatchEvent) -> None:
            kind, resource, raw = event
            if kind == "DELETED":
                store.delete(resource, raw)
                if resource == STATEFUL_SETS:
                    agents.set_is_gone.set()
                return
            store.upsert(resource, raw)
            if recorder is not None and resource == JOBS:
                recorder.watched(raw)

        def restarted() -> None:
            metrics.watch_restarts.inc()
            sweep_soon()

        self.gangs = GangWatcher(connection, cluster, store, watched, namespaces, receive=receive, relisted=sweep_soon)
        self.watcher = Watcher(
            connection, cluster, namespaces, tuple(watched), receive=receive, listed=sweep_soon, restarted=restarted
        )
        lookups = Lookups(cluster, store, config_maps.allow_output)
        peers = NetworkPeers(settings.lease_namespace, settings.operator_labels, settings.metrics_namespaces)
        rendering = RenderingSettings(
            agent=AgentConfigMap(agents.name),
            replace_after_seconds=settings.replace_after_seconds,
            keep_logs=settings.keep_logs,
            network_peers=peers if settings.job_network_policies else None,
            keys=keys,
        )
        forget = (lookups.forget, executor.forget, logs.forget, evidence.forget, last_output.forget, stacks.forget)
        self.reconciler = Reconciler(
            store,
            queue,
            executor,
            streams,
            lookups,
            metrics,
            decide,
            rendering,
            forget=forget,
            thread=thread,
            want=self.gangs.want,
        )
        self._closing = [last_output.close, evidence.close, stacks.close, streams.close, self.gangs.close]
        if recorder is not None:
            # Closing the recorder still sends waiting records, for a limited time.
            self._closing.append(recorder.close)
        self._closing.append(thread.close)

    async def close(self) -> None:
        for close in self._closing:
            await close()
