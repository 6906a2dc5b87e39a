"""Defines the types of the spec's fields. Each type is as strict in Python as the CRD is in the API server.

Where pydantic and OpenAPI differ (quantities are int-or-string), the type defines its own OpenAPI schema. Every pattern
is anchored and has a hint, because users can't be expected to read a regular expression.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    StrictInt,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from trainmaster_operator.api.json_codec import compact
from trainmaster_operator.wire.limits import MAX_PROCESSES, MAX_WORKERS
from trainmaster_operator.wire.log_rules import MAX_PATTERN_CHARACTERS, check_pattern

# Kubernetes' quantity syntax (apimachinery pkg/api/resource/quantity.go) without a minus sign, because no resource may
# be negative. Kubernetes accepts longer exponents too, but then needs a minute for one comparison (1e999999999 on
# 1.36.2).
QUANTITY_PATTERN = r"^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]{1,3})?$"
SHORT_EXPONENT_PATTERN = r"^[^eE]*([eE].{0,4})?$"
DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
# Before Kubernetes 1.36, a Service's name must begin with a letter (RelaxedServiceNameValidation).
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
EXTENDED_RESOURCE_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
# An image reference (github.com/distribution/reference) consists of registry, repository, tag and digest. If the first
# part contains capitals, it is a registry.
_REPOSITORY = r"[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*"
_REGISTRY = (
    r"([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?([.][A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*|\[[a-fA-F0-9:]+\])(:[0-9]+)?"
)
_DIGEST = r"[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,512}"
IMAGE_PATTERN = rf"^({_REGISTRY}/)?{_REPOSITORY}(/{_REPOSITORY})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@{_DIGEST})?$"
LABEL_KEY_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
INTERFACE_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9_.,:@]*$"
BACKEND_PATTERN = r"^[a-z][a-z0-9_:,]*$"
MODULE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
# Kubernetes refuses colons, because container runtimes separate mount paths with them.
ABSOLUTE_PATH_PATTERN = r"^/[^:]+$"
# No part may begin with a dot, so no path can lead out of its folder.
RELATIVE_PATH_PATTERN = r"^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*$"
DIGEST_PATTERN = r"^[0-9a-f]{64}$"

HINTS = {
    DNS_LABEL_PATTERN: "use lower case letters, digits and '-', beginning and ending with a letter or digit",
    SUBDOMAIN_PATTERN: "use lower case letters, digits, '-' and '.', beginning and ending with a letter or digit",
    EXTENDED_RESOURCE_PATTERN: "use the device plugin's domain and name, such as nvidia.com/gpu",
    LABEL_KEY_PATTERN: "use a label's key, such as topology.kubernetes.io/rack",
    INTERFACE_PATTERN: "use the name of a network interface, such as eth0",
    MODULE_PATTERN: "use the name of a module as in an import, such as mypackage.data",
    BACKEND_PATTERN: "use auto or the name of a backend of torch.distributed, such as nccl or gloo",
    ABSOLUTE_PATH_PATTERN: "use an absolute path without ':'",
    RELATIVE_PATH_PATTERN: "use a path without a '/' before it, such as trainmaster-code/bert",
    DIGEST_PATTERN: "use the archive's SHA-256 in 64 hexadecimal digits, as sha256sum prints it",
}

# Half a pair of surrogates isn't valid UTF-8, so an API server would refuse or change it.
HALF_A_CHARACTER = "has half of a character, which is not valid Unicode; write the whole character"

# The problem with a number, by pydantic's name for the bound.
_OUT_OF_RANGE = {
    "ge": "is too small; use at least",
    "gt": "is too small; use more than",
    "le": "is too large; use at most",
    "lt": "is too large; use less than",
}

# Longer quantities are refused, which limits the cost of rules that read quantities.
MAX_QUANTITY_LENGTH = 32
MAX_GROUPS = 8
# A leader accepts this many workers beyond those in the assignment (agent/network/workers.py, MAX_OTHERS).
MAX_SPARES = 32
# With `processesPerWorker: auto`, each GPU gets a process, so the limits of GPUs and processes are equal.
MAX_DEVICES = MAX_PROCESSES
MAX_RESTARTS = 1_000_000
# A year. Longer limits probably come from a wrong unit.
MAX_SECONDS = 31_536_000

BYTES_SENTENCE = "is not a quantity; use 0 or more with a suffix, such as 512Mi or 16Gi"
CORES_SENTENCE = "is not a quantity; use 0 or more with an optional suffix, such as 16, 0.5 or 500m"
PROCESSES_SENTENCE = f"is neither auto nor a whole number of ranks; use auto or 1 to {MAX_PROCESSES}"


def fits(pattern: str, text: str) -> bool:
    """Returns whether a whole text matches one of the patterns above."""
    # Python's `$` would also match before a final line break.
    return re.fullmatch(pattern.strip("^$"), text) is not None


def value_rule(cel: str, sentence: str) -> dict[str, Any]:
    """Returns a rule on a single value. Its message is the value, in the form of `show`, and then the sentence."""
    cut = '"\'%s... (%d characters)".format([self.substring(0, 59), size(self) + 2])'
    shown = f"size(self) <= 78 ? \"'%s'\".format([self]) : {cut}"
    if "type(self)" in cel:
        shown = "type(self) == string ? \"'%s'\".format([self]) : string(self)"
    text = json.dumps(f"%s {sentence.replace('%', '%%')}")
    return {
        "rule": cel,
        "message": f"the value {sentence}",
        "messageExpression": f"{text}.format([{shown}])",
        "reason": "FieldValueInvalid",
    }


def _quantity(value: Any, sentence: str) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    if isinstance(value, str) and len(value) <= MAX_QUANTITY_LENGTH and fits(QUANTITY_PATTERN, value):
        return value
    raise PydanticCustomError("quantity", f"{{shown}} {sentence}", {"shown": show(value)})


def _cores(value: Any) -> int | str:
    """Returns a fraction as text, as Kubernetes does when it reads a pod's `cpu: 0.5`."""
    if isinstance(value, float) and 0 <= value < math.inf:
        # Kubernetes' smallest unit is a billionth.
        return _quantity(f"{Decimal(repr(round(value, 9))):f}", CORES_SENTENCE)
    return _quantity(value, CORES_SENTENCE)


