"""Standard output and standard error, and what is said there in one way by everyone."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ptb_runner.explain import Exit


def console() -> Console:
    """Standard output; on a pipe or in a file lines are not broken."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200, soft_wrap=True, no_color=True)


def errors() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_error(text: str) -> Exit:
    """Tell what is wrong on standard error; returns the exit code for wrong usage."""
    errors().print(f"error: {text}", style="red", markup=False)
    return Exit.usage


def shown(folder: Path) -> Path:
    """A folder as the user would type it: relative to where they stand if it lies below."""
    folder = folder.resolve()
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
