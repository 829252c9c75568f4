"""Folders and files between the host and a sandbox, as tar streams.

What comes out of a sandbox is hostile: names, links and modes are the agent's. Python's own "data" filter is not
enough, as several releases of it could be led outside with chains of links. So every folder on the way to a file is
opened by its own name, without following links, and a file is only ever created new.
"""

import contextlib
import errno
import os
import select
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

CHUNK = 1 << 20

REFUSED_ERRNO = {
    *(errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL),
}


class Refused(Exception):
    """This member of an archive is not unpacked, and why."""


class PipeReader:
    """The reading end of a pipe, as a file for tarfile. Ends at end of file, or once `ended` is set and it is empty:
    a process inside could hold the other end open for ever."""

    def __init__(self, fd: int, ended: threading.Event) -> None:
        self._fd = fd
        self._ended = ended
        self._poller = select.poll()
        self._poller.register(fd, select.POLLIN)

    def read(self, size: int) -> bytes:
        while True:
            ended = self._ended.is_set()
            if self._poller.poll(0 if ended else 200):
                return os.read(self._fd, size)
            if ended:
                return b""


def pack(source: Path, fd: int, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """Writes a folder's content to a pipe, and closes it. Links stay links; owners and set-uid bits are left out."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode &= 0o777
        return member if wanted(PurePosixPath(member.name).name) else None

    with os.fdopen(fd, "wb") as stream, tarfile.open(fileobj=stream, mode="w|", bufsize=CHUNK) as archive:
        for child in sorted(source.iterdir()):
            archive.add(child, arcname=child.name, filter=plain)


def copy(source: Path, fd: int) -> None:
    """Writes a file's content to a pipe, and closes it."""
    with os.fdopen(fd, "wb") as stream, source.open("rb") as file:
        shutil.copyfileobj(file, stream, CHUNK)


def unpack(stream: PipeReader, target: Path) -> list[str]:
    """Puts an archive's folders, files and inner links below `target`. Returns the names refused, with the reason.

    Nothing is written outside, and what is there already is replaced, but no folder by a file. Devices, FIFOs and hard
    links are left out. Raises tarfile.ReadError when the archive is cut off.
    """
    target.mkdir(parents=True, exist_ok=True)
    refused: list[str] = []
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _archive(stream) as archive:
            for member in archive:
                try:
                    _place(archive, member, root)
                except Refused as reason:
                    refused.append(f"{member.name!r}: {reason}")
    finally:
        os.close(root)
    return refused


def unpack_file(stream: PipeReader, target: Path) -> None:
    """Puts an archive's first member, which must be a regular file, at `target`. Raises Refused when it is not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _archive(stream) as archive:
        member = archive.next()
        if member is None or not member.isreg() or member.issparse():
            raise Refused("not a regular file")
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _write_file(archive, member, folder, target.name)
        finally:
            os.close(folder)


def _archive(stream: PipeReader) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", bufsize=CHUNK)


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int) -> None:
    if member.isdev():
        return
    parts = _parts(member.name)
    if not parts:
        return
    try:
        with _folder(root, parts if member.isdir() else parts[:-1]) as folder:
            if member.isreg() and not member.issparse():
                _write_file(archive, member, folder, parts[-1])
            elif member.issym():
                _write_link(member.linkname, len(parts) - 1, folder, parts[-1])
            elif not member.isdir():
                raise Refused("neither a file, a folder nor a symbolic link")
    except (OSError, ValueError) as problem:
        if isinstance(problem, OSError) and problem.errno not in REFUSED_ERRNO:
            raise
        raise Refused(str(problem)) from None


def _parts(name: str) -> list[str]:
    if name.startswith("/"):
        raise Refused("an absolute name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Refused("a name with '..'")
    return parts


@contextlib.contextmanager
def _folder(root: int, parts: list[str]) -> Iterator[int]:
    """A folder below `root`, made if need be, never through a link."""
    folder = os.dup(root)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=folder)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str) -> None:
    content = archive.extractfile(member)
    if content is None:
        raise Refused("a file without content")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    mode = member.mode & 0o755 | 0o600
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
    with os.fdopen(fd, "wb") as file:
        shutil.copyfileobj(content, file, CHUNK)
        file.flush()
        os.fchmod(fd, mode)
        with contextlib.suppress(OverflowError, OSError):
            os.utime(fd, (member.mtime, member.mtime))


def _write_link(link: str, depth: int, folder: int, name: str) -> None:
    """Makes a symbolic link that, `depth` folders below the target, cannot lead out of it.

    '..' may only come first: after a folder's name it would climb from wherever that name's own link leads.
    """
    parts = [part for part in link.split("/") if part not in ("", ".")]
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    if link.startswith("/") or climbs > depth or ".." in parts[climbs:]:
        raise Refused(f"a link that may lead outside, to {link!r}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    os.symlink(link, name, dir_fd=folder)
