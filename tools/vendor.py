"""Files of npm packages are copied into the repository, or into a cache for tests, and compared by checksum.

    python -m tools.vendor            # fetches what the dashboard's page has of others, into its folder `vendor`
    python -m tools.vendor --tests    # fetches what only tests need, into .trainmaster/vendor (which git ignores)
    python -m tools.vendor --check    # names the files that aren't as they were fetched; needs no network

A package's tarball comes from npm's registry and has to have the integrity (SHA-512) that is written here; of a new
version it is what `npm view PACKAGE@VERSION dist.integrity` prints. The checksums of files are printed where they
differ.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import sys
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "console/trainmaster/dashboard/page/vendor"
CACHE = ROOT / ".trainmaster/vendor"
REGISTRY = "https://registry.npmjs.org"
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class File:
    """File is one file of a package: its path in the tarball, its name here, and the SHA-256 of our copy."""

    source: str
    name: str
    sha256: str
    appended: str = ""
    """Text that is appended to the file, to make a script a module."""


@dataclass(frozen=True)
class Package:
    """Package is a version of an npm package, the folder for its files, and these files."""

    name: str
    version: str
    integrity: str
    folder: Path
    files: tuple[File, ...]

    @property
    def url(self) -> str:
        """Returns the tarball's URL."""
        return f"{REGISTRY}/{self.name}/-/{self.name}-{self.version}.tgz"

    def differing(self) -> list[File]:
        """Returns the files that are missing or differ from their checksum."""
        return [file for file in self.files if _digest(self.folder / file.name) != file.sha256]

    def fetch(self) -> None:
        """Fetches and writes the files. Raises ValueError if the tarball or a file has a different checksum."""
        with urllib.request.urlopen(self.url, timeout=TIMEOUT_SECONDS) as answer:
            tarball = answer.read()
        found = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
        if found != self.integrity:
            raise ValueError(f"{self.url}: its integrity is {found}, and not {self.integrity}")
        self.folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
            for file in self.files:
                member = archive.extractfile(f"package/{file.source}")
                assert member is not None, f"{file.source} is no file"
                (self.folder / file.name).write_bytes(member.read() + file.appended.encode())
        if wrong := self.differing():
            raise ValueError("\n".join(f"{file.name}: {_digest(self.folder / file.name)}" for file in wrong))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"


UPLOT = Package(
    "uplot",
    "1.6.32",
    "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
    PAGE,
    (
        File(
            "dist/uPlot.iife.min.js",
            "uplot.js",
            "8301d1a4fcc08355d4ff7e8c87cc4a4e13cc4da93ba50a20816005488c0c5f6e",
            "\nexport default uPlot;\n",
        ),
        File("LICENSE", "uplot.LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
    ),
)
# WCAG's rules, which tests/processes/dashboard runs in the browser.
AXE = Package(
    "axe-core",
    "4.14.1",
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
    CACHE,
    (File("axe.min.js", "axe.min.js", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"),),
)


def main(arguments: list[str] | None = None) -> int:
    """Fetches or checks the files, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.vendor")
    parser.add_argument("--tests", action="store_true", help="what only tests need")
    parser.add_argument("--check", action="store_true", help="fetch nothing; exit with 1 when a file differs")
    options = parser.parse_args(arguments)
    package = AXE if options.tests else UPLOT
    if not options.check:
        package.fetch()
        print(f"fetched {package.name} {package.version}")
    for file in (wrong := package.differing()):
        print(f"{package.folder / file.name} is not what {package.name} {package.version} has.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
