"""The spec is made of these kinds of value, each as strict in Python as the CRD is in the API server.

Where pydantic and OpenAPI differ by nature (quantities are int-or-string), the type brings its own OpenAPI schema.
Every pattern is anchored and has a hint, because a regular expression is no remedy.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, StrictInt, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from trainmaster.wire.limits import MAX_PROCESSES, MAX_WORKERS

# Kubernetes' quantity syntax (apimachinery pkg/api/resource/quantity.go), without signs: no resource may be negative.
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][0-9]+)?$"
DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
# A Service's name begins with a letter on every Kubernetes before 1.36 (RelaxedServiceNameValidation).
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
EXTENDED_RESOURCE_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
IMAGE_PATTERN = r"^\S+$"
LABEL_KEY_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
INTERFACE_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9_.,:@]*$"
BACKEND_PATTERN = r"^[a-z][a-z0-9_:,]*$"
# A colon separates mount paths in the container runtimes, so Kubernetes refuses it.
ABSOLUTE_PATH_PATTERN = r"^/[^:]+$"

HINTS = {
    DNS_LABEL_PATTERN: "use lower case letters, digits and '-', beginning and ending with a letter or digit",
    SUBDOMAIN_PATTERN: "use lower case letters, digits, '-' and '.', beginning and ending with a letter or digit",
    EXTENDED_RESOURCE_PATTERN: "use the device plugin's domain and name, such as nvidia.com/gpu",
    IMAGE_PATTERN: "use an image reference without spaces",
    LABEL_KEY_PATTERN: "use a label's key, such as topology.kubernetes.io/rack",
    INTERFACE_PATTERN: "use the name of a network interface, such as eth0",
    BACKEND_PATTERN: "use auto or the name of a backend of torch.distributed, such as nccl or gloo",
    ABSOLUTE_PATH_PATTERN: "use an absolute path without ':'",
}

# Quantities beyond 32 characters are refused, so that the cost of rules over them is bounded.
MAX_QUANTITY_LENGTH = 32
MAX_GROUPS = 8
# One process uses at least one device, where it uses any.
MAX_DEVICES = MAX_PROCESSES
MAX_RESTARTS = 1_000_000
# A year: longer limits are a mistake of the unit.
MAX_SECONDS = 31_536_000

_QUANTITY = re.compile(QUANTITY_PATTERN.removesuffix("$") + r"\Z")


def _quantity(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    if isinstance(value, str) and len(value) <= MAX_QUANTITY_LENGTH and _QUANTITY.match(value):
        return value
    if isinstance(value, float):
        remedy = f"write it in quotes, '{value:g}', or in thousandths, {round(value * 1000)}m"
    elif str(value).startswith("-"):
        remedy = "use 0 or more"
    else:
        remedy = "use a number with an optional suffix, such as 16, 500m or 128Gi"
    raise PydanticCustomError(
        "quantity", "{shown} is not a quantity; {remedy}", {"shown": show(value), "remedy": remedy}
    )


def _processes(value: Any) -> int | str:
    if value == "auto":
        return "auto"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_PROCESSES:
        return value
    raise PydanticCustomError(
        "processes",
        "{shown} is neither auto nor a whole number of ranks; use auto or 1 to {most}",
        {"shown": show(value), "most": MAX_PROCESSES},
    )


def show(value: Any) -> str:
    """Returns a value as a sentence shows it: short, and on one line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, dict):
        text = "a mapping"
    elif isinstance(value, list | tuple):
        text = "a list"
    elif value is None:
        text = "null"
    elif isinstance(value, int) and abs(value) >= 10**40:
        # Python refuses to write out what has more than 4,300 digits.
        text = "a number of more than 40 digits"
    elif isinstance(value, float):
        text = number(value)
    else:
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def number(value: float) -> str:
    """Returns a number as people write it: 31536000 and not 3.1536e+07, 0.0001 and not 1e-04."""
    if value == 0 or not 1e-6 <= abs(value) < 1e21:
        return repr(value).replace("e+", "e").replace("e-0", "e-").removesuffix(".0")
    text = f"{Decimal(repr(value)):f}"
    return text.rstrip("0").removesuffix(".") if "." in text else text


_QUANTITY_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "minimum": 0,
    "pattern": QUANTITY_PATTERN,
    "maxLength": MAX_QUANTITY_LENGTH,
}
_PROCESSES_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "minimum": 1,
    "maximum": MAX_PROCESSES,
    "pattern": "^auto$",
    "maxLength": 4,
}

Quantity = Annotated[int | str, PlainValidator(_quantity), WithJsonSchema(_QUANTITY_SCHEMA)]
ProcessesPerWorker = Annotated[int | Literal["auto"], PlainValidator(_processes), WithJsonSchema(_PROCESSES_SCHEMA)]
DNSLabel = Annotated[str, StringConstraints(pattern=DNS_LABEL_PATTERN, max_length=63)]
Subdomain = Annotated[str, StringConstraints(pattern=SUBDOMAIN_PATTERN, max_length=253)]
ExtendedResource = Annotated[str, StringConstraints(pattern=EXTENDED_RESOURCE_PATTERN, max_length=253)]
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY_PATTERN, max_length=316)]
Image = Annotated[str, StringConstraints(pattern=IMAGE_PATTERN, max_length=512)]
Interface = Annotated[str, StringConstraints(pattern=INTERFACE_PATTERN, max_length=63)]
Backend = Annotated[str, StringConstraints(pattern=BACKEND_PATTERN, max_length=64)]
# Linux takes no longer argument (MAX_ARG_STRLEN, in bytes and with the zero at its end).
Argument = Annotated[str, StringConstraints(max_length=131_071)]
AbsolutePath = Annotated[str, StringConstraints(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024)]
WorkerCount = Annotated[StrictInt, Field(ge=1, le=MAX_WORKERS)]
Devices = Annotated[StrictInt, Field(ge=0, le=MAX_DEVICES)]
Count = Annotated[StrictInt, Field(ge=0, le=MAX_RESTARTS)]
# Whole seconds, as Kubernetes counts deadlines; and seconds with fractions, for what the agents measure.
WholeSeconds = Annotated[StrictInt, Field(ge=0, le=MAX_SECONDS)]
PositiveWholeSeconds = Annotated[StrictInt, Field(ge=1, le=MAX_SECONDS)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(strict=True, gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Factor = Annotated[float, Field(strict=True, ge=1, le=100, allow_inf_nan=False)]
