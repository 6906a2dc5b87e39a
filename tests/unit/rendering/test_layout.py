"""The workers of a job get their indexes, names, ranks and first assignment."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from trainmaster_operator.api.parsing import parse_spec
from trainmaster_operator.api.rules import MAX_SET_NAME
from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.api.v1alpha1.names import JobIdentity
from trainmaster_operator.controller.keys import MAX_KEYS
from trainmaster_operator.rendering import (
    AgentConfigMap,
    Manifest,
    Settings,
    first_assignment,
    rank_grace_seconds,
    render,
    stable_hosts,
    worker_layout,
    world_size,
)
from trainmaster_operator.rendering.agent_source import config_map_name
from trainmaster_operator.wire.assignment import Assignment, master_port
from trainmaster_operator.wire.limits import MAX_WORKERS

JOB = JobIdentity("team", "bert", "uid-1")
OTHER_IMAGE = {"image": "example.com/train:1", "command": ["python", "train.py"]}
TWO_GROUPS = {
    **OTHER_IMAGE,
    "workerGroups": [
        {"name": "a100", "workers": 2, "resources": {"gpus": 8}},
        {"name": "v100", "workers": 3, "resources": {"gpus": 4}},
    ],
}


def spec(**fields: Any) -> JobSpec:
    return parse_spec(fields, JOB.name)


def stateful_sets(job_spec: JobSpec, **options: Any) -> list[Manifest]:
    manifests = render(JOB, job_spec, first_assignment(JOB, job_spec), **options)
    return [manifest for manifest in manifests if manifest.kind == "StatefulSet"]


def environment(manifest: Manifest) -> dict[str, str | None]:
    worker = manifest.body["spec"]["template"]["spec"]["containers"][0]
    return {variable["name"]: variable.get("value") for variable in worker["env"]}


def liveness_probe(job_spec: JobSpec) -> Any:
    (one,) = stateful_sets(job_spec)
    return one.body["spec"]["template"]["spec"]["containers"][0].get("livenessProbe")


def test_a_job_of_one_group_has_one_set_of_its_own_name() -> None:
    (group,) = worker_layout(JOB, spec(workers=3))
    assert (group.name, group.set_name, list(group.indexes)) == ("worker", "bert", [0, 1, 2])


def test_groups_go_on_with_the_global_index() -> None:
    layout = worker_layout(JOB, spec(**TWO_GROUPS))
    assert [(group.set_name, list(group.indexes)) for group in layout] == [
        ("bert-a100", [0, 1]),
        ("bert-v100", [2, 3, 4]),
    ]
    assert sum(group.count for group in layout) == 5
    starts = [one.body["spec"]["ordinals"]["start"] for one in stateful_sets(spec(**TWO_GROUPS))]
    assert starts == [0, 2]


def test_spares_have_the_indexes_after_their_groups_workers_and_no_rank() -> None:
    groups = spec(workerGroups=[{"name": "a", "workers": 2, "spares": 1}, {"name": "b", "workers": 1, "spares": 2}])
    layout = worker_layout(JOB, groups)
    assert [list(group.indexes) for group in layout] == [[0, 1, 2], [3, 4, 5]]
    assert sum(group.count for group in layout) == world_size(layout) == 3
    sets = stateful_sets(groups)
    assert [(one.body["spec"]["ordinals"]["start"], one.body["spec"]["replicas"]) for one in sets] == [(0, 3), (3, 3)]
    assert {environment(one)["WORLD_SIZE"] for one in sets} == {"3"}
    assignment = first_assignment(JOB, groups)
    assert assignment.workers == (0, 1, 3)
    assert assignment.hosts == ("bert-a-0.bert.team.svc", "bert-a-1.bert.team.svc", "bert-b-3.bert.team.svc")


def test_the_world_counts_each_groups_own_ranks() -> None:
    layout = worker_layout(JOB, spec(**TWO_GROUPS))
    assert [group.processes for group in layout] == [8, 4]
    assert world_size(layout) == 2 * 8 + 3 * 4
    environments = [environment(one) for one in stateful_sets(spec(**TWO_GROUPS))]
    assert [one["NPROC_PER_NODE"] for one in environments] == ["8", "4"]
    assert {one["WORLD_SIZE"] for one in environments} == {"28"}
    assignment = first_assignment(JOB, spec(**TWO_GROUPS))
    assert assignment.processes == (8, 8, 4, 4, 4), "or an agent couldn't know its global ranks"
    assert Assignment.parse(assignment.to_wire()) == assignment
    assert "processes" not in first_assignment(JOB, spec(workers=3)).to_wire()
    assert {one["NNODES"] for one in environments} == {"5"}


def test_every_set_has_the_same_master() -> None:
    masters = {environment(one)["MASTER_ADDR"] for one in stateful_sets(spec(**TWO_GROUPS))}
    assert masters == {"bert-a100-0.bert.team.svc"}


@pytest.mark.parametrize(
    ("fields", "processes"),
    [
        ({}, 1),
        ({"resources": {"gpus": 4}}, 4),
        ({"resources": {"gpus": 4}, "processesPerWorker": 2}, 2),
        ({"resources": {"gpus": 4}, "launcher": "exec"}, 1),
        ({"processesPerWorker": 3, "launcher": "exec"}, 3),
    ],
)
def test_ranks_in_a_worker(fields: dict[str, Any], processes: int) -> None:
    assert worker_layout(JOB, spec(workers=1, **fields))[0].processes == processes


def test_a_worker_of_one_process_knows_its_rank_from_the_manifest() -> None:
    (one,) = stateful_sets(spec(workers=2))
    (many,) = stateful_sets(spec(workers=2, resources={"gpus": 2}))
    assert "RANK" in environment(one)
    assert "RANK" not in environment(many)


def test_hosts_are_the_names_that_the_headless_service_gives() -> None:
    assert stable_hosts(JOB, spec(workers=2)) == ("bert-0.bert.team.svc", "bert-1.bert.team.svc")


def test_the_first_assignment_lists_everybody_and_no_uids() -> None:
    assignment = first_assignment(JOB, spec(workers=2))
    assert (assignment.attempt, assignment.workers, assignment.uids) == (1, (0, 1), None)
    assert (assignment.port, assignment.job) == (master_port("uid-1", 1), "uid-1")


def test_the_largest_assignment_fits_into_a_pods_annotations() -> None:
    """By apimachinery pkg/api/validation/objectmeta.go, all annotations together may have 256 KiB."""
    job = JobIdentity("n" * 63, "j" * MAX_SET_NAME, "uid-1")
    largest = first_assignment(job, parse_spec({"workers": MAX_WORKERS}, job.name))
    uids = ("3f1d6c1e-0000-4000-8000-000000000000",) * MAX_WORKERS
    keys = SigningKeys(tuple(bytes([number]) * 32 for number in range(MAX_KEYS)), bytes(32))
    assert len(keys.sign(largest._replace(uids=uids))) < 250 * 1024


def test_seconds_are_handed_on_exactly() -> None:
    hang = {"progressSeconds": 1234567.5, "firstStepSeconds": 31_536_000}
    (one,) = stateful_sets(spec(workers=1, failurePolicy={"hang": hang}))
    assert environment(one)["TRAINMASTER_PROGRESS_TIMEOUT"] == "1234567.5"
    assert environment(one)["TRAINMASTER_FIRST_STEP_TIMEOUT"] == "31536000"


def test_replicas_can_be_overridden_by_set() -> None:
    both = stateful_sets(spec(**TWO_GROUPS), replicas={"bert-a100": 0})
    assert [one.body["spec"]["replicas"] for one in both] == [0, 3]


def test_another_assignment_or_number_is_another_hash_and_the_same_job_is_the_same_bytes() -> None:
    job_spec = spec(workers=2)
    first = first_assignment(JOB, job_spec)
    (service, before), (again, after) = render(JOB, job_spec, first), render(JOB, job_spec, first.held())
    assert render(JOB, job_spec, first) == (service, before)
    assert service.rendered_hash == again.rendered_hash
    assert before.rendered_hash != after.rendered_hash
    assert stateful_sets(job_spec, replicas={"bert": 0})[0].rendered_hash != before.rendered_hash


def test_the_bundled_image_needs_no_command_and_no_init_container() -> None:
    (one,) = stateful_sets(spec(workers=1, training={"steps": 1, "batch": {"size": 1}}, args=["--set", "a=1"]))
    pod = one.body["spec"]["template"]["spec"]
    config = ["--config", "/etc/trainmaster/training.yaml"]
    assert pod["containers"][0]["args"] == ["python", "-m", "trainloop", *config, "--set", "a=1"]
    assert pod["containers"][0]["command"] == ["python3", "/opt/trainmaster/agent.pyz", "run", "--"]
    assert "initContainers" not in pod


def test_a_config_that_the_user_names_is_not_named_twice() -> None:
    (one,) = stateful_sets(spec(workers=1, training={"lr": 1}, args=["--config", "/mine.yaml"]))
    assert one.body["spec"]["template"]["spec"]["containers"][0]["args"][3:] == ["--config", "/mine.yaml"]


APART = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {
            "weight": 1,
            "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {
                    "matchLabels": {"trainmaster.dev/job-uid": JOB.uid, "trainmaster.dev/worker-group": "worker"}
                },
            },
        }
    ]
}


def by(key: str, mode: str = "Pack") -> dict[str, Any]:
    return {"scheduling": {"topology": {"key": key, "mode": mode, "required": True}}}


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, None),
        ({"spares": 1}, {"podAntiAffinity"}),
        ({"spares": 1, **by("example.com/rack")}, {"podAffinity", "podAntiAffinity"}),
        ({"spares": 1, **by("example.com/rack", "Spread")}, {"podAntiAffinity"}),
        # If the user packs or spreads them over nodes, no affinity is added.
        ({"spares": 1, **by("kubernetes.io/hostname")}, {"podAffinity"}),
        ({"spares": 1, **by("kubernetes.io/hostname", "Spread")}, None),
    ],
    ids=["no spares", "spares", "packed", "spread", "packed on a node", "spread over nodes"],
)
def test_a_node_that_is_lost_should_take_a_worker_or_a_spare(fields: dict[str, Any], kinds: set[str] | None) -> None:
    (one,) = stateful_sets(spec(workers=2, **fields))
    pod = one.body["spec"]["template"]["spec"]
    affinity = pod.get("affinity")
    assert (None if affinity is None else affinity.keys()) == kinds
    assert affinity is None or affinity.get("podAntiAffinity", APART) == APART
    spread = fields.get("scheduling", {}).get("topology", {}).get("mode") == "Spread"
    assert ("topologySpreadConstraints" in pod) is spread


def test_a_pod_template_says_otherwise_where_spares_go() -> None:
    own = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    (one,) = stateful_sets(spec(workers=2, spares=1, podTemplate={"spec": {"affinity": {"podAntiAffinity": own}}}))
    assert one.body["spec"]["template"]["spec"]["affinity"] == {"podAntiAffinity": own}
    (one,) = stateful_sets(spec(workers=2, spares=1, podTemplate={"spec": {"affinity": {"podAntiAffinity": None}}}))
    assert not one.body["spec"]["template"]["spec"]["affinity"]


def test_another_image_gets_the_operators_agent_from_a_config_map() -> None:
    name = config_map_name(b"an agent")
    (one,) = stateful_sets(spec(workers=1, **OTHER_IMAGE), settings=Settings(agent=AgentConfigMap(name)))
    pod = one.body["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    assert {"name": "trainmaster-agent", "configMap": {"name": name}} in pod["volumes"]
    (worker,) = pod["containers"]
    python, option, verifying, *arguments = worker["command"]
    assert (python, option) == ("python3", "-c") and "hashlib" in verifying
    # The kubelet expands it.
    assert "$" not in verifying
    assert arguments == [hashlib.sha256(b"an agent").hexdigest(), "/run/trainmaster/agent/agent.pyz", "run", "--"]
    mount = {"name": "trainmaster-agent", "mountPath": "/run/trainmaster/agent", "readOnly": True}
    assert mount in worker["volumeMounts"]


def test_a_job_keeps_the_agent_that_it_has_begun_with() -> None:
    other = spec(workers=1, **OTHER_IMAGE)
    own = stateful_sets(other, settings=Settings(agent=AgentConfigMap("x")))
    later = Settings(agent=AgentConfigMap("of-a-later-operator"))
    assert stateful_sets(other, agent=AgentConfigMap("x"), settings=later) == own
    (one,) = stateful_sets(other, agent=AgentConfigMap("of-an-earlier-operator"))
    assert one == stateful_sets(other, settings=Settings(agent=AgentConfigMap("of-an-earlier-operator")))[0]
    # The bundled image contains its own agent, whichever one the StatefulSet has.
    assert stateful_sets(spec(workers=1), agent=AgentConfigMap("x")) == stateful_sets(spec(workers=1))


def test_ranks_get_the_pods_grace_period_less_what_the_kubelet_needs() -> None:
    assert rank_grace_seconds(spec(workers=1)) == 55
    longer = {"spec": {"terminationGracePeriodSeconds": 600}}
    assert rank_grace_seconds(spec(workers=1, podTemplate=longer)) == 595
    assert rank_grace_seconds(spec(workers=1, podTemplate={"spec": {"terminationGracePeriodSeconds": 2}})) == 1


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({"periodSeconds": 5, "failureThreshold": 2}, {"periodSeconds": 5, "failureThreshold": 2}),
        ({"httpGet": None, "exec": {"command": ["true"]}}, {"httpGet": None, "exec": {"command": ["true"]}}),
        (None, None),
        ({"$patch": "delete"}, None),
    ],
    ids=["slower or quicker", "asked otherwise", "null", "deleted"],
)
def test_a_pod_template_changes_the_agents_probe(changes: Any, differences: dict[str, Any] | None) -> None:
    worker = {"name": "worker", "livenessProbe": changes}
    as_rendered = liveness_probe(spec(workers=1))
    changed = liveness_probe(spec(workers=1, podTemplate={"spec": {"containers": [worker]}}))
    assert as_rendered["httpGet"] == {"path": "/healthz", "port": 8472}
    if differences is None:
        assert changed is None
    else:
        wanted = {**as_rendered, **differences}
        assert changed == {name: value for name, value in wanted.items() if value is not None}


def test_a_busy_node_is_given_five_minutes_to_answer() -> None:
    probe = liveness_probe(spec(workers=1))
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 300
    assert probe["timeoutSeconds"] >= 10


@pytest.mark.parametrize(("grace", "probe_grace"), [(10, 10), (3_600, 30)])
def test_a_stuck_agent_is_not_waited_for_through_a_long_grace_period(grace: int, probe_grace: int) -> None:
    template = {"spec": {"terminationGracePeriodSeconds": grace}}
    assert liveness_probe(spec(workers=1, podTemplate=template))["terminationGracePeriodSeconds"] == probe_grace


def test_a_set_selects_the_pods_of_this_job_only() -> None:
    """A job that is deleted and created again under its name must not adopt pods that are still terminating."""
    (one,) = stateful_sets(spec(workers=1))
    selector = one.body["spec"]["selector"]["matchLabels"]
    assert selector["trainmaster.dev/job-uid"] == "uid-1"
    assert selector.items() <= one.body["spec"]["template"]["metadata"]["labels"].items()


def test_a_values_dollars_survive_the_kubelets_expansion() -> None:
    """By k8s.io/kubernetes third_party/forked/golang/expansion, $$ becomes $, and $(NAME) is a variable."""
    setup = "echo $$ $(hostname) $HOME $(A)"
    (one,) = stateful_sets(spec(workers=1, setup=setup))
    written = environment(one)["TRAINMASTER_SETUP"]
    assert written is not None
    assert written.replace("$$", "$") == setup
    assert "$(" not in written.replace("$$", "")
