"""Parity verdicts: settings, prompts and equivalence all have to be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.results.collect_kit import Made, make_sweep

BASE = np.linspace(0.2, 0.6, 12)
NOISE = np.array([1, -1, 2, -2, 0.5, -0.5, 1.5, -1.5, 0.2, -0.2, 0.8, -0.8]) / 200


def runs(folder: Path, values: Any, prompt: str = "Train it.\nGood luck.\n", **parity: Any) -> Path:
    """A sweep whose cells hold prompts and, as the runner writes it, parity.json."""
    made = [Made(trials=[float(value)], benchmark=f"b{at:02d}") for at, value in enumerate(values)]
    make_sweep(folder, *made)
    for number in range(len(made)):
        (folder / str(number) / "task").mkdir()
        (folder / str(number) / "task" / "instruction.md").write_text(prompt)
        used = parity.get("used", 10)
        settings = [{"setting": "budget.hours", "reference": 10, "used": used, "equal": used == 10}]
        report = {"reference": "lab", "title": "Our lab", "margin": 0.02, "settings": settings} | parity
        if parity.get("reference", "lab"):
            (folder / str(number) / "parity.json").write_text(json.dumps(report))
    return folder


@pytest.mark.parametrize(
    ("shift", "options", "verdict"),
    [
        (0.0, {}, "parity is shown: equal settings and prompts, scores equivalent within ±0.02"),
        (
            0.0,
            {"margin": 0.001},
            "parity is not shown: scores: no difference shown, equivalence within ±0.001 is not shown",
        ),
        (0.05, {}, "no parity: a difference of scores is shown (better)"),
        (0.0, {"used": 5}, "no parity: 1 settings are not the reference's"),
        (0.0, {"prompt": "Train it.\nGood grief.\n"}, "no parity: the prompts differ (b00 x nano, b01 x nano,"),
    ],
)
def test_the_verdict(ptb, tmp_path, shift, options, verdict):
    a, b = runs(tmp_path / "a", BASE), runs(tmp_path / "b", BASE + NOISE + shift, **options)
    ran = ptb("compare", a, b, "--parity")
    assert ran.code == 0, ran.err
    assert verdict in ran.out
    assert ("parity is shown" in ran.out) == (not options and not shift)
    found = json.loads(ptb("compare", a, b, "--parity", "--json").out)["comparisons"][0]
    assert found["parity"]["verdict"].startswith(verdict)
    assert found["parity"]["table"]["settings"][0]["setting"] == "budget.hours"
    assert found["margin"] == options.get("margin", 0.02)


def test_few_runs_are_never_called_parity(ptb, tmp_path):
    a, b = runs(tmp_path / "a", BASE[:3]), runs(tmp_path / "b", BASE[:3])
    ran = ptb("compare", a, b, "--parity")
    assert "parity is not shown: scores: inconclusive, equivalence within ±0.02 is not shown" in ran.out


def test_cells_without_a_reference_show_no_parity(ptb, tmp_path):
    a, b = runs(tmp_path / "a", BASE), runs(tmp_path / "b", BASE + NOISE, reference=None)
    refused = ptb("compare", a, b, "--parity")
    assert (refused.code, "no margin is stated" in refused.err, "--margin 0.02" in refused.err) == (2, True, True)
    ran = ptb("compare", a, b, "--parity", "--margin", "0.02")
    assert "parity is not shown: cell 0, cell 1" in ran.out


def test_the_prompts_difference_in_bytes(ptb, tmp_path):
    a = runs(tmp_path / "a", BASE[:1])
    b = runs(tmp_path / "b", BASE[:1], prompt="Train it.\nGood luck!!\nAnd more.\n")
    ran = ptb("compare", a, b, "--parity")
    assert "prompt of b00 x nano: 11 bytes differ (21 and 32)" in ran.out
    assert "    -Good luck.\n    +Good luck!!\n    +And more.\n" in ran.out


def test_a_gate_can_ask_for_parity(ptb, tmp_path):
    a = runs(tmp_path / "a", BASE)
    policy = tmp_path / "policy.yaml"
    policy.write_text("require_parity: true\n")
    same, other = runs(tmp_path / "b", BASE + NOISE), runs(tmp_path / "c", BASE + NOISE, used=5)
    assert ptb("compare", a, same, "--gate", policy).code == 0
    ran = ptb("compare", a, other, "--gate", policy)
    assert (ran.code, "gate: FAILED" in ran.out) == (1, True)


def test_what_a_real_cell_says_of_its_reference(ptb, tmp_path):
    """The runner's own parity.json, with the reference's margin."""
    conf = tmp_path / "cwd" / "conf" / "parity"
    conf.mkdir(parents=True)
    reference = "reference:\n    budget: &budget {hours: 2}\n"
    (conf / "lab.yaml").write_text(
        f"# @package _global_\n# Ours.\nparity:\n  id: lab\n  margin: 0.1\n  {reference}budget: *budget\n"
    )
    base = ["--config-dir", "conf", "+parity=lab", "benchmark=hello", "dry_run=true"]
    for name, more in (("a", []), ("b", ["budget.hours=1"])):
        assert ptb(*base, *more, f"hydra.run.dir={name}").code == 0
    found = json.loads(ptb("compare", "a", "b", "--parity", "--json").out)["comparisons"][0]
    (setting,) = found["parity"]["table"]["settings"]
    assert setting == {"setting": "budget.hours", "reference": 2, "used": 1.0, "equal": False, "cells": [0]}
    assert (found["margin"], found["verdict"]) == (0.1, "inconclusive")
    assert {one["key"] for one in found["settings"]["differ"]} >= {"budget.hours"}
