"""Defines version `v1alpha1` of the custom resource `DistributedTrainingJob` as typed, frozen values.

1. `spec` is the user's request.
2. `status` contains the operator's observations and decisions.
3. `names` defines the group, the phases and the reasons.

The CRD (`api.crd`) and the reference page are generated from these models, and every reader parses with them
(`api.parsing`). Attributes use Python's naming style. In JSON, names are in camelCase (`model_dump(by_alias=True)`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainmaster_operator.api.v1alpha1.names import *
from trainmaster_operator.api.v1alpha1.status import *

if TYPE_CHECKING:
    from trainmaster_operator.api.v1alpha1.spec import *
else:

    def __getattr__(name: str) -> Any:
        """Returns a model of the spec. Commands that only read a status never load these models."""
        models = {} if name.startswith("_") else vars(import_module(f"{__name__}.spec"))
        if name not in models:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return models[name]
