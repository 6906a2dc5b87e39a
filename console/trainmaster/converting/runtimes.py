"""A TrainJob's runtime is given beside it, or is one that Kubeflow Trainer brings (August 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# The runtimes of Kubeflow Trainer that start torchrun in an image of PyTorch, and nothing else.
_TORCH_IMAGES = {"torch-distributed": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"}
# Those of other frameworks: what is in them doesn't matter then.
_OTHERS = {
    "deepspeed-distributed": "mpi",
    "mlx-distributed": "mpi",
    "jax-distributed": "jax",
    "xgboost-distributed": "xgboost",
}


class Builtin(NamedTuple):
    """Builtin is what is known of one of Kubeflow Trainer's own runtimes: its spec, and its image where it has one."""

    spec: Mapping[str, Any]
    image: str


def builtin(name: str) -> Builtin | None:
    """Returns a runtime that Kubeflow Trainer brings; None for one that isn't known."""
    if name in _TORCH_IMAGES:
        return Builtin(_spec("torch", _TORCH_IMAGES[name]), _TORCH_IMAGES[name])
    return Builtin(_spec(_OTHERS[name], ""), "") if name in _OTHERS else None


def unknown() -> Mapping[str, Any]:
    """Returns what stands for a runtime that isn't there: a container without an image."""
    return _spec("torch", "")


def _spec(framework: str, image: str) -> Mapping[str, Any]:
    container = {"name": "node", **({"image": image} if image else {})}
    job = {"spec": {"template": {"spec": {"containers": [container]}}}}
    return {"mlPolicy": {framework: {}}, "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}}
