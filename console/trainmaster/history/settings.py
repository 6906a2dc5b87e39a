"""Declares the settings of `trainmaster history serve`, with their units, defaults and reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmaster_operator.api.kubernetes_syntax import quantity
from trainmaster_operator.api.options import InvalidSetting, LogFormat, LogLevel, option

# The minimum size of the file. It has room for a few jobs and for the blocks that are being thinned.
LEAST_BYTES = 16 * 1024 * 1024
SECONDS_OF_A_DAY = 86_400.0


def parse_bytes(text: str) -> int:
    """Parses a number of bytes in Kubernetes' syntax of quantities. Raises InvalidSetting."""
    try:
        found = int(quantity(text))
    except (ValueError, ArithmeticError) as error:
        raise InvalidSetting(f"{text!r} is no quantity of bytes; use 1Gi or 500M") from error
    if found < LEAST_BYTES:
        raise InvalidSetting(f"{text!r} is too little; use 16Mi or more")
    return found


@dataclass(frozen=True)
class HistorySettings:
    """HistorySettings are all settings of a history that a user can change."""

    # The variables aren't named TRAINMASTER_HISTORY_PORT and so on, because Kubernetes sets variables of such names in
    # pods if there is a Service named trainmaster-history.
    file: str = field(
        default="/var/lib/trainmaster/history.sqlite",
        metadata=option("Keep recorded jobs in this file.", variable="HISTORY_FILE"),
    )
    port: int = field(
        default=8090,
        metadata=option("Listen on this port; 0: a free one.", variable="HISTORY_LISTEN_PORT", least=0, most=65535),
    )
    address: str = field(
        default="0.0.0.0", metadata=option("Listen on this address.", variable="HISTORY_LISTEN_ADDRESS")
    )
    # Each request reads the token's file, so that the token can be replaced in its Secret.
    writer_token_file: str | None = field(
        default=None,
        metadata=option(
            "Record what comes with the token in this file (the operator's); else nothing.",
            variable="HISTORY_WRITER_TOKEN_FILE",
        ),
    )
    # This is enough for 1,000 jobs that train for weeks, or 10,000 that train for an hour (docs/history.md).
    max_bytes: int = field(
        default=1024**3,
        metadata=option(
            "Limit the file to this size; the oldest ended jobs lose data first.",
            variable="HISTORY_MAX_BYTES",
            parse=parse_bytes,
            default_text="1Gi",
        ),
    )
    keep_days: float = field(
        default=90.0,
        metadata=option(
            "Keep jobs this many days after their end or deletion.", variable="HISTORY_KEEP_DAYS", least=0.01
        ),
    )
    # Only the address and certificate authority are used, because the history has no rights of its own.
    kubeconfig: str | None = field(
        default=None,
        metadata=option("Ask this kubeconfig's API server; default: kubectl's, in pods the pod's."),
    )
    context: str | None = field(
        default=None, metadata=option("Use this context; default: the kubeconfig's current one.")
    )
    log_format: LogFormat = field(default="text", metadata=option("Log json for collectors or text for people."))
    log_level: LogLevel = field(default="INFO", metadata=option("Set the minimum log level."))
