"""Backends: a kind of sandbox and what it needs around it. One module a backend, with the functions of `Backend`.

A new backend is a module here, a configuration class in config/backend.py and a file in conf/backend/.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from ptb_runner.cell import Cell
from ptb_runner.config import Config
from ptb_runner.hf_cache import Progress, Repository

MODULES = {kind: f"ptb_runner.backend.{kind}" for kind in ("bubblewrap", "podman", "docker", "modal")}
MODULES["beaker"] = MODULES["podman"]  # in the job of launcher=beaker


class Backend(Protocol):
    """What the runner asks of a backend; each is a function of the backend's module."""

    @staticmethod
    def environment(config: Config, task: Path) -> dict[str, Any]:
        """Harbor's `environment` section for the cell and its task folder: the class, its kwargs."""
        ...

    @staticmethod
    def problems(config: Config) -> list[str]:
        """What this machine or account lacks for the backend, and how to mend it; nothing is created."""
        ...

    @staticmethod
    def unsupported(task: Path, config: Config) -> list[str]:
        """Why a task folder cannot run on the backend, a line for each reason."""
        ...

    @staticmethod
    def warnings(config: Config) -> list[str]:
        """What the user should know before a launch, but may well want; found without asking anybody."""
        ...

    @staticmethod
    def checks(config: Config) -> Iterator[tuple[str, bool, str]]:
        """For `ptb doctor`: name, whether it failed, and what was found or what to do."""
        ...

    @staticmethod
    def reap(config: Config | None) -> list[str]:
        """End and remove what runners that are gone left behind, and say what; None: with the default settings."""
        ...

    @staticmethod
    def handoff(cell: Cell, trial: str) -> str:
        """What a trial's sandboxes are given as `handoff`, by which they find the place for final_model."""
        ...

    @staticmethod
    def make_handoff(cell: Cell, trial: str) -> None:
        """Make that place, before the trial begins."""
        ...

    @staticmethod
    def settle_handoff(cell: Cell, trial: str, keep: bool) -> None:
        """Keep or remove it, now that the trial's result is safe; may be called again, also without such a place."""
        ...

    @staticmethod
    def has_handoff(cell: Cell, trial: str) -> bool:
        """Whether what a trial handed over was kept and is there, so that it can be graded again."""
        ...

    @staticmethod
    def fetch_commands(cell: Cell) -> list[str]:
        """The commands that bring kept hand-offs into the cell's folder, where they are elsewhere."""
        ...

    @staticmethod
    def fill_hf_cache(config: Config, wanted: list[Repository], show: Callable[[Progress], Any]) -> str:
        """Download what the backend's hub cache lacks of some repositories, and say in words where it is."""
        ...

    @staticmethod
    def clean_images(config: Config) -> list[str]:
        """Remove the images that we built and that nothing uses, and say which."""
        ...

    @staticmethod
    def kill_all() -> None:
        """End every sandbox of this process at once; called when an interrupt's grace is over."""
        ...

    @staticmethod
    async def all_ended() -> None:
        """Wait until the sandboxes that are being ended are over; called after an interrupt."""
        ...


def of(config: Config) -> Backend:
    """The backend of a cell."""
    return named(config.backend.kind)


def named(kind: str) -> Backend:
    """The backend with a name."""
    return cast(Backend, importlib.import_module(MODULES[kind]))


def others(kind: str) -> str:
    """The backends that a task might run on instead, in words."""
    return f"try backend={' or backend='.join(name for name in MODULES if MODULES[name] != MODULES[kind])}"
