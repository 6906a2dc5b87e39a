"""Modules that ask for the GPU are imported before a fork without opening a device, and a forked rank uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, os, sys
native = frozenset(sys.modules)
from trainmaster_operator.agent.warm.stage.forkable import Imports
imports = Imports({"path": "", "ownVariables": ["RANK"], "leftOut": []}, native)
sys.path.insert(0, sys.argv[1])
for name in ("torch", "torch._inductor.compile_fx", "asks"):
    imports.add(name, required=True, users=False)
imports.blame.settle()
import asks, torch
opened = [path for path in map(os.readlink, asks.descriptors()) if path.startswith("/dev/nvidia")]
found = [imports.blame.problems, imports.blame.at_fork(), opened]
pid = os.fork()
if pid == 0:
    properties = torch.cuda.get_device_properties(0)
    same = [torch.cuda.is_available(), torch.cuda.device_count(), list(torch.cuda.get_device_capability())]
    product = (torch.eye(8, device="cuda") @ torch.ones(8, 8, device="cuda")).sum().item()
    fits = asks.ANSWERS == same and asks.NAME == properties.name and product == 64.0
    os._exit(0 if fits else 1)
print(json.dumps([*found, os.waitpid(pid, 0)[1]]))
"""
ASKS = """
import os, torch
ANSWERS = [torch.cuda.is_available(), torch.cuda.device_count(), list(torch.cuda.get_device_capability())]
NAME = torch.cuda.get_device_name()
def descriptors():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.lexists(link)]
"""


def test_a_module_that_asks_for_the_gpu_leaves_it_closed_and_a_forked_rank_uses_it(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    program = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    problems, at_fork, opened, status = json.loads(done.stdout)
    assert (problems, at_fork, opened) == ({}, "", [])
    assert status == 0, "the rank was answered otherwise, or couldn't use the GPU"
