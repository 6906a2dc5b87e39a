"""Provides images without a container engine: which references run here, and what their containers contain.

The local cluster never pulls. An image is *known* if its reference matches one of the table's patterns; its containers
run in the Python environment that runs the cluster, with some of the image's paths mapped to files of this machine. Any
other image fails like one that is missing in its registry.

References are read as github.com/distribution/reference reads them (`normalize.go`, `regexp.go`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

_DOMAIN = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*(?::\d+)?"
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_DOMAIN}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::[\w][\w.-]{{0,127}})?(?:@[A-Za-z][A-Za-z0-9]*:[0-9a-fA-F]{{32,}})?"
)
_PUBLIC_REGISTRIES = ("docker.io", "ghcr.io", "quay.io", "registry.k8s.io", "gcr.io", "nvcr.io", "public.ecr.aws")


class InvalidImageName(ValueError):
    """The reference can't be parsed; the text is the kubelet's message."""


class ImageNotFound(LookupError):
    """The image doesn't exist; the text is containerd's message."""


@dataclass(frozen=True)
class Image:
    """A known image's containers have this content.

    `paths` maps the image's paths to files or folders of this machine; a relative host path is in the container's own
    folder. `command` is the entrypoint of a container without one.
    """

    patterns: Sequence[str]
    paths: Mapping[str, Path] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()


def normalize(reference: str) -> str:
    """Returns `docker.io/library/python:latest` for `python`. Raises InvalidImageName in the kubelet's words."""
    if not _REFERENCE.fullmatch(reference):
        lowered = reference.lower()
        problem = "invalid reference format"
        domain, _, rest = reference.partition("/")
        path = rest if rest and _looks_like_domain(domain) else reference
        if lowered != reference and re.search("[A-Z]", path.split("@")[0].rpartition(":")[0] or path):
            name = path.rpartition(":")[0] or path
            problem += f": repository name ({name}) must be lowercase"
        raise InvalidImageName(
            f'Failed to apply default image tag "{reference}": couldn\'t parse image name "{reference}": {problem}'
        )
    domain, slash, rest = reference.partition("/")
    if not slash or not _looks_like_domain(domain):
        domain, rest = "docker.io", reference
    if domain == "docker.io" and "/" not in rest:
        rest = f"library/{rest}"
    if "@" not in rest and ":" not in rest.rpartition("/")[2]:
        rest += ":latest"
    return f"{domain}/{rest}"


def _looks_like_domain(word: str) -> bool:
    return "." in word or ":" in word or word == "localhost" or word.lower() != word


class ImageTable:
    """The first image with a matching pattern wins. Patterns are shell patterns on the normalized name."""

    def __init__(self, images: Sequence[Image]) -> None:
        self._images = tuple(images)

    def find(self, reference: str) -> Image:
        """Returns a reference's image. Raises InvalidImageName, or ImageNotFound in the words of a failed pull."""
        name = normalize(reference)
        for image in self._images:
            if any(fnmatchcase(name, pattern) for pattern in image.patterns):
                return image
        raise ImageNotFound(f'failed to pull and unpack image "{reference}": {_pull_problem(reference, name)}')


def _pull_problem(reference: str, name: str) -> str:
    domain, _, rest = name.partition("/")
    repository, _, tag = rest.rpartition(":")
    if domain in _PUBLIC_REGISTRIES:
        return f'failed to resolve reference "{name}": {name}: not found'
    url = f"https://{domain}/v2/{repository}/manifests/{tag}"
    lookup = f"dial tcp: lookup {domain.partition(':')[0]} on 127.0.0.53:53: no such host"
    return f'failed to resolve image: failed to do request: Head "{url}": {lookup}'


def image_id(reference: str) -> str:
    """Returns a stable substitute for the digest that containerd reports."""
    return "sha256:" + hashlib.sha256(normalize(reference).encode()).hexdigest()


# Python's and PyTorch's images, and a few that people use for their shell. All use this machine's programs.
BUILTIN_IMAGES = (
    Image(
        patterns=("docker.io/library/python:*", "docker.io/pytorch/pytorch:*", "docker.io/local/*", "localhost/*"),
        # If a script keeps a flag in the root folder, each container has its own.
        paths={"/ok": Path("ok")},
        command=("python3",),
    ),
    Image(
        patterns=(
            "docker.io/library/busybox:*",
            "docker.io/library/alpine:*",
            "docker.io/library/debian:*",
            "docker.io/library/ubuntu:*",
            "registry.k8s.io/pause:*",
        ),
        command=("sh",),
    ),
)
