"""The pods are scheduled, mount checkpoints, are kept in and extended (`podTemplate`) as these models say."""

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
    """Under a gang all workers are scheduled together, or none."""

    scheduler: Literal["volcano", "coscheduling", "kubernetes", "kueue"] = Field(
        ...,
        description="Whose PodGroup asks for the gang: Volcano's, the coscheduling plugin's (with podTemplate.spec."
        "schedulerName, unless it is in the default scheduler), Kubernetes' own (1.36, feature gate GenericWorkload). "
        "kueue: a Workload of Kueue, which admits the whole job.",
    )
    timeout_seconds: PositiveWholeSeconds | None = Field(
        None,
        description="Seconds that the job may wait for nodes for its gang before it fails; unset waits for ever. "
        "startupSeconds begins when the gang has its nodes. Time in Kueue's queue doesn't count.",
    )


class Topology(SpecModel):
    """Topology says where workers are to each other."""

    key: LabelKey = Field(
        ...,
        description="Node label that names the domain (topology.kubernetes.io/rack). Ranks follow it too: workers "
        "of one domain are neighbours, where the operator may read nodes.",
    )
    mode: Literal["Pack", "Spread"] = Field(
        "Pack", description="Pack: all workers in one domain. Spread: evenly over the domains."
    )
    required: StrictBool = Field(
        False,
        description="true: a worker that can't be placed so waits; false: it goes where there is room.",
    )


class Scheduling(SpecModel):
    """Scheduling says how the pods are scheduled."""

    gang: Gang | None = Field(None, description="Gang scheduling.")
    queue: Subdomain | None = Field(None, description="Volcano's Queue, or the LocalQueue of Kueue, which needs one.")
    priority_class_name: Subdomain | None = Field(None, description="PriorityClass of the pods.")
    topology: Topology | None = Field(None, description="Pack or spread workers over a topology.")


class CheckpointVolume(SpecModel):
    """CheckpointVolume is where checkpoints are kept."""

    claim_name: Subdomain | None = Field(
        None,
        description="PersistentVolumeClaim, mounted by every worker (RWX for several nodes).",
    )
    host_path: AbsolutePath | None = Field(
        None,
        description="Folder of the node, made where it is missing; for one node or a shared mount. Needs a privileged "
        "namespace.",
    )
    empty_dir: StrictBool | None = Field(
        None, description="true: a folder that lives as long as the pod; for trying things."
    )


class Checkpoint(SpecModel):
    """Checkpoint has the volume and where it is mounted."""

    volume: CheckpointVolume = Field(..., description="Exactly one of claimName, hostPath, emptyDir.")
    path: AbsolutePath = Field("/checkpoints", description="Mount path; TRAINMASTER_CHECKPOINT_DIR in the workers.")


class PodTemplateMetadata(SpecModel):
    """PodTemplateMetadata has labels and annotations to add to the pods."""

    labels: dict[str, str] | None = Field(None, description="Labels to add.")
    annotations: dict[str, str] | None = Field(None, description="Annotations to add.")


class PodTemplate(SpecModel):
    """PodTemplate is partial, and merged over the rendered one as kubectl's strategic merge does."""

    metadata: PodTemplateMetadata | None = Field(None, description="Labels and annotations to add.")
    spec: CompactMapping | None = Field(
        None,
        description="A partial PodSpec. containers, initContainers, volumes, env, ports and volumeMounts merge by "
        "their keys, other lists are replaced; null deletes, and so does `$patch: delete` in a mapping (kubectl apply "
        "drops nulls when it creates an object, unless it applies with --server-side). The worker's container is "
        "called worker. What Trainmaster relies on (command, restartPolicy, its variables and volumes) can't be "
        "changed; the operator says so.",
    )
    # Asked for in every pass, where the rest is only rendered.
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
    """SecurityContext keeps the workers' containers in: fields of a container's securityContext, by the same names."""

    read_only_root_filesystem: StrictBool | None = Field(
        None,
        description="true: nothing of the image can be written to. /tmp is an emptyDir then, and HOME is /tmp, for the "
        "caches of torch, Triton and the hub.",
    )
    run_as_non_root: StrictBool | None = Field(
        None,
        description="true: the kubelet refuses to start a worker as root. Unset, that holds for the bundled image. An "
        "image whose USER is a name needs runAsUser too.",
    )
    run_as_user: Annotated[StrictInt, Field(ge=0, le=2_147_483_647)] | None = Field(
        None, description="User id of the worker's processes; unset, the image's USER."
    )


class CodeClaim(SpecModel):
    """CodeClaim is a volume that holds archives of code."""

    claim_name: Subdomain = Field(
        ..., description="PersistentVolumeClaim, mounted by every worker (RWX or ROX for several nodes)."
    )
    path: RelativePath = Field(
        "trainmaster-code", description="Folder of the volume in which the archive is, as <digest>.tar.gz."
    )


class Code(SpecModel):
    """Code is an archive (tar, gzip) that each worker unpacks before its ranks start; they start in its folder."""

    digest: Digest = Field(
        ...,
        description="SHA-256 of the archive. A new one, with its archive in place, stops the ranks with a checkpoint "
        "and starts them again with the new code, in the same pods; kubectl dtj push does both.",
    )
    config_map: Subdomain | None = Field(
        None, description="ConfigMap that has the archive as code.tar.gz in its binaryData, of up to 700 KB."
    )
    claim: CodeClaim | None = Field(None, description="Volume that has it.")
