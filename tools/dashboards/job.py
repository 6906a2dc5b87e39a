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
    # A thousand curves would show nothing, so only the heat maps show every rank.
    by_rank = "max by (rank)"

    def spread(metric: str, *legends: str) -> list[dict[str, Any]]:
        """Returns queries of the maximum, median and minimum over the ranks or workers."""
        forms = ("max({})", "quantile(0.5, {})", "min({})")
        return [query(form.format(f"{metric}{job}"), legend) for form, legend in zip(forms, legends, strict=True)]

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
                "As the ranks' scripts report it.",
                spread("trainmaster_loss", "highest rank", "median", "lowest rank"),
                size=(12, 8),
            ),
            lines(
                "Step",
                "A drop is a restart from a checkpoint.",
                spread("trainmaster_step", "furthest rank", "median", "rank that is behind"),
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
                "A rank's own work alone. What is hot above and not here waits for data.",
                f"{by_rank} (trainmaster_compute_seconds{job})",
                "s",
            ),
            heat_map(
                "Norm of the gradients, by rank",
                "A row that is blank, or ends while the others go on, is a rank that trains without gradients.",
                f"{by_rank} (trainmaster_gradient_norm{job})",
                "short",
            ),
            lines(
                "Norm of the gradients",
                "A peak is a batch that would spoil the parameters, were it not clipped.",
                spread("trainmaster_gradient_norm", "highest rank", "median", "lowest rank"),
            ),
            lines(
                "Time for a step",
                "Of the ranks' own work, where they report it.",
                spread("trainmaster_step_seconds", "slowest rank", "median", "fastest rank"),
                unit="s",
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
                "Learning rate", "Of rank 0.", [query(f'max(trainmaster_learning_rate{{{one}, rank="0"}})', "rank 0")]
            ),
            lines(
                "Where the time goes",
                "Share of each second: everything but productive is lost (docs/jobs.md, Goodput).",
                [
                    query(
                        f"sum by (category) (rate(trainmaster_job_time_seconds_total{job}[{RATE}]))",
                        "{{category}}",
                    )
                ],
                stacked=True,
                unit="percentunit",
            ),
            lines(
                "Workers by state",
                "Of each worker the state of its ranks.",
                [query(f"count by (state) (trainmaster_worker_state{job} == 1)", "{{state}}")],
                size=(12, 8),
                stacked=True,
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
                "GPU utilization",
                "Share of the time in which a kernel ran.",
                spread("trainmaster_gpu_utilization", "busiest GPU", "median", "idlest GPU"),
                size=(12, 7),
                unit="percentunit",
            ),
            lines(
                "Memory in use",
                "Share of its limit, of the fullest worker and GPU.",
                [
                    query(f"max(trainmaster_memory_bytes{job} / trainmaster_memory_limit_bytes{job})", "worker"),
                    query(f"max(trainmaster_gpu_memory_bytes{job} / trainmaster_gpu_memory_limit_bytes{job})", "GPU"),
                ],
                size=(12, 7),
                unit="percentunit",
            ),
            lines(
                "Processor",
                "Cores that a worker keeps busy.",
                spread("trainmaster_cpu_cores", "busiest worker", "median", "idlest worker"),
                size=(12, 7),
            ),
            lines(
                "Network",
                "Of all workers together.",
                [
                    query(f"sum(trainmaster_network_receive_bytes_per_second{job})", "received"),
                    query(f"sum(trainmaster_network_transmit_bytes_per_second{job})", "sent"),
                ],
                size=(12, 7),
                unit="Bps",
            ),
            lines(
                "Warm processes",
                "Memory of each worker's warm process that no rank shares with it (docs/pods.md, warmStart).",
                spread("trainmaster_warm_process_private_bytes", "largest", "median", "smallest"),
                size=(12, 7),
                unit="bytes",
            ),
            lines(
                "Attempt",
                "The newest attempt that the workers took part in.",
                spread("trainmaster_attempt", "newest", "median", "worker that is behind"),
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
