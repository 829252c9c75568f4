"""Promise 1: a trial that never started, or broke off, has no reward; it is not a 0 that passes a gate."""

import pytest

from tests.run_kit import QUICK, agent, only_cell


@pytest.mark.parametrize(
    "chosen",
    [
        agent("CannotBeMade", attempts=[1]),
        agent("Raises", error="ValueError"),
        agent("FailsFirst", counter="counter", times=99),
    ],
    ids=["constructor", "run", "setup"],
)
def test_an_error_and_no_reward(ptb, chosen):
    ran = ptb(*QUICK, *chosen, "retry.infra_errors=0")
    assert ran.code == 1
    assert "coverage 0/1 trials scored" in ran.out
    assert "raw null, final null" in ran.out
    result = only_cell().result
    assert [(trial["outcome"], trial["reward"]) for trial in result["trials"]] == [("infra_error", None)]
    score = {"raw": None, "final": None, "final_source": None, "n_expected": 1, "n_scored": 0}
    assert result["score"] == score | {"awaits_review": 0}


def test_an_infrastructure_error_is_not_the_base_models_score_either(ptb):
    """The policy for agents that leave no model is not one for agents that never ran."""
    ran = ptb("benchmark=addition", *agent("CannotBeMade", attempts=[1]), "retry.infra_errors=0")
    assert ran.code == 1
    assert only_cell().result["score"]["final"] is None
