"""A field where somebody put it who knows another API, or lost an indentation: the sentence says where it belongs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.sentences import sentences

MISPLACED = {
    "spec.gpus": "it belongs in spec.resources.gpus",
    "spec.gpu": "set spec.resources.gpus",
    "spec.memory": "it belongs in spec.resources.memory",
    "spec.cpu": "it belongs in spec.resources.cpu",
    "spec.maxRestarts": "it belongs in spec.failurePolicy.maxRestarts",
    "spec.max_restarts": "it belongs in spec.failurePolicy.maxRestarts",
    "spec.runPolicy.maxRestarts": "it belongs in spec.failurePolicy.maxRestarts",
    "spec.backoffLimit": "set spec.failurePolicy.maxRestarts",
    "spec.suspend": "it belongs in spec.runPolicy.suspend",
    "spec.ttlSecondsAfterFinished": "it belongs in spec.runPolicy.ttlSecondsAfterFinished",
    "spec.failurePolicy.activeDeadlineSeconds": "it belongs in spec.runPolicy.activeDeadlineSeconds",
    "spec.runPolicy.cleanPodPolicy": "set spec.runPolicy.keepPods to None, Failed or All",
    "spec.env": "it belongs in spec.podTemplate.spec.containers, as env of the one with name: worker",
    "spec.podTemplate.env": "it belongs in spec.podTemplate.spec.containers, as env of the one with name: worker",
    "spec.volumeMounts": "it belongs in spec.podTemplate.spec.containers, as volumeMounts of the one with name: worker",
    "spec.tty": "it belongs in spec.podTemplate.spec.containers, as tty of the one with name: worker",
    "spec.elastic.os": "it belongs in spec.podTemplate.spec.os",
    "spec.hostname": "the workers find each other by the names that the StatefulSet gives; remove it",
    "spec.runPolicy.resources": "it belongs in spec.resources",
    "spec.nodeSelector": "it belongs in spec.podTemplate.spec.nodeSelector",
    "spec.volumes": "it belongs in spec.podTemplate.spec.volumes",
    "spec.tolerations": "it belongs in spec.podTemplate.spec.tolerations",
    "spec.scheduling.tolerations": "it belongs in spec.podTemplate.spec.tolerations",
    "spec.podTemplate.tolerations": "it belongs in spec.podTemplate.spec.tolerations",
    "spec.podTemplate.labels": "it belongs in spec.podTemplate.metadata.labels",
    "spec.serviceAccountName": "it belongs in spec.podTemplate.spec.serviceAccountName",
    "spec.imagePullSecrets": "it belongs in spec.podTemplate.spec.imagePullSecrets",
    "spec.priorityClassName": "it belongs in spec.scheduling.priorityClassName",
    "spec.queue": "it belongs in spec.scheduling.queue",
    "spec.claimName": "it belongs in spec.code.claim.claimName or spec.checkpoint.volume.claimName",
    "spec.checkpoint.claimName": "it belongs in spec.checkpoint.volume.claimName",
    "spec.replicas": "set spec.workers",
    "spec.numNodes": "set spec.workers",
    "spec.nprocPerNode": "set spec.processesPerWorker",
    "spec.accelerator.count": "set spec.resources.gpus",
    "spec.securityContext.fsGroup": "it belongs in spec.podTemplate.spec.securityContext",
    "spec.lr": "it belongs in spec.training",
    "spec.environment": "it belongs in spec.podTemplate.spec.containers, as env of the one with name: worker",
    "spec.ntasks-per-node": "set spec.processesPerWorker",
    "spec.resources.limits": "set gpus, cpu and memory in spec.resources",
    "spec.resources.nvidia.com/gpu": "set spec.resources.gpus",
    "spec.resources.nvidia.com/mig-1g.5gb": "set spec.resources.gpus, and spec.accelerator.resourceName to "
    "nvidia.com/mig-1g.5gb",
    "spec.restartPolicy": "set spec.failurePolicy.maxRestarts",
    "spec.runLauncher": "the workers of a job find each other by themselves; remove it",
    "spec.minAvailable": "set spec.scheduling.gang.scheduler; all workers are one gang",
    "spec.exitCodes": "it belongs in spec.failurePolicy.rules[].exitCodes",
    "spec.resourceName": "it belongs in spec.accelerator.resourceName",
    "spec.labels": "it belongs in metadata",
    "spec.kind": "it belongs at the top of the file, not indented",
    "spec.runPolicy.image": "it belongs in spec.image",
    "spec.pytorchReplicaSpecs": "set spec.workers, spec.image and spec.command; anything else of a pod belongs in "
    "spec.podTemplate",
}


@pytest.mark.parametrize(("field", "remedy"), MISPLACED.items(), ids=MISPLACED.keys())
def test_a_field_that_is_elsewhere_is_sent_there(field: str, remedy: str) -> None:
    parent, name = (field[:14], field[15:]) if "/" in field else field.rsplit(".", 1)
    *parents, last = [*parent.split(".")[1:], name]
    spec: dict[str, Any] = {last: {}}
    for each in reversed(parents):
        spec = {each: spec}
    assert f"{field}: unknown field; {remedy}" in sentences({"workers": 1, **spec})


def test_a_groups_workers_and_resources_are_its_own() -> None:
    group = {"name": "a", "workers": 1, "gpus": 1, "replicas": 2, "nvidia.com/gpu": 1, "tolerations": []}
    assert sentences({"workerGroups": [group]}) == [
        "spec.workerGroups[0].gpus: unknown field; it belongs in spec.workerGroups[0].resources.gpus",
        "spec.workerGroups[0].replicas: unknown field; set spec.workerGroups[0].workers",
        "spec.workerGroups[0].nvidia.com/gpu: unknown field; set spec.workerGroups[0].resources.gpus",
        "spec.workerGroups[0].tolerations: unknown field; it belongs in spec.podTemplate.spec.tolerations",
    ]
