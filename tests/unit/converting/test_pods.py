"""A pod template becomes image, command, resources and podTemplate, and each of its fields has an answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.converting.manifests import TORCHRUN, Converted, converted, pod, pytorch_job

HERE = "spec.pytorchReplicaSpecs.Worker.template.spec"
OURS = "spec.podTemplate.spec"


def of_pod(command: list[str] | None = None, **fields: Any) -> Converted:
    """Converts a PyTorchJob of two workers with this pod."""
    valid = fields.pop("valid", True)
    return converted(pytorch_job(Worker={"replicas": 2, "template": pod(command or TORCHRUN, **fields)}), valid=valid)


def test_a_container_becomes_the_job() -> None:
    made = of_pod(["torchrun", "train.py"], args=["--epochs", "90"], imagePullPolicy="Always", workingDir="/app")
    assert made.spec == {
        "image": "registry.example.com/train:1",
        "imagePullPolicy": "Always",
        "command": ["python", "train.py"],
        "args": ["--epochs", "90"],
        "workers": 2,
        "podTemplate": {"spec": {"containers": [{"name": "worker", "workingDir": "/app"}]}},
    }
    assert made.became(f"{HERE}.containers[0].name") == [(f"{OURS}.containers[0].name", "worker")]
    assert made.notes[f"{HERE}.containers[0].command"].answer.text == "torchrun is the launcher"


@pytest.mark.parametrize(
    ("limits", "requests", "resources", "rest"),
    [
        ({"nvidia.com/gpu": "8", "cpu": 4, "memory": "8Gi"}, {}, {"gpus": 8, "cpu": 4, "memory": "8Gi"}, {}),
        ({"nvidia.com/gpu": 8}, {"nvidia.com/gpu": 8}, {"gpus": 8}, {}),
        ({"cpu": 4}, {"cpu": 2}, {"cpu": {"request": 2, "limit": 4}}, {}),
        ({"cpu": "1"}, {"cpu": "1000m"}, {"cpu": "1"}, {}),
        ({}, {"cpu": 2}, {"cpu": {"request": 2}}, {}),
        ({"memory": "8Gi"}, {"memory": "4Gi"}, {"memory": "8Gi"}, {"requests": {"memory": "4Gi"}}),
        ({}, {"memory": "4Gi"}, None, {"requests": {"memory": "4Gi"}}),
        ({"ephemeral-storage": "9Gi"}, {}, None, {"limits": {"ephemeral-storage": "9Gi"}}),
    ],
)
def test_resources(limits: Any, requests: Any, resources: Any, rest: Any) -> None:
    made = of_pod(resources={"limits": limits, "requests": requests})
    assert made.spec.get("resources") == resources
    containers = made.spec.get("podTemplate", {"spec": {"containers": [{}]}})["spec"]["containers"]
    assert containers[0].get("resources", {}) == rest
    assert made.refused() == {}


@pytest.mark.parametrize(
    ("name", "accelerator"),
    [
        ("nvidia.com/gpu", None),
        ("amd.com/gpu", {"kind": "amd"}),
        ("huawei.com/Ascend910", {"kind": "ascend"}),
        ("nvidia.com/mig-1g.5gb", {"resourceName": "nvidia.com/mig-1g.5gb"}),
        ("google.com/tpu", {"kind": "custom", "resourceName": "google.com/tpu"}),
    ],
)
def test_accelerators(name: str, accelerator: Any) -> None:
    made = of_pod(resources={"limits": {name: 2, "rdma/hca": 1}})
    assert (made.spec["resources"], made.spec.get("accelerator")) == ({"gpus": 2}, accelerator)
    assert made.spec["interconnect"] == {"rdma": {"count": 1, "resourceName": "rdma/hca"}}


@pytest.mark.parametrize(
    ("command", "gpus", "launcher"),
    [
        (["torchrun", "train.py"], 8, None),
        (["python", "train.py"], 0, None),
        (["python", "train.py"], 1, None),
        (["python", "train.py"], 8, "exec"),
        (["python", "-c", "print()"], 0, "exec"),
        (["accelerate", "launch", "train.py"], 8, "exec"),
        (["bash", "-c", "cd /app && torchrun train.py"], 8, "exec"),
    ],
)
def test_a_program_is_started_as_often_as_it_was(command: list[str], gpus: int, launcher: str | None) -> None:
    made = of_pod(command, resources={"limits": {"nvidia.com/gpu": gpus}} if gpus else {})
    assert made.spec.get("launcher") == launcher


def test_a_script_that_holds_torchrun_to_a_rendezvous_is_refused() -> None:
    made = of_pod(["bash", "-c", "cd /app; torchrun --nnodes=2 --master_addr=$MASTER_ADDR train.py"])
    assert list(made.refused()) == [f"{HERE}.containers[0].command"]


def test_variables() -> None:
    field = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/job-name']"}}
    other = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-type']"}}
    env = [
        {"name": "MASTER_ADDR", "value": "x"},
        {"name": "PET_RDZV_ENDPOINT", "value": "y"},
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "JOB", "valueFrom": field},
        {"name": "TYPE", "valueFrom": other},
    ]
    made = of_pod(env=env)
    kept = made.spec["podTemplate"]["spec"]["containers"][0]["env"]
    assert kept == [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "JOB", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['trainmaster.dev/job-name']"}}},
    ]
    assert made.reason(f"{HERE}.containers[0].env[0]")[0] == "dropped"
    assert list(made.refused()) == [f"{HERE}.containers[0].env[4]"]


@pytest.mark.parametrize(
    ("limit", "memory", "shared"),
    [("4Gi", "8Gi", "4Gi"), (None, "8Gi", "8Gi"), ("9Gi", "8Gi", "8Gi"), ("4Gi", None, "4Gi")],
)
def test_a_memory_volume_at_dev_shm_is_shared_memory(limit: str | None, memory: str | None, shared: str) -> None:
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", **({"sizeLimit": limit} if limit else {})}}
    made = of_pod(
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}, {"name": "data", "mountPath": "/data"}],
        pod_fields={"volumes": [volume, {"name": "data", "emptyDir": {}}]},
        resources={"limits": {"memory": memory}} if memory else {},
    )
    assert made.spec["resources"]["sharedMemory"] == shared
    rest = made.spec["podTemplate"]["spec"]
    assert rest["volumes"] == [{"name": "data", "emptyDir": {}}]
    assert rest["containers"][0]["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert made.became(f"{HERE}.volumes[1].emptyDir") == [(f"{OURS}.volumes[0].emptyDir", {})]


def test_fields_of_a_pod() -> None:
    made = of_pod(
        pod_fields={
            "hostNetwork": True,
            "priorityClassName": "high",
            "schedulerName": "volcano",
            "restartPolicy": "Never",
            "subdomain": "x",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": 60,
            "nodeSelector": {"pool": "a"},
            "initContainers": [{"name": "wait", "image": "busybox:1"}],
        },
        securityContext={"privileged": True},
        terminationMessagePath="/x",
    )
    assert made.spec["interconnect"] == {"hostNetwork": True}
    assert made.spec["scheduling"] == {"priorityClassName": "high", "gang": {"scheduler": "volcano"}}
    rest = made.spec["podTemplate"]["spec"]
    assert rest["nodeSelector"] == {"pool": "a"}
    assert rest["initContainers"] == [{"name": "wait", "image": "busybox:1"}]
    assert rest["terminationGracePeriodSeconds"] == 1
    assert rest["containers"][0]["securityContext"] == {"privileged": True, "allowPrivilegeEscalation": True}
    assert made.reason(f"{HERE}.subdomain")[0] == "dropped"
    assert list(made.refused()) == [f"{HERE}.activeDeadlineSeconds"]


def test_sidecars_stay_beside_the_worker() -> None:
    template = pod(TORCHRUN)
    template["spec"]["containers"].insert(0, {"name": "logs", "image": "fluent:1"})
    template["spec"]["containers"].append({"name": "worker", "image": "x:1"})
    made = converted(pytorch_job(Worker={"replicas": 1, "template": template}))
    assert made.spec["image"] == "registry.example.com/train:1"
    assert made.spec["podTemplate"]["spec"]["containers"] == [{"name": "logs", "image": "fluent:1"}]
    assert list(made.refused()) == [f"{HERE}.containers[2]"]


def test_what_validate_would_refuse_is_refused_where_it_came_from() -> None:
    made = of_pod(pod_fields={"nodeSelectr": {"pool": "a"}}, image="https://registry.example.com/train", valid=False)
    assert "nodeSelectr" not in str(made.spec)
    assert set(made.refused()) == {f"{HERE}.nodeSelectr.pool", f"{HERE}.containers[0].image"}
    assert "is not an image" in made.refused()[f"{HERE}.containers[0].image"]


@pytest.mark.parametrize(
    ("command", "args", "launcher", "became"),
    [
        (["python", "train.py"], ["--rank", "$(RANK)"], "exec", 'exec python train.py --rank "${RANK}"'),
        (["torchrun", "--node_rank=$(NODE_RANK)", "train.py", "$(RANK)"], [], None, 'exec python train.py "${RANK}"'),
        (["sh", "-c", "python train.py $(MASTER_PORT)"], [], "exec", "python train.py ${MASTER_PORT}"),
        (
            ["sh", "-c", "torchrun train.py --local_rank $LOCAL_RANK"],
            [],
            None,
            'exec python train.py --local_rank "${LOCAL_RANK}"',
        ),
    ],
)
def test_a_program_gets_the_variables_of_each_attempt(
    command: list[str], args: list[str], launcher: str | None, became: str
) -> None:
    made = of_pod(command, args=args)
    assert made.spec["command"] == ["sh", "-c", became]
    assert made.spec.get("launcher") == launcher and "args" not in made.spec
    said = made.notes[f"{HERE}.containers[0].command"].answer.text
    assert said.endswith("a shell gives the program each attempt's variables")
    assert made.refused() == {}


def test_a_variable_of_an_attempt_that_no_shell_expands_is_refused() -> None:
    made = of_pod(["sh", "-c", "echo '$(RANK)'"], valid=False)
    said = str(made.refused()[f"{HERE}.containers[0].command"])
    assert "isn't the attempt's value, because Kubernetes replaces $(RANK) once" in said


def test_an_entry_point_of_the_image_is_no_command() -> None:
    template = pod()
    made = converted(pytorch_job(Worker={"replicas": 1, "template": template}), valid=False)
    assert "spec.command: is missing" in made.refused()[""]


def test_labels_of_pods() -> None:
    template = {**pod(TORCHRUN), "metadata": {"labels": {"team": "a", "training.kubeflow.org/x": "y"}, "name": "z"}}
    made = converted(pytorch_job(Worker={"replicas": 1, "template": template}))
    assert made.spec["podTemplate"]["metadata"] == {"labels": {"team": "a"}}
    topology = {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}
    made = converted(pytorch_job(Worker={"replicas": 1, "template": {**pod(TORCHRUN), "metadata": topology}}))
    assert made.spec["scheduling"] == {"topology": {"key": "rack", "required": True}}
