"""Collects what an agent leaves: its final_model for the verifier, and a bounded snapshot of its workspace.

    python3 -I /opt/ptb/collect.py --workspace DIR --handoff DIR --artifacts DIR [--max-file-mb 512 --max-total-mb 2048]

Runs once, in the agent's sandbox, after the agent. It only reads the workspace, and writes

    HANDOFF/final_model/             a copy of the model: links replaced by what they lead to, regular files only
    HANDOFF/collect.json             what became of that copy, written last: without it the hand-off is not complete
    ARTIFACTS/workspace/             code and data, smallest files first, within the limits
    ARTIFACTS/snapshot.json          what the snapshot holds, and what was left out and why
    ARTIFACTS/final_model_config/    the model's small JSON files

Everything in the workspace may be hostile: pipes that never end, link loops, files that claim to be huge.
Exit codes: 0 all done (also when there is no model), 1 something failed, as collect.json says.
"""

import argparse
import errno
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MIB = 2**20
COPY_CHUNK = 8 * MIB
ZEROS = bytes(COPY_CHUNK)

# More than any honest model or workspace needs; they keep a hostile one from taking for ever.
MAX_MODEL_FILES = 100_000
MAX_SNAPSHOT_ENTRIES = 500_000
MAX_DEPTH = 64
MAX_LISTED = 10_000

MAX_CONFIG_BYTES = MIB
MAX_CONFIG_FILES = 100

