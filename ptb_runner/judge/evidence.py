"""What a judge may look at: names over a trial's folder, read without following a single link.

All of it was made by the agent under judgement, so every step of a path is opened by its name in the folder before it,
never as a path: nothing that the agent left can lead out of the evidence.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

MAX_DEPTH = 64
_PIECE = 2**20

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


class Refused(Exception):
    """A path that a judge cannot have; the text says why."""


@dataclass(frozen=True)
class Entry:
    """Something in the evidence; `note` says where a link points."""

    path: str
    kind: str
    size: int
    note: str = ""


@dataclass(frozen=True)
class Evidence:
    """The evidence: `places` maps each name at its top to a folder that we made and a path inside of it.

    The folder is trusted; of the path inside, no step may be a link.
    """

    places: dict[str, tuple[Path, str]]

    def open(self, path: str) -> int:
        """A descriptor of a regular file, for reading. Raises Refused."""
        descriptor = self._walk(path)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Refused(f"{path}: a folder, not a file; list_files shows what is in it")
        return descriptor

    def list(self, path: str, depth: int = 1) -> Iterator[Entry]:
        """What is in a folder, `depth` folders deep, by name; the top lists the places. Raises Refused."""
        if not _parts(path):
            for name in self.places:
                with contextlib.suppress(Refused):
                    yield self._entry_of_place(name)
                    if depth > 1 and self._kind(name) == "folder":
                        yield from self.list(name, depth - 1)
            return
        descriptor = self._walk(path)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise Refused(f"{path}: a file, not a folder; read_file shows it")
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 - by descriptor
                yield from self._below(path, name, descriptor, depth)
        finally:
            os.close(descriptor)

    def files(self, path: str) -> Iterator[str]:
        """The regular files at or below a path, by name. Raises Refused for a path that is not there."""
        if _parts(path) and self._kind(path) == "file":
            yield path
            return
        for entry in self.list(path, MAX_DEPTH):
            if entry.kind == "file":
                yield entry.path

    def copy_to(self, folder: Path) -> list[Entry]:
        """Copy all folders and regular files to an empty folder; what was left out, and why."""
        left_out = []
        for entry in self.list(".", MAX_DEPTH):
            target = folder / entry.path
            if entry.kind == "folder":
                target.mkdir()
            elif entry.kind == "file":
                try:
                    with os.fdopen(self.open(entry.path), "rb") as source, target.open("wb") as sink:
                        shutil.copyfileobj(source, sink, _PIECE)
                except Refused as error:
                    left_out.append(replace(entry, note=str(error)))
            else:
                left_out.append(entry)
        return left_out

    def _below(self, path: str, name: str, folder: int, depth: int) -> Iterator[Entry]:
        inner = f"{path.rstrip('/')}/{name}"
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            note = f"-> {os.readlink(name, dir_fd=folder)} (not followed)" if stat.S_ISLNK(found.st_mode) else ""
        except OSError as error:
            yield Entry(inner, "unreadable", 0, error.strerror or "")
            return
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "special")
        yield Entry(inner, kind, found.st_size if kind == "file" else 0, note)
        if kind == "folder" and depth > 1:
            try:
                yield from self.list(inner, depth - 1)
            except Refused as error:
                yield Entry(f"{inner}/", "unreadable", 0, str(error))

    def _entry_of_place(self, name: str) -> Entry:
        descriptor = self._walk(name)
        try:
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        kind = _KINDS[stat.S_IFMT(found.st_mode)]
        return Entry(name, kind, found.st_size if kind == "file" else 0)

    def _kind(self, path: str) -> str:
        descriptor = self._walk(path)
        try:
            return _KINDS[stat.S_IFMT(os.fstat(descriptor).st_mode)]
        finally:
            os.close(descriptor)

    def _walk(self, path: str) -> int:
        """A descriptor of a file or folder, reached step by step."""
        parts = _parts(path)
        if not parts or parts[0] not in self.places:
            raise Refused(f"{path or '.'}: there is no such place; the evidence has: {', '.join(self.places)}")
        anchor, inside = self.places[parts[0]]
        steps = [*_parts(inside), *parts[1:]]
        if len(steps) > MAX_DEPTH:
            raise Refused(f"{path[:80]}...: too deep")
        try:
            current = os.open(anchor, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from None
        for step in steps:
            try:
                following = _step(step, current)
            except OSError as error:
                raise Refused(f"{path}: {error.strerror}") from None
            finally:
                os.close(current)
            current = following
        return current


def _step(name: str, folder: int) -> int:
    """Open what has this name in a folder; links, pipes and devices are refused before they are touched."""
    kind = stat.S_IFMT(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        what = "a link; links are not followed" if kind == stat.S_IFLNK else "neither a file nor a folder"
        raise Refused(f"{name}: is {what}")
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)


def _parts(path: str) -> list[str]:
    """The steps of a path from the evidence's top. Raises Refused for one that leads upwards."""
    if "\0" in path:
        raise Refused("a path holds no NUL")
    steps = [step for step in path.split("/") if step not in ("", ".")]
    if ".." in steps:
        raise Refused(f"{path}: leads out of the evidence")
    return steps


def printable(name: str) -> str:
    """A name as it can be written down; bytes that are no text are replaced."""
    return name.encode(errors="surrogateescape").decode(errors="replace")
