"""Ranks are forked from a process that has imported this module: it does once what each of them would do again.

What ranks would spend on imports: torch._dynamo a second (the first optimizer or DDP needs it), what the first compiled
block needs (Inductor's modules, for any backend) two, transformers two, FSDP2 and DTensor's parallel styles a quarter
each, and pytest, with which each test's module begins, an eighth.
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
