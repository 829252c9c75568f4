"""Keeps the values of secrets out of every file of a cell and off the terminal.

cell.yaml names its secrets (`agent.env_vars`, `benchmark.verifier_env_vars`, `${oc.env:NAME}`), it does not hold them.
But an agent may print its key, an exception may quote it, and Harbor writes down the arguments that it was given:
whatever a run writes has each value replaced by `${NAME}`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import mmap
import os
import re
import stat
from pathlib import Path
from typing import Literal, override

import yaml

from ptb_runner import keys
from ptb_runner.cell import Cell
from ptb_runner.config import ENV_REFERENCE

log = logging.getLogger(__name__)

# A shorter value (a flag, a port) is no secret, and to replace it everywhere would only do harm.
MIN_LENGTH = 6
_FILLER = b"*"
_NAME_MAX = 255  # bytes, on all usual file systems


class Redactor:
    """Replaces the values of some variables, given as name -> value, wherever it is asked to."""

    def __init__(self, secrets: dict[str, str]) -> None:
        self._names: dict[str, str] = {}
        self.learn(secrets)

    def learn(self, secrets: dict[str, str]) -> None:
        """Replace these, too: a login may be renewed while it is used."""
        for name, value in ((name, value.strip()) for name, value in secrets.items()):
            if len(value) >= MIN_LENGTH:
                for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
                    self._names.setdefault(form, f"${{{name}}}")
        longest_first = sorted(self._names, key=len, reverse=True)  # of two secrets, one may begin with the other
        self._forms = [form.encode(errors="surrogateescape") for form in longest_first]
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        return self._pattern.sub(lambda found: self._names[found.group()], text) if self._pattern else text

    def filled(self, content: bytes) -> bytes:
        """Binary content with the places of secrets filled, so that nothing in it moves."""
        for form in self._forms:
            content = content.replace(form, _FILLER * len(form))
        return content

    def folder(self, folder: Path) -> None:
        """Take secrets out of all below `folder`: files' content, names, and where links point; none is followed."""
        if not self._pattern:
            return
        for path in reversed(_below(folder)):  # a folder's name changes after those of what is in it
            try:
                if path.is_symlink():
                    self._link(path)
                elif path.is_file():
                    self.file(path)
                self._rename(path)
            except OSError as error:  # another user's, say: the others are looked at all the same
                log.warning("not searched for secrets: %s: %s", path, error)

    def file(self, path: Path) -> None:
        """Rewrite a file that holds a secret."""
        _open_up(path, 0o400)
        kind = self._found_in(path)
        if kind:
            _open_up(path, 0o600)
        if kind == "binary":
            self.overwrite(path)
        elif kind == "text":
            content = path.read_bytes().decode(errors="surrogateescape")
            path.write_bytes(self.text(content).encode(errors="surrogateescape"))

    def _found_in(self, path: Path) -> Literal["text", "binary"] | None:
        """What kind of file it is if it holds a secret; looked for without reading gigabytes into memory."""
        if path.stat().st_size == 0:
            return None
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if all(content.find(form) < 0 for form in self._forms):
                return None
            return "binary" if content.find(b"\0") >= 0 else "text"

    def overwrite(self, path: Path) -> None:
        """Fill the places of secrets in a file, so that nothing in it moves: for databases, and logs still open."""
        if not self._pattern or path.stat().st_size == 0:
            return
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            for form in self._forms:
                found = -1
                while (found := content.find(form, found + 1)) >= 0:
                    content[found : found + len(form)] = _FILLER * len(form)

    def _link(self, path: Path) -> None:
        target = os.readlink(path)
        if (clean := self.text(target)) != target:
            path.unlink()
            path.symlink_to(clean)

    def _rename(self, path: Path) -> None:
        clean = self.text(path.name)
        if clean == path.name:
            return
        # The new name may be another's, or longer than names can be.
        names = itertools.chain([clean], (f"redacted-{number}" for number in itertools.count(1)))
        fits = (name for name in names if len(os.fsencode(name)) <= _NAME_MAX)
        path.rename(next(new for name in fits if not os.path.lexists(new := path.with_name(name))))

    def log_files(self) -> None:
        """From now on, keep secrets out of the files that the root logger writes to."""
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.FileHandler):
                inner = handler.formatter
                inner = inner.inner if isinstance(inner, _Formatter) else inner or logging.Formatter()
                handler.setFormatter(_Formatter(inner, self))


def _below(folder: Path) -> list[Path]:
    """All that is below a folder, each after the folder it is in; what cannot be entered is opened up first."""
    found: list[Path] = []
    _open_up(folder, 0o700)
    for parent, folders, files in os.walk(folder):
        inside = [Path(parent, name) for name in (*folders, *files)]
        for path in inside[: len(folders)]:
            _open_up(path, 0o700)
        found += inside
    return found


def _open_up(path: Path, wanted: int) -> None:
    """Give the owner, us, these rights to a file or folder if they lack: an agent may have taken them away."""
    with contextlib.suppress(OSError):  # not ours: what follows says so if it matters
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & wanted != wanted:
            path.chmod(stat.S_IMODE(mode) | wanted)


class _Formatter(logging.Formatter):
    def __init__(self, inner: logging.Formatter, redactor: Redactor) -> None:
        super().__init__()
        self.inner, self.redactor = inner, redactor

    @override
    def format(self, record: logging.LogRecord) -> str:
        return self.redactor.text(self.inner.format(record))


def redactor(cell: Cell) -> Redactor:
    """The one for a cell: what its agent, verifier and judges are given from the host's environment."""
    written = yaml.load((cell.folder / "cell.yaml").read_text(), yaml.CSafeLoader)["config"]
    names = ENV_REFERENCE.findall(json.dumps([written["agent"], written["benchmark"], written.get("serve")]))
    return Redactor({name: os.environ[name] for name in names if name in os.environ} | keys.secrets(cell.config))
