"""If a job can't run, the user reads one sentence for each mistake, with the field, the value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.api_server import apply
from tests.unit.api.sentences import sentences

OTHER_IMAGE = {"image": "example.com/me/train:1"}


# The issue's list of bad input, with the exact sentences.
BAD_INPUT = {
    "a misspelled field": (
        {"wokers": 2},
        "spec.wokers: unknown field; did you mean workers?",
    ),
    "a misspelled field further down": (
        {"workers": 1, "resources": {"gpu": 1}},
        "spec.resources.gpu: unknown field; did you mean gpus?",
    ),
    "a wrong type": (
        {"workers": "2"},
        "spec.workers: '2' is not a whole number; write it without quotes",
    ),
    "a boolean for a number": (
        {"workers": True},
        "spec.workers: true is not a whole number; use one, such as 2",
    ),
    "a list for text": (
        {"workers": 1, "setup": ["source env.sh"]},
        "spec.setup: a list is not text; give one text",
    ),
    "text for a list": (
        {"workers": 1, "command": "python train.py"},
        "spec.command: 'python train.py' is not a list; write its items in brackets or one a line after '-'",
    ),
    "zero workers": (
        {"workers": 0},
        "spec.workers: 0 is too small; use at least 1",
    ),
    "more workers than an assignment names": (
        {"workers": 1025},
        "spec.workers: 1025 is too large; use at most 1024",
    ),
    "negative GPUs": (
        {"workers": 1, "resources": {"gpus": -1}},
        "spec.resources.gpus: -1 is too small; use at least 0",
    ),
    "fractional GPUs": (
        {"workers": 1, "resources": {"gpus": 0.5}},
        "spec.resources.gpus: 0.5 is not a whole number; write it without a fraction",
    ),
    "workers and workerGroups": (
        {"workers": 2, "workerGroups": [{"name": "a", "workers": 1}]},
        "spec.workers: 2 can't be combined with spec.workerGroups; remove spec.workers, or make it a group",
    ),
    "neither workers nor workerGroups": (
        {},
        "spec: has no workers; set spec.workers to the number of pods, or spec.workerGroups",
    ),
    "a missing command": (
        {"workers": 1, **OTHER_IMAGE},
        "spec.command: is missing, and the image 'example.com/me/train:1' has no program that Trainmaster knows; set "
        "it to what trains, such as [python, train.py]",
    ),
    "an unknown launcher": (
        {"workers": 1, "launcher": "mpi"},
        "spec.launcher: 'mpi' is not known; use torchrun or exec",
    ),
    "resources beside groups": (
        {"workerGroups": [{"name": "a", "workers": 1}], "resources": {"gpus": 1}},
        "spec.resources: can't be combined with spec.workerGroups; move it into the groups",
    ),
    "two groups of one name": (
        {"workerGroups": [{"name": "a", "workers": 1}, {"name": "a", "workers": 1}]},
        "spec.workerGroups[1].name: 'a' is already the name of another group; use another name",
    ),
    "a group without a name": (
        {"workerGroups": [{"workers": 1}]},
        "spec.workerGroups[0].name: is missing; set it (Name of the group, unique in the job)",
    ),
    "a group's name that no pod can have": (
        {"workerGroups": [{"name": "A100", "workers": 1}]},
        "spec.workerGroups[0].name: 'A100' can't be used; use lower case letters, digits and '-', beginning and ending "
        "with a letter or digit",
    ),
    "a quantity that isn't one": (
        {"workers": 1, "resources": {"memory": "12 GB"}},
        "spec.resources.memory: '12 GB' is not a quantity; use 0 or more with a suffix, such as 512Mi or 16Gi",
    ),
    "a negative quantity": (
        {"workers": 1, "resources": {"cpu": {"request": "-1"}}},
        "spec.resources.cpu.request: '-1' is not a quantity; use 0 or more with an optional suffix, such as 16, 0.5 "
        "or 500m",
    ),
    "a misspelled part of cpu": (
        {"workers": 1, "resources": {"cpu": {"limits": 2}}},
        "spec.resources.cpu.limits: unknown field; did you mean limit?",
    ),
    "a request above its limit": (
        {"workers": 1, "resources": {"cpu": {"request": "2500m", "limit": 2}}},
        "spec.resources.cpu.request: 2500m is more than the limit, 2; use at most that",
    ),
    "no ranks": (
        {"workers": 1, "processesPerWorker": 0},
        "spec.processesPerWorker: 0 is neither auto nor a whole number of ranks; use auto or 1 to 1024",
    ),
    "a custom accelerator without a resource": (
        {"workers": 1, "accelerator": {"kind": "custom"}},
        "spec.accelerator.resourceName: is missing, and kind custom has no resource of its own; set it, such as "
        "example.com/npu",
    ),
    "a resource that no device plugin has": (
        {"workers": 1, "accelerator": {"resourceName": "gpu"}},
        "spec.accelerator.resourceName: 'gpu' can't be used; use the device plugin's domain and name, such as "
        "nvidia.com/gpu",
    ),
    "a rule that matches nothing": (
        {"workers": 1, "failurePolicy": {"rules": [{"action": "Fail"}]}},
        "spec.failurePolicy.rules[0]: matches nothing; give exitCodes, reasons or both",
    ),
    "a rule on a reason that there isn't": (
        {"workers": 1, "failurePolicy": {"rules": [{"action": "Fail", "reasons": ["OOMkilled"]}]}},
        "spec.failurePolicy.rules[0].reasons[0]: 'OOMkilled' is not known; did you mean OOMKilled?",
    ),
    "a rule on success": (
        {"workers": 1, "failurePolicy": {"rules": [{"action": "Fail", "exitCodes": [0]}]}},
        "spec.failurePolicy.rules[0].exitCodes[0]: 0 is too small; use at least 1",
    ),
    "a back-off that shrinks": (
        {"workers": 1, "failurePolicy": {"backoff": {"initialSeconds": 400}}},
        "spec.failurePolicy.backoff.maxSeconds: is less than initialSeconds; use at least that",
    ),
    "seconds in quotes": (
        {"workers": 1, "failurePolicy": {"hang": {"progressSeconds": "10"}}},
        "spec.failurePolicy.hang.progressSeconds: '10' is not a number; give seconds as a number, such as 10",
    ),
    "seconds with their unit": (
        {"workers": 1, "runPolicy": {"activeDeadlineSeconds": "1h30m"}},
        "spec.runPolicy.activeDeadlineSeconds: '1h30m' is not a number; give seconds as a number, such as 5400",
    ),
    "a placeholder": (
        {"workers": "${WORKERS}"},
        "spec.workers: '${WORKERS}' is a placeholder; put a whole number there",
    ),
    "a number in words": ({"workers": "two"}, "spec.workers: 'two' is not a whole number; use one, such as 2"),
    "typographic quotes": (
        {"workers": "\u201c2\u201d"},
        "spec.workers: '\u201c2\u201d' has typographic quotes, which YAML takes as text; write ' or \" instead",
    ),
    "a no-break space in a name": (
        {"workers": 1, "\xa0launcher": "exec"},
        "spec.\xa0launcher: unknown field with a no-break space (U+00A0) in it; did you mean launcher?",
    ),
    "no space behind a colon": (
        {"workers": 1, "elastic": "minWorkers:2"},
        "spec.elastic: 'minWorkers:2' is not a mapping; write a space after ':'",
    ),
    "a gang by its scheduler alone": (
        {"workers": 1, "scheduling": {"gang": "volcano"}},
        "spec.scheduling.gang: 'volcano' is not a mapping; write {scheduler: volcano}",
    ),
    "a group as text": (
        {"workerGroups": ["large"]},
        "spec.workerGroups[0]: 'large' is not a mapping; give its fields, such as name and workers",
    ),
    "a name without its end, which is then no missing one": (
        {"workers": 2, "elastic": {"min": 1, "maxWorkers": 4}},
        "spec.elastic.min: unknown field; did you mean minWorkers?",
    ),
    "a foreign field of a group": (
        {"workerGroups": [{"name": "a", "replicas": 2}]},
        "spec.workerGroups[0].replicas: unknown field; set spec.workerGroups[0].workers",
    ),
    "a missing field with few values": (
        {"workers": 1, "scheduling": {"gang": {}}},
        "spec.scheduling.gang.scheduler: is missing; set it to volcano, coscheduling, kubernetes or kueue",
    ),
    "a field that nobody has": (
        {"workers": 1, "flavour": "x"},
        "spec.flavour: unknown field; remove it (`kubectl explain dtj.spec` lists the fields)",
    ),
    "seconds in words": (
        {"workers": 1, "failurePolicy": {"startupSeconds": "a while"}},
        "spec.failurePolicy.startupSeconds: 'a while' is not a number; give seconds as a number, such as 5",
    ),
    "more seconds than a year has": (
        {"workers": 1, "runPolicy": {"activeDeadlineSeconds": 1_000_000_000}},
        "spec.runPolicy.activeDeadlineSeconds: 1000000000 is too large; use at most 31536000",
    ),
    "more restarts than there can be": (
        {"workers": 1, "failurePolicy": {"maxRestarts": 2_000_000}},
        "spec.failurePolicy.maxRestarts: 2000000 is too large; use at most 1000000",
    ),
    "a name of Python": (
        {"workers": 1, "failure_policy": {"max_restarts": 3}},
        "spec.failure_policy: unknown field; did you mean failurePolicy?",
    ),
    "a name of Python further down": (
        {"workers": 1, "failurePolicy": {"max_restarts": 3}},
        "spec.failurePolicy.max_restarts: unknown field; did you mean maxRestarts?",
    ),
    "a name in another case": (
        {"workers": 1, "failurePolicy": {"maxrestarts": 3}},
        "spec.failurePolicy.maxrestarts: unknown field; did you mean maxRestarts?",
    ),
    "a reason in lower case": (
        {"workers": 1, "failurePolicy": {"rules": [{"action": "Fail", "reasons": ["oomkilled"]}]}},
        "spec.failurePolicy.rules[0].reasons[0]: 'oomkilled' is not known; did you mean OOMKilled?",
    ),
    "the beginning of a reason": (
        {"workers": 1, "failurePolicy": {"rules": [{"action": "Fail", "reasons": ["OOM"]}]}},
        "spec.failurePolicy.rules[0].reasons[0]: 'OOM' is not known; did you mean OOMKilled?",
    ),
    "a vendor in capitals": (
        {"workers": 1, "accelerator": {"kind": "NVIDIA"}},
        "spec.accelerator.kind: 'NVIDIA' is not known; did you mean nvidia?",
    ),
    "no time to start": (
        {"workers": 1, "failurePolicy": {"startupSeconds": 0}},
        "spec.failurePolicy.startupSeconds: 0 is too small; use more than 0",
    ),
    "no checkpoint volume": (
        {"workers": 1, "checkpoint": {"volume": {}}},
        "spec.checkpoint.volume: names none or several volumes; give exactly one of claimName, hostPath and emptyDir: "
        "true",
    ),
    "checkpoints over the agent's files": (
        {"workers": 1, "checkpoint": {"volume": {"emptyDir": True}, "path": "/run/trainmaster/x"}},
        "spec.checkpoint.path: '/run/trainmaster/x' is where the system or Trainmaster keeps files; use another path, "
        "such as /checkpoints",
    ),
    "a host path that goes up": (
        {"workers": 1, "checkpoint": {"volume": {"hostPath": "/data/../etc"}}},
        "spec.checkpoint.volume.hostPath: '/data/../etc' contains '..'; use a path without it",
    ),
    "no spec": (None, "spec: is missing; give the job a spec"),
    "a list for a spec": ([], "spec: a list is not a mapping; give its fields, such as image and imagePullPolicy"),
    "a setup line that is too long, unquoted": (
        {"workers": 1, "setup": "export TOKEN=hunter2\n" * 400},
        "spec.setup: this text is too long; use at most 8192 characters",
    ),
    "an empty command": (
        {"workers": 1, "command": []},
        "spec.command: is empty; give it a value, or remove it",
    ),
    "too many arguments": (
        {"workers": 1, "args": ["x"] * 1025},
        "spec.args: has 1025 items; use at most 1024",
    ),
    "a misspelled field without a value": (
        {"workers": 1, "runPolicy": {"keepPod": None}},
        "spec.runPolicy.keepPod: unknown field; did you mean keepPods?",
    ),
}


BAD_INPUT |= {
    f"the image {image!r}": (
        {"workers": 1, "image": image, "command": ["x"]},
        f"spec.image: '{image}' is not an image that can be pulled; use registry/repository:tag, without https://, "
        "spaces or capitals in the repository, such as ghcr.io/team/train:1.0",
    )
    for image in (
        "https://ghcr.io/team/train:1",
        "docker://team/train:1",
        "ghcr.io/Team/train:1",
        " team/train:1",
        "team/train:1 ",
        "team/train:",
        "team/train:1:2",
        "",
        "“team/train:1”",
    )
}
UNITS = "without a suffix it counts in bytes, and m is a thousandth of one: write Mi or Gi, such as 512Mi"
BAD_INPUT |= {
    f"{memory!r} of memory": (
        {"workers": 1, "resources": {"memory": memory}},
        f"spec.resources.memory: {memory} is less than 4Mi, in which no worker starts; {UNITS}",
    )
    for memory in (32, "64", "512m", "128k", "4000000")
}
BAD_INPUT |= {
    "shared memory in bytes": (
        {"workers": 1, "resources": {"sharedMemory": 8}},
        f"spec.resources.sharedMemory: 8 is less than 4Ki, in which nothing can be shared; {UNITS}",
    ),
    "shared memory above memory": (
        {"workers": 1, "resources": {"memory": "8G", "sharedMemory": "8Gi"}},
        "spec.resources.sharedMemory: 8Gi is more than memory, 8G, to which it counts; use less than that, or more "
        "memory",
    ),
    "shared memory above memory as a number": (
        {"workerGroups": [{"name": "a", "workers": 1, "resources": {"memory": 1 << 30, "sharedMemory": "2Gi"}}]},
        "spec.workerGroups[0].resources.sharedMemory: 2Gi is more than memory, 1073741824, to which it counts; use "
        "less than that, or more memory",
    ),
}
BAD_INPUT |= {
    f"checkpoints at {path}": (
        {"workers": 1, "checkpoint": {"volume": {"emptyDir": True}, "path": path}},
        f"spec.checkpoint.path: '{path}' is where the system or Trainmaster keeps files; use another path, such as "
        "/checkpoints",
    )
    for path in (
        "/run//trainmaster",
        "/run/./trainmaster/x",
        "//etc/trainmaster/",
        "/opt/trainmaster/.",
        "/../run/trainmaster",
        "/etc/../run/trainmaster",
        "/dev/shm",
        "/proc/",
        "/usr/",
        "/etc/.",
        "//",
        "/./",
    )
}
BAD_INPUT |= {
    f"a rule on {reason}": (
        {"workers": 1, "failurePolicy": {"rules": [{"action": "Fail", "reasons": ["Hung", reason]}]}},
        f"spec.failurePolicy.rules[0].reasons[1]: '{reason}' can't be answered by a rule: a disruption never counts, "
        "and what keeps a job from starting or ends all of it fails it; use Error, Signal, OOMKilled, Hung, "
        "PreflightMismatch, MasterUnreachable, LaunchError, Usage, AgentLost, PeerLost, Stopped, LimitExceeded or "
        "Diverged",
    )
    for reason in ("PodDeleted", "Evicted", "NodeLost", "Unschedulable", "ImagePull", "MaxRestartsExceeded")
}


@pytest.mark.parametrize(("spec", "sentence"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_refused_with_a_sentence(spec: Any, sentence: str) -> None:
    assert sentences(spec) == [sentence]


def test_half_of_a_character_is_refused() -> None:
    assert sentences({"workers": 1, "args": ["\ud83d"]}) == [
        "spec.args[0]: has half of a character, which is not valid Unicode; write the whole character"
    ]


def test_elastic_limits_in_the_wrong_order_are_said_with_both_numbers() -> None:
    spec = {"workers": 4, "elastic": {"minWorkers": 5, "maxWorkers": 2}}
    assert "spec.elastic.minWorkers: 5 is more than maxWorkers, which is 2; use at most 2" in sentences(spec)


def test_workers_outside_of_elastic_are_said_with_the_range() -> None:
    spec = {"workers": 9, "elastic": {"minWorkers": 2, "maxWorkers": 8}}
    assert "spec.workers: 9 is outside spec.elastic; use 2 to 8" in sentences(spec)


def test_everything_wrong_is_said_at_once_in_the_order_of_the_fields() -> None:
    spec = {"launcher": "mpi", "workers": 0, "processesPerWorker": "all", "resources": {"gpus": -1}}
    assert [line.split(":")[0] for line in sentences(spec)] == [
        "spec.launcher",
        "spec.workers",
        "spec.processesPerWorker",
        "spec.resources.gpus",
    ]


def test_all_groups_together_have_no_more_workers_than_an_assignment_names() -> None:
    groups = [{"name": f"g{number}", "workers": 128} for number in range(8)]
    assert sentences({"workerGroups": groups}) == []
    groups[7]["workers"] = 129
    assert sentences({"workerGroups": groups}) == [
        "spec.workerGroups: has more than 1024 workers in all, which an assignment can't name; use fewer"
    ]


def test_a_queue_is_somebodys() -> None:
    (sentence,) = sentences({"workers": 1, "scheduling": {"queue": "team"}})
    assert sentence.startswith(
        "spec.scheduling.queue: 'team' has no scheduler that knows queues; set gang.scheduler to volcano"
    )


# Values that are unusual but right
@pytest.mark.parametrize(
    "fields",
    [
        *(
            {"image": image, "command": ["x"]}
            for image in (
                "pytorch",
                "localhost:5000/x",
                "Registry.example.com:5000/a/b_c/d--e:V1.0_x",
                f"ghcr.io/team/train@sha256:{'0' * 64}",
                f"team/train:1@sha256:{'a' * 64}",
                "[::1]:5000/x",
                "Team/x",
            )
        ),
        *({"resources": {"memory": memory}} for memory in (0, "0", "4Mi", "1e9", "+1Gi", ".5Gi", 8_000_000, "1e999")),
        {"resources": {"memory": "1Gi", "sharedMemory": "1024Mi"}},
        {"resources": {"sharedMemory": "64Mi"}},
        *(
            {"checkpoint": {"volume": {"emptyDir": True}, "path": path}}
            for path in (
                "/run/trainmaster2",
                "/devices",
                "/run",
                "/etc/x",
                "/usr/local/ckpt",
                "/a/../b",
                "/.run/trainmaster",
                "/data//x/",
            )
        ),
    ],
    ids=str,
)
def test_what_is_odd_and_right_is_accepted(fields: dict[str, Any]) -> None:
    assert sentences({"workers": 1, **fields}) == []
    assert apply({"workers": 1, **fields}).accepted
