"""`trainmaster convert` prints jobs on stdout, a line for each field on stderr, and fails if a field is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trainmaster.cli.main import app

JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: resnet
spec:
  nprocPerNode: "2"
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: registry.example.com/team/resnet:1.0
              command: [torchrun, train.py]
              env:
                - {name: RANK, value: "1"}
"""
REFUSED = JOB.replace(
    "spec:\n  nproc", "spec:\n  elasticPolicy: {maxReplicas: 4, metrics: [{type: Resource}]}\n  nproc"
)
CONFIG = (
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: code}\ndata:\n  train.py: |\n    import torch\n    print(1)\n"
)


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def test_jobs_go_to_stdout_and_a_line_for_each_field_to_stderr(runner: CliRunner) -> None:
    result = runner.invoke(app, ["convert", "-"], input=JOB)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (
        "# From the PyTorchJob in -:1, by trainmaster convert.\n"
        "apiVersion: trainmaster.dev/v1alpha1\n"
        "kind: DistributedTrainingJob\n"
        "metadata:\n"
        "  name: resnet\n"
        "spec:\n"
        "  image: registry.example.com/team/resnet:1.0\n"
        "  command:\n"
        "  - python\n"
        "  - train.py\n"
        "  workers: 2\n"
        "  processesPerWorker: 2\n"
    )
    here = "spec.pytorchReplicaSpecs.Worker"
    assert result.stderr.splitlines() == [
        "-:1: apiVersion: kubeflow.org/v1  ->  apiVersion: trainmaster.dev/v1alpha1",
        "-:2: kind: PyTorchJob  ->  kind: DistributedTrainingJob",
        "-:4: metadata.name: resnet  ->  metadata.name: resnet",
        '-:6: spec.nprocPerNode: "2"  ->  spec.processesPerWorker: 2',
        f"-:9: {here}.replicas: 2  ->  spec.workers: 2",
        f"-:10: {here}.restartPolicy: OnFailure  dropped: the whole group restarts when a rank fails",
        f"-:14: {here}.template.spec.containers[0].name: pytorch  dropped: the container that trains is called worker",
        f"-:15: {here}.template.spec.containers[0].image: registry.example.com/team/resnet:1.0  ->  spec.image",
        f'-:16: {here}.template.spec.containers[0].command: ["torchrun", "train.py"]  ->  spec.command: '
        '["python", "train.py"]  (torchrun is the launcher)',
        f'-:17: {here}.template.spec.containers[0].env: [{{"name": "RANK", "value": "1"}}]  dropped: Trainmaster sets '
        "it for each attempt",
        "-:1: PyTorchJob resnet: 7 kept, 3 dropped, 0 refused",
    ]


def test_what_it_makes_is_valid(runner: CliRunner) -> None:
    made = runner.invoke(app, ["convert", "-"], input=JOB).stdout
    assert runner.invoke(app, ["validate", "-"], input=made).exit_code == 0


@pytest.mark.parametrize(
    "word", ["y", "n", "Y", "on", "null", "1e3", "0x1", "1_0", "2026-01-01", "~", "=", "<<", " x", "a: b"]
)
def test_a_word_that_kubectl_would_read_as_something_else_stays_a_word(runner: CliRunner, word: str) -> None:
    given = JOB.replace("[torchrun, train.py]", json.dumps(["torchrun", "train.py", word]))
    made = runner.invoke(app, ["convert", "-"], input=given).stdout
    assert runner.invoke(app, ["validate", "-"], input=made).exit_code == 0
    again = runner.invoke(app, ["render", "-", "-o", "json"], input=made)
    assert json.dumps(word) in again.stdout


def test_what_is_refused_fails_and_stands_above_the_job(runner: CliRunner) -> None:
    result = runner.invoke(app, ["convert", "-"], input=REFUSED)
    reason = "no autoscaler is made; make a HorizontalPodAutoscaler for the job's scale subresource"
    assert result.exit_code == 1
    assert f"#   spec.elasticPolicy.metrics[0].type: {reason}\n" in result.stdout
    assert f"-:6: spec.elasticPolicy.metrics[0].type: Resource  refused: {reason}\n" in result.stderr
    assert runner.invoke(app, ["validate", "-"], input=result.stdout).exit_code == 0


