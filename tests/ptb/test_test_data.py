"""`ptb cache test-data`, and tasks that hold what it downloaded."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ptb_runner.doctor import compose
from ptb_runner.render import render

QUESTION = "how many sums of two numbers below a hundred does it take to fill this line with words"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PTB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def asked(monkeypatch) -> list[tuple[Any, ...]]:
    """A `datasets` library with two rows that fit every benchmark; what it was asked for."""
    calls: list[tuple[Any, ...]] = []
    row = {name: f"a {name}" for name in ("question", "answer", "prompt", "canonical_solution", "problem")}
    row["question"] = QUESTION
    row |= {"Question": "Q", "Correct Answer": "A"}
    listed: dict[str, Any] = {"ground_truth": ["f(x=1)"], "rubrics": [{"points": 1}]}

    def load_dataset(*arguments: Any, **named: Any) -> list[dict[str, Any]]:
        calls.append((*arguments, named))
        return [row | listed, row | listed]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


@pytest.mark.parametrize(
    "benchmark",
    ["aime2025", "aime2026", "arenahardwriting", "bfcl", "gpqamain", "gsm8k", "healthbench", "humaneval"],
)
def test_every_benchmark_names_its_items(ptb, asked, cache, benchmark):
    ran = ptb("cache", "test-data", f"benchmark={benchmark}")
    assert ran.code == 0, ran.err
    assert "wrote 2 items" in ran.out
    items = json.loads((cache / "test_data" / f"{benchmark}.json").read_text())
    assert [set(item) for item in items] == [{"question", "answer"}] * 2
    assert all(isinstance(value, str) for item in items for value in item.values())
    assert len(asked) == 1


def test_gsm8k_is_its_test_split(ptb, asked):
    assert ptb("cache", "test-data", "benchmark=gsm8k").code == 0
    assert asked == [("openai/gsm8k", "main", {"split": "test"})]


def refused(ran, *words: str) -> None:
    assert ran.code == 2
    for text in words:
        assert text in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_what_cannot_be_downloaded_is_told_in_two_lines(ptb, monkeypatch, cache):
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(ptb("cache", "test-data", "benchmark=gsm8k"), "`datasets` library is not installed", "uv run --with")
    module = types.ModuleType("datasets")

    def offline(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach the hub\nand more")

    module.load_dataset = offline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    refused(ptb("cache", "test-data", "benchmark=gsm8k"), "Couldn't reach the hub", "online?")
    module.load_dataset = lambda *_, **__: [{"other": 1}]  # type: ignore[attr-defined]
    refused(ptb("cache", "test-data", "benchmark=gsm8k"), "no field 'question'")
    refused(ptb("cache", "test-data", "benchmark=hello"), "names no test data")
    refused(ptb("cache", "data"), "test-data")
    assert not cache.exists()


def test_without_items_the_plan_says_so(ptb):
    ran = ptb("benchmark=gsm8k", "dry_run=true", "hydra.run.dir=run")
    assert "ptb cache test-data benchmark=gsm8k" in ran.out
    assert not list(Path("run/task").rglob("test_data.json"))


def test_with_items_the_task_holds_them_above_the_workspace(ptb, asked, tmp_path):
    assert ptb("cache", "test-data", "benchmark=gsm8k").code == 0
    task = tmp_path / "task"
    render(compose(["benchmark=gsm8k"]), task)
    assert json.loads((task / "environment" / "test_data.json").read_text())[0]["question"] == QUESTION
    assert not (task / "tests" / "test_data.json").exists()
    text = (task / "instruction.md").read_text()
    assert "../test_data.json" in text
    assert "../contamination_check.py" in text
    train = tmp_path / "train.txt"
    train.write_text(f"well, {QUESTION}?\n")
    checker = task / "environment" / "contamination_check.py"
    done = subprocess.run([sys.executable, "-I", checker, train], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr  # it reads what was downloaded
    assert "RUN mv contamination_check.py test_data.json .." in (task / "environment/Dockerfile").read_text()
    ran = ptb("benchmark=gsm8k", "dry_run=true", "hydra.run.dir=run")
    assert "ptb cache test-data" not in ran.out
