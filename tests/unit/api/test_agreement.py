"""Python and the API server agree on every spec: both accept or both refuse it, with the same message for a rule."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.api.api_server import apply
from trainmaster_operator.api.parsing import InvalidJob, parse_spec

NOTHING = st.just(...)
JUNK = st.sampled_from([None, True, "", "x", -1, 0, 3, 2.5, [], {}, ["x"], {"x": 1}])


def field(*values: Any) -> st.SearchStrategy[Any]:
    """Draws a field: usually the first value, which is right, or nothing; sometimes another value; seldom junk."""
    choose: dict[int, st.SearchStrategy[Any]] = {
        19: JUNK,
        **dict.fromkeys(range(14, 19), st.sampled_from(values)),
        **dict.fromkeys(range(4), NOTHING),
    }
    return st.integers(0, 19).flatmap(lambda dice: choose.get(dice, st.just(values[0])))


def part(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draws an object of these fields; sometimes it has an extra field, and sometimes it isn't an object at all."""
    known = st.fixed_dictionaries(fields).map(lambda given: {k: v for k, v in given.items() if v is not ...})
    extended = st.tuples(known, st.integers(0, 29)).map(
        lambda drawn: {**drawn[0], "extra": 1} if drawn[1] == 29 else drawn[0]
    )
    return st.integers(0, 29).flatmap(lambda dice: JUNK if dice == 29 else extended)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(NOTHING, NOTHING, strategy)


