"""The gate: what passes, what fails, that nothing passes by absence, and what a wrong policy file is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml

from ptb_runner.results.gate import read_policy
from tests.results.collect_kit import Made, make_sweep

BASE = np.linspace(0.3, 0.6, 10)
NOISE = np.array([1, -1, 2, -2, 0.5, -0.5, 1.5, -1.5, 0.2, -0.2]) / 100


def gated(ptb, tmp_path: Path, b: Sequence[float | str], tier: dict, a: Sequence[float] | None = None, **policy):
    """What `ptb compare A B --gate` comes to: its exit code, and each check with whether it passed."""
    folders = [
        make_sweep(tmp_path / name, *(Made(trials=[value], benchmark=f"b{at}") for at, value in enumerate(values)))
        for name, values in (("a", [float(x) for x in BASE] if a is None else a), ("b", b))
    ]
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump({"tiers": [{"name": "core", **tier}], **policy}))
    ran = ptb("compare", *folders, "--gate", path, "--json")
    checks = json.loads(ran.out)["comparisons"][0]["checks"]
    return ran.code, {one["what"].removeprefix("tier core: "): one["passed"] for one in checks}


def moved(shift: float) -> list[float | str]:
    return [float(x) for x in BASE + NOISE + shift]


@pytest.mark.parametrize(
    ("shift", "proof", "code"),
    [
        (0.0, "noninferior", 0),  # a drop of 0.02 is ruled out
        (-0.015, "noninferior", 1),  # it is not ruled out any more
        (-0.015, "not_worse", 0),  # nor is it shown
        (-0.015, "estimate", 0),
        (-0.025, "estimate", 1),
        (-0.025, "not_worse", 0),
        (-0.04, "not_worse", 1),
    ],
)
def test_an_allowed_drop(ptb, tmp_path, shift, proof, code):
    found, checks = gated(ptb, tmp_path, moved(shift), {"allowed_drop": 0.02, "proof": proof})
    assert found == code
    assert checks == {"coverage 1 or more": True, f"drop 0.02 or less ({proof})": code == 0}


def test_nothing_passes_by_absence(ptb, tmp_path):
    lost = [*moved(0.1)[:-1], "infra_error"]
    assert gated(ptb, tmp_path / "1", lost, {"allowed_drop": 0.5, "proof": "estimate"})[0] == 1
    tolerant = {"allowed_drop": 0.5, "proof": "estimate", "min_coverage": 0.9}
    assert gated(ptb, tmp_path / "2", lost, tolerant)[0] == 0
    never_ran: list[float | str] = ["infra_error"] * 10
    code, checks = gated(
        ptb, tmp_path / "3", never_ran, {"allowed_drop": 1.0, "proof": "not_worse", "min_coverage": 0.0}
    )
    assert code == 1
    assert not any(checks.values())
    assert gated(ptb, tmp_path / "4", moved(0.1), {"allowed_losses": 0, "benchmarks": ["c*"]})[0] == 1


def test_points_of_100_are_refused(ptb, tmp_path):
    """A drop of 2 would allow anything."""
    folders = [make_sweep(tmp_path / name, Made(trials=[1.0] * 8)) for name in ("a", "b")]
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump({"tiers": [{"name": "core", "allowed_drop": 2}]}))
    ran = ptb("compare", *folders, "--gate", path)
    assert (ran.code, "tier core: allowed_drop 2: scores" in ran.err, "are 0.02" in ran.err) == (2, True, True), ran.err
    ran = ptb("compare", *folders, "--margin", "2")
    assert (ran.code, "margin 2: scores" in ran.err) == (2, True), ran.out
    large = make_sweep(tmp_path / "c", Made(trials=[30.0] * 8))  # rewards may be on a scale of their own
    assert ptb("compare", folders[0], large, "--gate", path).code == 0


def test_losses_are_counted_in_the_tier_alone(ptb, tmp_path):
    a, b = [1.0, 1.0, 1.0], [1.0, 0.0, 0.5]
    assert gated(ptb, tmp_path / "1", b, {"allowed_losses": 1}, a)[0] == 1
    assert gated(ptb, tmp_path / "2", b, {"allowed_losses": 2}, a)[0] == 0
    assert gated(ptb, tmp_path / "3", b, {"allowed_losses": 1, "benchmarks": ["b1"]}, a)[0] == 0


def test_settings_that_must_be_the_same(ptb, tmp_path):
    folders = [
        make_sweep(tmp_path / name, Made(trials=[1.0], identity={"pins.packages.vllm": version, "budget.hours": 1.0}))
        for name, version in (("a", "1"), ("b", "2"))
    ]
    path = tmp_path / "policy.yaml"
    for pattern, code in (("pins.*", 1), ("budget.hour", 1), ("budget.*", 0)):
        path.write_text(yaml.safe_dump({"same_settings": [pattern]}))
        ran = ptb("compare", *folders, "--gate", path)
        assert ran.code == code, ran.out
        assert ("did you mean budget.hours?" in ran.out) is (pattern == "budget.hour")
    assert "gate passed: same settings: budget.*: alike" in ran.out
    bare = shutil.copytree(folders[1], tmp_path / "c")
    next(bare.glob("*/cell.yaml")).write_text("identity: {}\n")  # as of a Harbor job that ptb_runner did not make
    ran = ptb("compare", folders[0], bare, "--gate", path)
    assert (ran.code, "not known of" in ran.out) == (1, True), ran.out + ran.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "tiers: [{name: x, alowed_drop: 0.1}]",
            ["tiers.0.alowed_drop: there is no such key", "did you mean allowed_drop?", "min_coverage"],
        ),
        ("teirs: []", ["teirs: there is no such key", "did you mean tiers?", "require_parity"]),
        ("tiers: [{name: x}]", ["tiers.0: needs allowed_drop, allowed_losses, or both"]),
        ("tiers: [{name: x, allowed_drop: -1}]", ["tiers.0.allowed_drop: ", "greater than or equal to 0"]),
        ("tiers: [{name: x, allowed_drop: 1, proof: yes}]", ["tiers.0.proof: ", "'noninferior'"]),
        ("{}", ["the policy: asks for nothing"]),
        ("- 1", ["the policy: must be a table", "docs/compare.md"]),
        ("tiers: hello", ["tiers: must be a list"]),
        ("tiers: [{allowed_losses: 1}]", ["tiers.0.name: must be there"]),
        ("a: [", ["not valid YAML"]),
    ],
)
def test_a_wrong_policy_is_refused(ptb, tmp_path, text, told):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    ran = ptb("compare", "a", "b", "--gate", path)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert [one for one in [str(path), *told] if one not in ran.err] == [], ran.err


def test_a_policy_that_is_not_there(ptb, tmp_path):
    ran = ptb("compare", "a", "b", "--gate", tmp_path / "none.yaml")
    assert (ran.code, "No such file" in ran.err) == (2, True)


def test_the_policy_that_the_page_shows(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    path = tmp_path / "policy.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert [tier.name for tier in read_policy(path).tiers] == ["core", "smoke"]
