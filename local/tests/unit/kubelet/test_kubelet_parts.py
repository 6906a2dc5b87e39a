"""The kubelet's pure parts work: paths, images, environment, back-off, files that change at once, hosts files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster_local.images import BUILTIN_IMAGES, Image, ImageNotFound, ImageTable, InvalidImageName, normalize
from trainmaster_local.kubelet.atomic import Content, write_atomically
from trainmaster_local.kubelet.containers.backoff import Backoff, go_duration
from trainmaster_local.kubelet.containers.environment import ConfigError, PodFacts, environment, expand
from trainmaster_local.kubelet.containers.paths import PathMap
from trainmaster_local.kubelet.server import collected
from trainmaster_local.network import hosts_text

Object = dict[str, Any]


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("/data", "/host/d"),
        ("--dir=/data/x", "--dir=/host/d/x"),
        ("open('/data')", "open('/host/d')"),
        ("/a:/data:/b", "/a:/host/d:/b"),
        ("file:///data/x", "file:///host/d/x"),
        ("/data/deep/x", "/host/deep/x"),
        ("stored in /data.", "stored in /host/d."),
        ("/database", "/database"),
        ("/mydata", "/mydata"),
        ("x/data", "x/data"),
        ("http://host/data", "http://host/data"),
        ("/data-2", "/data-2"),
        ("/data.tar", "/data.tar"),
        ("../data", "../data"),
    ],
)
def test_container_paths_are_rewritten_at_path_boundaries(text: str, rewritten: str) -> None:
    paths = PathMap({"/data": Path("/host/d"), "/data/deep/": Path("/host/deep")})
    assert paths.rewrite(text) == rewritten


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("local/python:test", "docker.io/local/python:test"),
        ("ghcr.io/example/trainer:0.1.0", "ghcr.io/example/trainer:0.1.0"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
    ],
)
def test_image_names_are_normalized_as_containerd_does(reference: str, name: str) -> None:
    assert normalize(reference) == name


def test_image_errors_have_the_recorded_words() -> None:
    table = ImageTable(BUILTIN_IMAGES)
    with pytest.raises(InvalidImageName) as invalid:
        table.find("Bad//Name:1")
    assert str(invalid.value) == (
        'Failed to apply default image tag "Bad//Name:1": couldn\'t parse image name "Bad//Name:1": '
        "invalid reference format: repository name (/Name) must be lowercase"
    )
    with pytest.raises(ImageNotFound, match=r"lookup nowhere\.invalid on .*: no such host$"):
        table.find("nowhere.invalid/none:1")
    with pytest.raises(ImageNotFound, match=r'failed to resolve reference "docker.io/library/nginx:1": .*: not found$'):
        table.find("nginx:1")
    with pytest.raises(ImageNotFound):
        table.find("ghcr.io/example/own:1")


def test_a_cluster_s_own_images_come_before_the_built_in_ones() -> None:
    own = Image(patterns=("ghcr.io/example/*", "docker.io/library/python:*"), command=("own",))
    table = ImageTable((own, *BUILTIN_IMAGES))
    assert table.find("ghcr.io/example/own:1") is own
    assert table.find("python") is own
    assert table.find("busybox").command == ("sh",)


def test_back_off_doubles_to_five_minutes_and_is_forgotten_after_ten() -> None:
    backoff, now, waits = Backoff(), 1000.0, []
    assert backoff.remaining(now, now) == 0.0
    for _ in range(8):
        backoff.next(now, now)
        waits.append(backoff.remaining(now, now))
        now += 1
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    assert backoff.remaining(now + 601, now + 601) == 0.0
    backoff.next(now + 601, now + 601)
    assert backoff.seconds == 10.0


def test_scaled_back_off_waits_less() -> None:
    backoff = Backoff(scale=0.1)
    backoff.next(0.0, 0.0)
    assert (backoff.seconds, backoff.remaining(5.0, 5.0)) == (10.0, 1.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(10, "10s"), (80, "1m20s"), (300, "5m0s"), (0.5, "500ms"), (3600, "1h0m0s")]
)
def test_durations_are_go_s(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


def test_references_in_values_are_expanded() -> None:
    """The cases are from `third_party/forked/golang/expansion/expand_test.go`."""
    variables = {"A": "1", "B": "$(A)"}
    assert expand("$(A)-$(B)-$(C)-$$(A)-$A-$(", variables) == "1-$(A)-$(C)-$(A)-$A-$("


def facts(**objects: Object) -> PodFacts:
    return PodFacts("127.1.1.1", "127.1.0.1", "local", {"cpu": "4"}, objects.get, lambda name: None)


POD: Object = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]},
}


def test_environment_is_built_in_the_kubelet_s_order() -> None:
    container = {
        "name": "c",
        "envFrom": [
            {"prefix": "P_", "configMapRef": {"name": "one"}},
            {"configMapRef": {"name": "no", "optional": True}},
        ],
        "env": [
            {"name": "P_X", "value": "own-$(SERVICE)"},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
            {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "SERVICE", "value": "mine"},
        ],
    }
    one = {"kind": "ConfigMap", "data": {"X": "1", "Y": "2", "1 bad": "3"}}
    assert environment(POD, container, facts(one=one), {"SERVICE": "theirs", "OTHER": "o"}) == {
        "SERVICE": "mine", "OTHER": "o", "P_X": "own-theirs", "P_Y": "2", "LABEL": "b", "CPU": "100", "LIMIT": "4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"configMapKeyRef": {"name": "no", "key": "k"}}, 'configmap "no" not found'),
        ({"configMapKeyRef": {"name": "one", "key": "k"}}, "couldn't find key k in ConfigMap ns/one"),
        ({"secretKeyRef": {"name": "no", "key": "k"}}, 'secret "no" not found'),
    ],
)
def test_what_env_refers_to_must_be_there(source: Object, sentence: str) -> None:
    container = {"name": "c", "env": [{"name": "A", "valueFrom": source}]}
    with pytest.raises(ConfigError) as error:
        environment(POD, container, facts(one={"kind": "ConfigMap", "data": {}}), {})
    assert str(error.value) == sentence


def test_files_of_a_volume_change_in_one_step(tmp_path: Path) -> None:
    """`pkg/volume/util/atomic_writer.go` does it in the same way."""
    folder = tmp_path / "volume"
    assert write_atomically(folder, {"a": Content(b"1"), "sub/b": Content(b"2", 0o600)})
    first = (folder / "..data").readlink()
    assert not write_atomically(folder, {"a": Content(b"1"), "sub/b": Content(b"2", 0o600)})
    assert (folder / "..data").readlink() == first
    assert write_atomically(folder, {"a": Content(b"3")})
    assert (folder / "a").read_text() == "3"
    assert sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("..")) == ["a"]
    assert len([entry for entry in folder.iterdir() if entry.name.startswith("..")]) == 2
    with pytest.raises(ValueError, match=r"invalid path '\.\./x'"):
        write_atomically(folder, {"../x": Content(b"")})


def pod(name: str, address: str, ready: bool, phase: str = "Running") -> Object:
    status = {
        "podIP": address,
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }
    return {
        "metadata": {"name": name, "labels": {"app": "set"}},
        "spec": {"hostname": name, "subdomain": "set"},
        "status": status,
    }


def test_hosts_file_has_the_names_that_dns_would_answer() -> None:
    service: Object = {"metadata": {"name": "set"}, "spec": {"clusterIP": "None", "selector": {"app": "set"}}}
    pods = [
        pod("set-0", "127.1.1.1", True),
        pod("set-1", "127.1.1.2", False),
        pod("set-2", "127.1.1.3", True, "Failed"),
    ]
    text = hosts_text([service], pods, "ns")
    assert "127.1.1.1 set-0.set.ns.svc set-0.set.ns.svc.cluster.local set-0.set.ns set-0.set " in text
    assert "127.1.1.2" not in text and "127.1.1.3" not in text
    service["spec"]["publishNotReadyAddresses"] = True
    assert "127.1.1.2 set-1.set.ns.svc" in hosts_text([service], pods, "ns")


def test_the_kubelet_keeps_the_newest_dead_container_too() -> None:
    last = {"lastState": {"terminated": {"containerID": "containerd://one"}}}
    assert collected({"state": {"terminated": {"containerID": "containerd://two"}}, **last}) == "containerd://one"
    assert collected({"state": {"running": {}}, **last}) is None
    assert collected({"state": {"terminated": {"containerID": "containerd://one"}}, "lastState": {}}) is None
