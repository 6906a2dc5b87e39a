"""The operator's dashboard shows the operator's delays, errors and use of resources."""

from __future__ import annotations

from typing import Any

from tools.dashboards.grafana import (
    BAD,
    GOOD,
    NONE_IS_GOOD,
    RATE,
    dashboard,
    instant,
    lines,
    number,
    panel,
    query,
    table,
    variable,
)


def operator() -> dict[str, Any]:
    """Returns the dashboard."""
    here = '{namespace="$namespace"}'

    def quantiles(metric: str) -> list[dict[str, Any]]:
        buckets = f"sum by (le) (rate({metric}_bucket{here}[{RATE}]))"
        return [query(f"histogram_quantile({at}, {buckets})", f"{at:.0%}") for at in (0.5, 0.99)]

    def rates(metric: str, label: str) -> list[dict[str, Any]]:
        return [query(f"sum by ({label}) (rate({metric}{here}[{RATE}]))", f"{{{{{label}}}}}")]

    def by_pod(metric: str) -> list[dict[str, Any]]:
        return [query(f"sum by (pod) ({metric})", "{{pod}}")]

    return dashboard(
        "operator",
        "Operator",
        [variable("namespace", "Operator's namespace", "label_values(trainmaster_build_info, namespace)")],
        [
            number(
                "Leaders",
                "One replica leads; without one no job is started, restarted or ended.",
                f"sum(trainmaster_leader{here})",
                steps=((BAD, None), (GOOD, 1), (BAD, 2)),
            ),
            number("Replicas", "Operators that answer Prometheus.", f"count(trainmaster_build_info{here})"),
            number("Jobs", "All jobs that it knows, finished ones too.", f"sum(trainmaster_jobs{here})"),
            number("Waiting for a pass", "Jobs in its queue.", f"sum(trainmaster_queue_depth{here})"),
            number("Streams", "Open streams of jobs' leaders.", f"sum(trainmaster_streams_open{here})"),
            number(
                "Mistakes",
                "Passes within the range shown that ended in a mistake of the operator's own.",
                'sum(increase(trainmaster_reconciles_total{namespace="$namespace", result="bug"}[$__range]))',
                steps=NONE_IS_GOOD,
            ),
            lines(
                "Wait for a pass",
                "How long jobs wait for their turn.",
                quantiles("trainmaster_queue_wait_seconds"),
                unit="s",
            ),
            lines(
                "Duration of a pass", "Writes included.", quantiles("trainmaster_reconcile_duration_seconds"), unit="s"
            ),
            lines(
                "Recovery",
                "From the end of an attempt until the next one runs.",
                quantiles("trainmaster_recovery_seconds"),
                unit="s",
            ),
            lines(
                "Passes a second",
                "ok and conflict are the daily work.",
                rates("trainmaster_reconciles_total", "result"),
                unit="reqps",
                stacked=True,
            ),
            lines(
                "Writes a second",
                "To the API server, by kind.",
                rates("trainmaster_api_writes_total", "kind"),
                unit="reqps",
                stacked=True,
            ),
            lines(
                "Jobs by phase",
                "For as long as they exist.",
                [query(f"sum by (phase) (trainmaster_jobs{here})", "{{phase}}")],
                stacked=True,
            ),
            panel(
                "bargauge",
                "What went wrong",
                "Within the range shown: streams that were ended, watches that began anew, objects that can't be read.",
                [
                    instant(
                        f"sum by (fault) (increase(trainmaster_stream_faults_total{here}[$__range]))",
                        "stream: {{fault}}",
                    ),
                    instant(f"sum(increase(trainmaster_watch_restarts_total{here}[$__range]))", "watch"),
                    instant(
                        f"sum by (kind) (increase(trainmaster_unreadable_objects_total{here}[$__range]))", "{{kind}}"
                    ),
                ],
                options={"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal"},
                steps=NONE_IS_GOOD,
                min=0,
                decimals=0,
            ),
            lines("Ends of jobs a second", "By how they ended.", rates("trainmaster_jobs_finished_total", "phase")),
            lines("New attempts a second", "By cause.", rates("trainmaster_restarts_total", "cause")),
            lines("Memory", "Of each replica.", by_pod(f"process_resident_memory_bytes{here}"), unit="bytes"),
            lines("CPU", "Cores of each replica.", by_pod(f"rate(process_cpu_seconds_total{here}[{RATE}])")),
            lines("File descriptors", "A stream to a leader is one.", by_pod(f"process_open_fds{here}")),
            table(
                "Versions",
                "What runs.",
                [("", "none", f"max by (pod, version) (trainmaster_build_info{here})")],
                size=(24, 5),
            ),
        ],
    )
