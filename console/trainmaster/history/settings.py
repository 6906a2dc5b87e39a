"""The settings of `trainmaster history serve`, each declared once: its name, unit, default and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmaster_operator.api.kubernetes_syntax import quantity
from trainmaster_operator.api.options import InvalidSetting, LogFormat, LogLevel, option

# Below it there is no room for what a few jobs need and for the blocks that are being made smaller.
LEAST_BYTES = 16 * 1024 * 1024
SECONDS_OF_A_DAY = 86_400.0


def parse_bytes(text: str) -> int:
    """Returns a number of bytes, given as Kubernetes' quantity. Raises InvalidSetting."""
    try:
        found = int(quantity(text))
    except (ValueError, ArithmeticError) as error:
        raise InvalidSetting(f"{text!r} is no quantity of bytes; use 1Gi or 500M") from error
    if found < LEAST_BYTES:
        raise InvalidSetting(f"{text!r} is too little; use 16Mi or more")
    return found


@dataclass(frozen=True)
class HistorySettings:
    """Holds everything that a person may want to change of a history."""

    # The variables aren't TRAINMASTER_HISTORY_PORT and the like: in pods beside a Service named trainmaster-history
    # Kubernetes itself sets those, to something else.
    file: str = field(
        default="/var/lib/trainmaster/history.sqlite",
        metadata=option("File of the recorded jobs, which is created.", variable="HISTORY_FILE"),
    )
    port: int = field(
        default=8090,
        metadata=option("Port to listen on; 0 takes a free one.", variable="HISTORY_LISTEN_PORT", least=0, most=65535),
    )
    address: str = field(default="0.0.0.0", metadata=option("Address to listen on.", variable="HISTORY_LISTEN_ADDRESS"))
    # Read anew at each request, so that the token can be replaced in its Secret.
    writer_token_file: str | None = field(
        default=None,
        metadata=option(
            "File with the token that the operator sends (its --history-token-file); without it nothing is recorded.",
            variable="HISTORY_WRITER_TOKEN_FILE",
        ),
    )
    # 1,000 jobs that train for weeks, or 10,000 that train for an hour (docs/history.md has the figures).
    max_bytes: int = field(
        default=1024**3,
        metadata=option(
            "Bytes that the file may have, as a quantity: beyond it the oldest ended jobs lose their curves, then "
            "logs and evidence, then all.",
            variable="HISTORY_MAX_BYTES",
            parse=parse_bytes,
            default_text="1Gi",
        ),
    )
    keep_days: float = field(
        default=90.0,
        metadata=option(
            "Days for which a job is kept after its end or deletion.", variable="HISTORY_KEEP_DAYS", least=0.01
        ),
    )
    # Asked only for the address and its certificate authority: the history has no rights of its own.
    kubeconfig: str | None = field(
        default=None,
        metadata=option(
            "Kubeconfig with the API server that is asked what a viewer may see; default: KUBECONFIG, else "
            "~/.kube/config, else the pod's."
        ),
    )
    context: str | None = field(default=None, metadata=option("Context of the kubeconfig; default: its current."))
    log_format: LogFormat = field(default="text", metadata=option("json for collectors, text for people."))
    log_level: LogLevel = field(default="INFO", metadata=option("Minimum log level."))
