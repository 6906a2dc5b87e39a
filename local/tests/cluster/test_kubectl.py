"""kubectl 1.32 and 1.37 handle objects and custom resources on the cluster, and show its errors in Kubernetes' words.

Half of kubectl's output is its own, half the server's: tables, explanations and refusals are the server's.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from local.tests.cluster.kubectls import NEW, OLD, Kubectl, program
from trainmaster_local.testing.clusters import Cluster, SharedCluster

DEFINITION = Path(__file__).parents[1] / "data" / "kubectl" / "gauges.yaml"
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1", "b": "2"}}


def gauge(name: str = "one", **spec: object) -> str:
    return json.dumps(
        {"apiVersion": "kubectl.example.dev/v1", "kind": "Gauge", "metadata": {"name": name}, "spec": spec}
    )


@pytest.fixture(params=[NEW, OLD])
def kubectl(request: pytest.FixtureRequest, cluster: Cluster) -> Kubectl:
    return Kubectl(program(request.param), cluster.kubeconfig, cluster.namespace)


@pytest.fixture(scope="module")
def gauges(shared_cluster: SharedCluster) -> None:
    """Makes the Gauge definition, and waits until it is established. Gauges are deleted with their test's namespace."""
    define(Kubectl(program(NEW), shared_cluster.kubeconfig))


def define(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(DEFINITION))
    kubectl("wait", "--for=condition=Established", "crd/gauges.kubectl.example.dev", "--timeout=60s")


def test_server_is_known(kubectl: Kubectl) -> None:
    versions = json.loads(kubectl("version", "-o", "json"))
    assert versions["serverVersion"]["major"] == "1"
    assert "is running at" in kubectl("cluster-info")
    assert kubectl("get", "--raw", "/readyz") == "ok"
    assert json.loads(kubectl("get", "--raw", "/api/v1/namespaces/default"))["metadata"]["name"] == "default"


def test_resources_and_versions_are_listed(kubectl: Kubectl) -> None:
    define(kubectl)
    listed = {row.split()[0]: row.split() for row in kubectl("api-resources").splitlines()[1:]}
    assert listed["statefulsets"] == ["statefulsets", "sts", "apps/v1", "true", "StatefulSet"]
    assert listed["nodes"] == ["nodes", "no", "v1", "false", "Node"]
    assert listed["gauges"] == ["gauges", "gg", "kubectl.example.dev/v1", "true", "Gauge"]
    assert {"apps/v1", "v1", "kubectl.example.dev/v1"} <= set(kubectl("api-versions").split())
    assert "pods" in kubectl("api-resources", "--namespaced=true", "--verbs=list", "-o", "name").split()


def test_get_in_every_form(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=json.dumps(CONFIG_MAP))
    assert re.fullmatch(r"settings +2 +\d+s", kubectl("get", "cm", "settings").splitlines()[1])
    assert kubectl("get", "cm", "settings", "-o", "name") == "configmap/settings\n"
    assert kubectl("get", "cm", "settings", "-o", "jsonpath={.data.a}") == "1"
    assert json.loads(kubectl("get", "cm", "settings", "-o", "json"))["data"] == CONFIG_MAP["data"]
    read = yaml.safe_load(kubectl("get", "cm", "settings", "-o", "yaml"))
    assert (read["kind"], read["apiVersion"]) == ("ConfigMap", "v1")
    assert kubectl("get", "cm", "-o", "custom-columns=N:.metadata.name,A:.data.a").splitlines()[-1].split() == [
        "settings",
        "1",
    ]


def test_get_by_label_and_in_all_namespaces(kubectl: Kubectl) -> None:
    for name, tier in (("left", "front"), ("right", "back")):
        kubectl("create", "configmap", name)
        kubectl("label", "configmap", name, f"tier={tier}")
    assert kubectl("get", "cm", "-l", "tier=front", "-o", "name").split() == ["configmap/left"]
    assert kubectl("get", "cm", "-l", "tier in (back)", "-o", "name").split() == ["configmap/right"]
    assert kubectl("get", "cm", "-l", "tier", "-L", "tier", "--no-headers").split()[-1] == "back"
    everywhere = kubectl("get", "cm", "-A", "--no-headers").splitlines()
    assert any(row.split()[:2] == [kubectl.namespace, "left"] for row in everywhere)
    assert kubectl("get", "cm", "--field-selector", "metadata.name=right", "-o", "name").split() == ["configmap/right"]


