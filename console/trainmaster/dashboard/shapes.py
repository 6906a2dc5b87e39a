"""Defines which parts of the API server's answers are kept for display or for a diagnosis.

`api/trimming.py` skips the rest of an object, which can be megabytes, while it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.client.code.archive import LEFT_OUT_ANNOTATION
from trainmaster_operator.api.limits import MAX_BYTES, MAX_OTHER_BYTES
from trainmaster_operator.api.pod_schema.fields import pod_types
from trainmaster_operator.api.trimming import Each, Shape, Whole
from trainmaster_operator.api.v1alpha1.names import PLURAL
from trainmaster_operator.api.v1alpha1.status import Condition, Failure, JobStatus, StatusModel
from trainmaster_operator.wire.limits import MAX_WORKERS
from trainmaster_operator.wire.names import JOB_NAME_LABEL, POD_INDEX_LABEL

Fields = Mapping[str, Shape]

# Maximum size of a number, a name, a message, a few values, and output of ranks.
_NUMBER, _NAME, _SENTENCE, _VALUES, _TEXT = Whole(20), Whole(400), Whole(4_000), Whole(2_000), Whole(16_000)
MOST_PODS, MOST_ITEMS = MAX_WORKERS + 256, 100_000
# Maximum characters of a spec whose manifest is shown. No valid job's spec is larger.
MOST_SPEC = sum(MAX_BYTES.values()) + MAX_OTHER_BYTES
# A ConfigMap's data, which Kubernetes limits to 1 MiB.
_DATA = Whole(4 * 2**20)


def _names(names: str, each: Whole = _NAME) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), each)


_METADATA = _names("name namespace uid resourceVersion creationTimestamp deletionTimestamp")
_CONDITIONS = Each(
    {**_names("type status reason lastTransitionTime observedGeneration"), "message": _SENTENCE}, most=16
)


def _status() -> dict[str, Shape]:
    """Returns the shape of a job's status: the fields that the operator writes, each with a maximum size."""
    lists = _names("workerOrder podUIDs podRestartCounts replacingPodUIDs", Whole(64 * MAX_WORKERS))

    def fields(model: type[StatusModel]) -> dict[str, Shape]:
        return {field.alias or name: _NAME for name, field in model.model_fields.items()}

    return {
        **fields(JobStatus),
        **_names("workers timeSpent stacksRequest", _VALUES),
        **_names("progress nodeFailures avoidedNodes", _TEXT),
        **lists,
        "failures": Each({**fields(Failure), "recovery": _VALUES, "message": _TEXT}, most=16),
        "conditions": Each({**fields(Condition), "message": _SENTENCE}, most=16),
    }


