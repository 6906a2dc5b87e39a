"""Defines the fields of a spec for pods: scheduling, checkpoints, code, security, and others (`podTemplate`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, StrictBool, StrictInt, model_validator

from trainmaster_operator.api.v1alpha1.base_models import SpecModel
from trainmaster_operator.api.values import (
    AbsolutePath,
    CompactMapping,
    Digest,
    LabelKey,
    PositiveWholeSeconds,
    RelativePath,
    Subdomain,
)


class Gang(SpecModel):
    """Gang schedules all workers together, or none."""

    scheduler: Literal["volcano", "coscheduling", "kubernetes", "kueue"] = Field(
        ...,
        description="Gang scheduler: Volcano, the coscheduling plugin (set podTemplate.spec.schedulerName, unless it "
        "is part of the default scheduler), Kubernetes itself (1.36, feature gate GenericWorkload), or Kueue, which "
        "admits the whole job by a Workload.",
    )
    timeout_seconds: PositiveWholeSeconds | None = Field(
        None,
        description="Seconds that the gang may wait for nodes before the job fails. Unset waits forever. "
        "startupSeconds begins when the gang has its nodes. Time in Kueue's queue doesn't count.",
    )


class Topology(SpecModel):
    """Topology places workers near each other, or apart."""

    key: LabelKey = Field(
        ...,
        description="Node label that names the domain (topology.kubernetes.io/rack). If the operator may read nodes, "
        "workers of one domain also get neighbouring ranks.",
    )
    mode: Literal["Pack", "Spread"] = Field(
        "Pack", description="Pack: all workers in one domain. Spread: evenly over the domains."
    )
    required: StrictBool = Field(
        False,
        description="Whether a worker waits if it can't be placed like this. false places it anywhere.",
    )


class Scheduling(SpecModel):
    """Scheduling has gang, queue, priority and topology of the pods."""

    gang: Gang | None = Field(None, description="Gang scheduling.")
    queue: Subdomain | None = Field(None, description="Queue of Volcano, or LocalQueue of Kueue, where it is required.")
    priority_class_name: Subdomain | None = Field(None, description="PriorityClass of the pods.")
    topology: Topology | None = Field(None, description="Pack or spread workers over a topology.")


class CheckpointVolume(SpecModel):
    """CheckpointVolume is the volume for checkpoints."""

    claim_name: Subdomain | None = Field(
        None,
        description="PersistentVolumeClaim, mounted by every worker (RWX for several nodes).",
    )
    host_path: AbsolutePath | None = Field(
        None,
        description="Folder on the node, created if missing, for one node or a shared mount. Needs a privileged "
        "namespace.",
    )
    empty_dir: StrictBool | None = Field(
        None, description="Whether to use a folder that exists only as long as the pod, for experiments."
    )


class Checkpoint(SpecModel):
    """Checkpoint has the volume for checkpoints and its mount path."""

    volume: CheckpointVolume = Field(..., description="Exactly one of claimName, hostPath, emptyDir.")
    path: AbsolutePath = Field(
        "/checkpoints", description="Mount path, which workers find in TRAINMASTER_CHECKPOINT_DIR."
    )


class PodTemplateMetadata(SpecModel):
    """PodTemplateMetadata has labels and annotations to add to the pods."""

    labels: dict[str, str] | None = Field(None, description="Labels to add.")
    annotations: dict[str, str] | None = Field(None, description="Annotations to add.")


class PodTemplate(SpecModel):
    """PodTemplate is a partial pod template, merged over the rendered one as by kubectl's strategic merge."""

    metadata: PodTemplateMetadata | None = Field(None, description="Labels and annotations to add.")
    spec: CompactMapping | None = Field(
        None,
        description="A partial PodSpec. containers, initContainers, volumes, env, ports and volumeMounts merge by "
        "their keys; other lists are replaced. null deletes a field, and so does `$patch: delete` in a mapping "
        "(kubectl apply without --server-side drops nulls when it creates an object). The worker's container is "
        "called worker. The operator refuses changes of what Trainmaster relies on: command, restartPolicy, its "
        "variables and volumes.",
    )
    # Every reconciliation reads this field. The other fields are only rendered.
    _grace_seconds: int | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _with_grace_seconds(self) -> PodTemplate:
        asked = self.spec.value().get("terminationGracePeriodSeconds") if self.spec is not None else None
        self._grace_seconds = asked if isinstance(asked, int) else None
        return self

    @property
    def grace_seconds(self) -> int | None:
        """Returns spec.terminationGracePeriodSeconds."""
        return self._grace_seconds


class SecurityContext(SpecModel):
    """SecurityContext has fields of the same names as a container's securityContext, for the workers."""

    read_only_root_filesystem: StrictBool | None = Field(
        None,
        description="Whether the image is read-only. If so, /tmp is an emptyDir and HOME is /tmp, for the caches of "
        "torch, Triton and the hub.",
    )
    run_as_non_root: StrictBool | None = Field(
        None,
        description="Whether the kubelet refuses to start a worker as root. Default: true for the bundled image. An "
        "image whose USER is a name needs runAsUser too.",
    )
    run_as_user: Annotated[StrictInt, Field(ge=0, le=2_147_483_647)] | None = Field(
        None, description="User id of the worker's processes. Default: the image's USER."
    )


class CodeClaim(SpecModel):
    """CodeClaim is a volume with archives of code."""

    claim_name: Subdomain = Field(
        ..., description="PersistentVolumeClaim, mounted by every worker (RWX or ROX for several nodes)."
    )
    path: RelativePath = Field(
        "trainmaster-code", description="Folder of the volume that has the archive as <digest>.tar.gz."
    )


class Code(SpecModel):
    """Code is an archive (tar, gzip) that each worker unpacks before its ranks start in that folder."""

    digest: Digest = Field(
        ...,
        description="SHA-256 of the archive. Changing it, once the new archive is in place, stops the ranks with a "
        "checkpoint and restarts them with the new code in the same pods. kubectl dtj push does both.",
    )
    config_map: Subdomain | None = Field(
        None, description="ConfigMap with the archive as code.tar.gz in its binaryData, up to 700 KB."
    )
    claim: CodeClaim | None = Field(None, description="Volume with the archive.")