def test_watch_shows_changes(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=json.dumps(CONFIG_MAP))
    watching = kubectl.start("get", "cm", "settings", "-w", "-o", "jsonpath={.data.a}{'\\n'}")
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "1\n"
        kubectl("patch", "cm", "settings", "-p", '{"data":{"a":"7"}}')
        assert watching.stdout.readline() == "7\n"
    finally:
        watching.kill()
        watching.communicate()


@pytest.mark.parametrize(
    ("arguments", "reads"),
    [
        (("configmap", "made", "--from-literal=k=v"), lambda o: o["data"] == {"k": "v"}),
        (
            ("secret", "generic", "made", "--from-literal=k=v"),
            lambda o: o["data"]["k"] == base64.b64encode(b"v").decode(),
        ),
        (("serviceaccount", "made"), lambda o: o["kind"] == "ServiceAccount"),
        (("quota", "made", "--hard=pods=3,requests.nvidia.com/gpu=2"), lambda o: o["spec"]["hard"]["pods"] == "3"),
        (("service", "clusterip", "made", "--tcp=80:8080"), lambda o: o["spec"]["ports"][0]["targetPort"] == 8080),
        (("role", "made", "--verb=get,list", "--resource=pods"), lambda o: o["rules"][0]["verbs"] == ["get", "list"]),
        (("deployment", "made", "--image=python:3.12", "--replicas=0"), lambda o: o["spec"]["replicas"] == 0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_create_by_arguments(kubectl: Kubectl, arguments: tuple[str, ...], reads: Callable[[dict], bool]) -> None:
    """These are sent as protobuf, the encoding of Go's typed clients."""
    assert "created" in kubectl("create", *arguments)
    assert reads(json.loads(kubectl("get", arguments[0], "made", "-o", "json")))


def test_apply_merges_three_ways(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", stdin=json.dumps(CONFIG_MAP)) == "configmap/settings created\n"
    assert kubectl("apply", "-f", "-", stdin=json.dumps(CONFIG_MAP)) == "configmap/settings unchanged\n"
    kubectl("patch", "cm", "settings", "--type=merge", "-p", '{"data":{"theirs":"kept"}}')
    changed = {**CONFIG_MAP, "data": {"a": "3"}}
    assert kubectl("apply", "-f", "-", stdin=json.dumps(changed)) == "configmap/settings configured\n"
    assert json.loads(kubectl("get", "cm", "settings", "-o", "jsonpath={.data}")) == {"a": "3", "theirs": "kept"}


def test_server_side_apply_knows_owners(kubectl: Kubectl) -> None:
    applied = kubectl("apply", "--server-side", "--field-manager=mine", "-f", "-", stdin=json.dumps(CONFIG_MAP))
    assert applied == "configmap/settings serverside-applied\n"
    other = json.dumps({**CONFIG_MAP, "data": {"a": "9"}})
    refused = kubectl.refused("apply", "--server-side", "--field-manager=other", "-f", "-", stdin=other)
    assert 'Apply failed with 1 conflict: conflict with "mine": .data.a' in refused
    kubectl("apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-", stdin=other)
    managers = json.loads(kubectl("get", "cm", "settings", "--show-managed-fields", "-o", "json"))["metadata"]
    owners = {entry["manager"]: entry["fieldsV1"]["f:data"] for entry in managers["managedFields"]}
    assert "f:a" in owners["other"]
    assert "f:a" not in owners["mine"]


def test_dry_run_and_diff_change_nothing(kubectl: Kubectl) -> None:
    text = json.dumps(CONFIG_MAP)
    assert (
        kubectl("apply", "--dry-run=server", "-f", "-", stdin=text) == "configmap/settings created (server dry run)\n"
    )
    assert "not found" in kubectl.refused("get", "cm", "settings")
    kubectl("apply", "-f", "-", stdin=text)
    changed = json.dumps({**CONFIG_MAP, "data": {"a": "5", "b": "2"}})
    difference = kubectl.run("diff", "-f", "-", stdin=changed)
    assert difference.code == 1, difference.err
    assert {'-  a: "1"', '+  a: "5"'} <= set(difference.lines())
    assert kubectl("get", "cm", "settings", "-o", "jsonpath={.data.a}") == "1"


def test_replace_and_patch(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=json.dumps(CONFIG_MAP))
    kubectl("replace", "-f", "-", stdin=json.dumps({**CONFIG_MAP, "data": {"only": "this"}}))
    assert json.loads(kubectl("get", "cm", "settings", "-o", "jsonpath={.data}")) == {"only": "this"}
    kubectl("patch", "cm", "settings", "--type=merge", "-p", '{"data":{"only":null,"x":"1"}}')
    kubectl("patch", "cm", "settings", "--type=json", "-p", '[{"op":"add","path":"/data/y","value":"2"}]')
    kubectl("patch", "cm", "settings", "--type=strategic", "-p", '{"data":{"z":"3"}}')
    assert json.loads(kubectl("get", "cm", "settings", "-o", "jsonpath={.data}")) == {"x": "1", "y": "2", "z": "3"}
    unchanged = kubectl("patch", "cm", "settings", "-p", '{"data":{"z":"3"}}')
    assert unchanged == "configmap/settings patched (no change)\n"


def test_edit(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "settings", "--from-literal=a=before")
    editing = Kubectl(kubectl.path, kubectl.kubeconfig, kubectl.namespace, {"KUBE_EDITOR": "sed -i s/before/after/"})
    assert "edited" in editing("edit", "cm", "settings")
    assert kubectl("get", "cm", "settings", "-o", "jsonpath={.data.a}") == "after"


def test_label_and_annotate(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=json.dumps(CONFIG_MAP))
    assert "labeled" in kubectl("label", "cm", "settings", "tier=front")
    assert "already has a value" in kubectl.refused("label", "cm", "settings", "tier=back")
    kubectl("label", "cm", "settings", "tier=back", "--overwrite")
    kubectl("annotate", "cm", "settings", "note=hello")
    metadata = json.loads(kubectl("get", "cm", "settings", "-o", "jsonpath={.metadata}"))
    assert (metadata["labels"], metadata["annotations"]) == ({"tier": "back"}, {"note": "hello"})
    kubectl("label", "cm", "settings", "tier-")
    assert kubectl("get", "cm", "settings", "-o", "jsonpath={.metadata.labels}") == ""


def test_delete_and_wait_for_it(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=json.dumps(CONFIG_MAP))
    kubectl("patch", "cm", "settings", "-p", '{"metadata":{"finalizers":["example.dev/hold"]}}')
    kubectl("delete", "cm", "settings", "--wait=false")
    assert kubectl("get", "cm", "settings", "-o", "jsonpath={.metadata.deletionTimestamp}")
    assert "timed out" in kubectl.refused("wait", "--for=delete", "cm/settings", "--timeout=1s")
    kubectl("patch", "cm", "settings", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kubectl("wait", "--for=delete", "cm/settings", "--timeout=60s")
    assert "not found" in kubectl.refused("get", "cm", "settings")
    assert kubectl("delete", "cm", "settings", "--ignore-not-found") == ""


def test_custom_resource(kubectl: Kubectl, gauges: None) -> None:
    kubectl("apply", "-f", "-", stdin=gauge(size=2))
    assert [row.split() for row in kubectl("get", "gg").splitlines()] == [["NAME", "SIZE", "PHASE"], ["one", "2"]]
    assert kubectl("get", "gg", "-o", "wide").splitlines()[1].split() == ["one", "2", "any"]
    described = kubectl("describe", "gauge", "one")
    assert re.search(r"^Kind: +Gauge$", described, re.M)
    assert re.search(r"^  Mode: +any$", described, re.M)
    kubectl("scale", "gauge", "one", "--replicas=4")
    assert kubectl("get", "gauge", "one", "-o", "jsonpath={.spec.size}") == "4"
    ready = '{"status":{"phase":"Good","conditions":[{"type":"Ready","status":"True"}]}}'
    kubectl("patch", "gauge", "one", "--subresource=status", "--type=merge", "-p", ready)
    kubectl("wait", "--for=condition=Ready", "gauge/one", "--timeout=60s")
    kubectl("wait", "--for=jsonpath={.status.phase}=Good", "gauge/one", "--timeout=60s")
    assert kubectl("get", "gg", "--no-headers").split() == ["one", "4", "Good"]
    kubectl("delete", "gauges", "--all")
    assert kubectl("get", "gg", "-o", "name") == ""


def test_explain(kubectl: Kubectl, gauges: None) -> None:
    limits = kubectl("explain", "pod.spec.containers.resources")
    assert re.search(r"^KIND: +Pod$", limits, re.M)
    assert re.search(r"^FIELD: resources <ResourceRequirements>$", limits, re.M)
    assert re.search(r"^  limits\t<map\[string\]Quantity>$", limits, re.M)
    assert "-required-" in kubectl("explain", "statefulset.spec.template.spec.containers")
    recursive = kubectl("explain", "sts.spec.updateStrategy", "--recursive")
    assert re.search(r"^    partition\t<integer>$", recursive, re.M)
    own = kubectl("explain", "gauge.spec")
    assert "What the gauge should show." in own
    assert re.search(r"^  size\t<integer> -required-$", own, re.M)


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        (gauge(sizze=2), 'strict decoding error: unknown field "spec.sizze"'),
        (gauge(size=11), "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"),
        (gauge(size=1, mode="odd"), 'spec.mode: Unsupported value: "odd": supported values: "any", "even"'),
        (gauge(size=3, mode="even"), "spec: Invalid value: size must be even in mode even"),
        (gauge(), "spec.size: Required value"),
        (gauge("Bad", size=1), 'metadata.name: Invalid value: "Bad": a lowercase RFC 1123 subdomain must consist of'),
        (gauge(size="two"), 'spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"'),
    ],
    ids=["unknown field", "too big", "not in enum", "rule", "missing", "name", "type"],
)
def test_bad_custom_resource_is_refused(kubectl: Kubectl, gauges: None, manifest: str, sentence: str) -> None:
    assert sentence in kubectl.refused("create", "-f", "-", stdin=manifest)


def test_top_level_errors(kubectl: Kubectl) -> None:
    """The words are those of k8s.io/apimachinery `pkg/api/errors`, as kubectl prints them."""
    assert kubectl.refused("get", "cm", "none") == 'Error from server (NotFound): configmaps "none" not found'
    assert kubectl.refused("get", "sts", "none") == 'Error from server (NotFound): statefulsets.apps "none" not found'
    assert kubectl.refused("get", "nopes") == 'error: the server doesn\'t have a resource type "nopes"'
    kubectl("create", "configmap", "twice")
    exists = 'error: failed to create configmap: configmaps "twice" already exists'
    assert kubectl.refused("create", "configmap", "twice") == exists
    missing = Kubectl(kubectl.path, kubectl.kubeconfig, "no-such-namespace")
    assert missing.refused("create", "configmap", "x").endswith('namespaces "no-such-namespace" not found')
    kept = 'Error from server (Forbidden): namespaces "default" is forbidden: this namespace may not be deleted'
    assert kubectl.refused("delete", "namespace", "default").endswith(kept)
    assert "no matches for kind" in kubectl.refused(
        "create", "-f", "-", stdin='{"apiVersion":"none.dev/v1","kind":"None","metadata":{"name":"x"}}'
    )


def test_conflicting_replace(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=json.dumps(CONFIG_MAP))
    old = kubectl("get", "cm", "settings", "-o", "json")
    kubectl("patch", "cm", "settings", "-p", '{"data":{"a":"changed"}}')
    refused = kubectl.refused("replace", "-f", "-", stdin=old)
    assert "(Conflict)" in refused
    assert 'Operation cannot be fulfilled on configmaps "settings": the object has been modified' in refused


def test_who_may_what(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    kubectl("create", "serviceaccount", "robot")
    robot = f"system:serviceaccount:{kubectl.namespace}:robot"
    assert kubectl.run("auth", "can-i", "list", "pods", "--as", robot).out == "no\n"
    forbidden = (
        f'Error from server (Forbidden): pods is forbidden: User "{robot}" cannot list resource "pods" in API group "" '
        f'in the namespace "{kubectl.namespace}"'
    )
    assert kubectl.refused("get", "pods", "--as", robot) == forbidden
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods,pods/log")
    kubectl("create", "rolebinding", "robot-reads", "--role=reader", f"--serviceaccount={kubectl.namespace}:robot")
    assert kubectl("auth", "can-i", "list", "pods", "--as", robot) == "yes\n"
    assert kubectl("auth", "can-i", "get", "pods/log", "--as", robot) == "yes\n"
    assert kubectl.run("auth", "can-i", "delete", "pods", "--as", robot).out == "no\n"
    assert robot in kubectl("auth", "whoami", "--as", robot)


def test_token_of_a_service_account_is_the_account(kubectl: Kubectl) -> None:
    kubectl("create", "serviceaccount", "robot")
    token = kubectl("create", "token", "robot", "--duration=600s").strip()
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["sub"] == f"system:serviceaccount:{kubectl.namespace}:robot"
    assert claims["exp"] - claims["iat"] == 600
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["users"] = [{"name": "robot", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"]["user"] = "robot"
    own = kubectl.kubeconfig.with_name(f"{kubectl.namespace}-robot")
    own.write_text(yaml.safe_dump(config))
    as_robot = Kubectl(kubectl.path, own, kubectl.namespace)
    assert f'User "system:serviceaccount:{kubectl.namespace}:robot" cannot list' in as_robot.refused("get", "secrets")