NOT_EVIDENCE = {"final_model": "handed over as the model", "base_model": "the given base model"}
CACHES = {
    *("__pycache__", ".cache", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
    *("node_modules", ".venv", "venv", ".ipynb_checkpoints"),
}

SPECIAL = {
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
# A link to what was there before the agent came is no part of a model; following it would copy the machine.
SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr")
# Failures of what is written to; any other failure is of something that the agent left, and costs only that.
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)

UNREACHABLE = {
    errno.ENOENT: "link to nothing",
    errno.ENOTDIR: "link to nothing",
    errno.ELOOP: "link loop",
    errno.ENAMETOOLONG: "path too long",
}

Identity = tuple[int, int]


class CollectError(Exception):
    """The hand-over cannot be completed; the message says why."""


class Refused(Exception):
    """The agent's model is not one that can be handed over: its own doing, not this machine's."""


@dataclass
class Listing:
    """Entries worth telling, of which only the first MAX_LISTED are kept."""

    entries: list[dict] = field(default_factory=list)
    count: int = 0
    bytes: int = 0

    def add(self, path: str, **facts: object) -> None:
        self.count += 1
        size = facts.get("bytes")
        self.bytes += size if isinstance(size, int) else 0
        if len(self.entries) < MAX_LISTED:
            self.entries.append({"path": path, **facts})


def identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def pseudo_devices() -> set[int]:
    """The devices of /proc, /sys and /dev, whose files are no data and may never end."""
    return {path.stat().st_dev for path in map(Path, ("/proc", "/sys", "/dev")) if path.is_mount()}


def is_system(path: Path) -> bool:
    return f"{os.path.realpath(path)}/".startswith(tuple(f"{top}/" for top in SYSTEM))


def below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def remove(path: Path) -> None:
    """Remove whatever is at ``path``, without following it; nothing there is fine."""
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        pass


def write_json(path: Path, data: dict) -> None:
    """Write the file whole or not at all, in place of whatever is there."""
    temporary = path.with_name(f".{path.name}.partial")
    remove(temporary)
    with temporary.open("x", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
    if path.is_dir() and not path.is_symlink():
        remove(path)
    temporary.replace(path)


# ---------------------------------------------------------------------------------------------------------------------
# Copying one file.


def data_spans(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that hold data; what lies between them is a hole, which reads as zeros."""
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a file system that cannot tell; ENXIO: only a hole is left
                yield position, size
            return
        yield start, min(end, size)
        position = end


def copy_file(source: Path, target: Path) -> int:
    """Copy a regular file's data, holes left as holes; returns its size. ``target`` must not exist."""
    # O_NONBLOCK: should the file have become a pipe since it was looked at, opening it does not wait.
    with os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as reader:
        found = os.fstat(reader.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise CollectError(f"{source} changed while it was copied")
        with target.open("xb") as writer:
            writer.truncate(found.st_size)
            for start, end in data_spans(reader.fileno(), found.st_size):
                copy_span(reader.fileno(), writer, start, end)
    return found.st_size


def copy_span(descriptor: int, writer, start: int, end: int) -> None:
    while start < end:
        chunk = os.pread(descriptor, min(COPY_CHUNK, end - start), start)
        if not chunk:
            return
        # Zeros need no space: where the file system hid a hole from us, this makes one again.
        if chunk != (ZEROS if len(chunk) == COPY_CHUNK else ZEROS[: len(chunk)]):
            writer.seek(start)
            writer.write(chunk)
        start += len(chunk)


# ---------------------------------------------------------------------------------------------------------------------
# The model.


@dataclass
class ModelCopy:
    """One copy of a model folder, links dereferenced; call ``run``."""

    source: Path
    target: Path
    seen: set[Identity]  # folders not to enter (again): loops, and the places that are written to
    files: int = 0
    bytes: int = 0
    skipped: Listing = field(default_factory=Listing)
    pseudo: set[int] = field(default_factory=pseudo_devices)

    def run(self) -> None:
        """Copy all; OSError or CollectError when that cannot be done."""
        # Linked folders wait until the real ones are through: of two ways to a folder the real one is kept.
        real, linked = [""], []
        while real or linked:
            folder = (real or linked).pop()
            path = self.source / folder
            here = identity(path.stat())
            if here in self.seen and folder:
                self.skipped.add(folder, reason="folder already copied, or a link loop")
                continue
            self.seen.add(here)
            try:
                # In order, so that the same folder gives the same copy.
                names = sorted(child.name for child in path.iterdir())
            except OSError as error:
                if not folder:
                    raise Refused(f"final_model cannot be read: {error.strerror}") from None
                self.skipped.add(folder, reason=f"cannot be read: {error.strerror}")
                continue
            (self.target / folder).mkdir(mode=0o755)
            for name in names:
                self.take(below(folder, name), real, linked)

    def take(self, name: str, real: list[str], linked: list[str]) -> None:
        """Copy one entry, or put it on a list if it is a folder."""
        path = self.source / name
        try:
            found = path.stat()
        except OSError as error:
            self.skipped.add(name, reason=UNREACHABLE.get(error.errno or 0, str(error.strerror)))
            return
        kind = stat.S_IFMT(found.st_mode)
        if kind in SPECIAL:
            self.skipped.add(name, reason=SPECIAL[kind])
        elif found.st_dev in self.pseudo:
            self.skipped.add(name, reason="belongs to the system, not to the model")
        elif kind == stat.S_IFDIR and name.count("/") >= MAX_DEPTH:
            self.skipped.add(name, reason=f"deeper than {MAX_DEPTH} folders")
        elif kind == stat.S_IFDIR and path.is_symlink() and is_system(path):
            self.skipped.add(name, reason="a folder of the system, not of the model")
        elif kind == stat.S_IFDIR:
            (linked if path.is_symlink() else real).append(name)
        else:
            self.copy(name)

    def copy(self, name: str) -> None:
        if self.files == MAX_MODEL_FILES:
            raise Refused(f"final_model has more than {MAX_MODEL_FILES} files")
        target = self.target / name
        try:
            self.bytes += copy_file(self.source / name, target)
            self.files += 1
        except OSError as error:
            if error.errno in CANNOT_WRITE:
                raise
            remove(target)
            self.skipped.add(name, reason=f"cannot be read: {error.strerror}")


def collect_model(workspace: Path, handoff: Path, artifacts: Path) -> dict:
    """Put the model into the hand-off; what became of it, as in collect.json. OSError, CollectError on failure."""
    source, target, partial = workspace / "final_model", handoff / "final_model", handoff / ".final_model.partial"
    remove(target)  # only what this program copies counts
    remove(partial)
    if not source.is_dir():
        note = "final_model is not a folder" if os.path.lexists(source) else None
        return {"final_model": "absent", "error": note}
    above = [*source.resolve().parents, *(workspace / "x").resolve().parents]
    copy = ModelCopy(source, partial, {identity(path.stat()) for path in (*above, handoff, artifacts)})
    try:
        copy.run()
        partial.rename(target)
    except Refused as reason:
        shutil.rmtree(partial, ignore_errors=True)
        return {"final_model": "refused", "error": str(reason)}
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # gives the space back
        raise
    skipped = {"skipped": copy.skipped.entries, "skipped_count": copy.skipped.count}
    return {"final_model": "copied", "files": copy.files, "bytes": copy.bytes, **skipped}


def collect_configs(model: Path, target: Path) -> None:
    """Copy the small JSON files at the top of the (copied) model."""
    remove(target)
    if not model.is_dir():
        return
    target.mkdir()
    files = [path for path in sorted(model.glob("*.json")) if path.is_file()]
    small = [path for path in files if path.stat().st_size <= MAX_CONFIG_BYTES]
    for path in small[:MAX_CONFIG_FILES]:
        copy_file(path, target / path.name)


# ---------------------------------------------------------------------------------------------------------------------
# The snapshot.


@dataclass
class Snapshot:
    """A copy of a workspace's code and data within limits, in bytes; call ``run``."""

    source: Path
    target: Path
    max_file: int
    max_total: int
    files: int = 0
    bytes: int = 0
    links: Listing = field(default_factory=Listing)
    left_out: Listing = field(default_factory=Listing)

    def run(self) -> None:
        """Copy all that fits; OSError when the target cannot be written any more."""
        remove(self.target)
        self.target.mkdir(parents=True)
        # Smallest first: whatever the limit cuts off, the code survives.
        for size, name in sorted(self.candidates()):
            if self.bytes + size > self.max_total:
                self.left_out.add(name, bytes=size, reason="over the limit for all files together")
            else:
                self.copy(name, size)

    def copy(self, name: str, size: int) -> None:
        target = self.target / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.bytes += copy_file(self.source / name, target)
            self.files += 1
        except (CollectError, OSError) as error:
            if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
                raise
            remove(target)
            self.left_out.add(name, bytes=size, reason=f"cannot be read: {error}")

    def candidates(self) -> Iterator[tuple[int, str]]:
        """Size and relative path of every file that may be copied; everything else is listed on the way."""
        folders, entries, pseudo = [""], 0, pseudo_devices()
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(self.source / folder) as scanned:
                    found = list(scanned)
            except OSError as error:
                self.left_out.add(folder, bytes=0, reason=str(error.strerror))
                continue
            for entry in found:
                entries += 1
                if entries > MAX_SNAPSHOT_ENTRIES:
                    self.left_out.add(folder, bytes=0, reason=f"more than {MAX_SNAPSHOT_ENTRIES} files and folders")
                    return
                yield from self.consider(below(folder, entry.name), folders, pseudo)

    def consider(self, name: str, folders: list[str], pseudo: set[int]) -> Iterator[tuple[int, str]]:
        path = self.source / name
        try:
            found = path.lstat()
        except OSError as error:
            self.left_out.add(name, bytes=0, reason=UNREACHABLE.get(error.errno or 0, str(error.strerror)))
            return
        kind, size = stat.S_IFMT(found.st_mode), found.st_size
        if kind == stat.S_IFLNK:
            self.links.add(name, target=str(path.readlink()))
        elif reason := self.reason_against(name, kind, size, found.st_dev in pseudo):
            self.left_out.add(name, bytes=folder_bytes(path) if kind == stat.S_IFDIR else size, reason=reason)
        elif kind == stat.S_IFDIR:
            folders.append(name)
        else:
            yield size, name

    def reason_against(self, name: str, kind: int, size: int, is_pseudo: bool) -> str | None:
        if name in NOT_EVIDENCE:
            return NOT_EVIDENCE[name]
        if is_pseudo:
            return "belongs to the system"
        if kind == stat.S_IFDIR:
            if name.rpartition("/")[2] in CACHES:
                return "cache"
            return f"deeper than {MAX_DEPTH} folders" if name.count("/") >= MAX_DEPTH else None
        return SPECIAL.get(kind) or ("over the limit for one file" if size > self.max_file else None)

    def report(self, error: str | None) -> dict:
        return {
            "files": self.files,
            "bytes": self.bytes,
            "limits": {"max_file_bytes": self.max_file, "max_total_bytes": self.max_total},
            "left_out_total": {"entries": self.left_out.count, "bytes": self.left_out.bytes},
            "left_out": self.left_out.entries,
            "links_total": self.links.count,
            "links": self.links.entries,
            "error": error,
        }


def folder_bytes(path: Path) -> int:
    """The size of all files below a folder, or of the first MAX_SNAPSHOT_ENTRIES."""
    total = seen = 0
    for parent, _, names in os.walk(path):
        for name in names:
            try:
                total += Path(parent, name).lstat().st_size
            except OSError:
                continue
        seen += len(names) + 1
        if seen > MAX_SNAPSHOT_ENTRIES:
            break
    return total


def collect_snapshot(workspace: Path, artifacts: Path, max_file: int, max_total: int) -> str | None:
    """Take the snapshot and write its report; the reason if it could not be finished."""
    snapshot, reason = Snapshot(workspace, artifacts / "workspace", max_file, max_total), None
    try:
        snapshot.run()
    except OSError as error:
        reason = f"snapshot: {error}"
    write_json(artifacts / "snapshot.json", snapshot.report(reason))
    return reason


# ---------------------------------------------------------------------------------------------------------------------


def collect(options: argparse.Namespace) -> dict:
    """Do everything but the last step; returns the content of collect.json, whatever happened."""
    report = {"final_model": "failed", "files": 0, "bytes": 0, "skipped": [], "skipped_count": 0, "error": None}
    try:
        report |= collect_model(options.workspace, options.handoff, options.artifacts)
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
    try:
        collect_configs(options.handoff / "final_model", options.artifacts / "final_model_config")
        limits = options.max_file_mb * MIB, options.max_total_mb * MIB
        report["snapshot_error"] = collect_snapshot(options.workspace, options.artifacts, *limits)
    except Exception as error:
        report["snapshot_error"] = f"{type(error).__name__}: {error}"
    return report


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Collect an agent's final_model and a snapshot of its workspace.")
    for name in ("workspace", "handoff", "artifacts"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--max-file-mb", type=int, default=512, help="largest file in the snapshot, in MiB")
    parser.add_argument("--max-total-mb", type=int, default=2048, help="size of the whole snapshot, in MiB")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options, started = parse_arguments(arguments), time.monotonic()
    os.umask(0o022)  # the verifier may be another user
    done = options.handoff / "collect.json"
    remove(done)
    options.artifacts.mkdir(parents=True, exist_ok=True)
    report = collect(options)
    report["seconds"] = round(time.monotonic() - started, 3)
    write_json(done, report)
    print(json.dumps({key: value for key, value in report.items() if key != "skipped"}))
    return 1 if report["final_model"] == "failed" or report["snapshot_error"] else 0


if __name__ == "__main__":
    sys.exit(main())
