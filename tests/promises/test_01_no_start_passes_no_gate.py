"""Trials that never started are no zeros, and pass no gate."""

from __future__ import annotations

from pathlib import Path

from tests.results.collect_kit import Made, make_sweep


def test_trials_that_never_started_pass_no_gate(ptb, tmp_path):
    before = make_sweep(tmp_path / "before", Made(trials=[0.0] * 8))
    after = make_sweep(tmp_path / "after", Made(trials=["infra_error"] * 8))
    policy = Path("policy.yaml")
    policy.write_text("tiers: [{name: all, allowed_drop: 1.0, proof: estimate, allowed_losses: 8, min_coverage: 0}]\n")
    ran = ptb("compare", before, after, "--gate", policy)
    assert ran.code == 1, ran.out
    assert "inconclusive\n  no trial has a value on both sides" in ran.out
    assert "coverage: 0/8 pairs; 0 lack A, 8 lack B, 0 lack both" in ran.out
    assert "gate: FAILED" in ran.out
