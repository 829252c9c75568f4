"""Copies of a cell's folder, for a runner on a machine whose disk does not last."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ptb_runner.redact import Redactor

LOCKS = frozenset({".runner.lock", ".launcher.lock"})
NOT_COPIED = LOCKS | {"task", "cell.yaml"}
"""What a run does not change."""
# They differ, or are the machine's own to which results are brought.
NOT_FETCHED = NOT_COPIED | {"launcher.json"}
SMALL = 1 << 20  # files up to this size are fetched at the end even if they look the same
_VERDICT = "result.json"


type _Look = tuple[int, int]  # size and time of change


@dataclass
class Copy:
    """A copy of a folder, brought up to date again and again, but for the names in `skip` at its top.

    What was copied is remembered: the place of the copy may be slow to ask. `clean` keeps secrets out of it.
    """

    source: Path
    target: Path
    skip: frozenset[str] = NOT_COPIED
    clean: Redactor | None = None
    _copied: dict[str, _Look | None] = field(default_factory=dict)
    _listed: bool = False

    def update(self) -> list[str]:
        """Make the copy hold what the source does; returns what could not be copied, a line each.

        The source may change meanwhile: each file is whole, and the next update has the rest. A trial's result.json
        says that it is over, so it is copied only with all that was there before it.
        """
        try:
            self._list()
        except OSError as error:
            return [f"{self.target}: {error.strerror or error}"]
        names = set(_names(self.source, self.skip))
        verdicts = {name: _look(self.source / name) for name in names if Path(name).name == _VERDICT}
        faults = [fault for name in sorted(names - set(verdicts)) for fault in self._try(name)]
        for name, seen in sorted(verdicts.items()):
            if _look(self.source / name) == seen:
                faults += self._try(name)
        for name in sorted(set(self._copied) - names, reverse=True):
            self._remove(name)
        self._listed = not faults  # somebody else may have changed what is there
        return faults

    def _list(self) -> None:
        """What is there already, of an earlier runner."""
        if not self._listed:
            self.target.mkdir(parents=True, exist_ok=True)
            self._copied = {name: _look(self.target / name) for name in _names(self.target, self.skip)}
            self._listed = True

    def _try(self, name: str) -> list[str]:
        try:
            self._copy(name)
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError) and not os.path.lexists(self.source / name)
            return [] if is_gone else [f"{name}: {error.strerror or error}"]
        return []

    def _copy(self, name: str) -> None:
        source, target = self.source / name, self.target / name
        mode, seen = source.lstat().st_mode, _look(source)
        if name in self._copied and self._copied[name] == seen:
            return
        if stat.S_ISDIR(mode):
            target.mkdir(exist_ok=True)
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            partial = target.with_name(f".{target.name[:200]}.copy.tmp")
            shutil.copy2(source, partial, follow_symlinks=False)
            if self.clean and stat.S_ISREG(mode):
                self.clean.file(partial)
            partial.replace(target)
        else:
            return
        self._copied[name] = seen

    def _remove(self, name: str) -> None:
        path = self.target / name
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            del self._copied[name]


def begin(copy: Copy) -> list[str]:
    """The first copy, which is there when it is whole, and not before: a later runner goes on from it."""
    if copy.target.exists():
        return copy.update()
    partial = Copy(copy.source, copy.target.with_name(f"{copy.target.name}.new"), copy.skip, copy.clean)
    faults = partial.update()
    if not faults:
        partial.target.rename(copy.target)
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


def _look(path: Path) -> _Look | None:
    """What tells a file from an older one; None for a folder, or nothing."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return None if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_mtime_ns)


def remove_others(folder: Path, wanted: set[Path]) -> None:
    """Remove trials' files that are no longer the run's: of a try that was set aside, say."""
    for where, folders, files in os.walk(folder, topdown=False):
        for name in files:
            if Path(where, name) not in wanted:
                Path(where, name).unlink()
        for name in folders:
            path = Path(where, name)
            if not path.is_symlink() and not any(path.iterdir()):
                shutil.rmtree(path)
