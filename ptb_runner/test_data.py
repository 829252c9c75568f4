"""A benchmark's test items, downloaded once: agents check their training data against them, judges too.

The items are kept in the user's cache as `test_data/<benchmark>.json`, a list of {"question", "answer"}. A task that
is rendered while they are there holds them, with a checker, in the folder above the workspace.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptb_runner.config import Config, HeldOutConfig, Kind
from ptb_runner.explain import UsageError
from ptb_runner.paths import TEMPLATES, cache

NAME = "test_data.json"
CHECKER = TEMPLATES / "decontamination" / "environment" / "contamination_check.py"


def file(benchmark: str) -> Path:
    """Where a benchmark's test items are, once downloaded."""
    return cache() / "test_data" / f"{benchmark}.json"


def wanted(config: Config) -> bool:
    """Whether the benchmark has test items that an agent is to be given."""
    return config.benchmark.kind is Kind.post_train and config.benchmark.test_data.source is not None


def given(config: Config) -> bool:
    """Whether a task that is rendered now holds them."""
    return wanted(config) and CHECKER.is_file() and file(config.benchmark.id).is_file()


def give(config: Config, task: Path) -> None:
    """Put the test items into a task's environment, if they are there."""
    if given(config):
        shutil.copyfile(file(config.benchmark.id), task / "environment" / NAME)
        (task / "environment" / NAME).chmod(0o644)


def download(config: Config) -> tuple[Path, int]:
    """Fetch a benchmark's test items with the `datasets` library; the file, and how many there are.

    Raises UsageError when the benchmark names none, the library is missing, or the download fails.
    """
    benchmark = config.benchmark
    if not wanted(config):
        raise UsageError(
            f"benchmark={benchmark.id}: names no test data to download\n  benchmark.test_data.source names a data set"
        )
    items = _items(benchmark.id, benchmark.test_data)
    target = file(benchmark.id)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(items, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    temporary.replace(target)
    return target, len(items)


def _items(benchmark: str, held: HeldOutConfig) -> list[dict[str, str]]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise UsageError(
            "the `datasets` library is not installed, and is needed for this alone\n"
            f"  uv run --with datasets ptb cache test-data benchmark={benchmark}"
        ) from None
    try:
        items = [_item(row, held) for part in _parts(datasets, held) for row in part]
    except KeyError as error:
        raise UsageError(f"{held.source}: its items have no field {error}\n  benchmark.test_data names them") from None
    except Exception as error:  # the library raises dozens of kinds: offline, gated, not there ...
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(
            f"{held.source}: cannot be downloaded: {reason}\n  is the machine online? gated data needs HF_TOKEN"
        ) from error
    if not items:
        raise UsageError(f"{held.source}: has no items in split {held.split}")
    return items


def _parts(datasets: Any, held: HeldOutConfig) -> Iterator[Any]:
    """The data set; where there are files, one after another, for they need not have the same fields."""
    if not held.files:
        yield datasets.load_dataset(held.source, held.name, split=held.split)
    for path in held.files:
        yield datasets.load_dataset(held.source, data_files=[path], split="train")


def _item(row: dict[str, Any], held: HeldOutConfig) -> dict[str, str]:
    return {"question": _text(row[held.question]), "answer": _text(row[held.answer]) if held.answer else ""}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
