"""Who owns a sandbox or a volume on Modal, short enough for a tag or a name, and whether that runner is still there.

    <host and machine>.<boot><process namespace>.<process>.<its start>      each a few letters and digits

A Modal account is shared by many machines: of an owner on another one nothing is known.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket
from pathlib import Path

from ptb_runner.sandbox import scratch

PREFIX = "ptb-"
KEPT = "ptb-kept-"
NAME_MAX = 64
_FORM = re.compile(r"[a-z0-9]{8}\.[a-z0-9]{8}\.[a-z0-9]+\.[a-z0-9]+")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def owner() -> str:
    """This process."""
    return f"{_machine()}.{_boot()}{_namespace()}.{_base36(os.getpid())}.{_start(os.getpid())}"


@functools.cache
def _machine() -> str:
    return _digest(f"{socket.gethostname()} {_machine_id()}", 8)


def _machine_id() -> str:
    path = Path("/etc/machine-id")
    return path.read_text().strip() if path.is_file() else ""


@functools.cache
def _boot() -> str:
    return _digest(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), 4)


@functools.cache
def _namespace() -> str:
    return _digest(str(Path("/proc/self/ns/pid").stat().st_ino), 4)


def _start(pid: int) -> str:
    return _base36(scratch.start_time(pid))


def _digest(text: str, length: int) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:12], "big")
    return _base36(number).rjust(length, "0")[-length:]


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def is_here(one: str) -> bool:
    """Whether an owner is, or was, a process of this machine."""
    return one.split(".")[0] == _machine()


def is_dead(one: str) -> bool:
    """Whether an owner is known to be gone."""
    if not _FORM.fullmatch(one) or not is_here(one):
        return False
    _, place, pid, started = one.split(".")
    if place[:4] != _boot():
        return bool(_machine_id())  # without such an id, another machine may go by the same name
    return place[4:] == _namespace() and _start(int(pid, 36)) != started


def volume_name(folder: Path, cell_id: str, trial: str) -> str:
    """The name of a trial's volume: it carries the owner, since a volume has no tags."""
    return _named(f"{PREFIX}{owner()}-", folder, cell_id, trial)


def kept_name(folder: Path, cell_id: str, trial: str) -> str:
    """Its name when it is to stay: nobody owns it any more, and no reaping takes it."""
    return _named(KEPT, folder, cell_id, trial)


def owner_of_volume(name: str) -> str | None:
    """The owner that a volume's name carries; None for one that is kept, or not ours."""
    if name.startswith(KEPT) or not name.startswith(PREFIX):
        return None
    carried = name.removeprefix(PREFIX).partition("-")[0]
    return carried if _FORM.fullmatch(carried) else None


def _named(prefix: str, folder: Path, cell_id: str, trial: str) -> str:
    unique = _digest(f"{_machine()} {folder} {trial}", 6)
    room = NAME_MAX - len(prefix) - len(unique) - 1
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{cell_id[:6]}-{trial}")
    # A trial's number is at its end, and says most.
    return f"{prefix}{unique}-{plain if len(plain) <= room else plain[-room:]}".rstrip("-.")
