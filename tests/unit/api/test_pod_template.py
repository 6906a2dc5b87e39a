"""A podTemplate is refused if it changes a reserved field; all other fields are accepted."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.api.parsing import InvalidJob, parse_spec


def sentences(template: Any, **spec: Any) -> list[str]:
    try:
        parse_spec({"workers": 1, "podTemplate": template, **spec}, "job")
    except InvalidJob as error:
        return [str(problem).removeprefix("spec.podTemplate.") for problem in error.problems]
    return []


def worker(**changes: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **changes}]}}


REFUSED = {
    "another restart policy, which StatefulSets refuse": (
        {"spec": {"restartPolicy": "Never"}},
        "spec.restartPolicy: 'Never' can't be set here; pods of a StatefulSet always have Always; remove it",
    ),
    "a host name": (
        {"spec": {"hostname": "gpu"}},
        "spec.hostname: 'gpu' can't be set here; the workers find each other by the StatefulSet's names; remove it",
    ),
    "the node's network without its ports": (
        {"spec": {"hostNetwork": True}},
        "spec.hostNetwork: true can't be set here; set spec.interconnect.hostNetwork",
    ),
    "the worker's command": (
        worker(command=["bash"]),
        "spec.containers[0].command: can't be set here; the agent is the container's command; set spec.command",
    ),
    "the worker's image": (
        worker(image="x"),
        "spec.containers[0].image: 'x' can't be set here; set spec.image",
    ),
    "a variable of the contract": (
        worker(env=[{"name": "WORLD_SIZE", "value": "1"}]),
        "spec.containers[0].env[0].name: WORLD_SIZE is set by Trainmaster; remove it",
    ),
    "a variable with a reserved prefix": (
        worker(env=[{"name": "A", "value": ""}, {"name": "PET_NNODES", "$patch": "delete"}]),
        "spec.containers[0].env[1].name: PET_NNODES is set by Trainmaster; remove it",
    ),
    "a mount over the agent's files": (
        {
            "spec": {
                "containers": [
                    {"name": "worker", "volumeMounts": [{"name": "x", "mountPath": "/run/trainmaster/state"}]}
                ],
                "volumes": [{"name": "x", "emptyDir": {}}],
            }
        },
        "spec.containers[0].volumeMounts[0].mountPath: '/run/trainmaster/state' is reserved for "
        "Trainmaster; mount it elsewhere",
    ),
    "a mount over the agent's files, written otherwise": (
        {
            "spec": {
                "containers": [
                    {
                        "name": "worker",
                        "volumeMounts": [{"name": "x", "mountPath": "/etc/../run//trainmaster/./state/"}],
                    }
                ],
                "volumes": [{"name": "x", "emptyDir": {}}],
            }
        },
        "spec.containers[0].volumeMounts[0].mountPath: '/etc/../run//trainmaster/./state/' is reserved for "
        "Trainmaster; mount it elsewhere",
    ),
    "the number of accelerators": (
        worker(resources={"limits": {"nvidia.com/gpu": "1"}}),
        "spec.containers[0].resources.limits: nvidia.com/gpu decides the number of ranks; set spec.resources.gpus",
    ),
    "the worker's deletion": (
        worker(**{"$patch": "delete"}),
        "spec.containers[0].$patch: 'delete' would remove the worker; give only the fields to change",
    ),
    "a probe that asks in two ways": (
        worker(livenessProbe={"tcpSocket": {"port": 8472}}),
        "spec.containers[0].livenessProbe.tcpSocket: the agent's own probe has httpGet, and a probe has one handler; "
        "add httpGet: null",
    ),
    "all containers' deletion": (
        {"spec": {"containers": None}},
        "spec.containers: null would delete the worker; remove it",
    ),
    "the replacement of all variables": (
        worker(env=[{"$patch": "replace"}]),
        "spec.containers[0].env[0]: would remove what the operator renders; give only the items to add or change",
    ),
    "the replacement of the pod": (
        {"spec": {"$patch": "replace"}},
        "spec.$patch: 'replace' would remove what the operator renders; give only the fields to change",
    ),
    "a container without a name": (
        {"spec": {"containers": [{"image": "x"}]}},
        "spec.containers[0].name: is missing; set it",
    ),
    "containers that aren't a list": (
        {"spec": {"containers": {"worker": {}}}},
        "spec.containers: a mapping is not a list; write its items as - name: …",
    ),
    "a volume with a reserved name": (
        {"spec": {"volumes": [{"name": "trainmaster-state", "emptyDir": {}}]}},
        "spec.volumes[0].name: 'trainmaster-state' is reserved for Trainmaster; use another name",
    ),
    "another agent": (
        {"spec": {"initContainers": [{"name": "trainmaster-agent", "image": "x"}]}},
        "spec.initContainers[0]: pods mount the agent, so no container installs it; remove it",
    ),
    "a grace period that isn't one": (
        {"spec": {"terminationGracePeriodSeconds": "60"}},
        "spec.terminationGracePeriodSeconds: '60' is not a whole number of seconds from 1 to 86400; ranks save a "
        "checkpoint in that time",
    ),
    "the assignment": (
        {"metadata": {"annotations": {"trainmaster.dev/assignment": "{}"}}},
        "metadata.annotations: 'trainmaster.dev/assignment' is set by the system; remove it",
    ),
    "a label that the StatefulSet sets": (
        {"metadata": {"labels": {"apps.kubernetes.io/pod-index": "0"}}},
        "metadata.labels: 'apps.kubernetes.io/pod-index' is set by the system; remove it",
    ),
    "a directive that isn't supported": (
        {"spec": {"$setElementOrder/containers": [{"name": "worker"}]}},
        "spec.$setElementOrder/containers: this directive is not supported; use $patch: delete or $patch: replace",
    ),
    "a port without its key": (
        worker(ports=[{"name": "http"}]),
        "spec.containers[0].ports[0].containerPort: is missing; set it",
    ),
    "a directive that isn't one": (
        {"spec": {"securityContext": {"$patch": "remove"}}},
        "spec.securityContext.$patch: 'remove' is not a directive here; use merge, replace or delete",
    ),
    "an unknown part": (
        {"specs": {}},
        "specs: unknown field; did you mean spec?",
    ),
}


@pytest.mark.parametrize(("template", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_attempts_rely_on_is_refused(template: Any, sentence: str) -> None:
    assert sentences(template) == [sentence]


def test_the_resource_of_the_jobs_own_accelerator_is_refused() -> None:
    limits = worker(resources={"limits": {"amd.com/gpu": 1}})
    assert sentences(limits) == []
    assert len(sentences(limits, accelerator={"kind": "amd"})) == 1


ALLOWED = {
    "labels and annotations": {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}},
    "the only restart policy": {"spec": {"restartPolicy": "Always"}},
    "a sidecar, a volume and a variable": {
        "spec": {
            "containers": [{"name": "worker", "env": [{"name": "A", "value": "b"}]}, {"name": "side", "image": "x"}],
            "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        }
    },
    "less security": {"spec": {"securityContext": {"runAsNonRoot": None, "seccompProfile": {"$patch": "delete"}}}},
    "another place for shared memory": {
        "spec": {
            "containers": [{"name": "worker", "volumeMounts": [{"mountPath": "/dev/shm", "name": "big"}]}],
            "volumes": [{"name": "big", "emptyDir": {"medium": "Memory"}}],
        }
    },
}


@pytest.mark.parametrize("template", ALLOWED.values(), ids=ALLOWED.keys())
def test_everything_else_passes(template: Any) -> None:
    assert sentences(template) == []
