"""Keeps the values of secrets out of every file of a cell and off the terminal.

cell.yaml names its secrets (`agent.env_vars`, `benchmark.verifier_env_vars`, `${oc.env:NAME}`), it does not hold them.
But an agent may print its key, an exception may quote it, and Harbor writes down the arguments that it was given:
whatever a run writes has each value replaced by `${NAME}`.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import re
from pathlib import Path
from typing import override

import yaml

from ptb_runner.cell import Cell

# A shorter value (a flag, a port) is no secret, and to replace it everywhere would only do harm.
MIN_LENGTH = 6
_REFERENCE = re.compile(r"\$\{\s*oc\.env\s*:\s*([^},\s]+)")
_BINARY_SAMPLE = 8192


class Redactor:
    """Replaces the values of some variables, given as name -> value, wherever it is asked to."""

    def __init__(self, secrets: dict[str, str]) -> None:
        self._names: dict[str, str] = {}
        for name, value in ((name, value.strip()) for name, value in secrets.items()):
            if len(value) >= MIN_LENGTH:
                for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
                    self._names.setdefault(form, f"${{{name}}}")
        longest_first = sorted(self._names, key=len, reverse=True)  # of two secrets, one may begin with the other
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        return self._pattern.sub(lambda found: self._names[found.group()], text) if self._pattern else text

    def folder(self, folder: Path) -> None:
        """Rewrite, in place, every text file below `folder` that holds a secret; links are not followed."""
        if not self._pattern:
            return
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                if path.is_file() and not path.is_symlink() and self._is_in(path):
                    content = path.read_bytes().decode(errors="surrogateescape")
                    path.chmod(path.stat().st_mode | 0o600)
                    path.write_bytes(self.text(content).encode(errors="surrogateescape"))

    def _is_in(self, path: Path) -> bool:
        """Whether a text file holds a secret; looked for without reading gigabytes into memory."""
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"\0", 0, _BINARY_SAMPLE) >= 0:
                    return False
                return any(content.find(form.encode()) >= 0 for form in self._names)
        except (OSError, ValueError):  # not readable, or empty
            return False

    def log_files(self) -> None:
        """From now on, keep secrets out of the files that the root logger writes to."""
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.FileHandler):
                inner = handler.formatter
                inner = inner.inner if isinstance(inner, _Formatter) else inner or logging.Formatter()
                handler.setFormatter(_Formatter(inner, self))


class _Formatter(logging.Formatter):
    def __init__(self, inner: logging.Formatter, redactor: Redactor) -> None:
        super().__init__()
        self.inner, self.redactor = inner, redactor

    @override
    def format(self, record: logging.LogRecord) -> str:
        return self.redactor.text(self.inner.format(record))


def redactor(cell: Cell) -> Redactor:
    """The one for a cell: what its agent and its verifier are given from the host's environment."""
    written = yaml.load((cell.folder / "cell.yaml").read_text(), yaml.CSafeLoader)["config"]
    names = _REFERENCE.findall(json.dumps({"agent": written["agent"], "benchmark": written["benchmark"]}))
    benchmark = cell.config.benchmark
    names += [*cell.config.agent.env_vars, *benchmark.env_vars, *benchmark.verifier_env_vars]
    return Redactor({name: os.environ[name] for name in names if name in os.environ})