def _progress_pattern(value: str) -> str:
    """Checks a pattern. The API server uses RE2 and so can't check it. The operator reports a mistake in the status."""
    problem = check_pattern(value)
    if problem is not None:
        raise PydanticCustomError("pattern", "{shown} {problem}", {"shown": show(value), "problem": problem})
    return value


def _processes(value: Any) -> int | str:
    if value == "auto":
        return "auto"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_PROCESSES:
        return value
    raise PydanticCustomError("processes", f"{{shown}} {PROCESSES_SENTENCE}", {"shown": show(value)})


def show(value: Any) -> str:
    """Returns a value for a message, shortened and on one line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, dict):
        text = "a mapping"
    elif isinstance(value, list | tuple):
        text = "a list"
    elif value is None:
        text = "null"
    elif isinstance(value, int) and abs(value) >= 10**40:
        # Python refuses to format more than 4,300 digits.
        text = "a number of more than 40 digits"
    elif isinstance(value, float):
        text = number(value)
    else:
        text = _quoted(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _quoted(text: str) -> str:
    """Returns a text in quotes as it is in the file. Invisible characters are escaped, but backslashes aren't."""
    quote = '"' if "'" in text and '"' not in text else "'"
    seen = text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return f"{quote}{seen}{quote}"


def unfit(value: Any, pattern: str) -> str:
    """Returns the message for a text that doesn't fit a pattern."""
    return f"{show(value)} can't be used; {HINTS[pattern]}"


def number(value: float) -> str:
    """Returns a number without an exponent, such as 31536000 for 3.1536e+07 or 0.0001 for 1e-04."""
    if value == 0 or not 1e-6 <= abs(value) < 1e21:
        return repr(value).replace("e+", "e").replace("e-0", "e-").removesuffix(".0")
    text = f"{Decimal(repr(value)):f}"
    return text.rstrip("0").removesuffix(".") if "." in text else text


_QUANTITY_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "maxLength": MAX_QUANTITY_LENGTH,
    # Long exponents are refused here, so that no rule reads them.
    "allOf": [
        {"anyOf": [{"enum": ["a number with a suffix, such as 512Mi or 16Gi"]}, {"pattern": SHORT_EXPONENT_PATTERN}]}
    ],
    # matches() isn't used, because the API server assumes a text of 3 MiB here and would refuse its cost.
    "x-kubernetes-validations": [
        value_rule(
            "type(self) == int ? self >= 0 : type(self) == string && isQuantity(self) && !self.startsWith('-')",
            BYTES_SENTENCE,
        )
    ],
}
_PROCESSES_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "x-kubernetes-validations": [
        value_rule(
            f"type(self) == int ? self >= 1 && self <= {MAX_PROCESSES} : type(self) == string && self == 'auto'",
            PROCESSES_SENTENCE,
        )
    ],
}

