"""Archives are unpacked into a folder of their own: old files go, the ranks' files stay, hostile ones are refused."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from trainmaster_operator.agent.process import code as module
from trainmaster_operator.agent.process.code import RefusedArchive, install, read_installed


class Place:
    """Holds a state folder, and archives beside it."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.stamp = root, root / "state/code", root / "state/code.json"
        self.folder.mkdir(parents=True)

    def bring(self, *members: tuple[str, Any], digest: str = "") -> bool:
        """Installs an archive of members, each a name with its content or with fields of its TarInfo."""
        data = archive(*members)
        (self.root / "code.tar.gz").write_bytes(data)
        return self.install(digest or sha256(data).hexdigest())

    def install(self, digest: str) -> bool:
        return install(str(self.root / "code.tar.gz"), digest, str(self.folder), str(self.stamp))

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir()}


def archive(*members: tuple[str, Any]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                for field, value in content.items():
                    setattr(member, field, value)
                tar.addfile(member)
    return gzip.compress(packed.getvalue())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_new_code_replaces_the_old_and_leaves_what_ranks_wrote(place: Place) -> None:
    inode = place.folder.stat().st_ino
    assert place.bring(("train.py", b"one"), ("lib/a.py", b"a"), ("old/b.py", b"b"))
    (place.folder / "lib/__pycache__").mkdir()
    (place.folder / "lib/__pycache__/a.pyc").write_bytes(b"stale")
    (place.folder / "checkpoint.pt").write_bytes(b"state")
    assert place.bring(("train.py", b"two"), ("lib/c.py", b"c"))
    assert place.files() == {"train.py", "lib/c.py", "checkpoint.pt"}
    assert (place.folder / "train.py").read_bytes() == b"two"
    assert not (place.folder / "old").exists() and not (place.folder / "lib/__pycache__").exists()
    assert place.folder.stat().st_ino == inode


def test_files_of_equal_size_never_have_equal_times(place: Place) -> None:
    """Python's bytecode and the warm process recognise a file by its size and its time in whole seconds."""
    times = []
    for content in (b"x = 1", b"x = 2", b"x = 3"):
        place.bring(("train.py", content))
        times.append(int((place.folder / "train.py").stat().st_mtime))
    assert len(set(times)) == 3


def test_another_archive_is_none(place: Place) -> None:
    assert not place.bring(("train.py", b"one"), digest="0" * 64)
    assert place.files() == set()
    assert not install(str(place.root / "nowhere"), "0" * 64, str(place.folder), str(place.stamp))


def test_an_agent_that_was_killed_while_it_unpacked_does_it_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.bring(("train.py", b"one"), ("a.py", b"a"))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_make_folders", die)
        with pytest.raises(KeyboardInterrupt):
            place.bring(("train.py", b"two"), ("b.py", b"b"))
    place.bring(("train.py", b"two"), ("b.py", b"b"))
    assert place.files() == {"train.py", "b.py"}
    assert read_installed(str(place.stamp)).files == ("train.py", "b.py")


def test_what_ranks_put_in_its_place_gives_way(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (place.folder / "lib").symlink_to(outside)
    (place.folder / "train.py").mkdir()
    place.bring(("lib/a.py", b"a"), ("train.py", b"one"))
    assert place.files() == {"lib/a.py", "train.py"} and list(outside.iterdir()) == []


def test_links_inside_and_programs_stay_so(place: Place) -> None:
    link = {"type": tarfile.SYMTYPE, "linkname": "lib/a.py"}
    place.bring(("./", {"type": tarfile.DIRTYPE}), ("./lib/a.py", b"a"), ("a.py", link))
    assert (place.folder / "a.py").read_bytes() == b"a"


HOSTILE: dict[str, list[tuple[str, Any]]] = {
    "an absolute path": [("/etc/passwd", b"x")],
    "a way up": [("../outside.py", b"x")],
    "a way up inside": [("lib/../../outside.py", b"x")],
    "a link out": [("out", {"type": tarfile.SYMTYPE, "linkname": "../../outside"})],
    "an absolute link": [("out", {"type": tarfile.SYMTYPE, "linkname": "/etc"})],
    "a file through a link": [("lib", {"type": tarfile.SYMTYPE, "linkname": "."}), ("lib/a.py", b"x")],
    "a file below a file": [("lib", b"x"), ("lib/a.py", b"x")],
    "a hard link": [("a.py", b"x"), ("b.py", {"type": tarfile.LNKTYPE, "linkname": "a.py"})],
    "a device": [("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})],
    "a pipe": [("pipe", {"type": tarfile.FIFOTYPE})],
    "a name twice": [("a.py", b"x"), ("a.py", b"y")],
    "no name": [("..", {"type": tarfile.DIRTYPE})],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_writes_nothing(place: Place, what: str) -> None:
    place.bring(("train.py", b"one"))
    with pytest.raises(RefusedArchive):
        place.bring(*HOSTILE[what])
    assert place.files() == {"train.py"}
    assert {path.name for path in place.root.iterdir()} == {"code.tar.gz", "state"}
    assert {path.name for path in (place.root / "state").iterdir()} == {"code", "code.json"}


def test_a_bomb_is_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNPACKED_CODE_BYTES", 1 << 20)
    with pytest.raises(RefusedArchive, match=r"have more than 1 MiB"):
        place.bring(("zeros", bytes(2 << 20)))
    monkeypatch.setattr(module, "MAX_CODE_FILES", 3)
    with pytest.raises(RefusedArchive, match="more than 3 files"):
        place.bring(*((f"{number}.py", b"") for number in range(5)))
    # Headers are counted too.
    monkeypatch.setattr(module, "MAX_UNPACKED_CODE_BYTES", 1_000)
    monkeypatch.setattr(module, "_HEADERS", 100)
    with pytest.raises(RefusedArchive, match="it has more than 0 MiB"):
        place.bring(*((f"folder-{number}", {"type": tarfile.DIRTYPE}) for number in range(50)))


def test_an_archive_that_changes_between_two_readings_is_refused(place: Place) -> None:
    """Anyone who can write to a claim can change the archive after its digest was checked."""
    place.bring(("train.py", b"one"))
    signed = archive(("train.py", b"two"))
    path = place.root / "code.tar.gz"
    path.write_bytes(signed)

    def change() -> None:
        path.write_bytes(archive(("train.py", b"bad")))

    with pytest.raises(RefusedArchive, match="it was changed while it was read"):
        install(str(path), sha256(signed).hexdigest(), str(place.folder), str(place.stamp), change)
    assert (place.folder / "train.py").read_bytes() == b"one"


def test_a_volume_that_changes_between_two_readings_gives_what_was_found(place: Place) -> None:
    """The kubelet swaps a ConfigMap's folder at any moment, but a file that is open keeps its content."""
    signed = archive(("train.py", b"two"))
    path = place.root / "code.tar.gz"
    path.write_bytes(signed)

    def swap() -> None:
        (place.root / "next").write_bytes(archive(("train.py", b"bad")))
        (place.root / "next").rename(path)

    assert install(str(path), sha256(signed).hexdigest(), str(place.folder), str(place.stamp), swap)
    assert (place.folder / "train.py").read_bytes() == b"two"


NO_ARCHIVES = {
    "nothing": b"",
    "a text": b"no archive",
    "no tar": gzip.compress(b"no tar at all" * 100),
    "half an archive": archive(("a", os.urandom(4_000)))[:2_000],
}


@pytest.mark.parametrize("what", NO_ARCHIVES)
def test_what_is_no_archive_is_refused(place: Place, what: str) -> None:
    data = NO_ARCHIVES[what]
    (place.root / "code.tar.gz").write_bytes(data)
    with pytest.raises(RefusedArchive, match="no archive"):
        place.install(sha256(data).hexdigest())
