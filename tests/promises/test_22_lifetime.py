"""Promise 22: a sandbox lives at least as long as its phases may take; what cannot fit is refused at the plan."""

from __future__ import annotations

from ptb_runner.backend import modal
from ptb_runner.doctor import compose
from ptb_runner.render import render
from tests.modal_kit import BY_VARIABLES


def test_what_outlives_a_sandbox_is_refused_at_plan_time(ptb, monkeypatch):
    for name, value in BY_VARIABLES.items():
        monkeypatch.setenv(name, value)
    long = ("benchmark=addition", "model=nano", "agent=oracle", "backend=modal", "budget.hours=30")
    for more in ([], ["dry_run=true"]):
        ran = ptb(*long, *more)
        assert ran.code != 0
        assert "Modal ends a sandbox after 24 h" in ran.out + ran.err


def test_the_lifetime_is_at_least_the_sum_of_the_phases(tmp_path):
    config = compose(["benchmark=gsm8k", "agent=oracle", "backend=modal", "benchmark.verifier_hours=2"])
    render(config, tmp_path / "task")
    environment = modal.environment(config, tmp_path / "task")
    assert environment["kwargs"]["sandbox_timeout_secs"] >= (10 + 2) * 3600
    assert modal.unsupported(tmp_path / "task", config) == []
