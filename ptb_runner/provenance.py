"""What a result was made with, and whether it can be compared with the benchmark's own results."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

import yaml

from ptb_runner.cell import Cell, read_json
from ptb_runner.config import options
from ptb_runner.paths import CONF, PACKAGE


def provenance(cell: Cell, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Versions, the code's commit, the task's checksum, the overrides, and limits that are not the benchmark's own."""
    why = deviations(cell)
    return {
        "versions": {name: _version(name) for name in ("ptb-runner", "harbor", "modal")} | {"python": _python()},
        "git": git_state(),
        "task_sha256": cell.identity["task_sha256"],
        "task_checksum": next((trial["task_checksum"] for trial in trials if trial["task_checksum"]), None),
        "overrides": cell.overrides,
        "agent_version": next((trial["agent_version"] for trial in trials if trial["agent_version"]), None),
        "observed_gpu": None,
        "comparable": not why,
        "not_comparable_because": why,
    }


def deviations(cell: Cell) -> list[str]:
    """Limits that differ from the benchmark's own, a line each."""
    found = []
    own, used = cell.config.benchmark.agent_hours, cell.config.agent.timeout_hours
    if used is not None and used != own:
        found.append(
            f"the agent had {used:g} h, the benchmark's own limit is {own if own is not None else 'the task'} h"
        )
    if cell.config.benchmark.evaluation.limit != -1:
        found.append(f"scored on {cell.config.benchmark.evaluation.limit} items only")
    changed = [
        text for text in cell.overrides if text.lstrip("+").startswith("benchmark.") and "benchmark.path" not in text
    ]
    found += [f"the benchmark was changed: {text}" for text in changed if "evaluation.limit" not in text]
    return found + [text for key, text in _changed_in_files(cell) if not any(key in one for one in changed)]


def _changed_in_files(cell: Cell) -> Iterator[tuple[str, str]]:
    """Options of a benchmark of ours that a file of the user's changes (an experiment's): no override tells that."""
    path = next((path for path in CONF.glob("benchmark/*.yaml") if path.stem == cell.config.benchmark.id), None)
    own = yaml.safe_load(path.read_text()) if path else None
    if own is None or {entry for entry in own.get("defaults", []) if isinstance(entry, str)} - {"_self_"}:
        return  # not ours, or one that takes values from another file
    for item in options():
        group, *names = item.key.split(".")
        if group == "benchmark" and item.result and item.key != "benchmark.evaluation.limit":
            ours, used = _at(own, names, item.default), _at(dataclasses.asdict(cell.config.benchmark), names, None)
            if _plain(used) != _plain(ours):
                yield item.key, f"the benchmark was changed: {item.key} is {_plain(used)}, its own is {_plain(ours)}"


def _at(table: Any, names: list[str], default: Any) -> Any:
    for name in names:
        if not isinstance(table, dict) or name not in table:
            return default
        table = table[name]
    return table


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else value


def git_state() -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout that this program runs from, or was copied from; None when installed."""
    if not (PACKAGE.parent / ".git").exists():
        return read_json(PACKAGE.parent / "git.json")  # left by launch/frozen.py
    commit = _git("rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(_git("status", "--porcelain"))} if commit else None


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(PACKAGE.parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> str:
    return ".".join(str(part) for part in sys.version_info[:3])
