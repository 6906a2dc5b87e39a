"""The user's code comes without an image of its own: an archive in a ConfigMap or on a volume, named by its digest."""

from __future__ import annotations

from pydantic import Field

from trainmaster_operator.api.v1alpha1.base_models import SpecModel
from trainmaster_operator.api.values import Digest, RelativePath, Subdomain


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
