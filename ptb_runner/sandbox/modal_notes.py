"""What this machine has made on Modal, by the name of its volume: for whoever has to say later if it is still needed.

A trial's: {"cell": its folder, "trial": its name}. A detached sweep's: {"sweep": its folder, "calls": their ids}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ptb_runner import paths
from ptb_runner.cell import read_json, write_json


def note(volume: str, what: dict[str, Any]) -> None:
    """Write it down; before the volume is made, so that there is none without."""
    path = _path(volume)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, what)


def noted(volume: str) -> dict[str, Any]:
    """What was noted; {} when nothing was, on this machine and by this user."""
    found = read_json(_path(volume))
    return found if isinstance(found, dict) else {}


def forget(volume: str) -> None:
    """Drop the note: the volume is gone, or nobody's any more."""
    _path(volume).unlink(missing_ok=True)


def _path(volume: str) -> Path:
    return paths.state() / "modal" / f"{volume}.json"
