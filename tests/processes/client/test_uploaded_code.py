"""The program that assembles an archive on a claim keeps what a job needs, and leaves nothing behind when it fails."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from trainmaster.client.code import claims


class Claim:
    """Holds a volume's folder of archives, and the pieces of the next one."""

    def __init__(self, root: Path) -> None:
        self.folder, self.pieces = root / "claim" / "reviews", root / "pieces"
        self.pieces.mkdir()

    def bring(
        self,
        *pieces: bytes,
        digest: str = "",
        named: str = "",
        job: str = "reviews",
        limits: Callable[[], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the program as the pod does."""
        for number, piece in enumerate(pieces):
            (self.pieces / f"piece-{number}").write_bytes(piece)
        program = claims._PROGRAM.replace("/run/pieces", str(self.pieces))
        words = [str(self.folder), digest or sha256(b"".join(pieces)).hexdigest(), str(len(pieces))]
        command = [sys.executable, "-I", "-c", program, *words, str(claims.KEPT_ARCHIVES), named, job]
        return subprocess.run(command, capture_output=True, text=True, preexec_fn=limits, check=False)

    def has(self) -> list[bytes]:
        """Return the content of the folder's archives, sorted; fails if there are incomplete ones."""
        assert not list(self.folder.glob("*.new")) and not list(self.folder.glob(".*.new"))
        return sorted(path.read_bytes() for path in self.folder.glob("*.tar.gz"))


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    return Claim(tmp_path)


def test_the_last_two_archives_are_kept(claim: Claim) -> None:
    for archive in (b"one", b"two", b"three"):
        ended = claim.bring(archive[:2], archive[2:])
        assert (ended.returncode, ended.stderr) == (0, "")
    assert claim.has() == [b"three", b"two"]


def test_the_archive_that_the_job_names_is_kept_after_pushes_that_came_to_nothing(claim: Claim) -> None:
    named = sha256(b"one").hexdigest()
    for archive in (b"one", b"two", b"three"):
        assert claim.bring(archive, named=named).returncode == 0
    assert claim.has() == [b"one", b"three"]


def test_what_others_keep_in_the_folder_stays(claim: Claim) -> None:
    claim.folder.mkdir(parents=True)
    by_hand = sha256(b"four").hexdigest()
    others = {f"{by_hand}.tar.gz": b"four", "data.tar.gz": b"data", "half.tar.gz.new": b"half", "notes": b"mine"}
    for name, content in others.items():
        (claim.folder / name).write_bytes(content)
    # Another job runs code that this one uploaded earlier.
    claim.bring(b"one")
    claim.bring(b"one", job="other")
    for archive in (b"two", b"three", b"four", b"five", b"six"):
        assert claim.bring(archive).returncode == 0
    digests = [sha256(archive).hexdigest() for archive in (b"one", b"five", b"six")]
    found = {path.name: path.read_bytes() for path in claim.folder.iterdir() if not path.name.startswith(".code-of-")}
    assert found == others | dict(zip((f"{each}.tar.gz" for each in digests), (b"one", b"five", b"six"), strict=True))


def test_a_damaged_list_is_said_in_a_sentence_and_removes_nothing(claim: Claim) -> None:
    for archive in (b"one", b"two"):
        claim.bring(archive)
    (claim.folder / ".code-of-reviews.json").write_text("[")
    ended = claim.bring(b"three")
    assert ended.returncode == 1 and "a list of archives is damaged" in ended.stderr
    assert {b"one", b"two"} <= set(claim.has())


def test_what_an_upload_that_was_killed_has_left_is_removed(claim: Claim) -> None:
    claim.bring(b"one")
    (claim.folder / ".code-of-reviews.new").write_bytes(b"half")
    assert claim.bring(b"two").returncode == 0
    assert claim.has() == [b"one", b"two"]


def test_a_volume_that_is_full_is_said_in_a_sentence_and_keeps_what_it_had(claim: Claim) -> None:
    claim.bring(b"one")

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    ended = claim.bring(bytes(9_000), bytes(9_000), limits=full)
    assert (ended.returncode, ended.stderr) == (1, f"{claim.folder}: File too large\n")
    assert claim.has() == [b"one"]


def test_a_volume_that_cannot_be_written_is_named(claim: Claim) -> None:
    claim.folder.parent.write_bytes(b"no folder")
    ended = claim.bring(b"one")
    assert (ended.returncode, ended.stderr) == (1, f"{claim.folder}: Not a directory\n")


def test_pieces_of_another_archive_come_to_nothing(claim: Claim) -> None:
    ended = claim.bring(b"one", digest="0" * 64)
    assert (ended.returncode, claim.has()) == (1, [])
    assert ended.stderr == f"the pieces have the digest {sha256(b'one').hexdigest()}\n"
