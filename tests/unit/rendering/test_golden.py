"""Jobs render to readable golden files, and each object is valid by Kubernetes' own schemas."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.rendering.goldens import GOLDEN, NAMES, golden, manifests
from trainmaster_operator.api.pod_template import (
    RESERVED_PATHS,
    RESERVED_PREFIX,
    RESERVED_VARIABLE_PREFIXES,
    RESERVED_VARIABLES,
)
from trainmaster_operator.wire.names import HASH_ANNOTATION


@pytest.mark.parametrize("name", NAMES)
def test_a_job_becomes_what_its_golden_file_says(name: str) -> None:
    have = list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))
    assert list(yaml.safe_load_all(golden(name))) == have, "meant? python -m tests.unit.rendering.goldens"


@pytest.mark.parametrize("version", ["1.32", "1.37"])
@pytest.mark.parametrize("name", NAMES)
def test_children_are_valid_by_kubernetes_schemas(name: str, version: str) -> None:
    for manifest in manifests(name):
        if "." in manifest.kind:
            continue
        body = json.loads(json.dumps(manifest.body))
        if manifest.kind == "StatefulSet" and version == "1.32":
            # This version doesn't have Kubernetes' own gangs.
            body["spec"]["template"]["spec"].pop("schedulingGroup", None)
        kubernetes_validate.validate(body, version, strict=True)


def test_kubernetes_own_gang_is_valid_where_it_is_served() -> None:
    for manifest in manifests("gang-kubernetes"):
        kubernetes_validate.validate(dict(manifest.body), "1.36", strict=True)


def test_there_are_golden_files_for_these_jobs_only() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.yaml")) == NAMES
    assert len(NAMES) >= 12


def pods(name: str) -> list[dict[str, Any]]:
    return [one.body["spec"]["template"]["spec"] for one in manifests(name) if one.kind == "StatefulSet"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_rendered_is_what_a_pod_template_may_not_touch(name: str) -> None:
    """The parser reserves our names, so a new name must be added to the parser."""
    collectives = ("NCCL_", "GLOO_", "HCCL_", "CCL_", "FI_", "ASCEND_", "TORCH_DISTRIBUTED_DEBUG")
    users = {"DATA_PATH", "HCCL_CONNECT_TIMEOUT", "HOME", "TORCHINDUCTOR_CACHE_DIR"}
    for pod in pods(name):
        worker = next(one for one in pod["containers"] if one["name"] == "worker")
        for variable in {one["name"] for one in worker["env"]} - users:
            ours = variable in RESERVED_VARIABLES or variable.startswith(RESERVED_VARIABLE_PREFIXES)
            assert ours or variable.startswith(collectives), variable
        for mount in worker["volumeMounts"]:
            assert mount["name"].startswith(RESERVED_PREFIX) or not mount["mountPath"].startswith(RESERVED_PATHS)
        for volume in pod["volumes"]:
            assert volume["name"].startswith(RESERVED_PREFIX) or volume["name"] == "data"


@pytest.mark.parametrize("name", NAMES)
def test_the_hash_is_of_the_manifest_without_it(name: str) -> None:
    for manifest in manifests(name):
        body = json.loads(json.dumps(manifest.body))
        assert body["metadata"]["annotations"].pop(HASH_ANNOTATION) == manifest.rendered_hash
        if not body["metadata"]["annotations"]:
            del body["metadata"]["annotations"]
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(canonical.encode()).hexdigest() == manifest.rendered_hash


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"rdma-and-host-network", "checkpoint-host-path", "pod-template"}))
def test_pods_keep_to_the_restricted_standard(name: str) -> None:
    """The standard is https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted.

    Other images may run as root, so the operator doesn't set runAsNonRoot for them.
    """
    for pod in pods(name):
        bundled = pod["containers"][0]["image"].startswith("ghcr.io/trainmaster/trainer:")
        assert pod["securityContext"].get("runAsNonRoot", False) is bundled
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.get("hostNetwork") and pod["automountServiceAccountToken"] is False
        for container in pod["containers"] + pod.get("initContainers", []):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
