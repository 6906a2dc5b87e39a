"""The mounted agent and its warm process run in a pod with `readOnlyRootFilesystem` and a user that no image knows.

They write only to the pod's own volume (`TRAINMASTER_STATE_DIR`) and to the termination message. There is no container
runtime here, so a mount namespace has the read-only root (`warm/warm_process`, `warm/stage`, `build`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.agent.agents import Job
from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.rendering.agent_source import AgentConfigMap, agent_command, config_map_name

from .both_ways import starts

ROOT = os.geteuid() == 0
# A user other than root is root in their own user namespace, which has no other user.
UID = 54321 if ROOT else 0
SETPRIV = f"setpriv --reuid={UID} --regid={UID} --clear-groups --no-new-privs --bounding-set=-all --"
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    found = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(found)
    try:
        open(sys.argv[1] + "/written", "w")
    except OSError as error:
        print(os.getuid(), found.item(), error.strerror, flush=True)
    dist.barrier()
    raise RuntimeError("recorded")

main()
"""
# Bind mounts stay unchanged when the root becomes read-only, as volumes do in a container. The interpreter may be in
# a home that no other user may enter; then an empty folder with the interpreter alone covers it.
RESTRICTED = """
set -e
if [ -n "$HIDDEN" ]; then
  mkdir "$KEPT"
  mount --bind "$PREFIX" "$KEPT"
  mount -t tmpfs -o mode=0755 none "$HIDDEN"
  mkdir -p "$PREFIX"
  mount --move "$KEPT" "$PREFIX"
fi
for place in "$1" "$2"; do mount --bind "$place" "$place"; done
mount -o remount,bind,ro /
shift 2
exec $BECOME "$@"
"""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Makes a folder that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_the_mounted_agent_writes_only_where_a_restricted_pod_lets_it(job: Job) -> None:
    zipapp = job.folder / "agent.pyz"
    zipapp.write_bytes(zipapp_bytes())
    (job.folder / "train.py").write_text(SCRIPT)
    settings = {"TRAINMASTER_LAUNCHER": "torchrun", "TRAINMASTER_WARM_START": "true", "NPROC_PER_NODE": "2"}
    agent = job.agent(0, **settings, HOME="/nonexistent", OMP_NUM_THREADS="1")
    agent.termination_log.touch()
    if ROOT:
        for path in (agent.state_dir, agent.termination_log):
            os.chown(path, UID, UID)
    users = [] if ROOT else ["--user", "--map-root-user"]
    restricted = ["unshare", *users, "--mount", "--propagation", "private", "sh", "-c", RESTRICTED, "sh"]
    places = [str(agent.state_dir), str(agent.termination_log)]
    verifying = agent_command(AgentConfigMap(config_map_name(zipapp_bytes())))[1:4]
    runs = [*restricted, *places, sys.executable, *verifying, str(zipapp)]
    closed = (str(folder) for folder in Path(sys.base_prefix).parents if not folder.stat().st_mode & 0o001)
    hidden = {"HIDDEN": next(closed, ""), "PREFIX": sys.base_prefix, "KEPT": str(job.folder / "interpreter")}
    hidden["BECOME"] = SETPRIV if ROOT else "env"
    agent.start(sys.executable, str(job.folder / "train.py"), str(job.folder), agent=runs, **hidden)
    agent.annotate(job.assignment(1))
    assert agent.exit_code(90) == 1, agent.output()
    assert starts(agent) == ["attempt 1 starts warm"]
    for rank in range(2):
        assert f"[rank {rank}]: {UID} 3.0 Read-only file system" in agent.output()
    report = agent.termination()
    assert (report["reason"], "RuntimeError: recorded" in report["error"]) == ("Error", True)
    written = {path.relative_to(agent.folder).parts[0] for path in agent.folder.rglob("*") if path.stat().st_uid == UID}
    assert written - {"output", "podinfo"} == {"state", "termination-log"}
    assert not list(job.folder.glob("**/written")) and not list(job.folder.glob("__pycache__"))
