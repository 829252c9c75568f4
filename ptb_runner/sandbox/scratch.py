"""The folders on the host in which sandboxes keep what is private to them, and what becomes of dead owners' folders.

    <base>/ptb-sandboxes-<uid>/<random>/owner.lock    flock held for the owner's life; holds the sandbox's pid and start

A folder whose lock can be taken has no owner any more.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

LOCK = "owner.lock"
UNBORN = ".new-"
UNBORN_SEC = 3600
MINIMUM_FREE_BYTES = 100 << 20


@dataclass(frozen=True)
class Scratch:
    """One sandbox's folder, and the descriptor that holds its lock."""

    path: Path
    lock: int

    def record(self, pid: int) -> None:
        """Notes which process is the sandbox, for whoever must end it after us."""
        os.pwrite(self.lock, f"{pid} {start_time(pid)}".encode(), 0)

    def remove(self) -> None:
        """Deletes the folder and gives up the lock. The sandbox must be dead."""
        delete(self.path)
        os.close(self.lock)


def parent(base: Path | None = None) -> Path:
    """The folder of all of this user's sandboxes, made if need be. `base`: default is the temporary folder.

    Raises PermissionError when somebody else owns it: they could read and change every sandbox.
    """
    folder = (base or Path(tempfile.gettempdir())).resolve() / f"ptb-sandboxes-{os.geteuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to somebody else: remove it, or set another scratch_dir")
    folder.chmod(0o700)
    return folder


def create(base: Path | None = None) -> Scratch:
    """A new, empty, locked folder."""
    # Under its final name only once it is locked, so that no reap() takes it for a dead owner's.
    unborn = Path(tempfile.mkdtemp(prefix=UNBORN, dir=parent(base)))
    lock = os.open(unborn / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    path = unborn.with_name(unborn.name.removeprefix(UNBORN))
    unborn.rename(path)
    return Scratch(path, lock)


def reap(base: Path | None = None) -> list[Path]:
    """Removes the folders of owners that died, ends what they left running, and returns those folders."""
    return [folder for folder in sorted(parent(base).iterdir()) if _reap_one(folder)]


def _reap_one(folder: Path) -> bool:
    try:
        if folder.name.startswith(UNBORN):
            return time.time() - folder.stat().st_mtime > UNBORN_SEC and delete(folder)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Another reaper is about to remove it, or was killed before it could: the lock file goes next to last.
        with contextlib.suppress(OSError):
            folder.rmdir()
        return False
    except NotADirectoryError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not folder.exists():
            return False
        _end(os.pread(lock, 100, 0).decode(errors="replace").split())
        return delete(folder)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _end(recorded: list[str], timeout_sec: float = 2) -> None:
    """Kills the recorded process unless its number belongs to another one by now, and waits for its end."""
    if len(recorded) != 2 or not recorded[0].isdigit():
        return
    pid, deadline = int(recorded[0]), time.monotonic() + timeout_sec
    while recorded[1] == str(start_time(pid)) and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def start_time(pid: int) -> int:
    """Clock ticks from boot to the start of a process, which with its pid names it; 0 when it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if state in (b"Z", b"X") else int(fields[18])


def delete(folder: Path) -> bool:
    """Removes a folder whatever the modes, links and depths in it. The lock file goes last. False if it was gone."""
    if not folder.exists():
        return False
    inner = [entry for entry in folder.iterdir() if entry.name != LOCK]
    for entry in inner:
        try:
            entry.unlink() if entry.is_symlink() or not entry.is_dir() else shutil.rmtree(entry)
        except (OSError, RecursionError):
            # Neither tool follows links or minds depth. A failure shows in the rmtree below.
            subprocess.run(["chmod", "-R", "u+rwx", "--", entry], capture_output=True)
            subprocess.run(["rm", "-rf", "--", entry], capture_output=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    return True


def problems(base: Path | None = None) -> list[str]:
    """Why sandboxes cannot keep their files there; empty when they can."""
    try:
        folder = parent(base)
        with tempfile.NamedTemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as problem:
        return [f"the scratch folder of sandboxes cannot be written ({problem}): set backend's scratch_dir"]
    if free < MINIMUM_FREE_BYTES:
        return [f"{folder} has {free >> 20} MB free, and {MINIMUM_FREE_BYTES >> 20} MB are needed: set scratch_dir"]
    return []
