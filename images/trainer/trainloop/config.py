"""The configuration combines every component's settings in one YAML document.

    python -m trainloop --config training.yaml --set optimizer.lr=3e-4 --print-config

All mistakes are reported together. Each message names the field, the value and the remedy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator

from trainloop.checkpoints.checkpointer import CheckpointSettings
from trainloop.data import BatchSettings, DataSettings
from trainloop.distributed.preflight import PreflightSettings, fingerprint
from trainloop.distributed.watchdog import WatchdogSettings
from trainloop.distributed.world import DistributedSettings
from trainloop.errors import ConfigError
from trainloop.evaluation import EvaluationSettings
from trainloop.metrics import MetricsSettings
from trainloop.optimization.anomaly import AnomalySettings
from trainloop.optimization.optimizer import OptimizerSettings
from trainloop.optimization.precision import PrecisionSettings
from trainloop.optimization.schedule import ScheduleSettings
from trainloop.parallel.balance import BalanceSettings
from trainloop.parallel.blocks import BlockSettings
from trainloop.parallel.communication import CommunicationSettings
from trainloop.parallel.delayed import DelayedSettings
from trainloop.parallel.gradients import GradientSettings
from trainloop.parallel.strategies import ParallelSettings
from trainloop.seeding import SeedSettings
from trainloop.settings import Settings, section
from trainloop.tasks import TaskSettings, task_module


class Config(Settings):
    """This document has all settings of a training run."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["epochs"]}, {"required": ["steps"]}]})

    task: TaskSettings = section(TaskSettings)
    epochs: float | None = Field(None, gt=0, description="Passes over the data; exactly one of epochs and steps.")
    steps: int | None = Field(None, gt=0, description="Optimizer steps; exactly one of epochs and steps.")
    batch: BatchSettings = Field(description="Samples in a step.")
    blocks: BlockSettings = section(BlockSettings)
    optimizer: OptimizerSettings = section(OptimizerSettings)
    schedule: ScheduleSettings = section(ScheduleSettings)
    precision: PrecisionSettings = section(PrecisionSettings)
    data: DataSettings = section(DataSettings)
    parallel: ParallelSettings = section(ParallelSettings)
    communication: CommunicationSettings = section(CommunicationSettings)
    delayed: DelayedSettings = section(DelayedSettings)
    balance: BalanceSettings = section(BalanceSettings)
    watchdog: WatchdogSettings = section(WatchdogSettings)
    checkpoint: CheckpointSettings = section(CheckpointSettings)
    gradients: GradientSettings = section(GradientSettings)
    anomaly: AnomalySettings = section(AnomalySettings)
    preflight: PreflightSettings = section(PreflightSettings)
    evaluation: EvaluationSettings = section(EvaluationSettings)
    metrics: MetricsSettings = section(MetricsSettings)
    seed: SeedSettings = section(SeedSettings)
    distributed: DistributedSettings = section(DistributedSettings)
    hooks: list[str] = Field([], description="`module:function` of yours, called with the Trainer before it starts.")

    @model_validator(mode="after")
    def _together(self) -> Config:
        """Refuses incompatible settings before anything starts."""
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("the length is not clear: set exactly one of epochs and steps")
        fp16, ddp = self.precision.compute == "fp16", self.parallel.strategy == "ddp"
        fsdp, zero1 = self.parallel.strategy == "fsdp", self.parallel.strategy == "zero1"
        bf16, gather16 = self.precision.compute == "bf16", self.parallel.gather_dtype == "bf16"
        sharded, replicas = self.checkpoint.format == "sharded", isinstance(self.parallel.data, tuple)
        local, delayed = self.communication.local_steps > 1, self.delayed.pattern is not None
        compressed = self.communication.compression != "none"
        # These methods store numbers multiplied by the loss scale, which become infinite after a step that overflowed.
        feedback = self.communication.compression in ("powersgd", "onebit")
        wrong = [
            (fp16 and fsdp, "precision.compute fp16 with parallel.strategy fsdp: use bf16"),
            (fp16 and local, "precision.compute fp16 with communication.local_steps: use bf16"),
            (fp16 and delayed, "precision.compute fp16 with delayed.pattern: use bf16"),
            (local and not ddp, "communication.local_steps with parallel.strategy other than ddp"),
            (local and delayed, "communication.local_steps with delayed.pattern"),
            (compressed and fsdp, "communication.compression with parallel.strategy fsdp, which sends by itself"),
            (compressed and local, "communication.compression with communication.local_steps: no gradients are sent"),
            (fp16 and feedback, "precision.compute fp16 with a compression that keeps what it left out: use bf16"),
            (gather16 and not fsdp, "parallel.gather_dtype bf16 with parallel.strategy other than fsdp"),
            (gather16 and not bf16, "parallel.gather_dtype bf16 with precision.compute other than bf16"),
            (replicas and not fsdp, "parallel.data of two numbers with parallel.strategy other than fsdp"),
            (self.parallel.tensor > 1 and not fsdp, "parallel.tensor above 1 with parallel.strategy other than fsdp"),
            (delayed and not ddp, "delayed.pattern with parallel.strategy other than ddp"),
            (delayed and sharded, "delayed.pattern with checkpoint.format sharded"),
            (sharded and zero1, "checkpoint.format sharded with parallel.strategy zero1: use full"),
            (self.balance.enabled and fsdp, "balance.enabled with parallel.strategy fsdp: its ranks run in step"),
            (self.balance.enabled and local, "balance.enabled with communication.local_steps, which weighs all alike"),
        ]
        for sentence in (sentence for found, sentence in wrong if found):
            raise ValueError(f"these don't go together: {sentence}")
        return self

    def fingerprint(self) -> dict[str, str]:
        """Returns this rank's `preflight.fingerprint`, which covers the modules of the task and hooks."""
        modules = [task_module(self.task), *(hook.partition(":")[0] for hook in self.hooks)]
        return fingerprint(dump_config(self), modules)