QUANTITIES = field(1, "2", "500m", "128Gi", "1e3", "1.5", "-1", "12 GB", "0x1", "1" * 40, 10**19)
CORES = field(1, "2", "500m", 0.5, "1e3", ".5", "-1", -0.5, "2 cores", "0x1", "1" * 40, True)
# The API server can't see that a request is above its limit, so the two are never drawn together.
CPU = st.one_of(CORES, part(request=CORES), part(limit=CORES))
RESOURCES = part(gpus=field(0, 1, 8, 1024, 1025), cpu=CPU, memory=QUANTITIES, sharedMemory=QUANTITIES)
ACCELERATOR = part(
    kind=field("nvidia", "custom", "ascend", "tpu"), resourceName=field("nvidia.com/mig-1g.5gb", "gpu", "a/b")
)
GROUP = part(
    name=field("a", "b", "b", "a100", "A", "x" * 63, "x" * 64, "-a"),
    workers=st.one_of(st.sampled_from([1, 2, 600, 1024]), JUNK),
    resources=maybe(RESOURCES),
    accelerator=maybe(ACCELERATOR),
    nodeSelector=field({"gpu": "a100"}, {"gpu": 1}),
)
COUNT = field(1, 2, 8, 1024)
FAILURE_POLICY = part(
    maxRestarts=field(0, 6, 1_000_000, 1_000_001),
    backoff=maybe(part(initialSeconds=field(0, 1.5, 400), factor=field(1, 2.0, 0.5), maxSeconds=field(0, 300, 1e9))),
    rules=maybe(
        st.lists(
            part(
                exitCodes=field([1], [255, 2], [0], [256]),
                reasons=field(["OOMKilled"], ["oom"], ["Hung", "Error"]),
                action=st.sampled_from(["Fail", "Restart", "Ignore", "Retry"]),
            ),
            max_size=3,
        )
    ),
    hang=maybe(part(progressSeconds=field(600, 0.5, 0), firstStepSeconds=field(1), action=field("Restart", "Fail"))),
    startupSeconds=field(900, 0, 1.5),
    nodes=maybe(part(lostAfterSeconds=field(40, 40.0, 41), quarantineAfter=field(3, 0))),
)
RUN_POLICY = part(
    suspend=field(True, False),
    activeDeadlineSeconds=field(1, 86400, 0),
    ttlSecondsAfterFinished=field(0, 3600, -1),
    keepPods=field("None", "All", "none"),
)
CHECKPOINT = part(
    volume=part(
        claimName=field("ckpt", "Ckpt"),
        hostPath=field("/data", "data", "/a/../b", "/a:b", "/..", "/a..b"),
        emptyDir=field(True, False),
    ),
    path=field("/checkpoints", "/", "x", "/dev/shm", "/devices", "/run/trainmaster", "/run/trainmaster2"),
)
INTERCONNECT = part(
    nvlink=field(True, False),
    hostNetwork=field(True),
    interface=field("eth0", "^docker0"),
    debug=field("INFO", "DEBUG"),
    rdma=maybe(part(resourceName=field("rdma/hca", "hca"), count=field(1, 0))),
)
SCHEDULING = part(
    priorityClassName=field("high", "High"),
    queue=field("team"),
    gang=maybe(part(scheduler=field("volcano", "kueue", "kubernetes", "slurm"), timeoutSeconds=field(60, 0, 1.5))),
    topology=maybe(
        part(
            key=field("rack", "topology.kubernetes.io/rack", "a/b/c", "-rack", "x" * 64, ""),
            mode=field("Pack", "Spread", "Near"),
            required=field(True, "yes"),
        )
    ),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "image": field("ghcr.io/trainmaster/trainer@sha256:0", "me/x:1", "ghcr.io/trainmaster/trainer2:1", "a b"),
    "command": field(["python", "train.py"], ["python", 1]),
    "args": field(["--x"], ["a"] * 1025),
    # The API server takes any mapping here. tests/trainer compares the accepted values with the bundled loop.
    "training": field({"task": {"name": "a:b", "options": {"deep": [{"x": None}]}}, "steps": 1, "batch": {"size": 1}}),
    "setup": field("source env.sh", "x" * 8193),
    "launcher": field("torchrun", "exec", "mpi"),
    "backend": field("auto", "cpu:gloo,cuda:nccl", "NCCL"),
    "workers": COUNT,
    "workerGroups": maybe(st.lists(GROUP, max_size=3)),
    "processesPerWorker": field("auto", 1, 1025, "all"),
    "resources": maybe(RESOURCES),
    "accelerator": maybe(ACCELERATOR),
    "interconnect": maybe(INTERCONNECT),
    "elastic": maybe(part(minWorkers=COUNT, maxWorkers=COUNT)),
    "failurePolicy": maybe(FAILURE_POLICY),
    "runPolicy": maybe(RUN_POLICY),
    "successPolicy": field("AllWorkers", "RankZero", "AnyWorker"),
    "scheduling": maybe(SCHEDULING),
    "checkpoint": maybe(CHECKPOINT),
    "podTemplate": maybe(part(metadata=maybe(part(labels=field({"a": "b"}, {"a": 1}))), spec=field({"hostPID": True}))),
}
BASES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{"workers": 2}, {"workerGroups": [{"name": "a", "workers": 1}, {"name": "b", "workers": 2}]}, {}]
)


@st.composite
def specs(draw: st.DrawFn) -> Any:
    """Draws a valid spec, and replaces a few of its fields."""
    spec = dict(draw(BASES))
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True)):
        spec[name] = draw(FIELDS[name])
    return {name: value for name, value in spec.items() if value is not ...}


NAMES = st.sampled_from(["job", "job", "job", "job", "x" * 40, "x" * 52, "x" * 53, "1job", "Job"])


@settings(max_examples=3 * settings.default.max_examples)
@given(specs(), NAMES)
@example({"workers": 2, "resources": {"sharedMemory": 10**19}}, "job")
def test_python_and_the_api_server_agree(spec: Any, name: str) -> None:
    answer = apply(spec, name)
    try:
        parse_spec(spec, name)
        problems: tuple[Any, ...] = ()
    except InvalidJob as error:
        problems = error.problems
    said = [str(problem) for problem in problems]
    against = f"{answer.unknown_fields} {answer.sentences}"
    assert bool(said) != answer.accepted, f"Python: {said}\nAPI server: {against}"
    if answer.by_rules:
        # If a field by itself is wrong, Python doesn't check the rules between fields.
        assert set(said) <= set(answer.sentences)
