"""Where the files that ship with the program are: beside the package in a wheel, at the top of a checkout."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


CONF = _shipped("conf")
TEMPLATES = _shipped("templates")


def cache() -> Path:
    """The user's folder for what can be downloaded again: PTB_CACHE, else as the XDG convention has it."""
    own = os.environ.get("PTB_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ptb_runner"


def state() -> Path:
    """The user's folder for what later commands have to know: PTB_STATE, else as the XDG convention has it."""
    own = os.environ.get("PTB_STATE")
    return Path(own) if own else Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "ptb_runner"