def load_config(file: Path | None, overrides: Iterable[str] = ()) -> Config:
    """Reads `file` and applies `overrides` such as `optimizer.lr=3e-4`, whose values are YAML.

    Raises ConfigError with one mistake per line.
    """
    document = _read(file) if file else {}
    for override in overrides:
        _override(document, override)
    return parse_config(document)


def parse_config(document: dict[str, Any]) -> Config:
    """Returns the configuration from plain values. Raises ConfigError."""
    try:
        # YAML reads a section with only comments as null. Such a section gets its defaults.
        return Config.model_validate({name: value for name, value in document.items() if value is not None})
    except ValidationError as error:
        from trainloop.settings import sentences

        raise ConfigError("\n".join(sentences(error, Config))) from None


def dump_config(config: Config) -> str:
    """Returns the whole configuration as YAML, including defaults; loading it gives the same configuration."""
    return str(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def _read(file: Path) -> dict[str, Any]:
    try:
        document = _yaml(text := file.read_text("utf-8"), f"--config {file}")
    except OSError as error:
        raise ConfigError(f"--config {file} can't be read: {error.strerror}") from error
    except UnicodeError as error:
        raise ConfigError(f"--config {file} is no text in UTF-8: {error}") from error
    if "TRAINMASTER_TRAINING" in os.environ:
        # Imported when used.
        from trainloop.config import require_unchanged

        require_unchanged(file, text)
    if not isinstance(document, dict | None):
        raise ConfigError(f"--config {file} has a {type(document).__name__} at the top: it must be a mapping of fields")
    return document or {}


def _override(document: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    if not separator or not path:
        raise ConfigError(f"--set {override!r} is not of the form field.field=value")
    *parents, last = path.split(".")
    target = document
    for parent in parents:
        if target.get(parent) is None:
            target[parent] = {}
        target = target[parent]
        if not isinstance(target, dict):
            raise ConfigError(f"--set {override!r}: {parent} is a value, it has no fields")
    target[last] = _yaml(text, f"--set {override!r}")


def _yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Yaml)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is no YAML: {' '.join(str(error).split())}") from error


class _Yaml(yaml.SafeLoader):
    """This loader refuses duplicate keys, and reads 3e-4 as a number (in YAML 1.1 it is text for lack of a dot)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if keys.setdefault(str(key.value), key) is not key:
                raise yaml.MarkedYAMLError(f"{key.value!r} is there twice", key.start_mark)
        return super().construct_mapping(node, deep)


_Yaml.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


def require_unchanged(file: Path, text: str) -> None:
    """Raises ConfigError if the values in the mounted configuration `text` differ from `spec.training`.

    The configuration names code to run (task, hooks), and anyone with write access to ConfigMaps can change it.
    """
    digest, _, mounted = os.environ["TRAINMASTER_TRAINING"].partition(" ")
    # The local cluster has no mounts, so it replaces the container's paths in every ConfigMap by its own paths.
    is_rewritten = "TRAINMASTER_HOSTS_FILE" in os.environ
    if mounted and file == Path(mounted) and not is_rewritten and _digest(text) != digest:
        raise ConfigError(
            f"--config {file} isn't what spec.training says, so it isn't used: find out who may write ConfigMaps in "
            "this namespace, and delete this one: the operator makes it again"
        )


def _digest(text: str) -> str:
    """Returns the hash of the values in `text`, read by YAML's rules, or "" if JSON can't represent the values."""
    values = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    except (TypeError, ValueError):
        return ""
