"""Runs a program, and ends all that it started when it is over or the runner is gone: `python -I guard.py COMMAND`.

The runner holds the other end of our standard input. When that closes, be it that the runner is done or was killed, the
program is asked to end and soon after killed, with every process that comes from it: those that left its process group
or session too, since orphans below us become our children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_SEC = 8.0
"""How long the program has to end by itself when it is asked to."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def main(command: list[str]) -> int:
    """Run a command until it ends, or until we are told to end it; returns its exit code."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    told = _told_by_signals()
    try:
        # If even we are killed, the program at least goes with us.
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        return 127
    over = os.pidfd_open(program.pid)
    select.select([sys.stdin.fileno(), told, over], [], [])
    _end_all()
    code = program.wait()
    return code if code >= 0 else 128 - code


def _told_by_signals() -> int:
    """A descriptor that can be read once a signal asks us to end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading


def _end_all() -> None:
    """Ask everything below us to end, then kill what did not."""
    deadline = time.monotonic() + GRACE_SEC
    _signal(_below(os.getpid()), signal.SIGTERM)
    while (left := _below(os.getpid())) and time.monotonic() < deadline:
        time.sleep(0.05)
    while left:
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)
        left = _below(os.getpid())


def _signal(processes: list[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _below(ancestor: int) -> list[int]:
    """All running processes that come from a process."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in ("Z", "X"):
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found, below = [], [ancestor]
    while below:
        found += (next_ones := children.get(below.pop(), []))
        below += next_ones
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
