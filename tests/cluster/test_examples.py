"""Each manifest in `manifests/examples/` is run: kubectl, the real operator, real agents, real ranks.

A manifest is applied as a user would adapt it to a cluster: by a kustomization that contains the file unchanged and a
patch. The patches shorten it: fewer steps, smaller models, and in most cases no pictures and no torchrun, which
plain-script and ascend have. They replace names on the hub by local files, label the job `example: shortened`, and are
printed. `trainmaster demo` in tests/e2e runs `reviews.yaml` whole, without a patch. tests/trainer tests what the
programs compute.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.operator_under_test import running_operator
from trainmaster_local.config import NodeConfig
from trainmaster_local.testing.clusters import Cluster, SharedCluster, new_namespace

EXAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "examples"
RUN_BY_THE_DEMO = {"reviews"}
RUN_HERE = {"shakespeare", "bert-mrpc", "deepseek-tiny", "deepspeed-zero", "ascend", "plain-script"}
SECONDS = 150
# A container's folder is on this machine: files for the examples are mounted from here, and results read there.
HOST = "hostPath"
SMALL = NodeConfig(name="small", cpu="2", memory="4Gi", labels={"for": "a-first-try"})
NPU = "huawei.com/Ascend910"
# Pictures are drawn for one example, bert-mrpc; they take as long as the training here.
NO_PICTURES = {"plot": False}

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


@dataclass
class Room:
    """Holds a namespace with an operator."""

    cluster: Cluster
    folder: Path

    def apply(self, name: str, spec: dict[str, Any] | None = None, *more: dict[str, Any]) -> None:
        """Runs `kubectl apply -k` for the example, with `spec` merged into its job's, and `more` objects beside it."""
        folder = self.folder / name
        folder.mkdir()
        shutil.copy(EXAMPLES / f"{name}.yaml", folder)
        for number, manifest in enumerate(more):
            (folder / f"more-{number}.yaml").write_text(yaml.safe_dump(manifest))
        patch = {
            "apiVersion": "trainmaster.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "metadata": {"name": name, **({"labels": {"example": "shortened"}} if spec else {})},
            **({"spec": spec} if spec else {}),
        }
        kustomization = {
            "resources": sorted(path.name for path in folder.glob("*.yaml")),
            "patches": [{"patch": yaml.safe_dump(patch)}],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        print(f"{name}.yaml with:\n{yaml.safe_dump(spec or 'nothing changed')}")
        self.cluster.kubectl("apply", "-k", str(folder))

    def succeeds(self, name: str) -> dict[str, Any]:
        """Waits for the job's end; returns its status. If it didn't succeed, fails with its workers' output."""

        def ended() -> dict[str, Any]:
            status = dict(self.cluster.get("dtj", name).get("status") or {})
            assert status.get("phase") in ("Succeeded", "Failed"), status.get("phase")
            return status

        try:
            status: dict[str, Any] = self.cluster.eventually(ended, SECONDS, f"{name} ends")
        except pytest.fail.Exception:
            print(self.cluster.kubectl("get", "dtj,pods", "-o", "wide").stdout)
            print(self.cluster.kubectl("logs", f"{name}-0", check=False).stdout)
            raise
        assert status["phase"] == "Succeeded", f"{status}\n{self.logs(name)}"
        first_time = (status["attempt"], status.get("restarts", 0), status.get("disruptions", 0)) == (1, 0, 0)
        assert first_time, f"{status}\n{self.logs(name)}"
        return status

    def logs(self, name: str) -> dict[str, str]:
        """Returns each worker's output, as the operator kept it."""
        return dict(self.cluster.eventually(lambda: self.cluster.get("configmap", f"{name}-logs")["data"]))

    def claimed(self, claim: str) -> Path:
        """Returns the folder behind a claim."""
        volume = self.cluster.get("persistentvolumeclaim", claim)["spec"]["volumeName"]
        return Path(self.cluster.get("persistentvolume", volume)["spec"][HOST]["path"])


@pytest.fixture(scope="module")
def room(shared_cluster: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """Starts one operator for all examples, as in a team's namespace."""
    embedded = shared_cluster.needs_embedded("the pods need the bundled image and this machine's files")
    folder = tmp_path_factory.mktemp("examples")
    machine = NodeConfig(name="large", cpu="96", memory="512Gi", resources={"nvidia.com/gpu": 8, NPU: 16})
    embedded.call(embedded.cluster.add_node(machine))
    with new_namespace(shared_cluster) as cluster, running_operator(cluster, folder):
        yield Room(cluster, folder)
    embedded.call(embedded.cluster.remove_node(machine.name))


def mounted(folder: Path, path: str) -> dict[str, Any]:
    """Returns a podTemplate that mounts a folder of this machine in the workers."""
    return {
        "spec": {
            "volumes": [{"name": "local", HOST: {"path": str(folder)}}],
            "containers": [{"name": "worker", "volumeMounts": [{"name": "local", "mountPath": path}]}],
        }
    }


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == RUN_HERE | RUN_BY_THE_DEMO


def test_an_example_needs_nothing_that_its_file_does_not_make() -> None:
    """A claim or ConfigMap that nobody makes leaves the pods Pending without a message from the job."""
    for path in EXAMPLES.glob("*.yaml"):
        objects = list(yaml.safe_load_all(path.read_text()))
        made = {(item["kind"], item["metadata"]["name"]) for item in objects}
        for item in objects:
            spec = item.get("spec", {})
            volumes = spec.get("podTemplate", {}).get("spec", {}).get("volumes", [])
            sources = [
                spec.get("checkpoint", {}).get("volume", {}),
                *(v.get("persistentVolumeClaim", {}) for v in volumes),
            ]
            needed = {("PersistentVolumeClaim", source["claimName"]) for source in sources if "claimName" in source}
            needed |= {("ConfigMap", v["configMap"]["name"]) for v in volumes if "configMap" in v}
            assert needed <= made, path.name


@pytest.fixture
def small_node(room: Room) -> Iterator[None]:
    """Makes a node of two cores and 4 GiB; for the scheduler, the operator's two replicas run on it."""
    embedded = room.cluster.embedded
    embedded.call(embedded.cluster.add_node(SMALL))
    for number in range(2):
        requests = {"cpu": "100m", "memory": "128Mi"}
        container = {"name": "operator", "image": "busybox", "resources": {"requests": requests}}
        room.cluster.apply(faked_pod(f"operator-{number}", {"nodeSelector": SMALL.labels, "containers": [container]}))
    yield
    embedded.call(embedded.cluster.remove_node(SMALL.name))


def faked_pod(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Returns a pod that runs at once and has no processes."""
    annotations = {"trainmaster-local/fake": "{}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


@pytest.mark.parametrize("name", sorted((RUN_HERE | RUN_BY_THE_DEMO) - {"ascend", "bert-mrpc"}))
def test_every_worker_of_an_example_without_accelerators_finds_room_on_a_small_node(
    room: Room, small_node: None, name: str, tmp_path: Path
) -> None:
    faked = {"metadata": {"annotations": {"trainmaster-local/fake": "{}"}}, "spec": {"nodeSelector": SMALL.labels}}
    there = Room(room.cluster, tmp_path)
    there.apply(name, {"podTemplate": faked})
    pods = [f"{name}-0", f"{name}-1"]
    for pod in pods:
        room.cluster.eventually(
            lambda pod=pod: room.cluster.get("pod", pod)["spec"].get("nodeName") == SMALL.name, 30, f"{pod} has a node"
        )
    room.cluster.delete("dtj", name)
    room.cluster.eventually(lambda: not room.cluster.items("pods", labels=f"trainmaster.dev/job-name={name}"), 60)


def test_plain_script(room: Room) -> None:
    """It is a user's script with the three lines of `Recovery`, and runs 100 of its 400 steps."""
    shorter = {"name": "worker", "env": [{"name": "STEPS", "value": "100"}]}
    room.apply("plain-script", {"podTemplate": {"spec": {"containers": [shorter]}}})
    progress = room.succeeds("plain-script")["progress"]
    assert (progress["step"], progress["totalSteps"]) == (100, 100)
    assert progress["loss"] < 0.6, "it begins with 0.69"
    assert "step 100/100" in room.logs("plain-script")["worker-0.log"]


def test_shakespeare(room: Room) -> None:
    """It trains on the plays for 60 of 500 steps, and is already better than the bytes' frequencies alone."""
    evaluation = {"every_steps": 30, "samples": 64}
    shorter = {"steps": 60, "evaluation": evaluation, "checkpoint": {"every_steps": 30}, "metrics": NO_PICTURES}
    room.apply("shakespeare", {"launcher": "exec", "training": shorter})
    result = room.succeeds("shakespeare")["progress"]["result"]
    assert 3.2 < result["unigramLoss"] < 3.3
    assert result["loss"] < result["unigramLoss"] - 0.3


def test_deepseek_tiny(room: Room) -> None:
    """DeepSeek-V3's classes train on the plays for 40 of 300 steps."""
    shorter = {"steps": 40, "evaluation": {"samples": 32}, "metrics": NO_PICTURES}
    room.apply("deepseek-tiny", {"launcher": "exec", "training": shorter})
    result = room.succeeds("deepseek-tiny")["progress"]["result"]
    assert result["loss"] < result["unigramLoss"]


def test_bert_mrpc(room: Room) -> None:
    """It uses three workers, a tiny BERT and made-up pairs from local files; the report is on the claim when all pods
    are gone.
    """
    # Imported here with torch, which otherwise each pytest process would import when it collects the tests.
    from tests.trainer.local_models import save_bert, save_pairs

    local = room.folder / "mrpc"
    local.mkdir()
    save_pairs(local)
    save_bert(local / "bert")
    shorter = {
        "epochs": 5,
        "task": {"options": {"model": "/local/bert", "data": "/local"}},
        "optimizer": {"lr": 3e-3},
        "batch": {"per_rank": 8},
        "data": {"workers": 0},
        "evaluation": {"every_steps": 40},
    }
    room.apply("bert-mrpc", {"launcher": "exec", "training": shorter, "podTemplate": mounted(local, "/local")})
    result = room.succeeds("bert-mrpc")["progress"]["result"]
    assert result["accuracy"] > 0.9 and result["f1"] > 0.9
    assert {name for name in room.logs("bert-mrpc") if name.endswith(".log")} == {f"worker-{n}.log" for n in range(3)}
    [report] = room.claimed("bert-mrpc").rglob("report.md")
    assert "evaluation, f1" in report.read_text()
    for picture in ("curves.png", "ranks.png"):
        assert (report.parent / picture).read_bytes().startswith(b"\x89PNG")
    steps = [json.loads(line) for line in (report.parent / "metrics.jsonl").read_text().splitlines()]
    assert {len(line["rankComputeSeconds"]) for line in steps if line["kind"] == "step"} == {3}


def test_deepspeed_zero(room: Room) -> None:
    """DeepSpeed's ZeRO-1 trains on the reviews for 3 of 486 steps."""
    pytest.importorskip("deepspeed", reason="deepspeed-zero.yaml is left out: deepspeed isn't installed")
    shorter = {"epochs": None, "steps": 3, "metrics": NO_PICTURES}
    room.apply("deepspeed-zero", {"launcher": "exec", "training": shorter})
    progress = room.succeeds("deepspeed-zero")["progress"]
    assert (progress["step"], progress["totalSteps"]) == (3, 3)
    assert "step 3/3" in room.logs("deepspeed-zero")["worker-0.log"]


def test_ascend(room: Room) -> None:
    """The parts that need no NPUs are tested: the pods request them and get the environment that the file and its setup
    line make. The same program then runs on the CPU over gloo, with the given checkpoint, tokenizer and text.

    HCCL, torch_npu, and the settings of the real set_env.sh aren't tested here.
    """
    print("ascend.yaml: a stand-in run on the CPU over gloo; HCCL and torch_npu are left out, there are no NPUs here")
    cluster = room.cluster
    # As the file's first lines explain.
    cluster.kubectl("apply", "-f", str(EXAMPLES / "ascend.yaml"), "-l", "part=storage")
    assert "not found" in cluster.kubectl("get", "dtj", "ascend", check=False).stderr
    cluster.eventually(lambda: cluster.get("pvc", "ascend-data")["spec"].get("volumeName"), 60)
    _fill(room.claimed("ascend-data"))
    toolkit = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "toolkit"},
        "data": {"set_env.sh": 'export ASCEND_HOME_PATH=/usr/local/Ascend\necho "toolkit for $NPUS_PER_NODE"'},
    }
    room.apply("ascend", _on_the_cpu(), toolkit)
    result = room.succeeds("ascend")["progress"]["result"]
    [worker] = cluster.get("statefulset", "ascend")["spec"]["template"]["spec"]["containers"]
    assert worker["resources"]["limits"][NPU] == "8"
    assert result["unigramLoss"] > 5, "GPT-2's tokens, not bytes"
    kept = room.logs("ascend")["worker-1.log"]
    assert "toolkit for 8" in kept, kept
    [report] = room.claimed("ascend-checkpoints").rglob("metrics.jsonl")
    first = next(line for line in map(json.loads, report.read_text().splitlines()) if line["kind"] == "step")
    assert first["loss"] == pytest.approx(10.82, abs=0.3), "the log of 50,257 tokens: a checkpoint that knows nothing"


def document(example: str, kind: str) -> dict[str, Any]:
    """Returns the only object of a kind in an example's file."""
    [found] = [item for item in yaml.safe_load_all((EXAMPLES / f"{example}.yaml").read_text()) if item["kind"] == kind]
    return dict(found)


def _on_the_cpu() -> dict[str, Any]:
    """Returns the file's job, with the parts replaced that need NPUs."""
    job = document("ascend", "DistributedTrainingJob")
    template = job["spec"]["podTemplate"]["spec"]
    [worker] = template["containers"]
    # A merge patch replaces lists, so the file's own entries are kept.
    template["volumes"].append({"name": "toolkit", "configMap": {"name": "toolkit"}})
    worker["volumeMounts"].append({"name": "toolkit", "mountPath": "/usr/local/Ascend/ascend-toolkit"})
    return {
        "image": "ghcr.io/trainmaster/trainer:0.1.0",
        "processesPerWorker": 1,
        "backend": "gloo",
        "podTemplate": {"spec": template},
        "training": {
            "task": {"options": {"context": 32}},
            "steps": 2,
            "schedule": {"warmup": 1},
            "distributed": {"device": "cpu", "backend": "gloo"},
            "evaluation": {"samples": 4},
            "metrics": NO_PICTURES,
        },
    }


def _fill(data: Path) -> None:
    """Writes the files that ascend.yaml expects on its data claim."""
    from tests.trainer.local_models import plays, save_deepseek, save_gpt2_tokenizer

    (data / "text").mkdir()
    shutil.copy(next(play for play in plays() if re.match("tempest", play.name)), data / "text")
    save_gpt2_tokenizer(data / "tokenizer")
    save_deepseek(data / "checkpoint", vocabulary=50257)
