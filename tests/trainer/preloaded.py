"""Ranks are forked from a process that has imported this module: it does once what each of them would do again."""

from __future__ import annotations

from trainloop.distributed.preflight import _code_hash

_code_hash(("tests.trainer.toy",))
