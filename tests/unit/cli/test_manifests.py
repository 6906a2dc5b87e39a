"""`trainmaster validate`, `render` and `crd` run as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trainmaster.cli.main import app
from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.api.crd import crd_yaml
from trainmaster_operator.rendering.agent_source import config_map_name

GOOD = """\
apiVersion: trainmaster.dev/v1alpha1
kind: DistributedTrainingJob
metadata: {name: bert}
spec:
  workers: 2
  training: {steps: 9, batch: {size: 8}, task: {name: "my:task", options: {lr: 1e-4, started: 2026-01-01, name: "on"}}}
"""
BAD = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
---
apiVersion: trainmaster.dev/v1alpha1
kind: DistributedTrainingJob
metadata:
  name: bert
spec:
  wokers: 2
  launcher: mpi
  resources:
    gpus: 0.5
    memory: 1Gi
    memory: 2Gi
  workerGroups:
    - name: a
      workers: 1
    - name: b
      workers: 0
"""


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def write(folder: Path, text: str, name: str = "job.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_render_replaces_a_file_by_force_alone(runner: CliRunner, tmp_path: Path) -> None:
    file, out = write(tmp_path, GOOD), tmp_path / "out"
    arguments = ["render", file, "--directory", str(out)]
    assert runner.invoke(app, arguments).exit_code == 0
    rendered = {path: path.read_bytes() for path in out.iterdir()}
    assert runner.invoke(app, arguments).exit_code == 0
    mine = max(rendered)
    mine.write_text("mine")
    result = runner.invoke(app, arguments)
    assert (result.exit_code, mine.read_text()) == (1, "mine")
    assert result.stderr == f"error: {mine} exists already; --force replaces it\n"
    assert runner.invoke(app, [*arguments, "--force"]).exit_code == 0
    assert {path: path.read_bytes() for path in out.iterdir()} == rendered


def test_render_never_writes_one_job_over_another(runner: CliRunner, tmp_path: Path) -> None:
    files = [
        write(tmp_path, GOOD),
        write(tmp_path, GOOD.replace("{name: bert}", "{name: bert, namespace: b}"), "b.yaml"),
    ]
    result = runner.invoke(app, ["render", *files, "--directory", str(tmp_path / "out")])
    assert result.exit_code == 1 and "two jobs have a child in" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_good_job_is_valid(runner: CliRunner, tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    result = runner.invoke(app, ["validate", path])
    assert (result.exit_code, result.stdout) == (0, f"{path}: DistributedTrainingJob bert is valid\n")


def test_everything_wrong_is_said_with_its_place(runner: CliRunner, tmp_path: Path) -> None:
    path = write(tmp_path, BAD)
    result = runner.invoke(app, ["validate", path])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{path}: skipped document 1 (ConfigMap in v1)",
        f"{path}:10:3: spec.wokers: unknown field; did you mean workers?",
        f"{path}:11:3: spec.launcher: 'mpi' is not known; use torchrun or exec",
        f"{path}:13:5: spec.resources.gpus: 0.5 is not a whole number; write it without a fraction",
        f"{path}:15:5: spec.resources.memory: is given twice; keep one",
        f"{path}:20:7: spec.workerGroups[1].workers: 0 is too small; use at least 1",
    ]


def test_what_is_missing_is_placed_at_its_parent(runner: CliRunner) -> None:
    text = GOOD.replace("workers: 2", "image: example.com/train:1")
    result = runner.invoke(app, ["validate", "-"], input=text)
    assert [line.split(" ")[0] for line in result.stderr.splitlines()] == ["-:4:1:", "-:4:1:"]
    assert "spec.command: is missing" in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a: [1\nb: 2\n",
            "-:2:2: not YAML: ':' can't follow there; close the brackets with ], or put a ',' between items\n",
        ),
        ("", "-: there is no document in it; give a file with a DistributedTrainingJob"),
        ("- a\n", "-:1:1: not an object; give a mapping with apiVersion and kind"),
        ("a: \x00", "-:1:4: not YAML: the character '\\x00' can't stand there; remove it\n"),
        (
            "kind: DistributedTrainingJob\nspec: 3\n",
            "-:1:1: apiVersion: is missing; set it to trainmaster.dev/v1alpha1\n",
        ),
    ],
)
def test_what_is_no_job_is_refused(runner: CliRunner, text: str, said: str) -> None:
    result = runner.invoke(app, ["validate", "-"], input=text)
    assert result.exit_code == 1
    assert result.stderr.startswith(said)


