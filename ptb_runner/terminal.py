"""Standard output and standard error, and what is said there in one way by everyone."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from ptb_runner.explain import Exit, masked


class _Console(Console):
    """A console whose reader may go away (`ptb ... | head`) without ending the run."""

    def on_broken_pipe(self) -> None:
        self.file = Path(os.devnull).open("w")  # noqa: SIM115 - for the rest of the process


def console(*, stderr: bool = False) -> Console:
    """Standard output, or tables on standard error; on a pipe or in a file lines are not broken."""
    out = _Console(stderr=stderr, highlight=False, emoji=False)
    if out.is_terminal:
        return out
    return _Console(stderr=stderr, highlight=False, emoji=False, width=200, soft_wrap=True, no_color=True)


def errors() -> Console:
    """Standard error."""
    return _Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def print_error(text: str) -> Exit:
    """Tell what is wrong on standard error, without a key that was typed; returns the exit code for wrong usage."""
    errors().print(f"error: {masked(text)}", style="red", markup=False)
    return Exit.usage


def shown(folder: Path) -> Path:
    """A folder as the user would type it: relative to where they stand if it lies below."""
    folder = folder.resolve()
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
