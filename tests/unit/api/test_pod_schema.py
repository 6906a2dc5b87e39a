"""`pod_schema` gives a sentence for everything that Kubernetes refuses in a pod, and accepts the rest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.api_server import apply
from trainmaster_operator.api.kubernetes_syntax import quantity_problem
from trainmaster_operator.api.limits import MAX_POD_PROBLEMS
from trainmaster_operator.api.parsing import InvalidJob, parse_spec

POD = "spec.podTemplate.spec."
WORKER = f"{POD}containers[0]."


def sentences(pod: Any, **spec: Any) -> list[str]:
    try:
        parse_spec({"workers": 1, "podTemplate": {"spec": pod}, **spec}, "job")
    except InvalidJob as error:
        return [str(problem) for problem in error.problems]
    return []


def worker(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "worker", **fields}]}


def volume(**fields: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "d", **fields}]}


def variable(**fields: Any) -> dict[str, Any]:
    return worker(env=[{"name": "A", **fields}])


def limits(**amounts: Any) -> dict[str, Any]:
    return worker(resources={"limits": amounts})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # Names of fields.
    "enviroment": (worker(enviroment=[]), f"{WORKER}enviroment: unknown field; did you mean env?"),
    "nodeselector": ({"nodeselector": {}}, f"{POD}nodeselector: unknown field; did you mean nodeSelector?"),
    "snake case": (
        {"service_account_name": "x"},
        f"{POD}service_account_name: unknown field; did you mean serviceAccountName?",
    ),
    "a claim's name": (
        volume(persistantVolumeClaim={"claimName": "x"}),
        f"{POD}volumes[0].persistantVolumeClaim: unknown field; did you mean persistentVolumeClaim?",
    ),
    "a secret's name": (
        variable(valueFrom={"secretKeyRef": {"secretName": "x", "key": "k"}}),
        f"{WORKER}env[0].valueFrom.secretKeyRef.secretName: unknown field; did you mean name?",
    ),
    "a selector in the container": (
        worker(nodeSelector={"a": "b"}),
        f"{WORKER}nodeSelector: unknown field; it belongs in spec.podTemplate.spec",
    ),
    "variables in the pod": (
        {"env": []},
        f"{POD}env: unknown field; it belongs in spec.podTemplate.spec.containers, in the one called worker",
    ),
    "labels in the spec": ({"labels": {}}, f"{POD}labels: unknown field; it belongs in spec.podTemplate.metadata"),
    "an amount beside limits": (
        worker(resources={"memory": "1Gi"}),
        f"{WORKER}resources.memory: unknown field; it belongs in limits or requests",
    ),
    "a reference without valueFrom": (
        variable(secretKeyRef={}),
        f"{WORKER}env[0].secretKeyRef: unknown field; it belongs in valueFrom",
    ),
    "affinity of nodes in the pod": (
        {"nodeAffinity": {}},
        f"{POD}nodeAffinity: unknown field; it belongs in affinity",
    ),
    # Types.
    "a number for text": (variable(value=4), f"{WORKER}env[0].value: 4 is not text; write it in quotes"),
    "true for text": (variable(value=True), f"{WORKER}env[0].value: true is not text; write it in quotes"),
    "a number in a selector": (
        {"nodeSelector": {"a": 3}},
        f"{POD}nodeSelector.a: 3 is not text; write it in quotes",
    ),
    "a mapping for a list": (
        {"tolerations": {"key": "x"}},
        f"{POD}tolerations: a mapping is not a list; put '- ' before its first field",
    ),
    "variables as a mapping": (
        worker(env={"A": "b"}),
        f"{WORKER}env: a mapping is not a list; write its items as - name: …",
    ),
    "a secret's name for a mapping": (
        {"imagePullSecrets": ["x"]},
        f"{POD}imagePullSecrets[0]: 'x' is not a mapping; write {{name: x}}",
    ),
    "a claim's name for a mapping": (
        volume(persistentVolumeClaim="data"),
        f"{POD}volumes[0].persistentVolumeClaim: 'data' is not a mapping; write {{claimName: data}}",
    ),
    "a taint for a toleration": (
        {"tolerations": ["nvidia.com/gpu=true:NoSchedule"]},
        f"{POD}tolerations[0]: 'nvidia.com/gpu=true:NoSchedule' is not a mapping; write {{key: "
        "nvidia.com/gpu, operator: Equal, value: 'true', effect: NoSchedule}",
    ),
    "a port's number for a mapping": (
        worker(ports=[8080]),
        f"{WORKER}ports[0]: 8080 is not a mapping; write {{containerPort: 8080}}",
    ),
    "emptyDir: true": (
        volume(emptyDir=True),
        f"{POD}volumes[0].emptyDir: true is not a mapping; write {{}}",
    ),
    "a command as text": (
        {"initContainers": [{"name": "i", "image": "x", "command": "sh -c 'a b'"}]},
        f"{POD}initContainers[0].command: \"sh -c 'a b'\" is not a list; write [sh, -c, 'a b']",
    ),
    "a port as text": (
        worker(ports=[{"containerPort": "80"}]),
        f"{WORKER}ports[0].containerPort: '80' is not a whole number; write it without quotes",
    ),
    "a fraction": (
        {"priority": 1.5},
        f"{POD}priority: 1.5 is not a whole number; write it without a fraction",
    ),
    "a number that is too large": (
        {"priority": 2**31},
        f"{POD}priority: 2147483648 has too many digits; use a smaller number",
    ),
    "'true' in quotes": (
        worker(securityContext={"privileged": "true"}),
        f"{WORKER}securityContext.privileged: 'true' is not true or false; write one of them without quotes",
    ),
    # Quantities.
    "10GB": (
        volume(emptyDir={"sizeLimit": "10GB"}),
        f"{POD}volumes[0].emptyDir.sizeLimit: '10GB' is not a quantity; use 10G or 10Gi",
    ),
    "32gi": (limits(memory="32gi"), f"{WORKER}resources.limits.memory: '32gi' is not a quantity; use 32Gi"),
    "a fraction with a comma": (limits(cpu="1,5"), f"{WORKER}resources.limits.cpu: '1,5' is not a quantity; use 1.5"),
    "thousandths of bytes": (
        limits(memory="512m"),
        f"{WORKER}resources.limits.memory: '512m' is thousandths of a byte; use 512M or 512Mi",
    ),
    "no quantity": (
        limits(cpu="many"),
        f"{WORKER}resources.limits.cpu: 'many' is not a quantity; use a number with an optional suffix, such as 16, "
        "500m or 128Gi",
    ),
    "a negative amount": (limits(cpu="-1"), f"{WORKER}resources.limits.cpu: '-1' is negative; use 0 or more"),
    "no resource": (
        limits(gpu=1),
        f"{WORKER}resources.limits.gpu: 'gpu' is not a resource; use cpu, memory or a device's full name, such as "
        "nvidia.com/gpu",
    ),
    "a request above its limit": (
        worker(resources={"requests": {"cpu": 2}, "limits": {"cpu": "1"}}),
        f"{WORKER}resources.requests.cpu: 2 is more than the limit, 1; use at most that",
    ),
    "a device that is only requested": (
        worker(resources={"requests": {"a.com/b": 2}}),
        f"{WORKER}resources.requests[a.com/b]: is requested without a limit; set an equal limit",
    ),
    # Values.
    "a toleration's operator": (
        {"tolerations": [{"key": "x", "operator": "Equals"}]},
        f"{POD}tolerations[0].operator: 'Equals' is not known; did you mean Equal?",
    ),
    "a folder's type": (
        volume(hostPath={"path": "/x", "type": "Folder"}),
        f"{POD}volumes[0].hostPath.type: 'Folder' is not known; use BlockDevice, CharDevice, Directory, "
        "DirectoryOrCreate, File, FileOrCreate or Socket",
    ),
    "a protocol in lower case": (
        worker(ports=[{"containerPort": 1, "protocol": "tcp"}]),
        f"{WORKER}ports[0].protocol: 'tcp' is not known; did you mean TCP?",
    ),
    "a port out of range": (
        worker(ports=[{"containerPort": 70_000}]),
        f"{WORKER}ports[0].containerPort: 70000 is out of range; use 1 to 65535",
    ),
    "a port's name": (
        worker(ports=[{"containerPort": 1, "name": "HTTP"}]),
        f"{WORKER}ports[0].name: 'HTTP' can't be a port's name; use at most 15 lower case letters, digits and single "
        "'-', with at least one letter",
    ),
    "the agent's port by another number": (
        worker(ports=[{"containerPort": 1, "name": "agent"}]),
        f"{WORKER}ports[0].name: 'agent' is already the name of another port; use another name",
    ),
    "a variable's name": (
        worker(env=[{"name": "A=B", "value": "1"}]),
        f"{WORKER}env[0].name: 'A=B' can't be a variable's name; use letters, digits and '_', such as MY_VARIABLE",
    ),
    "a label's value": (
        {"nodeSelector": {"a": "b c"}},
        f"{POD}nodeSelector.a: 'b c' can't be a label's value; use at most 63 letters, digits, '-', '_' and '.', "
        "beginning and ending with a letter or digit",
    ),
    "a file mode": (
        volume(secret={"secretName": "x", "defaultMode": 1000}),
        f"{POD}volumes[0].secret.defaultMode: 1000 is not a file mode; write it in octal from 0000 to 0777, "
        "such as 0400",
    ),
    "a claim for each pod": (
        {"volumeClaimTemplates": []},
        f"{POD}volumeClaimTemplates: unknown field; use volumes with persistentVolumeClaim, or with ephemeral for one "
        "of each pod",
    ),
    "a device of the whole pod": (
        {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        f"{POD}resources.limits[nvidia.com/gpu]: devices belong to a container, not to the pod; set "
        "spec.resources.gpus",
    ),
    "root that may not be root": (
        {"securityContext": {"runAsNonRoot": True, "runAsUser": 0}},
        f"{POD}securityContext.runAsUser: 0 is root, and runAsNonRoot is true; give another user, or remove one of the "
        "two",
    ),
    "a privileged worker": (
        worker(securityContext={"privileged": True}),
        f"{WORKER}securityContext.privileged: needs allowPrivilegeEscalation: true, which is false for the worker; set "
        "it too",
    ),
    "a pod's security in a container": (
        worker(securityContext={"fsGroup": 3}),
        f"{WORKER}securityContext.fsGroup: unknown field; it belongs in spec.podTemplate.spec.securityContext",
    ),
    "a reference beside its kind": (
        variable(valueFrom={"name": "x"}),
        f"{WORKER}env[0].valueFrom.name: unknown field; it belongs in configMapKeyRef or secretKeyRef",
    ),
    "the beginning of a field's name": (
        worker(readinessProbe={"initialDelay": 3, "exec": {"command": ["a"]}}),
        f"{WORKER}readinessProbe.initialDelay: unknown field; did you mean initialDelaySeconds?",
    ),
    "a pair for a mapping": (
        {"nodeSelector": "disk=ssd"},
        f"{POD}nodeSelector: 'disk=ssd' is not a mapping; write {{disk: ssd}}",
    ),
    "a pair for a variable": (
        worker(env=["A=b"]),
        f"{WORKER}env[0]: 'A=b' is not a mapping; write {{name: A, value: 'b'}}",
    ),
    "terms without their field": (
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}},
        f"{POD}affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution: a list is not a mapping; write "
        "nodeSelectorTerms: before the list",
    ),
    # Items of lists.
    "a variable in two items": (
        worker(env=[{"name": "A"}, {"value": "b"}]),
        f"{WORKER}env[1].name: is missing; set it, or remove the '-' if this continues the item before",
    ),
    "a variable as Docker Compose has it": (
        worker(env=[{"A": "b"}]),
        f"{WORKER}env[0].name: is missing; write {{name: A, value: …}}",
    ),
    "a variable with a key": (
        worker(env=[{"key": "A", "value": "b"}]),
        f"{WORKER}env[0].key: unknown field; did you mean name?",
    ),
    "a volume without a name": (
        {"volumes": [{"emptyDir": {}}]},
        f"{POD}volumes[0].name: is missing; set it",
    ),
    # Relations.
    "a variable twice": (
        worker(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        f"{WORKER}env[1].name: 'A' is given twice; keep one",
    ),
    "a value and its source": (
        variable(value="1", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        f"{WORKER}env[0].valueFrom: is given beside value; keep one of them",
    ),
    "a source of nothing": (
        variable(valueFrom={}),
        f"{WORKER}env[0].valueFrom: names none; give one of configMapKeyRef, fieldRef, "
        "fileKeyRef, resourceFieldRef, secretKeyRef",
    ),
    "a mount of no volume": (
        worker(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
        f"{WORKER}volumeMounts[0].name: 'data' is not the name of a volume; add it to spec.podTemplate.spec.volumes",
    ),
    "a mount of a volume by another name": (
        {
            **worker(volumeMounts=[{"name": "datas", "mountPath": "/data"}]),
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
        f"{WORKER}volumeMounts[0].name: 'datas' is not the name of a volume; did you mean data?",
    ),
    "two sources": (
        volume(emptyDir={}, hostPath={"path": "/x"}),
        f"{POD}volumes[0].hostPath: names emptyDir and hostPath; a volume has one of them",
    ),
    "a claim without a name": (
        volume(persistentVolumeClaim={}),
        f"{POD}volumes[0].persistentVolumeClaim.claimName: is missing; set it",
    ),
    "a container without an image": (
        {"containers": [{"name": "train-it", "env": []}]},
        f"{POD}containers[0].image: is missing, and 'train-it' is a container of its own; the worker's container is "
        "called worker; set it",
    ),
    "PyTorchJob's container": (
        {"containers": [{"name": "pytorch", "image": "x"}]},
        f"{POD}containers[0].name: 'pytorch' would run as a sidecar of the worker; call it worker, or give "
        "a sidecar another name",
    ),
    "a misspelled worker": (
        {"containers": [{"name": "workers", "image": "x"}]},
        f"{POD}containers[0].name: 'workers' would run as a sidecar of the worker; call it worker, or give "
        "a sidecar another name",
    ),
    "an init container of the worker's name": (
        {"initContainers": [{"name": "worker", "image": "x"}]},
        f"{POD}initContainers[0].name: 'worker' is already the name of another container; use another name",
    ),
    "a toleration of all values": (
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        f"{POD}tolerations[0].value: 'b' is given beside operator: Exists, which has none; remove one of the two",
    ),
    "a probe of two kinds": (
        worker(readinessProbe={"exec": {"command": ["a"]}, "httpGet": {"port": 1}}),
        f"{WORKER}readinessProbe: names exec and httpGet; give one of exec, httpGet, tcpSocket, grpc",
    ),
}


@pytest.mark.parametrize(("pod", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_kubernetes_refuses_gets_a_sentence(pod: dict[str, Any], sentence: str) -> None:
    assert sentences(pod) == [sentence]


ACCEPTED: dict[str, dict[str, Any]] = {
    "a field of a newer Kubernetes": {"checkpointPolicy": {"a": 1}, **worker(hibernation="x")},
    "a newer source of a volume": volume(tapeDrive={"name": "x"}),
    "a newer source of a variable": variable(valueFrom={"vaultKeyRef": {"name": "x"}}),
    "a newer way to probe": worker(readinessProbe={"quic": {"port": 1}}),
    "an operator that may come": {"tolerations": [{"key": "a", "operator": "Matches", "value": "1"}]},
    "odd quantities": limits(**{"cpu": ".5", "memory": "1e9", "ephemeral-storage": "5.", "hugepages-2Mi": "+4Mi"}),
    "quantities as numbers": limits(cpu=0.5, memory=1_000_000_000),
    "huge pages in another unit": limits(**{"hugepages-2Mi": "6144Ki", "hugepages-1Gi": "2Gi", "memory": "4Gi"}),
    "a field of a newer Kubernetes for a variable": variable(valueFrom={"fieldRef": {"fieldPath": "status.zone"}}),
    "an address as old releases take it": {"hostAliases": [{"ip": "010.1.0.7", "hostnames": ["a"]}]},
    "a probe's values that are its defaults": worker(
        startupProbe={"exec": {"command": ["a"]}, "periodSeconds": 0, "successThreshold": 0}
    ),
    "a variable's source that is replaced": variable(valueFrom={"$patch": "delete", "fieldRef": {"fieldPath": "x"}}),
    "a volume without a source": volume(),
    "mode of files": volume(secret={"secretName": "x", "defaultMode": 0o400}),
    "nulls": {"nodeSelector": {"a": None}, "tolerations": None, **variable(value=None, valueFrom=None)},
    "directives": {
        "containers": [{"name": "worker", "env": [{"name": "A", "$patch": "delete"}]}],
        "securityContext": {"$patch": "replace", "fsGroup": 5},
        "volumes": [{"name": "d", "$patch": "delete"}],
    },
    "a rendered mount, made read-only": worker(volumeMounts=[{"mountPath": "/dev/shm", "readOnly": True}]),
    "a mount of the checkpoints' volume": worker(
        volumeMounts=[{"name": "trainmaster-checkpoint", "mountPath": "/more", "subPath": "a"}]
    ),
    "a rendered toleration, shortened": {
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "tolerationSeconds": 5}]
    },
    "every taint": {"tolerations": [{"operator": "Exists"}]},
    "a sidecar": {"containers": [{"name": "tensorboard", "image": "tb:1"}]},
    "a sidecar beside the worker": {"containers": [{"name": "main", "image": "tb:1"}, {"name": "worker"}]},
    "a medium of huge pages": volume(emptyDir={"medium": "HugePages-2Mi"}),
    "odd names of variables": worker(env=[{"name": "a.b-c d", "value": "1"}]),
    "a resource of Kubernetes' own": limits(**{"kubernetes.io/batch-cpu": "1"}),
    "a whole number as a float": {"priority": 1.0},
    "names of files": worker(envFrom=[{"secretRef": {"name": "a"}, "prefix": "B_"}]),
}


@pytest.mark.parametrize("pod", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_kubernetes_takes_passes(pod: dict[str, Any]) -> None:
    assert sentences(pod) == []


def test_requests_are_compared_with_what_the_jobs_own_fields_limit() -> None:
    pod = worker(resources={"requests": {"cpu": 4}})
    assert sentences(pod, resources={"cpu": 4}) == []
    assert sentences(pod, resources={"cpu": {"limit": 3}}) == [
        f"{WORKER}resources.requests.cpu: 4 is more than the limit of spec.resources.cpu, 3; use at most that"
    ]
    assert sentences(worker(resources={"limits": {"memory": "1Gi"}}), resources={"memory": "2Gi"}) == [
        f"{WORKER}resources.limits.memory: 1Gi is less than the request of spec.resources.memory, 2Gi; use at least "
        "that"
    ]


def test_labels_and_annotations_have_kubernetes_form() -> None:
    template = {"metadata": {"labels": {"a": "no label!", "-": ""}, "annotations": {"x y": "any text!", "A/b": ""}}}
    with pytest.raises(InvalidJob) as refused:
        parse_spec({"workers": 1, "podTemplate": template}, "job")
    assert [problem.field.removeprefix("spec.podTemplate.metadata.") for problem in refused.value.problems] == [
        "labels.a",
        "labels[-]",
        "annotations[x y]",
    ]


def test_a_pod_that_is_wrong_everywhere_costs_a_bounded_answer() -> None:
    pod = {f"containerz{'s' * n}": 1 for n in range(500)} | worker(
        env=[{"name": f"A{n}", "value": n} for n in range(900)]
    )
    assert 0 < len(sentences(pod)) <= MAX_POD_PROBLEMS


@pytest.mark.parametrize(
    "text", ["1", "1.5", ".5", "5.", "+1", "-1", "1e3", "1E-3", "1n", "1u", "1m", "1k", "1Ki", "1E"]
)
def test_every_form_of_a_quantity_is_taken(text: str) -> None:
    assert quantity_problem(text) is None


@pytest.mark.parametrize("pod", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_kubernetes_takes_passes_the_crds_schema(pod: dict[str, Any]) -> None:
    answer = apply({"workers": 1, "podTemplate": {"spec": pod}})
    assert answer.accepted, answer
