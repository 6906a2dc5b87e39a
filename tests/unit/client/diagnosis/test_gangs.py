"""A job is compared with the nodes as a whole: what it needs at once, what there is, and what other jobs use of it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.client import TrainingJob
from trainmaster.client.diagnosis import diagnose
from trainmaster.client.diagnosis.situation import Diagnosis, Situation

REFUSED = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu."
NAMES = "abcdefgh"


def pod(name: str, gpus: int, node: str = "", *, job: str = "mine") -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "True" if node else "False", "reason": "Unschedulable"}
    container = {"name": "worker", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
    return {
        "metadata": {"name": name, "namespace": "team", "labels": {"trainmaster.dev/job-name": job}},
        "spec": {"containers": [container], **({"nodeName": node} if node else {})},
        "status": {"phase": "Running" if node else "Pending", "conditions": [{**scheduled, "message": REFUSED}]},
    }


def asked(workers: int, gpus: int, sizes: list[int], own: list[str], others: dict[str, int]) -> Diagnosis:
    """Returns the diagnosis of a job of which some workers have nodes, beside one other job's pods."""
    mine = [pod(f"mine-{number}", gpus, node) for number, node in enumerate(own)]
    pods = [*mine, *(pod(f"mine-{number}", gpus) for number in range(len(own), workers))]
    beside = [pod(f"other-{node}", used, node, job="other") for node, used in others.items() if used]
    nodes = [
        {"metadata": {"name": name}, "status": {"allocatable": {"nvidia.com/gpu": str(size)}}}
        for name, size in zip(NAMES, sizes, strict=False)
    ]
    condition = {"type": "Running", "status": "False", "reason": "Unschedulable", "message": REFUSED}
    raw = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "mine", "namespace": "team"},
        "spec": {"workers": workers, "resources": {"gpus": gpus}},
        "status": {
            "phase": "Pending",
            "attempt": 1,
            "workers": {"desired": workers},
            "conditions": [{**condition, "lastTransitionTime": "2026-11-25T03:00:00Z"}],
        },
    }
    return diagnose(Situation(TrainingJob.of(raw), pods=pods, nodes=nodes, pods_on_nodes=[*mine, *beside]))


def test_a_jobs_own_pods_arent_other_jobs() -> None:
    found = asked(4, 4, [4, 4, 4], ["a", "b", "c"], {})
    assert "the job needs 16 GPUs at once (4 workers of 4 each), and the cluster has 12" in found.sentence
    assert "node a has 4 GPUs, none in use by other jobs" in found.evidence
    assert not any("others" in line or "in use by job team/mine" in line for line in (found.sentence, *found.evidence))


def test_a_worker_that_fits_now_waits_for_the_scheduler_and_not_for_others() -> None:
    found = asked(1, 4, [4], [], {})
    assert "node a has 4 of 4 free now; the scheduler will try again" in found.sentence


sizes = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(workers=st.integers(2, 6), gpus=st.integers(1, 5), sizes=sizes, data=st.data())
def test_the_sentence_agrees_with_a_count_by_hand(
    workers: int, gpus: int, sizes: list[int], data: st.DataObject
) -> None:
    used = {name: data.draw(st.integers(0, size)) for name, size in zip(NAMES, sizes, strict=False)}
    free = {name: size - used[name] for name, size in zip(NAMES, sizes, strict=False)}
    places = [name for name in free for _ in range(free[name] // gpus)]
    own = places[: data.draw(st.integers(0, min(len(places), workers - 1)))]
    sentence = asked(workers, gpus, sizes, own, used).sentence
    could, now = sum(size // gpus for size in sizes), len(places)
    needs = f"the job needs {workers * gpus} GPUs at once"
    if could == 0:
        assert needs not in sentence
    elif could < workers:
        assert f"{needs} ({workers} workers of {gpus} each), and the cluster has {sum(sizes)}" in sentence
        assert ("split over nodes" in sentence) == (sum(sizes) >= workers * gpus)
    elif 0 < now < workers:
        assert needs in sentence and f"job team/other ({sum(used.values())})" in sentence
        assert f"{sum(free.values())} of {sum(sizes)} GPU" in sentence
    else:
        assert needs not in sentence
