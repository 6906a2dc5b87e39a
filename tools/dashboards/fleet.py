"""The fleet's dashboard shows all jobs: which run, wait and fail, and where their time goes."""

from __future__ import annotations

from typing import Any

from tools.dashboards.grafana import (
    GOOD,
    JOB_LINK,
    NONE_IS_GOOD,
    RATE,
    RATIO_STEPS,
    bars,
    dashboard,
    lines,
    number,
    query,
    table,
    variable,
)


def fleet() -> dict[str, Any]:
    """Returns the dashboard."""
    jobs = '{namespace=~"$namespace"}'
    waiting = '{namespace=~"$namespace", phase=~"Pending|Starting|Restarting"}'
    by_job = "max by (namespace, job_name)"

    def phase(name: str) -> str:
        return f'count(trainmaster_job_phase{{namespace=~"$namespace", phase=~"{name}"}}) or vector(0)'

    labels = "alertname, severity, namespace, job_name, rank, node"
    firing = f'max by ({labels}) (ALERTS{{alertname=~"Trainmaster.+", alertstate="firing"}})'

    def time(which: str) -> str:
        return f'sum(increase(trainmaster_job_time_seconds_total{{namespace=~"$namespace", {which}}}[$__range]))'

    return dashboard(
        "fleet",
        "Fleet",
        [variable("namespace", "Namespace", "label_values(trainmaster_job_phase, namespace)", several=True)],
        [
            number("Running", "Jobs with all ranks up.", phase("Running"), steps=((GOOD, None),)),
            number("Waiting", "Jobs that wait for nodes, images or ranks.", phase("Pending|Starting|Restarting")),
            number("Suspended", "Jobs that are suspended, or wait in a queue.", phase("Suspending|Suspended")),
            number("Failed", "Jobs that have failed within the last day.", phase("Failed"), steps=NONE_IS_GOOD),
            number(
                "Goodput",
                "Share of all jobs' time that went into new steps, over the range shown.",
                time('category="productive"') + " / " + time('category!~"suspended|unobserved|unreported"'),
                unit="percentunit",
                steps=RATIO_STEPS,
            ),
            number(
                "Workers up",
                "Workers whose ranks are up, of all jobs.",
                f"sum(max by (namespace, job_name) (trainmaster_job_workers_running{jobs}))",
            ),
            lines(
                "Jobs by phase",
                "Finished jobs are counted for a day after their end.",
                [query(f"count by (phase) (trainmaster_job_phase{jobs})", "{{phase}}")],
                size=(12, 8),
                stacked=True,
            ),
            lines(
                "Where the time of all jobs goes",
                "Seconds a second, so 1 is one job: everything but productive is lost (docs/jobs.md, Goodput).",
                [
                    query(
                        f"sum by (category) (rate(trainmaster_job_time_seconds_total{jobs}[{RATE}]))",
                        "{{category}}",
                    )
                ],
                size=(12, 8),
                stacked=True,
            ),
            table(
                "Jobs",
                "A click on a name opens the job.",
                [
                    ("", "none", f"max by (namespace, job_name, phase, reason) (trainmaster_job_phase{jobs})"),
                    ("In phase for", "s", f"time() - {by_job} (trainmaster_job_phase_start_time_seconds{jobs})"),
                    (
                        "Done",
                        "percentunit",
                        f"{by_job} (trainmaster_job_step{jobs}) / {by_job} (trainmaster_job_total_steps{jobs})",
                    ),
                    ("Goodput", "percentunit", f"{by_job} (trainmaster_job_goodput_ratio{jobs})"),
                    ("Restarts", "none", f"sum by (namespace, job_name) (trainmaster_job_restarts_total{jobs})"),
                    ("Samples a second", "short", f"{by_job} (trainmaster_job_samples_per_second{jobs})"),
                    ("Workers", "none", f"{by_job} (trainmaster_job_workers_desired{jobs})"),
                    ("Workers up", "none", f"{by_job} (trainmaster_job_workers_running{jobs})"),
                ],
                link=JOB_LINK,
                size=(24, 10),
            ),
            table(
                "Alerts",
                "Alerts of this chart that fire now.",
                [
                    (
                        "",
                        "none",
                        firing,
                    )
                ],
                link=JOB_LINK,
                size=(12, 8),
            ),
            bars(
                "Waiting longest",
                "Jobs that wait for nodes, images or ranks; kubectl dtj why JOB says what for.",
                f"topk(10, time() - {by_job} (trainmaster_job_phase_start_time_seconds{jobs} "
                f"and on (namespace, job_name) trainmaster_job_phase{waiting}))",
                "{{namespace}}/{{job_name}}",
                size=(12, 8),
                unit="s",
            ),
            lines(
                "Restarts",
                "New attempts by what ended the one before.",
                [
                    query(
                        f"sum by (cause) (increase(trainmaster_job_restarts_total{jobs}[{RATE}]))",
                        "{{cause}}",
                    )
                ],
                stacked=True,
            ),
            bars(
                "Newest failures by reason",
                "Of each job the newest failure, where it was within the range shown.",
                f"count by (reason) (time() - trainmaster_job_last_failure_timestamp_seconds{jobs} < $__range_s)",
                "{{reason}}",
            ),
            bars(
                "Newest failures by node",
                "A node that is high for several jobs is worth a look.",
                "count by (node) (time() - trainmaster_job_last_failure_timestamp_seconds"
                '{namespace=~"$namespace", node!=""} < $__range_s)',
                "{{node}}",
            ),
        ],
    )
