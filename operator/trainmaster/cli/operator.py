"""`trainmaster operator run`: the operator in this process, in a cluster or on a laptop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainmaster.cli import keys
from trainmaster.cli.terminal import say

if TYPE_CHECKING:
    from trainmaster.controller.settings import OperatorSettings

app = typer.Typer(help="Run the operator.", no_args_is_help=True)


app.add_typer(keys.app, name="keys")


@app.callback()
def operator() -> None:
    """Run the operator."""


@app.command()
def run(
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", envvar="TRAINMASTER_NAMESPACES", help="Namespace to serve; repeatable."),
    ] = None,
    all_namespaces: Annotated[
        bool,
        typer.Option("--all-namespaces", "-A", envvar="TRAINMASTER_ALL_NAMESPACES", help="Serve all namespaces."),
    ] = False,
    kubeconfig: Annotated[
        str | None, typer.Option(envvar="TRAINMASTER_KUBECONFIG", help="Kubeconfig file; default: KUBECONFIG.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(envvar="TRAINMASTER_CONTEXT", help="Context of the kubeconfig; default: its current.")
    ] = None,
    workers: Annotated[
        int, typer.Option(envvar="TRAINMASTER_WORKERS", min=1, max=256, help="Jobs worked on at the same time.")
    ] = 8,
    reach: Annotated[
        Literal["auto", "direct", "proxy"],
        typer.Option(
            envvar="TRAINMASTER_REACH",
            help="How agents are reached: pod addresses, or the API server's pod proxy. auto: direct in a cluster.",
        ),
    ] = "auto",
    leader_elect: Annotated[
        bool,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            envvar="TRAINMASTER_LEADER_ELECT",
            help="Lead by a Lease, so that several replicas can run.",
        ),
    ] = True,
    lease_namespace: Annotated[
        str | None,
        typer.Option(
            envvar=["TRAINMASTER_LEASE_NAMESPACE", "POD_NAMESPACE"],
            help="Namespace of the Lease; default: the first --namespace, else trainmaster-system.",
        ),
    ] = None,
    metrics_port: Annotated[
        int,
        typer.Option(
            envvar="TRAINMASTER_METRICS_PORT", min=0, max=65535, help="Port of probes and metrics; 0 takes a free one."
        ),
    ] = 8080,
    metrics_host: Annotated[
        str, typer.Option(envvar="TRAINMASTER_METRICS_HOST", help="Address that probes and metrics listen on.")
    ] = "0.0.0.0",
    agent_image: Annotated[
        str | None,
        typer.Option(
            envvar="TRAINMASTER_AGENT_IMAGE", help="Image whose agent is copied into workers of other images."
        ),
    ] = None,
    agent_port: Annotated[
        int, typer.Option(hidden=True, min=1, max=65535, help="Port of the agents, for benchmarks with faked ones.")
    ] = 8472,
    replace_after: Annotated[
        float,
        typer.Option(
            envvar="TRAINMASTER_REPLACE_AFTER",
            min=0,
            help="Seconds that a worker may wait in the kubelet's crash back-off before its pod is replaced; 0: never.",
        ),
    ] = 5.0,
    keep_logs: Annotated[
        bool,
        typer.Option(
            "--keep-logs/--no-keep-logs",
            envvar="TRAINMASTER_KEEP_LOGS",
            help="Keep what workers printed in ConfigMaps, where the job's runPolicy.keepLogs allows it.",
        ),
    ] = True,
    job_network_policies: Annotated[
        bool,
        typer.Option(
            "--job-network-policies/--no-job-network-policies",
            envvar="TRAINMASTER_JOB_NETWORK_POLICIES",
            help="Give each job a NetworkPolicy: its pods are reached by each other, and on the agents' port by the "
            "operator (--operator-label) and by those who read metrics (--metrics-namespace).",
        ),
    ] = False,
    operator_label: Annotated[
        list[str] | None,
        typer.Option(
            envvar="TRAINMASTER_OPERATOR_LABELS",
            help="Label NAME=VALUE of the operator's own pods, in the namespace of its Lease; repeatable.",
        ),
    ] = None,
    metrics_namespace: Annotated[
        list[str] | None,
        typer.Option(
            envvar="TRAINMASTER_METRICS_NAMESPACES", help="Namespace whose pods may read agents' metrics; repeatable."
        ),
    ] = None,
    log_format: Annotated[
        Literal["json", "text"],
        typer.Option(envvar="TRAINMASTER_LOG_FORMAT", help="json for collectors, text for people."),
    ] = "text",
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        typer.Option(envvar="TRAINMASTER_LOG_LEVEL", case_sensitive=False, help="Least level that is logged."),
    ] = "INFO",
) -> None:
    """Run the operator until it gets SIGTERM or SIGINT.

    It finds the API server by the pod's service account, or by a kubeconfig. Ends with 1 when it can't go on, also when
    it loses its lease (its Deployment starts it again).
    """
    from trainmaster.controller.settings import OperatorSettings

    namespaces = _names(namespace)
    if all_namespaces and namespaces:
        raise typer.BadParameter("give either --namespace or --all-namespaces, not both")
    if not all_namespaces and not namespaces:
        raise typer.BadParameter("say which jobs to serve: --namespace NAME (repeatable) or --all-namespaces")
    defaults = OperatorSettings()
    settings = OperatorSettings(
        namespaces=namespaces,
        kubeconfig=kubeconfig,
        context=context,
        workers=workers,
        reach=reach,
        leader_elect=leader_elect,
        lease_namespace=lease_namespace or next(iter(namespaces), defaults.lease_namespace),
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        agent_image=agent_image or defaults.agent_image,
        agent_port=agent_port,
        replace_after_seconds=replace_after or None,
        keep_logs=keep_logs,
        job_network_policies=job_network_policies,
        operator_labels=tuple(map(_label, _names(operator_label))),
        metrics_namespaces=_names(metrics_namespace),
        log_format=log_format,
        log_level=log_level,
    )
    raise typer.Exit(_run(settings))


def _names(entries: list[str] | None) -> tuple[str, ...]:
    """What an option was given several times, or once with commas or spaces between, as in a variable."""
    return tuple(name for entry in entries or () for name in entry.replace(",", " ").split())


def _label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise typer.BadParameter(f"--operator-label: {text!r} has to be NAME=VALUE")
    return name, value


def _run(settings: OperatorSettings) -> int:
    import asyncio
    import gc
    import signal

    from trainmaster.controller.apiserver.connection import ConnectionSettingsError
    from trainmaster.controller.app import Operator, OperatorError
    from trainmaster.controller.observability.log_formats import set_up
    from trainmaster.reconciling import decide

    set_up(settings.log_format, settings.log_level)
    # What has been imported stays: the garbage collector needn't walk over it (60 ms, in which nothing else runs) each
    # time that a large job is taken apart into hundreds of thousands of objects.
    gc.freeze()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await Operator(settings, decide).run(stop)

    try:
        asyncio.run(main())
    except (OperatorError, ConnectionSettingsError) as error:
        say(f"trainmaster operator: {error}", error=True)
        return 1
    return 0
