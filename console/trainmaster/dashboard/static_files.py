"""The page's files are read once, at the start, and served from memory: what isn't among them can't be asked for."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

PAGE = Path(__file__).with_name("page")
INDEX = "index.html"
# Smaller ones gain nothing.
COMPRESSED_BYTES = 1_000
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class StaticFile:
    """StaticFile is a file in memory."""

    content_type: str
    content: bytes
    compressed: bytes | None
    etag: str

    def answer(self, request: web.Request) -> web.Response:
        """Returns the file, or that the browser has it."""
        # A browser keeps it, and asks each time whether it is still that.
        headers = {"ETag": f'"{self.etag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        known = request.if_none_match or ()
        if any(each.value == self.etag for each in known):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = self.content_type
        body = self.content
        if self.compressed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"], body = "gzip", self.compressed
        return web.Response(body=body, headers=headers)


def read_files(folder: Path = PAGE) -> dict[str, StaticFile]:
    """Returns the files of a folder by their path in it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    textual = kind.startswith("text/") or kind == "image/svg+xml"
    compressed = gzip.compress(content, 9, mtime=0) if textual and len(content) >= COMPRESSED_BYTES else None
    etag = hashlib.sha256(content).hexdigest()[:32]
    return StaticFile(f"{kind}; charset=utf-8" if textual else kind, content, compressed, etag)
