"""A TrainJob and its runtime become a job, as Kubeflow Trainer merges them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.converting.manifests import TORCHRUN, converted, pod, replicated, runtime, train_job

NODE = replicated("node", pod(name="node", command=["torchrun", "default.py"], env=[{"name": "A", "value": "1"}]))


def test_the_runtime_that_kubeflow_brings_is_known() -> None:
    made = converted(train_job(trainer={"numNodes": 2, "command": ["torchrun", "finetune.py"], "numProcPerNode": 4}))
    assert made.spec["workers"] == 2
    assert made.spec["processesPerWorker"] == 4
    assert made.spec["image"].startswith("pytorch/pytorch:")
    outcome, reason = made.reason("spec.runtimeRef.name")
    assert outcome == "dropped" and made.spec["image"] in reason
    assert made.refused() == {}


def test_a_runtime_that_isn_t_there_is_refused() -> None:
    made = converted(train_job("theirs", trainer={"image": "x:1", "command": ["python", "a.py"]}))
    assert "kubectl get clustertrainingruntime theirs -o yaml" in made.refused()["spec.runtimeRef.name"]
    made = converted(train_job("theirs", trainer={"command": ["python", "a.py"]}))
    assert "spec.image: is missing" in made.refused()[""]


@pytest.mark.parametrize("name", ["deepspeed-distributed", "jax-distributed", "xgboost-distributed"])
def test_runtimes_of_other_frameworks_are_refused(name: str) -> None:
    mpi = runtime(NODE, name="mpi", policy={"mpi": {"numProcPerNode": 1}})
    assert "mpirun" in converted(train_job("mpi"), mpi).refused()["runtime:spec.mlPolicy.mpi.numProcPerNode"]
    made = converted(train_job(name, trainer={"command": ["python", "a.py"]}))
    assert made.refused()


def test_the_trainer_replaces_what_the_runtime_says() -> None:
    trainer = {
        "image": "ours:2",
        "args": ["finetune.py"],
        "command": ["torchrun"],
        "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}},
    }
    made = converted(train_job("ours", trainer=trainer), runtime(NODE))
    assert made.spec == {
        "image": "ours:2",
        "command": ["python", "finetune.py"],
        "workers": 1,
        "resources": {"gpus": 4},
        "podTemplate": {
            "spec": {
                "containers": [{"name": "worker", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]}]
            }
        },
    }
    container = "runtime:spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0]"
    assert made.reason(f"{container}.image") == ("dropped", "spec.trainer.image replaces it")
    assert made.reason(f"{container}.env[0].value") == ("dropped", "spec.trainer.env[0].value replaces it")
    assert made.became("runtime:spec.mlPolicy.numNodes") == [("spec.workers", 1)]
    assert made.refused() == {}


def patch(pod_fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a runtime patch of the pods."""
    job = {"name": "node", "template": {"spec": {"template": {"spec": pod_fields}}}}
    metadata = {"labels": {"team": "a"}}
    template = {"metadata": metadata, "spec": {"replicatedJobs": [job]}}
    return {"manager": "example.com/team", "trainingRuntimeSpec": {"template": template}}


@pytest.mark.parametrize(
    "field",
    [
        {"runtimePatches": [patch({"nodeSelector": {"pool": "a"}})]},
        {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"pool": "a"}}}]},
        {"podSpecOverrides": [{"targetJobs": [{"name": "node"}], "nodeSelector": {"pool": "a"}}]},
    ],
    ids=lambda field: next(iter(field)),
)
def test_patches_of_pods_are_the_job_s(field: dict[str, Any]) -> None:
    made = converted(train_job("ours", **field), runtime(NODE))
    assert made.spec["podTemplate"]["spec"]["nodeSelector"] == {"pool": "a"}
    assert made.refused() == {}
    assert made.job["metadata"].get("labels") == ({"team": "a"} if "runtimePatches" in field else None)