def test_a_misspelt_kind_of_our_group_is_not_skipped(runner: CliRunner) -> None:
    result = runner.invoke(app, ["validate", "-"], input=GOOD.replace("DistributedTrainingJob", "TrainingJob"))
    assert result.exit_code == 1
    assert "-:2:1: kind: 'TrainingJob' is not DistributedTrainingJob; use that" in result.stderr


PYTORCHJOB = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec: {}\n"
CONFIGMAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
NO_JOBS = {
    "a job of Kubeflow's": (
        PYTORCHJOB,
        "-:1:1: PyTorchJob is a job of Kubeflow's training operator, which Trainmaster doesn't run; "
        "trainmaster convert converts it, and docs/migrating.md#from-pytorchjob lists its fields' "
        "names here",
    ),
    "a job of Kubeflow Trainer's": (
        PYTORCHJOB.replace("kubeflow.org/v1", "trainer.kubeflow.org/v1alpha1").replace("PyTorchJob", "TrainJob"),
        "-:1:1: TrainJob is a job of Kubeflow Trainer, which Trainmaster doesn't run; trainmaster "
        "convert converts it, and docs/migrating.md#from-trainjob lists its fields' names here",
    ),
    "a job of Kubernetes": (
        PYTORCHJOB.replace("kubeflow.org/v1", "batch/v1").replace("PyTorchJob", "Job"),
        "-:1:1: Job is a job of Kubernetes, which Trainmaster doesn't run; docs/migrating.md#from-a-kubernetes-job "
        "lists its fields' names here",
    ),
    "a chart's values": (
        "image: {tag: x}\nreplicas: 1\n",
        "-:1:1: has neither apiVersion nor kind; a job begins with apiVersion: trainmaster.dev/v1alpha1 and kind: "
        "DistributedTrainingJob",
    ),
    "no kind": ("apiVersion: v1\nmetadata: {name: a}\n", "-:1:1: kind: is missing; set it, such as ConfigMap"),
    "no apiVersion": ("kind: ConfigMap\nmetadata: {name: a}\n", "-:1:1: apiVersion: is missing; set it, such as v1"),
    "a kind that is a number": ("apiVersion: v1\nkind: 3\n", "-:1:1: kind: is not text; write it in quotes"),
    "a list without items": (
        "apiVersion: v1\nkind: List\n",
        "-:1:1: items: is not a list; give the objects one a line after '-'",
    ),
    "a list in a list": (
        "apiVersion: v1\nkind: List\nitems: [{kind: List, apiVersion: v1, items: []}]\n",
        "-:3:9: kubectl opens no List in a list; move its items out of it",
    ),
    "a list of text": (
        "apiVersion: v1\nkind: List\nitems: a\n",
        "-:1:1: items: is not a list; give the objects one a line after '-'",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), NO_JOBS.values(), ids=NO_JOBS.keys())
def test_a_document_that_is_no_job_is_named_as_what_it_is(runner: CliRunner, text: str, sentence: str) -> None:
    result = runner.invoke(app, ["validate", "-"], input=text)
    assert (result.exit_code, result.stderr) == (1, f"{sentence}\n")


def test_a_file_without_a_job_is_a_mistake(runner: CliRunner) -> None:
    result = runner.invoke(app, ["validate", "-"], input=CONFIGMAP)
    assert (result.exit_code, result.stderr.splitlines()) == (
        1,
        [
            "-: skipped document 1 (ConfigMap in v1)",
            "-: there is no DistributedTrainingJob in it; give a file with a DistributedTrainingJob",
        ],
    )


def test_what_stands_beside_a_job_is_skipped(runner: CliRunner) -> None:
    result = runner.invoke(app, ["validate", "-"], input=f"{CONFIGMAP}---\n{GOOD}---\n{PYTORCHJOB}")
    assert (result.exit_code, result.stderr.splitlines()) == (
        0,
        ["-: skipped document 1 (ConfigMap in v1)", "-: skipped document 3 (PyTorchJob in kubeflow.org/v1)"],
    )


