"""Ranks are forked from a process that has imported this module, so that imports are done once rather than by each
rank.

Per rank this saves: a second for torch._dynamo (the first optimizer or DDP needs it), two for the first compiled block
(Inductor's modules, for any backend), two for transformers, a quarter each for FSDP2 and DTensor's parallel styles, and
an eighth for pytest, which each test module imports.
"""

from __future__ import annotations

import contextlib
from importlib import import_module

from trainloop.distributed.preflight import _code_hash

for _name in (
    *("torch", "torch._dynamo", "torch._subclasses.schema_check_mode", "torch.utils.serialization.config"),
    *("torch.distributed.tensor.parallel", "torch.profiler._cupti_monitor"),
    *("trainloop.run", "trainloop.parallel.sharded", "trainloop.checkpoints.export", "trainloop.checkpoints.retention"),
    "trainloop.checkpoints.restoring",
    *("hypothesis", "pytest", "tests.trainer.toy", "tests.trainer.ranks", "tests.trainer.faults"),
    *("torch._dynamo.backends.debugging", "torch._inductor.compile_fx"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("transformers.models.bert.modeling_bert", "transformers.models.deepseek_v3.modeling_deepseek_v3"),
):
    with contextlib.suppress(ImportError):
        import_module(_name)

_code_hash(("tests.trainer.toy",))
