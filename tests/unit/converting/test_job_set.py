"""In a JobSet, the Job that trains becomes a job, the others become Jobs, and its policies become failure rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.converting.manifests import TORCHRUN, converted, job_set, pod, replicated

JOB = "spec.replicatedJobs[0].template.spec"
WORKERS = {"parallelism": 4, "completions": 4}


def workers(command: list[str] | None = None, **job: Any) -> Any:
    """Returns the replicatedJob that trains."""
    return replicated("workers", pod(command or TORCHRUN), {**WORKERS, **job})


def test_pods_of_all_jobs_are_workers() -> None:
    made = converted(job_set(replicated("slice", pod(TORCHRUN), WORKERS, replicas=2)))
    assert made.spec["workers"] == 8
    assert made.became(f"{JOB}.parallelism") == [("spec.workers", 8)]
    assert made.refused() == {}


def test_two_of_one_program_are_groups_of_it() -> None:
    big = pod(TORCHRUN, resources={"limits": {"nvidia.com/gpu": 8}})
    small = pod(TORCHRUN, resources={"limits": {"nvidia.com/gpu": 4}})
    made = converted(
        job_set(replicated("big", big, {"parallelism": 1}), replicated("small", small, {"parallelism": 2}))
    )
    assert made.spec["workerGroups"] == [
        {"name": "big", "workers": 1, "resources": {"gpus": 8}},
        {"name": "small", "workers": 2, "resources": {"gpus": 4}},
    ]
    assert made.became("spec.replicatedJobs[1].name") == [("spec.workerGroups[1].name", "small")]
    assert made.beside == []


def test_another_program_stays_a_job() -> None:
    driver = replicated("driver", pod(["python", "serve.py"], "serve"), {"backoffLimit": 0}, replicas=2, groupName="a")
    made = converted(job_set(driver, workers(), coordinator={"replicatedJob": "driver"}))
    assert made.spec["command"] == ["python", "train.py"]
    assert [each["metadata"]["name"] for each in made.beside] == ["set-driver-0", "set-driver-1"]
    assert made.beside[0] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "set-driver-0"},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "spec": {
                    "restartPolicy": "OnFailure",
                    "containers": [
                        {"name": "serve", "image": "registry.example.com/train:1", "command": ["python", "serve.py"]}
                    ],
                }
            },
        },
    }
    assert made.became(f"{JOB}.backoffLimit") == [("Job set-driver-0, spec.backoffLimit", 0)]
    assert made.refused() == {}


def test_an_order_is_refused() -> None:
    first = replicated("prepare", pod(["python", "prepare.py"]))
    then = {**workers(), "dependsOn": [{"name": "prepare", "status": "Complete"}]}
    made = converted(job_set(first, then, startupPolicy={"startupPolicyOrder": "InOrder"}))
    assert list(made.refused()) == ["spec.replicatedJobs[1].dependsOn", "spec.startupPolicy.startupPolicyOrder"]


def test_workers_that_wait_for_each_other_are_of_one_job() -> None:
    then = {**workers(), "dependsOn": [{"name": "leader", "status": "Ready"}]}
    made = converted(
        job_set(replicated("leader", pod(TORCHRUN)), then, startupPolicy={"startupPolicyOrder": "InOrder"})
    )
    assert made.refused() == {}
    assert made.reason("spec.replicatedJobs[1].dependsOn")[1].startswith("both are workers of the job")
    remark = made.notes["spec.replicatedJobs[1].template.spec.parallelism"].answer.text
    assert remark == "all replicatedJobs together"


@pytest.mark.parametrize(
    ("policy", "job", "failures"),
    [
        ({"maxRestarts": 3}, {"backoffLimit": 0}, {"maxRestarts": 3}),
        (None, {"backoffLimit": 2}, {"maxRestarts": 2}),
        (None, {"backoffLimit": 2147483647}, {"maxRestarts": 1_000_000}),
        (
            {"maxRestarts": 3, "rules": [{"action": "FailJobSet", "targetReplicatedJobs": ["workers"]}]},
            {},
            {"maxRestarts": 3, "rules": [{"reasons": ["Error", "Signal", "OOMKilled", "Hung"], "action": "Fail"}]},
        ),
        ({"rules": [{"action": "RestartJobSet"}]}, {}, None),
        ({"rules": [{"action": "FailJobSet", "targetReplicatedJobs": ["driver"]}]}, {}, None),
        (
            {
                "maxRestarts": 1,
                "rules": [
                    {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]},
                ],
            },
            {
                "podFailurePolicy": {
                    "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42, 43]}}]
                }
            },
            {"maxRestarts": 1, "rules": [{"exitCodes": [42, 43], "action": "Ignore"}]},
        ),
        (
            None,
            {"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}}]}},
            {"rules": [{"exitCodes": [2], "action": "Fail"}]},
        ),
        (
            {"maxRestarts": 0},
            {"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}},
            {"maxRestarts": 0},
        ),
    ],
)
def test_failures(policy: Any, job: dict[str, Any], failures: Any) -> None:
    made = converted(job_set(workers(**job), **({"failurePolicy": policy} if policy else {})))
    assert made.spec.get("failurePolicy") == failures
    assert made.refused() == {}


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        ({"action": "FailJobSet", "onJobFailureMessagePatterns": ["disk"]}, "spec.failurePolicy.rules"),
        ({"action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}, "spec.failurePolicy.rules"),
    ],
)
def test_rules_that_have_no_like_are_refused(rule: dict[str, Any], refused: str) -> None:
    made = converted(job_set(workers(), failurePolicy={"maxRestarts": 1, "rules": [rule]}))
    assert list(made.refused()) == [refused]


DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
NEVER_COUNT = "deleted and evicted pods are disruptions, which restart the group and never count"


@pytest.mark.parametrize(
    ("action", "pod_rule", "answer"),
    [
        ("FailJobSet", None, ("dropped", "no podFailurePolicy of the workers has a FailJob rule, so it never applies")),
        ("FailJobSet", {"onPodConditions": DISRUPTED}, ("refused", f"{NEVER_COUNT}; no rule can change that")),
        ("RestartJobSetAndIgnoreMaxRestarts", {"onPodConditions": DISRUPTED}, ("dropped", NEVER_COUNT)),
        (
            "FailJobSet",
            {"onExitCodes": {"operator": "NotIn", "values": [1]}},
            (
                "refused",
                "the podFailurePolicy's rules that it depends on can't be converted; set spec.failurePolicy.rules",
            ),
        ),
    ],
)
def test_a_rule_about_pods_that_end_a_job_says_what_becomes_of_them(
    action: str, pod_rule: dict[str, Any] | None, answer: tuple[str, str]
) -> None:
    rules = [{"action": "FailJob", **pod_rule}] if pod_rule is not None else []
    given = {"action": action, "onJobFailureReasons": ["PodFailurePolicy"]}
    made = converted(
        job_set(workers(podFailurePolicy={"rules": rules}), failurePolicy={"maxRestarts": 1, "rules": [given]})
    )
    assert made.reason("spec.failurePolicy.rules") == answer
    assert made.spec["failurePolicy"] == {"maxRestarts": 1}
    if pod_rule is not None:
        assert made.reason(f"{JOB}.podFailurePolicy")[0] == answer[0]


@pytest.mark.parametrize(("limit", "remark"), [(0, ""), (3, "at the first failure; a Job tries its pods again until")])
def test_a_final_failure_of_a_job_is_one_of_the_group(limit: int, remark: str) -> None:
    rule = {"action": "FailJobSet", "onJobFailureReasons": ["BackoffLimitExceeded", "PodFailurePolicy"]}
    made = converted(job_set(workers(backoffLimit=limit), failurePolicy={"maxRestarts": 2, "rules": [rule]}))
    assert [each["action"] for each in made.spec["failurePolicy"]["rules"]] == ["Fail"]
    assert made.notes["spec.failurePolicy.rules"].answer.text.startswith(remark)


@pytest.mark.parametrize(
    ("policy", "success"),
    [
        ({"operator": "All"}, "AllWorkers"),
        ({"operator": "All", "targetReplicatedJobs": ["leader", "workers"]}, "AllWorkers"),
        ({"operator": "All", "targetReplicatedJobs": ["leader"]}, "RankZero"),
        ({"operator": "All", "targetReplicatedJobs": ["workers"]}, None),
        ({"operator": "Any"}, None),
        # For a single Job, Any means the same as All.
        ({"operator": "Any", "targetReplicatedJobs": ["leader"]}, "RankZero"),
    ],
)
def test_success(policy: dict[str, Any], success: str | None) -> None:
    leader = replicated("leader", pod(TORCHRUN))
    made = converted(job_set(leader, workers(), successPolicy=policy))
    assert (made.spec.get("successPolicy"), bool(made.refused())) == (success, success is None)


def test_the_index_of_a_job_s_pod_is_the_worker_s() -> None:
    command = ["bash", "-c", "echo $JOB_COMPLETION_INDEX"]
    made = converted(job_set(workers(command)))
    [variable] = made.spec["podTemplate"]["spec"]["containers"][0]["env"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    assert made.spec["launcher"] == "exec"
    # If there are several Jobs, each counts from 0.
    made = converted(job_set({**workers(command), "replicas": 2}))
    assert list(made.refused()) == [f"{JOB}.template.spec.containers[0].command"]


@pytest.mark.parametrize(("replicas", "topology"), [(1, {"key": "pool"}), (3, None)])
def test_an_exclusive_topology_packs_one_job(replicas: int, topology: Any) -> None:
    annotations = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "pool"}
    made = converted(job_set({**workers(), "replicas": replicas}, annotations=annotations))
    assert (made.spec.get("scheduling", {}).get("topology"), bool(made.refused())) == (topology, topology is None)


def test_claims_are_made_and_mounted() -> None:
    mount = {"name": "data", "mountPath": "/data"}
    template = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    prepare = replicated("prepare", pod(["python", "prepare.py"], volumeMounts=[mount]))
    train = replicated("workers", pod(TORCHRUN, volumeMounts=[mount]), WORKERS)
    claims = [{"templates": [template], "retentionPolicy": {"whenDeleted": "Retain"}}]
    made = converted(job_set(prepare, train, volumeClaimPolicies=claims))
    claim, job = made.beside
    assert (claim["kind"], claim["metadata"]) == ("PersistentVolumeClaim", {"name": "data-set"})
    mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": "data-set"}}]
    assert made.spec["podTemplate"]["spec"]["volumes"] == mounted
    assert job["spec"]["template"]["spec"]["volumes"] == mounted


def test_the_rest_of_a_job_set() -> None:
    made = converted(
        job_set(
            workers(completionMode="Indexed", activeDeadlineSeconds=60),
            suspend=True,
            ttlSecondsAfterFinished=9,
            network={"subdomain": "x", "enableDNSHostnames": True},
            managedBy="jobset.sigs.k8s.io/jobset-controller",
        )
    )
    assert made.spec["runPolicy"] == {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 9, "suspend": True}
    assert made.refused() == {}
    assert list(converted(job_set(workers(completions=9))).refused()) == [f"{JOB}.completions"]