@pytest.mark.parametrize("kind", ["distributedtrainingjob", "dtj", "DistributedTrainJob", "DistributedTrainingJobs"])
def test_a_misspelled_kind_is_named(runner: CliRunner, kind: str) -> None:
    for version in ("trainmaster.dev/v1alpha1", "trainmaster.io/v1alpha1"):
        text = GOOD.replace("DistributedTrainingJob", kind).replace("trainmaster.dev/v1alpha1", version)
        result = runner.invoke(app, ["validate", "-"], input=text)
        assert result.exit_code == 1
        assert f"-:2:1: kind: '{kind}' is not DistributedTrainingJob; use that\n" in result.stderr


def test_the_jobs_of_a_list_are_checked_at_their_places(runner: CliRunner) -> None:
    """`kubectl get -o yaml` prints such a list."""
    text = """\
apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- apiVersion: trainmaster.dev/v1alpha1
  kind: DistributedTrainingJob
  metadata: {name: bert, uid: "1", creationTimestamp: "2026-01-01T00:00:00Z", generation: 1}
  spec: {workers: 2}
  status: {phase: Running}
- apiVersion: trainmaster.dev/v1alpha1
  kind: DistributedTrainingJob
  metadata: {name: gpt}
  spec:
    wokers: 2
    workers: 1
"""
    result = runner.invoke(app, ["validate", "-"], input=text)
    assert (result.exit_code, result.stdout) == (1, "-: DistributedTrainingJob bert is valid\n")
    assert result.stderr == "-:14:5: spec.wokers: unknown field; did you mean workers?\n"


def test_a_list_that_names_its_items_type_may_leave_it_out_of_them(runner: CliRunner) -> None:
    text = (
        "apiVersion: trainmaster.dev/v1alpha1\nkind: DistributedTrainingJobList\nitems: [{metadata: {name: a}, spec: "
    )
    result = runner.invoke(app, ["validate", "-"], input=f"{text}{{workers: 1}}}}]\n")
    assert (result.exit_code, result.stdout) == (0, "-: DistributedTrainingJob a is valid\n")