def test_initializers_become_jobs_before() -> None:
    uri = {"storageUri": "hf://org/data", "secretRef": {"name": "hf"}, "env": [{"name": "X", "value": "1"}]}
    prepare = replicated("dataset-initializer", pod(name="dataset-initializer"))
    node = {**NODE, "dependsOn": [{"name": "dataset-initializer", "status": "Complete"}]}
    made = converted(train_job("ours", initializer={"dataset": uri}), runtime(prepare, node))
    [job] = made.beside
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert job["metadata"]["name"] == "finetune-dataset-initializer-0"
    assert container["env"] == [{"name": "X", "value": "1"}, {"name": "STORAGE_URI", "value": "hf://org/data"}]
    assert container["envFrom"] == [{"secretRef": {"name": "hf"}}]
    assert [field.partition("[1].")[2] for field in made.refused()] == ["dependsOn"]
    made = converted(train_job("ours", initializer={"model": uri}), runtime(NODE))
    assert "no model-initializer" in made.refused()["spec.initializer"]


@pytest.mark.parametrize(
    ("policy", "gang", "refused"),
    [
        ({"coscheduling": {"scheduleTimeoutSeconds": 60}}, {"scheduler": "coscheduling", "timeoutSeconds": 60}, []),
        ({"volcano": {}}, {"scheduler": "volcano"}, []),
        (
            {"volcano": {"networkTopology": {"mode": "hard"}}},
            {"scheduler": "volcano"},
            ["runtime:spec.podGroupPolicy.volcano.networkTopology.mode"],
        ),
    ],
)
def test_gangs(policy: dict[str, Any], gang: dict[str, Any], refused: list[str]) -> None:
    made = converted(train_job("ours"), runtime(NODE, podGroupPolicy=policy))
    assert (made.spec["scheduling"]["gang"], list(made.refused())) == (gang, refused)


def test_elastic_runtimes_of_older_releases() -> None:
    policy = {"numNodes": 2, "torch": {"numProcPerNode": "auto", "elasticPolicy": {"minNodes": 1, "maxNodes": 3}}}
    made = converted(train_job("ours"), runtime(NODE, policy=policy))
    assert (made.spec["elastic"], made.spec["workers"]) == ({"minWorkers": 1, "maxWorkers": 3}, 2)


def test_the_job_that_trains_is_known_by_its_label() -> None:
    launcher = replicated("launcher", pod(name="node", command=["torchrun", "a.py"]))
    launcher["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    other = replicated("server", pod(["python", "serve.py"], name="node"))
    made = converted(train_job("ours", trainer={"image": "ours:2"}), runtime(other, launcher))
    assert (made.spec["image"], made.spec["command"]) == ("ours:2", ["python", "a.py"])
    assert [each["metadata"]["name"] for each in made.beside] == ["finetune-server-0"]


def test_the_rest_of_a_train_job() -> None:
    made = converted(train_job("ours", suspend=True, activeDeadlineSeconds=9, labels={"team": "a"}), runtime(NODE))
    assert made.spec["runPolicy"] == {"activeDeadlineSeconds": 9, "suspend": True}
    assert made.job["metadata"] == {"name": "finetune", "labels": {"team": "a"}}
    held = train_job("ours", managedBy="kueue.x-k8s.io/multikueue")
    assert list(converted(held, runtime(NODE)).refused()) == ["spec.managedBy"]


def test_a_runtime_s_wait_for_its_gang_stays_that_of_kueue_s_job() -> None:
    job = train_job("ours")
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    below = {"coscheduling": {"scheduleTimeoutSeconds": 60}}
    made = converted(job, runtime(replicated("node", pod(TORCHRUN, "node")), podGroupPolicy=below))
    assert made.spec["scheduling"] == {"gang": {"timeoutSeconds": 60, "scheduler": "kueue"}, "queue": "q"}
    made = converted(job, runtime(replicated("node", pod(TORCHRUN, "node")), podGroupPolicy={"volcano": {}}))
    assert made.spec["scheduling"] == {"gang": {"scheduler": "kueue"}, "queue": "q"}
    assert list(made.refused()) == ["runtime:spec.podGroupPolicy.volcano"]
