"""What a result was made with, and whether it can be compared with the benchmark's own results."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ptb_runner import parity
from ptb_runner.budget import agent_hours, item_limit
from ptb_runner.cell import Cell, read_json
from ptb_runner.config import BenchmarkConfig, options
from ptb_runner.explain import find
from ptb_runner.paths import CONF, PACKAGE
from ptb_runner.sandbox import gpus


def provenance(cell: Cell, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Versions, the code's commit, the task's checksum, the overrides, and limits that are not the benchmark's own."""
    trial_dirs = [cell.folder / trial["trial_dir"] for trial in trials]
    own = cell.config.benchmark
    why = [*deviations(cell), *gpus.mismatches(trial_dirs, own.gpu_types, own.gpus)]
    return {
        "versions": {name: _version(name) for name in ("ptb-runner", "harbor", "modal")} | {"python": _python()},
        "git": git_state(),
        "task_sha256": cell.identity["task_sha256"],
        "task_checksum": next((trial["task_checksum"] for trial in trials if trial["task_checksum"]), None),
        "overrides": cell.overrides,
        "agent_version": next((trial["agent_version"] for trial in trials if trial["agent_version"]), None),
        "observed_gpu": gpus.summary(trial_dirs),
        "served": read_json(cell.folder / "serve.json"),
        "parity": cell.config.parity.id,
        "comparable": not why,
        "not_comparable_because": why,
    }


def deviations(cell: Cell) -> list[str]:
    """Limits and settings that differ from the benchmark's own, or from the reference of `parity`, a line each."""
    config = cell.config
    reference = {key for key, _ in parity.settings(config)}
    found = list(parity.deviations(config))
    own, used = config.benchmark.agent_hours, agent_hours(config)
    if used != own and "budget.hours" not in reference:
        limit = f"{own:g}" if own is not None else "the task's"
        found.append(f"the agent had {used:g} h, the benchmark's own limit is {limit} h")
    if item_limit(config) != -1 and "budget.limit" not in reference:
        found.append(f"scored on {item_limit(config)} items only")
    settled = reference | {"benchmark.path", "benchmark.evaluation.limit"}
    settled |= {"benchmark.dataset"} if config.benchmark.id == "dataset" else set()
    changed = {
        key: text
        for text in cell.overrides
        if (key := text.partition("=")[0].lstrip("+~")).startswith("benchmark.")
        and key not in settled
        and ((item := find(key)) is None or item.result)
    }
    found += [f"the benchmark was changed: {text}" for text in changed.values()]
    return found + [
        text
        for key, text in _changed_in_files(cell)
        if key not in settled and not any(key == one or key.startswith(f"{one}.") for one in changed)
    ]


def _changed_in_files(cell: Cell) -> Iterator[tuple[str, str]]:
    """Options of a benchmark of ours that a file of the user's changes (an experiment's): no override tells that."""
    path = next((path for path in CONF.glob("benchmark/*.yaml") if path.stem == cell.config.benchmark.id), None)
    if path is None:
        return
    own, used = _typed(_with_defaults(path)), parity.plain(cell.config.benchmark)
    for item in options():
        group, *names = item.key.split(".")
        if group == "benchmark" and item.result and (ours := _at(own, names)) != (theirs := _at(used, names)):
            yield item.key, f"the benchmark was changed: {item.key} is {theirs}, its own is {ours}"


def _with_defaults(path: Path) -> DictConfig:
    """A file of ours, laid over those that it takes values from."""
    own: Any = OmegaConf.load(path)
    names = [entry for entry in own.pop("defaults", []) if isinstance(entry, str) and entry != "_self_"]
    below = [_with_defaults(path.parent / f"{name}.yaml") for name in names]
    return OmegaConf.merge(*below, own)  # type: ignore[return-value]


def _typed(own: DictConfig) -> dict[str, Any]:
    """With the schema's defaults, as plain data."""
    return parity.plain(OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(BenchmarkConfig), own)))


def _at(table: Any, names: list[str]) -> Any:
    for name in names:
        table = table[name]
    return table


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
