"""A job's dashboard shows its ranks: curves, heat maps of their time for a step, failures, and where the time goes."""

from __future__ import annotations

from typing import Any

from tools.dashboards.grafana import (
    BAD,
    GOOD,
    NONE_IS_GOOD,
    RATE,
    RATIO_STEPS,
    WARN,
    annotation,
    bars,
    dashboard,
    heat_map,
    lines,
    number,
    query,
    states,
    table,
    variable,
)


def job() -> dict[str, Any]:
    """Returns the dashboard."""
    one = 'namespace="$namespace", job_name="$job"'
    job = f"{{{one}}}"
    # The agents' pods and their nodes don't matter to a curve of a rank.
    by_rank = "max by (rank)"
    spread = (
        ("slowest", "max({0})"),
        ("median", "quantile(0.5, {0})"),
        ("fastest", "min({0})"),
    )

    def of_ranks(metric: str) -> list[dict[str, Any]]:
        return [query(form.format(f"{metric}{job}"), legend) for legend, form in spread]

    return dashboard(
        "job",
        "Job",
        [
            variable("namespace", "Namespace", "label_values(trainmaster_job_phase, namespace)"),
            variable("job", "Job", 'label_values(trainmaster_job_phase{namespace="$namespace"}, job_name)'),
        ],
        [
            number(
                "Phase",
                "Where the job is in its life, and why.",
                f"max by (phase, reason) (trainmaster_job_phase{job})",
                legend="{{phase}}: {{reason}}",
            ),
            number(
                "Done",
                "Steps done, of all steps.",
                f"max(trainmaster_job_step{job}) / max(trainmaster_job_total_steps{job})",
                unit="percentunit",
            ),
            number(
                "Ends in",
                "At the speed of the last 15 minutes.",
                f"(max(trainmaster_job_total_steps{job}) - max(trainmaster_job_step{job})) "
                f"/ max(deriv(trainmaster_job_step{job}[15m]) > 0)",
                unit="s",
            ),
            number(
                "Goodput",
                "Share of the time since the start that went into new steps.",
                f"max(trainmaster_job_goodput_ratio{job})",
                unit="percentunit",
                steps=RATIO_STEPS,
            ),
            number(
                "Restarts",
                "Failures that count, and disruptions (pods deleted, nodes lost).",
                f"sum(trainmaster_job_restarts_total{job})",
                steps=NONE_IS_GOOD,
            ),
            number(
                "Workers up",
                "Workers whose ranks are up, of the full group's.",
                f"max(trainmaster_job_workers_running{job}) / max(trainmaster_job_workers_desired{job})",
                unit="percentunit",
                steps=((BAD, None), (GOOD, 1)),
            ),
            states(
                "Phases",
                "Each restart is a gap in Running.",
                f"max by (phase) (trainmaster_job_phase{job})",
                "{{phase}}",
                size=(24, 6),
            ),
            lines(
                "Loss",
                "Of each rank, as its script reports it.",
                [query(f"{by_rank} (trainmaster_loss{job})", "rank {{rank}}")],
                size=(12, 8),
            ),
            lines(
                "Step",
                "A drop is a restart from a checkpoint.",
                [
                    query(f"max(trainmaster_step{job})", "furthest rank"),
                    query(f"min(trainmaster_step{job})", "rank that is behind"),
                    query(f"max(trainmaster_total_steps{job})", "in all"),
                ],
                size=(12, 8),
            ),
            heat_map(
                "Time for a step, by rank",
                "A row that is hotter than the others is a rank that all wait for: kubectl dtj stacks JOB --rank N.",
                f"{by_rank} (trainmaster_step_seconds{job})",
                "s",
            ),
            heat_map(
                "Forward and backward of a step, by rank",
                "A rank's own work alone. What is hot above and not here waits for data, or for a collective.",
                f"{by_rank} (trainmaster_compute_seconds{job})",
                "s",
            ),
            lines(
                "Time for a step", "Slowest, median and fastest rank.", of_ranks("trainmaster_step_seconds"), unit="s"
            ),
            bars(
                "Slowest ranks",
                "Their time for a step over five minutes, as a multiple of the ranks' median.",
                f"topk(10, max by (rank, worker, node) (avg_over_time(trainmaster_step_seconds{job}[5m])) "
                f"/ on () group_left () quantile(0.5, avg_over_time(trainmaster_step_seconds{job}[5m])))",
                "rank {{rank}} on {{node}}",
                steps=((GOOD, None), (WARN, 1.3), (BAD, 2)),
            ),
            lines(
                "Samples a second",
                "Of all ranks together.",
                [query(f"max(trainmaster_job_samples_per_second{job})", "samples a second")],
            ),
            lines(
                "Norm of the gradients",
                "A rank at 0, or one that vanishes while the others go on, trains without gradients.",
                [query(f"{by_rank} (trainmaster_gradient_norm{job})", "rank {{rank}}")],
            ),
            lines(
                "Learning rate", "Of rank 0.", [query(f'max(trainmaster_learning_rate{{{one}, rank="0"}})', "rank 0")]
            ),
            lines(
                "Where the time goes",
                "Share of each second: everything but productive is lost (docs/operating.md, Goodput).",
                [
                    query(
                        f"sum by (category) (rate(trainmaster_job_time_seconds_total{job}[{RATE}]))",
                        "{{category}}",
                    )
                ],
                stacked=True,
                unit="percentunit",
            ),
            states(
                "Workers",
                "The state of each worker's ranks.",
                f"max by (worker, state) (trainmaster_worker_state{job} == 1)",
                "{{worker}}: {{state}}",
                size=(12, 8),
            ),
            table(
                "Newest failure",
                "kubectl dtj status JOB has the others, kubectl dtj evidence JOB all that is known of them.",
                [
                    (
                        "At",
                        "dateTimeAsIso",
                        "1000 * max by (reason, worker, rank, node) "
                        f"(trainmaster_job_last_failure_timestamp_seconds{job})",
                    )
                ],
                size=(12, 8),
            ),
            lines(
                "Warm processes",
                "Memory of each worker's warm process that no rank shares with it (docs/pods.md, warmStart).",
                [query(f"max by (worker) (trainmaster_warm_process_private_bytes{job})", "worker {{worker}}")],
                size=(12, 7),
                unit="bytes",
            ),
            lines(
                "Attempt",
                "The newest attempt that each worker took part in.",
                [query(f"max by (worker) (trainmaster_attempt{job})", "worker {{worker}}")],
                size=(12, 7),
            ),
        ],
        [
            annotation(
                "Restarts",
                WARN,
                f"sum by (cause) (changes(trainmaster_job_restarts_total{job}[1m])) > 0",
                "restart: {{cause}}",
            ),
            annotation(
                "Alerts",
                BAD,
                f'ALERTS{{alertname=~"Trainmaster.+", alertstate="firing", {one}}}',
                "{{alertname}}",
            ),
        ],
    )