Quantity = Annotated[
    int | str, PlainValidator(lambda value: _quantity(value, BYTES_SENTENCE)), WithJsonSchema(_QUANTITY_SCHEMA)
]
# If a type has no rule (`CPUOrQuantity`), the API server shows the first alternative of its schema. So the first
# alternative describes the right value.
CORES_HINT = "a number of cores with an optional suffix, such as 16, 0.5 or 500m"
NO_LIST = {"minItems": 1, "maxItems": 0}
NO_MAPPING = {"minProperties": 1, "maxProperties": 0}
FITS_CORES = {
    "minimum": 0,
    "pattern": QUANTITY_PATTERN,
    "maxLength": MAX_QUANTITY_LENGTH,
    "not": {"enum": [True, False]},
}
_CORES_SCHEMA = {
    "x-kubernetes-preserve-unknown-fields": True,
    "anyOf": [{"enum": [CORES_HINT]}, {**FITS_CORES, **NO_LIST, **NO_MAPPING}],
}
Cores = Annotated[int | str, PlainValidator(_cores), WithJsonSchema(_CORES_SCHEMA)]
ProcessesPerWorker = Annotated[int | Literal["auto"], PlainValidator(_processes), WithJsonSchema(_PROCESSES_SCHEMA)]
ProgressPattern = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_PATTERN_CHARACTERS), AfterValidator(_progress_pattern)
]
DNSLabel = Annotated[str, StringConstraints(pattern=DNS_LABEL_PATTERN, max_length=63)]
Subdomain = Annotated[str, StringConstraints(pattern=SUBDOMAIN_PATTERN, max_length=253)]
ExtendedResource = Annotated[str, StringConstraints(pattern=EXTENDED_RESOURCE_PATTERN, max_length=253)]
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY_PATTERN, max_length=316)]
Image = Annotated[str, StringConstraints(max_length=512)]
Interface = Annotated[str, StringConstraints(pattern=INTERFACE_PATTERN, max_length=63)]
ModuleName = Annotated[str, StringConstraints(pattern=MODULE_PATTERN, max_length=200)]
Backend = Annotated[str, StringConstraints(pattern=BACKEND_PATTERN, max_length=64)]
# Linux's limit for one argument (MAX_ARG_STRLEN, in bytes, with the final zero).
Argument = Annotated[str, StringConstraints(max_length=131_071)]
AbsolutePath = Annotated[str, StringConstraints(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024)]
RelativePath = Annotated[str, StringConstraints(pattern=RELATIVE_PATH_PATTERN, max_length=512)]
Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
WorkerCount = Annotated[StrictInt, Field(ge=1, le=MAX_WORKERS)]
SpareCount = Annotated[StrictInt, Field(ge=0, le=MAX_SPARES)]
Devices = Annotated[StrictInt, Field(ge=0, le=MAX_DEVICES)]
Count = Annotated[StrictInt, Field(ge=0, le=MAX_RESTARTS)]
# Integer seconds as in Kubernetes' deadlines, and seconds with fractions for durations that agents measure.
WholeSeconds = Annotated[StrictInt, Field(ge=0, le=MAX_SECONDS)]
PositiveWholeSeconds = Annotated[StrictInt, Field(ge=1, le=MAX_SECONDS)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(strict=True, gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Factor = Annotated[float, Field(strict=True, ge=1, le=100, allow_inf_nan=False)]


def out_of_range(bound: Mapping[str, Any]) -> str:
    """Returns the problem with a number beyond a bound (ge, gt, le or lt, as in pydantic)."""
    [(name, limit)] = bound.items()
    return f"{_OUT_OF_RANGE[name]} {number(limit)}"


# Minimum bytes for which compression, which takes 20 microseconds, is worthwhile.
_WORTH_IT = 512


class CompactMapping:
    """CompactMapping stores a JSON mapping as compressed text, for fields that only rendering reads.

    As Python objects, 1.3 MB of `training` would take 23 MB while the job exists. Compressed JSON is never larger than
    the original text. Text of random characters is compressed least, by a fifth.
    """

    __slots__ = ("_compressed", "_text")

    def __init__(self, value: Mapping[str, Any]) -> None:
        """Compresses the value. Raises TypeError or ValueError if JSON can't represent it."""
        text = compact(dict(value))
        self._compressed = len(text) >= _WORTH_IT
        self._text = zlib.compress(text, 1) if self._compressed else text

    def value(self) -> dict[str, Any]:
        """Returns a new copy of the mapping."""
        text = zlib.decompress(self._text) if self._compressed else self._text
        return cast(dict[str, Any], json.loads(text.decode("utf-8", "surrogatepass")))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompactMapping) and self._text == other._text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls._checked, handler.generate_schema(dict[str, Any]))

    @classmethod
    def _checked(cls, value: dict[str, Any]) -> CompactMapping:
        try:
            return cls(value)
        except (TypeError, ValueError) as error:
            raise PydanticCustomError(
                "json", "can't be written as JSON ({why}); use text, numbers, lists and mappings", {"why": str(error)}
            ) from error