def test_all_files_of_a_folder_are_checked(runner: CliRunner, tmp_path: Path) -> None:
    write(tmp_path, GOOD, "a.yaml")
    write(tmp_path, CONFIGMAP, "b.yaml")
    write(tmp_path, "a: [1", "c.yaml")
    write(tmp_path, GOOD.replace("bert", "gpt"), "d.yml")
    result = runner.invoke(app, ["validate", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{tmp_path}/a.yaml: DistributedTrainingJob bert is valid",
        f"{tmp_path}/d.yml: DistributedTrainingJob gpt is valid",
    ]
    assert result.stderr.splitlines() == [
        f"{tmp_path}/b.yaml: skipped document 1 (ConfigMap in v1)",
        f"{tmp_path}/c.yaml:1:4: not YAML: a bracket that was opened is never closed; close it with ]",
    ]


def test_a_job_is_given_once(runner: CliRunner) -> None:
    """kubectl would apply both, and the second would change the first."""
    elsewhere = GOOD.replace("{name: bert}", "{name: bert, namespace: team}")
    result = runner.invoke(app, ["validate", "-"], input=f"{GOOD}---\n{elsewhere}---\n{GOOD}")
    assert (result.exit_code, result.stdout.count("is valid")) == (1, 2)
    assert result.stderr == "-:17:12: metadata.name: 'bert' is the name of another job in this file; give it its own\n"


def test_a_template_is_nothing_else(runner: CliRunner) -> None:
    result = runner.invoke(app, ["validate", "-"], input=GOOD.replace("workers: 2", "workers: {{ .Values.workers }}"))
    assert result.stderr == (
        "-:5:13: spec.workers: '{{' begins a template, which Helm renders; check what it renders (helm template . | "
        "trainmaster validate -)\n"
    )


def test_a_spec_that_isnt_indented_is_recognised(runner: CliRunner) -> None:
    text = GOOD.replace("\n  ", "\n")
    result = runner.invoke(app, ["validate", "-"], input=text)
    assert result.stderr.splitlines() == [
        "-:5:1: workers: unknown field; it belongs in spec.workers",
        "-:6:1: training: unknown field; it belongs in spec.training",
    ]


def test_a_status_that_is_no_mapping_is_refused_as_a_server_side_apply_refuses_it(runner: CliRunner) -> None:
    result = runner.invoke(app, ["validate", "-"], input=f"{GOOD}status: Running\n")
    assert result.stderr == "-:7:1: status: 'Running' is not a mapping; remove it, the operator sets it\n"


def test_a_merged_field_is_checked_where_it_stands(runner: CliRunner) -> None:
    text = GOOD.replace(
        "workers: 2", "workers: 2\n  failurePolicy: {nodes: &n {quarantineAfter: -1}, backoff: {<<: *n}}"
    )
    result = runner.invoke(app, ["validate", "-"], input=text)
    assert sorted(line.split(": ")[0:2] for line in result.stderr.splitlines()) == [
        ["-:6:30", "spec.failurePolicy.backoff.quarantineAfter"],
        ["-:6:30", "spec.failurePolicy.nodes.quarantineAfter"],
    ]


def test_names_of_python_are_refused_as_the_api_server_refuses_them(runner: CliRunner) -> None:
    text = GOOD.replace("workers: 2", "workers: 2\n  run_policy: {keep_pods: All}")
    result = runner.invoke(app, ["validate", "-"], input=text)
    assert result.stderr == "-:6:3: spec.run_policy: unknown field; did you mean runPolicy?\n"


def test_a_file_that_isnt_there_is_named(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(app, ["validate", str(tmp_path / "none.yaml"), write(tmp_path, GOOD)])
    assert result.exit_code == 1
    assert result.stderr == f"{tmp_path}/none.yaml: No such file or directory; name a file that can be read\n"
    assert "bert is valid" in result.stdout


def test_several_jobs_in_one_file_are_all_checked(runner: CliRunner) -> None:
    result = runner.invoke(app, ["validate", "-"], input=f"{GOOD}---\n{GOOD.replace('bert', 'gpt')}")
    assert result.stdout.count("is valid") == 2


def test_render_shows_the_children(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(app, ["render", write(tmp_path, GOOD), "--namespace", "team"])
    children = list(yaml.safe_load_all(result.stdout))
    assert [(one["kind"], one["metadata"]["name"]) for one in children] == [
        ("Service", "bert"),
        ("ConfigMap", "bert-training"),
        ("StatefulSet", "bert"),
    ]
    assert {one["metadata"]["namespace"] for one in children} == {"team"}


def test_scalars_are_read_as_kubectl_reads_them(runner: CliRunner) -> None:
    """In go-yaml, with which kubectl turns YAML into JSON, 1e-4 is a number and a date is text."""
    result = runner.invoke(app, ["render", "-"], input=GOOD)
    config = yaml.safe_load(list(yaml.safe_load_all(result.stdout))[1]["data"]["training.yaml"])
    assert config["task"]["options"] == {"lr": 0.0001, "started": "2026-01-01", "name": "on"}


def test_render_writes_a_file_for_each_child(runner: CliRunner, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = runner.invoke(app, ["render", write(tmp_path, GOOD), "--output", "json", "--directory", str(folder)])
    assert result.exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "bert-training.configmap.json",
        "bert.service.json",
        "bert.statefulset.json",
    ]
    assert json.loads((folder / "bert.service.json").read_text())["kind"] == "Service"


def test_a_folder_that_cant_be_written_is_named(runner: CliRunner, tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    result = runner.invoke(app, ["render", file, "--directory", file])
    assert (result.exit_code, result.stderr) == (1, f"error: {file}: File exists; name a folder that can be written\n")


def test_render_names_the_agent_that_an_operator_of_this_version_makes(runner: CliRunner) -> None:
    text = GOOD.replace("workers: 2", "workers: 2\n  image: me/x:1\n  command: [python, x.py]")
    result = runner.invoke(app, ["render", "-"], input=text)
    assert f"name: {config_map_name(zipapp_bytes())}\n" in result.stdout


def test_render_of_a_wrong_job_says_why(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(app, ["render", write(tmp_path, BAD)])
    assert result.exit_code == 1
    assert "did you mean workers?" in result.stderr


def test_crd_prints_the_custom_resource_definition(runner: CliRunner) -> None:
    assert runner.invoke(app, ["crd"]).stdout == crd_yaml()
