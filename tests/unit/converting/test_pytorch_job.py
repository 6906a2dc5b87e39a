"""A PyTorchJob becomes a job: its replicas, policies and metadata are converted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.converting.manifests import TORCHRUN, converted, pod, pytorch_job

MASTER = "spec.pytorchReplicaSpecs.Master"
WORKER = "spec.pytorchReplicaSpecs.Worker"


def replica(number: int, template: Any = None, restart: str | None = None) -> dict[str, Any]:
    """Returns a replica spec."""
    return {
        "replicas": number,
        "template": template or pod(TORCHRUN),
        **({"restartPolicy": restart} if restart else {}),
    }


def test_master_and_workers_are_workers() -> None:
    made = converted(pytorch_job(Master=replica(1), Worker=replica(3)))
    assert made.spec["workers"] == 4
    assert made.became(f"{MASTER}.replicas") == made.became(f"{WORKER}.replicas") == [("spec.workers", 4)]


def test_replicas_that_need_other_machines_are_groups() -> None:
    big = pod(TORCHRUN, resources={"limits": {"nvidia.com/gpu": 8}}, pod_fields={"nodeSelector": {"pool": "big"}})
    small = pod(TORCHRUN, resources={"limits": {"nvidia.com/gpu": 4}})
    made = converted(pytorch_job(Master=replica(1, big), Worker=replica(2, small)))
    assert made.spec["workerGroups"] == [
        {"name": "master", "workers": 1, "resources": {"gpus": 8}, "nodeSelector": {"pool": "big"}},
        {"name": "worker", "workers": 2, "resources": {"gpus": 4}},
    ]
    assert "workers" not in made.spec and "resources" not in made.spec and "podTemplate" not in made.spec
    assert made.became(f"{MASTER}.template.spec.nodeSelector.pool") == [
        ("spec.workerGroups[0].nodeSelector.pool", "big")
    ]
    assert made.refused() == {}


def test_groups_can_t_be_elastic_and_no_elastic_is_written() -> None:
    big = pod(TORCHRUN, resources={"limits": {"nvidia.com/gpu": 8}})
    spec = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}}
    made = converted(pytorch_job(spec, Master=replica(1, big), Worker=replica(2)))
    assert "workerGroups" in made.spec and "elastic" not in made.spec
    assert set(made.refused()) == {"spec.elasticPolicy.minReplicas", "spec.elasticPolicy.maxReplicas"}


def test_the_gang_scheduler_that_the_master_names_is_that_of_all() -> None:
    master = pod(TORCHRUN, pod_fields={"schedulerName": "volcano"})
    spec = {"runPolicy": {"schedulingPolicy": {"queue": "q"}}}
    made = converted(pytorch_job(spec, Master=replica(1, master), Worker=replica(2)))
    assert made.spec["scheduling"] == {"gang": {"scheduler": "volcano"}, "queue": "q"}
    assert made.became(f"{MASTER}.template.spec.schedulerName") == [("spec.scheduling.gang.scheduler", "volcano")]
    assert made.notes["spec.runPolicy.schedulingPolicy.queue"].answer.text == ""


def test_a_replica_without_pods_says_nothing_of_those_that_run() -> None:
    other = pod(["torchrun", "other.py"])
    made = converted(pytorch_job(Master=replica(1), Worker=replica(0, other)))
    assert (made.spec["workers"], made.spec["command"]) == (1, ["python", "train.py"])
    assert made.reason(WORKER) == ("dropped", "it has no pods")


def test_what_only_the_master_has_is_refused() -> None:
    shared = {"name": "A", "value": "1"}
    master = pod(["torchrun", "master.py"], env=[{"name": "ONLY", "value": "here"}, shared])
    made = converted(pytorch_job(Master=replica(1, master), Worker=replica(1, pod(TORCHRUN, env=[shared]))))
    here = f"{MASTER}.template.spec.containers[0]"
    assert set(made.refused()) == {f"{here}.command", f"{here}.env[0].name", f"{here}.env[0].value"}
    # The same variable is at another place in the list.
    assert made.became(f"{here}.env[1].value") == [("spec.podTemplate.spec.containers[0].env[0].value", "1")]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nprocPerNode": "8"}, {"processesPerWorker": 8}),
        ({"nprocPerNode": "auto"}, {"processesPerWorker": "auto"}),
        ({"runPolicy": {"backoffLimit": 3}}, {"failurePolicy": {"maxRestarts": 3}}),
        ({"runPolicy": {"cleanPodPolicy": "None"}}, {"runPolicy": {"keepPods": "All"}}),
        ({"runPolicy": {"cleanPodPolicy": "All"}}, {"runPolicy": {"keepPods": "None"}}),
        ({"runPolicy": {"cleanPodPolicy": "Running"}}, {"runPolicy": {"keepPods": "Failed"}}),
        ({"runPolicy": {"ttlSecondsAfterFinished": 60}}, {"runPolicy": {"ttlSecondsAfterFinished": 60}}),
        ({"runPolicy": {"activeDeadlineSeconds": 60}}, {"runPolicy": {"activeDeadlineSeconds": 60}}),
        ({"runPolicy": {"suspend": True}}, {"runPolicy": {"suspend": True}}),
        # This is the format of training-operator's predecessor.
        ({"backoffLimit": 3, "cleanPodPolicy": "None"}, {"failurePolicy": {"maxRestarts": 3}}),
        (
            {"runPolicy": {"schedulingPolicy": {"queue": "q", "priorityClass": "p", "scheduleTimeoutSeconds": 9}}},
            {
                "scheduling": {
                    "gang": {"scheduler": "volcano", "timeoutSeconds": 9},
                    "queue": "q",
                    "priorityClassName": "p",
                }
            },
        ),
        (
            {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2, "maxRestarts": 9, "rdzvBackend": "c10d"}},
            {"elastic": {"minWorkers": 1, "maxWorkers": 2}, "failurePolicy": {"maxRestarts": 9}},
        ),
        ({"elasticPolicy": {"maxReplicas": 2}}, {"elastic": {"minWorkers": 1, "maxWorkers": 2}}),
        ({"elasticPolicy": {"nProcPerNode": 2}}, {"processesPerWorker": 2}),
    ],
)
def test_policies(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    made = converted(pytorch_job(spec))
    assert {name: made.spec.get(name) for name in expected} == expected
    assert made.refused() == {}


@pytest.mark.parametrize(
    ("policy", "failures"),
    [
        ("OnFailure", {"maxRestarts": 3}),
        ("Always", {"maxRestarts": 3}),
        ("Never", {"maxRestarts": 0}),
        ("ExitCode", {"rules": [{"reasons": ["Error"], "action": "Fail"}], "maxRestarts": 3}),
    ],
)
def test_restart_policies(policy: str, failures: dict[str, Any]) -> None:
    made = converted(pytorch_job({"runPolicy": {"backoffLimit": 3}}, Worker=replica(1, restart=policy)))
    assert made.spec["failurePolicy"] == failures


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"nprocPerNode": "cpu"}, "spec.nprocPerNode"),
        (
            {"elasticPolicy": {"maxReplicas": 2, "metrics": [{"type": "Resource"}]}},
            "spec.elasticPolicy.metrics[0].type",
        ),
        ({"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}, "spec.runPolicy.managedBy"),
        ({"runPolicy": {"cleanPodPolcy": "All"}}, "spec.runPolicy.cleanPodPolcy"),
    ],
)
def test_what_has_no_like_is_refused(spec: dict[str, Any], field: str) -> None:
    assert list(converted(pytorch_job(spec)).refused()) == [field]


def test_kueue_s_queue_is_a_field_of_the_job() -> None:
    manifest = pytorch_job({"runPolicy": {"suspend": True, "schedulingPolicy": {"queue": "other", "minAvailable": 1}}})
    manifest["metadata"] = {
        "name": "resnet",
        "namespace": "team",
        "uid": "1-2",
        "labels": {"kueue.x-k8s.io/queue-name": "q", "team": "a", "kueue.x-k8s.io/priority-class": "high"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "x"},
    }
    manifest["status"] = {"conditions": [{"type": "Created"}]}
    made = converted(manifest)
    assert made.job["metadata"] == {
        "name": "resnet",
        "namespace": "team",
        "labels": {"team": "a"},
        "annotations": {"note": "x"},
    }
    assert made.spec["scheduling"] == {"queue": "q", "gang": {"scheduler": "kueue"}}
    # Kueue itself suspends the job in this way.
    assert "runPolicy" not in made.spec
    assert set(made.refused()) == {
        "metadata.labels.kueue.x-k8s.io/priority-class",
        "spec.runPolicy.schedulingPolicy.queue",
    }


def test_a_job_of_kueue_has_no_other_gang_scheduler() -> None:
    template = pod(TORCHRUN, pod_fields={"schedulerName": "volcano"})
    spec = {"runPolicy": {"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}}
    manifest = pytorch_job(spec, Worker=replica(2, template))
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    made = converted(manifest)
    assert made.spec["scheduling"] == {"gang": {"scheduler": "kueue", "timeoutSeconds": 60}, "queue": "q"}
    assert list(made.refused()) == [f"{WORKER}.template.spec.schedulerName"]


def test_the_number_of_processes_that_torchrun_is_given_comes_first() -> None:
    template = pod(["torchrun", "--nproc_per_node=8", "train.py"])
    made = converted(pytorch_job({"nprocPerNode": "4"}, Worker=replica(2, template)))
    assert made.spec["processesPerWorker"] == 8
    assert made.reason("spec.nprocPerNode") == ("dropped", "spec.processesPerWorker is 8 already")


@pytest.mark.parametrize(("option", "lost"), [("-c", False), ("-lc", True)])
def test_a_login_shell_that_is_left_out_is_named(option: str, lost: bool) -> None:
    made = converted(pytorch_job(Worker=replica(1, pod(["bash", option, "torchrun train.py"]))))
    said = made.notes[f"{WORKER}.template.spec.containers[0].command"].answer.text
    assert ("without bash -lc: what its profile sets is lost" in said) == lost


def test_a_name_that_is_too_long_is_refused_where_it_stands() -> None:
    manifest = pytorch_job()
    manifest["metadata"]["name"] = "x" * 60
    assert "use at most 52" in converted(manifest, valid=False).refused()["metadata.name"]