def test_what_the_job_lacks_stands_above_it_as_the_field_of_the_job(runner: CliRunner) -> None:
    result = runner.invoke(app, ["convert", "-"], input=JOB.replace("command: [torchrun, train.py]", "args: [--lr=1]"))
    assert result.exit_code == 1
    assert "\n#   spec.command: is missing, " in result.stdout
    assert "\n-:1: refused: spec.command: is missing, " in result.stderr


def test_a_job_whose_name_the_api_server_makes_is_called_by_its_beginning(runner: CliRunner) -> None:
    made = runner.invoke(app, ["convert", "-"], input=JOB.replace("name: resnet", "generateName: resnet-", 1))
    assert made.stderr.endswith("-:1: PyTorchJob resnet-: 7 kept, 3 dropped, 0 refused\n")
    left = runner.invoke(
        app, ["convert", "-"], input=CONFIG.replace("name: code", "generateName: code-") + f"---\n{JOB}"
    )
    assert "-:1: ConfigMap code- stays as it is\n" in left.stderr


@pytest.mark.parametrize("number", ['"2"', '"1e3"', '"yes"'])
def test_a_text_that_looks_like_something_else_is_shown_with_its_quotes(runner: CliRunner, number: str) -> None:
    result = runner.invoke(app, ["convert", "-"], input=JOB.replace("replicas: 2", f"replicas: {number}"))
    said = "is no whole number of pods; correct spec.workers"
    assert f"-:9: spec.pytorchReplicaSpecs.Worker.replicas: {number}  refused: {said}\n" in result.stderr


def test_what_stands_beside_a_job_stays(runner: CliRunner) -> None:
    result = runner.invoke(app, ["convert", "-"], input=f"{CONFIG}---\n{JOB}")
    config, job = yaml.safe_load_all(result.stdout)
    assert config == yaml.safe_load(CONFIG)
    assert "  train.py: |\n    import torch\n" in result.stdout
    assert job["kind"] == "DistributedTrainingJob"
    assert "-:1: ConfigMap code stays as it is\n" in result.stderr


def test_items_of_a_list_are_converted(runner: CliRunner) -> None:
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(JOB)]})
    result = runner.invoke(app, ["convert", "-", "-o", "json"], input=items)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["spec"]["workers"] == 2


def test_only_the_report(runner: CliRunner) -> None:
    result = runner.invoke(app, ["convert", "-", "--report"], input=JOB)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("-:1: PyTorchJob resnet: 7 kept, 3 dropped, 0 refused\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CONFIG, "-: there is no PyTorchJob, TrainJob or JobSet in it; give a file with one\n"),
        ("a: [", "not YAML"),
        (
            JOB.replace("PyTorchJob", "MPIJob") + "---\n" + JOB,
            "MPIJob resnet stays as it is, because convert makes jobs of PyTorchJobs, TrainJobs and JobSets; "
            "docs/migrating.md#from-mpijob lists its fields' names here\n",
        ),
    ],
)
def test_what_can_t_be_converted_fails(runner: CliRunner, text: str, said: str) -> None:
    result = runner.invoke(app, ["convert", "-"], input=text)
    assert result.exit_code == 1
    assert said in result.stderr


def test_a_file_that_isn_t_there_is_said(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(app, ["convert", str(tmp_path / "none.yaml")])
    assert result.exit_code == 1
    assert result.stderr == f"{tmp_path}/none.yaml: No such file or directory; name a file that can be read\n"


def test_a_hostile_value_stays_in_its_line(runner: CliRunner) -> None:
    result = runner.invoke(app, ["convert", "-"], input=JOB.replace('value: "1"', 'value: "\\e[2Jx\\ny"'))
    assert "\x1b" not in result.stdout + result.stderr
    assert len(result.stderr.splitlines()) == 11