# All sources of volumes in Kubernetes, because the source decides whether a volume outlives its pod.
_VOLUMES = Each(dict.fromkeys(pod_types()["Volume"].fields, _VALUES), most=64)
# A job on its own page, including the fields that `why` reads.
_JOB: Fields = {
    **_names("kind apiVersion"),
    "metadata": {
        **_METADATA,
        "finalizers": _VALUES,
        "generation": _NUMBER,
        "annotations": {LEFT_OUT_ANNOTATION: _SENTENCE},
    },
    "spec": {
        **_names("workers processesPerWorker image", _VALUES),
        **_names("code elastic spares resources accelerator scheduling runPolicy failurePolicy checkpoint", _VALUES),
        "workerGroups": Each({**_names("name workers"), "nodeSelector": _VALUES}, most=64),
        "podTemplate": {
            "spec": {
                "volumes": _VOLUMES,
                **_names("nodeSelector tolerations affinity imagePullSecrets", _VALUES),
                "containers": Each({"name": _NAME, "env": Each({"name": _NAME}, most=64)}, most=8),
            }
        },
    },
    "status": _status(),
}
# A job without its status.
MANIFEST: Fields = {
    **_names("apiVersion kind"),
    "metadata": {
        **_METADATA,
        "generation": _NUMBER,
        **_names("labels annotations ownerReferences finalizers", Whole(300_000, marked=True)),
    },
    "spec": Whole(MOST_SPEC, marked=True),
}
# A deleted job and its attempts, as a history returns them.
RECORDED_JOB: Fields = {
    **_names("kind uid namespace name createdAt startedAt endedAt deletedAt phase attempt restarts disruptions"),
    **_names("step totalSteps loss goodput"),
    **_names("lastFailure result", _TEXT),
    "lives": Whole(64_000),
    "attempts": Each(
        {
            **_names("attempt startedAt runningAt endedAt outcome firstStep lastStep"),
            **{"failure": _TEXT, "workers": Whole(128 * MAX_WORKERS)},
        },
        most=500,
    ),
    "job": {**MANIFEST, "spec": Whole(MOST_SPEC // 4), "status": _status()},
}

_STATE: Fields = {
    "waiting": {"reason": _NAME, "message": _SENTENCE},
    "running": {"startedAt": _NAME},
    "terminated": {**_names("reason exitCode signal startedAt finishedAt"), "message": _SENTENCE},
}
_CONTAINERS = Each({**_names("name image restartCount ready started"), "state": _STATE, "lastState": _STATE}, most=8)
_REQUESTS = Each({"name": _NAME, "image": _NAME, "resources": _VALUES, "ports": _VALUES}, most=16)
_LABELS: Fields = {JOB_NAME_LABEL: _NAME, POD_INDEX_LABEL: _NUMBER}
# A pod of a job.
_POD: Fields = {
    "metadata": {**_METADATA, "labels": _LABELS},
    "spec": {
        **_names("nodeName schedulerName"),
        **_names("nodeSelector tolerations affinity", _VALUES),
        **{"containers": _REQUESTS, "initContainers": _REQUESTS},
        "volumes": Each({"name": _NAME, "persistentVolumeClaim": {"claimName": _NAME}}, most=64),
    },
    "status": {
        **_names("phase reason"),
        "message": _SENTENCE,
        "conditions": _CONDITIONS,
        "containerStatuses": _CONTAINERS,
        "initContainerStatuses": _CONTAINERS,
    },
}
# A pod of any namespace: its job, and the resources that it requests.
_POD_ON_NODE: Fields = {
    "metadata": {**_names("name namespace"), "labels": _LABELS},
    "spec": {
        "nodeName": _NAME,
        **dict.fromkeys(("containers", "initContainers"), Each({"resources": Whole(600)}, most=8)),
    },
    "status": {"phase": _NAME},
}
# Small objects of other projects, such as queues and gangs. Any of their fields can explain why a job is waiting.
_OTHER: Fields = {
    "metadata": _METADATA,
    "spec": _TEXT,
    "status": _TEXT,
    **_names("positionInLocalQueue positionInClusterQueue localQueueName priority"),
}
_BY_RESOURCE: Mapping[str, Fields] = {
    "pods": _POD,
    "nodes": {
        "metadata": {"name": _NAME, "labels": _TEXT},
        "spec": {"unschedulable": _NUMBER, "taints": _VALUES},
        "status": {**_names("allocatable capacity", _VALUES), "conditions": _CONDITIONS},
    },
    "events": {
        "metadata": _METADATA,
        **_names("type reason lastTimestamp firstTimestamp eventTime count reportingComponent"),
        **{"message": _SENTENCE, "involvedObject": _names("kind name namespace uid fieldPath"), "series": _NAME},
        "source": _NAME,
    },
    "configmaps": {"kind": _NAME, "metadata": _METADATA, "data": _DATA},
    "persistentvolumeclaims": {
        "metadata": _METADATA,
        "spec": _names("storageClassName volumeName accessModes resources", _VALUES),
        "status": {"phase": _NAME, "conditions": _CONDITIONS, "capacity": _VALUES},
    },
    "statefulsets": {"metadata": _METADATA, "spec": {"replicas": _NUMBER}, "status": _names("replicas readyReplicas")},
    "deployments": {
        "metadata": {**_METADATA, "labels": _VALUES},
        "spec": {
            "replicas": _NUMBER,
            "template": {
                "spec": {"containers": Each({"name": _NAME, "args": _TEXT, "command": _TEXT, "env": _TEXT}, most=8)}
            },
        },
        "status": {**_names("replicas readyReplicas availableReplicas"), "conditions": _CONDITIONS},
    },
    # A job in the list.
    PLURAL: {
        "metadata": _METADATA,
        "spec": {"scheduling": {"queue": _NAME}, "runPolicy": {"suspend": _NUMBER}},
        "status": {
            **_names("phase attempt restarts disruptions startTime completionTime"),
            "workers": _names("running desired"),
            "progress": {
                **_names("step totalSteps etaSeconds loss samplesPerSecond goodput"),
                **{"stall": _SENTENCE, "notice": _SENTENCE},
            },
            "conditions": _CONDITIONS,
            "failures": Each({**_names("node failedAt reason count counted"), "message": _TEXT}, most=16),
            **_names("nodeFailures avoidedNodes", _SENTENCE),
        },
    },
}
_PATH = re.compile(
    r"/(?:api|apis/[^/]+)/[^/]+(?P<namespaced>/namespaces/[^/]+)?/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+)(?P<sub>/.+)?)?"
)


def item_shape(path: str, query: Mapping[str, str]) -> Fields:
    """Returns the shape of an object in a list or a watch."""
    match = _PATH.fullmatch(path)
    resource = "" if match is None else match["resource"]
    if resource == PLURAL and ((match and match["name"]) or "fieldSelector" in query):
        return _JOB
    if match is not None and resource == "pods" and not match["namespaced"]:
        return _POD_ON_NODE
    return _BY_RESOURCE.get(resource, _OTHER)


def answer_shape(path: str, query: Mapping[str, str], take: Callable[[Any], bool] | None = None) -> Fields:
    """Returns the shape of an answer: an object, or a list that passes each object to `take` (api/trimming)."""
    match = _PATH.fullmatch(path)
    item = item_shape(path, query)
    if match is not None and match["name"] and not match["sub"]:
        return {**item, "kind": _NAME}
    most = MOST_PODS if item is _POD else MOST_ITEMS
    return {"kind": _NAME, "metadata": _names("resourceVersion continue", _SENTENCE), "items": Each(item, most, take)}
