"""Copies of a cell's folder, for a runner on a machine whose disk does not last."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from ptb_runner.redact import Redactor

LOCKS = frozenset({".runner.lock", ".launcher.lock"})
NOT_COPIED = LOCKS | {"task", "cell.yaml"}
"""What a run does not change."""
_VERDICT = "result.json"


def mirror(source: Path, target: Path, skip: frozenset[str] = NOT_COPIED, clean: Redactor | None = None) -> list[str]:
    """Make `target` hold what `source` does, but for the names in `skip` at its top; only what changed is copied.

    The source may change meanwhile: each file is whole, and the next copy has the rest. A trial's result.json says
    that it is over, so it is copied only with all that was there before it. `clean` keeps secrets out of the copies.
    Returns what could not be copied, a line each.
    """
    target.mkdir(parents=True, exist_ok=True)
    names = set(_names(source, skip))
    verdicts = {name: _look(source / name) for name in names if Path(name).name == _VERDICT}
    faults: list[str] = []
    for name in sorted(names - set(verdicts)):
        faults += _try_copy(source / name, target / name, clean)
    for name, seen in sorted(verdicts.items()):
        if _look(source / name) == seen:
            faults += _try_copy(source / name, target / name, clean)
    for name in sorted(set(_names(target, skip)) - names, reverse=True):
        path = target / name
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    return faults


def begin(source: Path, target: Path, skip: frozenset[str] = NOT_COPIED) -> list[str]:
    """The first copy, which is there when it is whole, and not before: a later runner goes on from it."""
    if target.exists():
        return mirror(source, target, skip)
    partial = target.with_name(f"{target.name}.new")
    faults = mirror(source, partial, skip)
    if not faults:
        partial.rename(target)
    return faults


def _names(folder: Path, skip: frozenset[str]) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        here = Path(where).relative_to(folder)
        if where == str(folder):
            folders[:] = [name for name in folders if name not in skip]
            files = [name for name in files if name not in skip]
        if where == str(folder / "handoff"):  # a model that is still worked on is of no use elsewhere
            folders[:] = [name for name in folders if (folder / "job" / name / _VERDICT).exists()]
        yield from (str(here / name) for name in (*folders, *files) if not name.endswith(".tmp"))


def _look(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _try_copy(source: Path, target: Path, clean: Redactor | None) -> list[str]:
    try:
        _copy(source, target, clean)
    except FileNotFoundError:  # it was there a moment ago
        return []
    except OSError as error:
        return [f"{source.name}: {error.strerror or error}"]
    return []


def _copy(source: Path, target: Path, clean: Redactor | None) -> None:
    mode = source.lstat().st_mode
    if stat.S_ISDIR(mode):
        target.mkdir(exist_ok=True)
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) or _look(target) == _look(source):
        return
    partial = target.with_name(f".{target.name[:200]}.copy.tmp")
    shutil.copy2(source, partial, follow_symlinks=False)
    if clean and stat.S_ISREG(mode):
        clean.file(partial)
    partial.replace(target)
