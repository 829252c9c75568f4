"""The processes of this machine, as its /proc tells: which are a container's, and which command each belongs to."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = b"PTB_JOB="  # the variable that says so


@dataclass(frozen=True)
class Process:
    """A process of this machine; `started` in seconds since boot, `mark` the job that it belongs to."""

    pid: int
    parent: int
    started: float
    mark: bytes = b""

    def with_mark(self) -> "Process":
        try:
            variables = Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            variables = []
        mark = next((one.removeprefix(MARK) for one in variables if one.startswith(MARK)), b"")
        return Process(self.pid, self.parent, self.started, mark)


def processes() -> Iterator[Process]:
    tick = os.sysconf("SC_CLK_TCK")
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_bytes()
        except OSError:
            continue
        state, parent, *rest = stat.rpartition(b")")[2].split()
        if state not in (b"Z", b"X"):
            # The kernel counts whole ticks: a process may seem a little older than it is.
            yield Process(int(entry.name), int(parent), (int(rest[17]) + 1) / tick)


def namespace(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return 0


def runs(pid: int, script: bytes) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"/" + script + b"\0")
    except OSError:
        return False
