"""Outcomes and scores: what is made of Harbor's results and our verifier's verdicts."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from harbor.models.agent.context import AgentContext
from harbor.models.task.id import LocalTaskId
from harbor.models.trial.config import TaskConfig, TrialConfig
from harbor.models.trial.error_policy import ERROR_POLICIES
from harbor.models.trial.result import AgentInfo, ExceptionInfo, TimingInfo, TrialResult
from harbor.models.verifier.result import VerifierResult
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ptb_runner.config import BenchmarkConfig, MissingScore
from ptb_runner.outcome import SCORED, UNSCORABLE, Outcome, classify, score, trial_record, worst

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def harbor_result(
    error: str | None = None,
    rewards: dict[str, Any] | None = None,
    *,
    output_tokens: int | None = None,
    error_after_sec: float = 5,
    message: str = "what went wrong",
) -> dict[str, Any]:
    """What Harbor writes: 10 s of sandbox, 20 s of agent, 30 s of verifier, each unless the error came before."""

    def timing(begin: float, end: float) -> TimingInfo | None:
        if error and error_after_sec < begin and not (begin == 30 and rewards is not None):
            return None  # Harbor goes on to the verifier after some errors of the agent
        return TimingInfo(started_at=START + timedelta(seconds=begin), finished_at=START + timedelta(seconds=end))

    raised = error and ExceptionInfo(
        exception_type=error,
        exception_message=message,
        exception_traceback="Traceback ...",
        occurred_at=START + timedelta(seconds=error_after_sec),
    )
    result = TrialResult(
        task_name="ptb/t",
        trial_name="t__001",
        trial_uri="file:///t",
        task_id=LocalTaskId(path=Path("/t")),
        task_checksum="c0ffee",
        config=TrialConfig(task=TaskConfig(path=Path("/t"))),
        agent_info=AgentInfo(name="a", version="1.2"),
        agent_result=AgentContext(n_output_tokens=output_tokens, n_input_tokens=7, cost_usd=0.5),
        verifier_result=None if rewards is None else VerifierResult(rewards={}),
        exception_info=raised or None,
        started_at=START,
        finished_at=START + timedelta(seconds=61),
        environment_setup=timing(0, 10),
        agent_execution=timing(10, 30),
        verifier=timing(30, 60),
    )
    written = result.model_dump(mode="json")
    if rewards is not None:
        written["verifier_result"]["rewards"] = rewards  # also such as the model would refuse
    return written


harbor_result()  # the first one takes seconds, which hypothesis would blame on its strategies
RIGHT = {"reward": 0.8}
TIMED_OUT = ["agent_error:AgentTimeoutError"]


@pytest.mark.parametrize(
    ("result", "verdict", "outcome", "flags"),
    [
        (harbor_result(rewards=RIGHT), {}, "scored", []),
        (harbor_result(rewards={"reward": 0}), {}, "scored", []),
        (harbor_result(rewards={"accuracy": 0.5}), {}, "scored", []),
        (harbor_result(rewards={"a": 0.5, "b": 0.5}), {}, "eval_failed", []),
        (harbor_result(rewards={}), {}, "eval_failed", []),
        (harbor_result(rewards=None), {}, "eval_failed", []),
        (harbor_result(rewards={"reward": math.nan}), {}, "eval_failed", []),
        (harbor_result(rewards={"reward": math.inf}), {}, "eval_failed", []),
        (harbor_result(rewards={"reward": True}), {}, "eval_failed", []),
        (harbor_result(rewards={"reward": "1"}), {}, "eval_failed", []),
        # The verifier's own word
        (harbor_result(rewards=RIGHT), {"outcome": "scored"}, "scored", []),
        (harbor_result(), {"outcome": "no_model"}, "no_model", []),
        (harbor_result(), {"outcome": "invalid_model"}, "invalid_model", []),
        (harbor_result(rewards=RIGHT), {"outcome": "no_model"}, "no_model", []),
        (harbor_result(), {"outcome": "infra_error"}, "infra_error", []),
        (harbor_result("RewardFileNotFoundError", error_after_sec=50), {"outcome": "no_model"}, "no_model", []),
        (harbor_result(), {"outcome": "scored"}, "eval_failed", []),
        (harbor_result(), {"outcome": "perfect"}, "eval_failed", []),
        # The agent's time ran out
        (harbor_result("AgentTimeoutError", RIGHT, error_after_sec=30), {}, "agent_timeout", []),
        (harbor_result("AgentTimeoutError", error_after_sec=30), {"outcome": "no_model"}, "no_model", TIMED_OUT),
        (harbor_result("AgentTimeoutError", error_after_sec=30), {}, "eval_failed", TIMED_OUT),
        # The verifier's trouble
        (harbor_result("VerifierTimeoutError", error_after_sec=50), {}, "eval_failed", []),
        (harbor_result("RewardFileNotFoundError", error_after_sec=50), {}, "eval_failed", []),
        (harbor_result("VerifierOutputParseError", error_after_sec=50), {}, "eval_failed", []),
        # Errors of the agent's phase after which its work counts, and such after which it does not
        (
            harbor_result("ContextWindowExceededError", RIGHT, error_after_sec=20),
            {},
            "scored",
            ["agent_error:ContextWindowExceededError"],
        ),
        (harbor_result("ApiRateLimitError", {"reward": 0}, error_after_sec=20), {}, "infra_error", []),
        (harbor_result("ApiRateLimitError", RIGHT, error_after_sec=20), {}, "infra_error", []),
        (harbor_result("AgentAuthenticationError", error_after_sec=20), {}, "infra_error", []),
        (harbor_result("NonZeroAgentExitCodeError", {"reward": 0}, error_after_sec=20), {}, "infra_error", []),
        (
            harbor_result("NonZeroAgentExitCodeError", {"reward": 0}, error_after_sec=20, output_tokens=9),
            {},
            "scored",
            ["agent_error:NonZeroAgentExitCodeError"],
        ),
        (
            harbor_result("NonZeroAgentExitCodeError", RIGHT, error_after_sec=20),
            {},
            "scored",
            ["agent_error:NonZeroAgentExitCodeError"],
        ),
        # Nothing to do with the agent
        (harbor_result("EnvironmentStartTimeoutError"), {}, "infra_error", []),
        (harbor_result("ValueError"), {}, "infra_error", []),
        (harbor_result("ValueError", RIGHT, error_after_sec=20), {}, "infra_error", []),
        (harbor_result("RuntimeError", RIGHT, error_after_sec=61), {}, "scored", ["cleanup_error:RuntimeError"]),
        (harbor_result("CancelledError"), {}, "cancelled", []),
        (harbor_result("CancelledError", RIGHT, error_after_sec=61), {}, "cancelled", []),
        ({}, {}, "eval_failed", []),
    ],
)
def test_outcome_of_a_result(result, verdict, outcome, flags):
    found = classify(result, verdict)
    assert (str(found[0]), found[2]) == (outcome, flags)


@pytest.mark.parametrize("name", sorted(n for n, policy in ERROR_POLICIES.items() if not policy.has_valid_reward))
def test_no_error_that_harbor_calls_invalid_gives_a_score(name):
    outcome, _, _ = classify(harbor_result(name, {"reward": 0}, error_after_sec=20), {})
    assert outcome not in SCORED


def record(tmp_path: Path, result: Any, verdict: Any = None, name: str = "t__003") -> dict[str, Any]:
    trial = tmp_path / "job" / name
    (trial / "verifier").mkdir(parents=True, exist_ok=True)
    if result is not None:
        (trial / "result.json").write_text(result if isinstance(result, str) else json.dumps(result))
    if verdict is not None:
        (trial / "verifier" / "verdict.json").write_text(verdict if isinstance(verdict, str) else json.dumps(verdict))
    return trial_record(trial, 3)


def test_a_record_holds_what_the_contract_says(tmp_path):
    found = record(tmp_path, harbor_result(rewards=RIGHT, output_tokens=11))
    assert (found["name"], found["attempt"], found["trial_dir"]) == ("t__003", 3, "job/t__003")
    assert (found["outcome"], found["reward"], found["metrics"]) == ("scored", 0.8, {"reward": 0.8})
    assert found["durations_sec"] == {"environment": 10.0, "agent": 20.0, "verifier": 30.0, "total": 61.0}
    assert found["tokens"] == {"input": 7, "cached": None, "output": 11}
    assert (found["cost_usd"], found["error"], found["agent_version"]) == (0.5, None, "1.2")


@pytest.mark.parametrize("result", [None, "", "{", "[]", "null", '"x"'])
def test_a_trial_without_a_whole_result_is_an_infrastructure_error(tmp_path, result):
    found = record(tmp_path, result)
    assert (found["outcome"], found["reward"], found["error"]["type"]) == ("infra_error", None, "NoResult")


@pytest.mark.parametrize(
    "verdict", ["", "[1]", "null", '"scored"', "7", '{"outcome": []}', '{"outcome": {}, "reason": [], "metrics": 3}']
)
def test_a_verdict_that_is_none_is_read_as_none(tmp_path, verdict):
    found = record(tmp_path, harbor_result(rewards=RIGHT), verdict)
    assert (found["outcome"], found["reward"], found["metrics"]) == ("scored", 0.8, {"reward": 0.8})


def test_numbers_that_json_cannot_hold_are_null_in_the_metrics(tmp_path):
    found = record(tmp_path, harbor_result(rewards=RIGHT), '{"outcome": "scored", "metrics": {"a": [NaN, 1]}}')
    assert found["metrics"] == {"a": [None, 1]}


def test_a_timeout_keeps_reward_and_error(tmp_path):
    found = record(tmp_path, harbor_result("AgentTimeoutError", RIGHT, error_after_sec=29))
    assert (found["outcome"], found["reward"]) == ("agent_timeout", 0.8)
    assert found["error"] == {"type": "AgentTimeoutError", "message": "what went wrong", "phase": "agent"}


def test_the_verifiers_reason_is_the_error(tmp_path):
    result = harbor_result("RewardFileNotFoundError", error_after_sec=50)
    found = record(tmp_path, result, {"outcome": "no_model", "reason": "the agent left no final_model"})
    assert found["error"]["type"] == "no_model"
    assert found["error"]["message"] == "the agent left no final_model"


def never_verified(error: str | None) -> dict[str, Any]:
    return harbor_result(error, output_tokens=9, error_after_sec=20) | {"verifier": None}


def test_an_error_before_the_verifier_is_not_blamed_on_it(tmp_path):
    found = record(tmp_path, never_verified("NonZeroAgentExitCodeError"))
    assert found["outcome"] == "infra_error"
    assert found["error"] == {"type": "NonZeroAgentExitCodeError", "message": "what went wrong", "phase": "agent"}


def test_a_verifier_that_did_not_run_left_nothing(tmp_path):
    found = record(tmp_path, never_verified(None))
    assert (found["outcome"], found["error"]["message"]) == ("eval_failed", "the verifier did not run")


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ({"a": 0.5, "b": 0.5}, "2 rewards (a, b), none called reward; ptb collect DIR --reward NAME says which counts"),
        (
            dict.fromkeys("abcdefg", 1),
            "7 rewards (a, b, c, d, e, ...), none called reward; ptb collect DIR --reward NAME says which counts",
        ),
        ({"reward": "1", "b": 1}, "reward is no finite number: '1'"),
        ({}, "the verifier left no reward"),
    ],
)
def test_why_there_is_no_reward(tmp_path, rewards, said):
    found = record(tmp_path, harbor_result(rewards=rewards))
    assert (found["outcome"], found["error"]["message"]) == ("eval_failed", said)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (None, ""),
        ("", ""),
        (" \n\n", ""),
        ("one\nno module named x\n\n", "; it printed last: no module named x"),
        ("x" * 9000 + "the end", "; it printed last: " + "x" * 293 + "the end"),
    ],
)
def test_the_verifiers_last_line_is_told_when_it_left_no_reward_file(tmp_path, printed, said):
    if printed is not None:
        (tmp_path / "job/t__003/verifier").mkdir(parents=True)
        (tmp_path / "job/t__003/verifier/test-stdout.txt").write_text(printed)
    missing = harbor_result("RewardFileNotFoundError", error_after_sec=50, message="No reward file found at /a/b or /c")
    found = record(tmp_path, missing)
    assert found["error"]["message"] == f"the verifier left neither reward.txt nor reward.json{said}"


@pytest.mark.parametrize(("after_sec", "phase"), [(-1, None), (5, "environment"), (20, "agent"), (50, "verifier")])
def test_the_error_names_the_phase(tmp_path, after_sec, phase):
    found = record(tmp_path, harbor_result("ValueError", error_after_sec=after_sec))
    assert found["error"]["phase"] == phase


def test_an_agents_error_is_the_agents_though_a_verifier_came_after_it(tmp_path):
    found = record(tmp_path, harbor_result("ValueError", {"reward": 0}, error_after_sec=25))
    assert (found["outcome"], found["error"]["phase"]) == ("infra_error", "agent")


def test_a_long_message_is_cut_from_its_start(tmp_path):
    found = record(tmp_path, harbor_result("ValueError", message="x" * 9000 + "the end"))
    assert len(found["error"]["message"]) == 2000
    assert found["error"]["message"].endswith("the end")


# --- Properties ---------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3), st.just([1]))
RESULTS = st.builds(
    harbor_result,
    st.one_of(st.none(), st.sampled_from([*sorted(ERROR_POLICIES), "ValueError", "CancelledError"])),
    st.one_of(
        st.none(),
        st.dictionaries(st.sampled_from(["reward", "accuracy", "x"]), NUMBERS, max_size=3),
    ),
    output_tokens=st.one_of(st.none(), st.integers(0, 10)),
    error_after_sec=st.sampled_from([-1.0, 5.0, 20.0, 50.0, 60.5]),
)
VERDICTS = st.fixed_dictionaries(
    {}, optional={"outcome": st.sampled_from([*Outcome, "?"]), "reason": st.one_of(st.none(), st.text(max_size=5))}
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # each example writes files
@given(RESULTS, VERDICTS)
def test_a_reward_is_a_finite_number_exactly_when_scored(tmp_path_factory, result, verdict):
    found = record(tmp_path_factory.mktemp("r"), result, verdict)
    if found["outcome"] in SCORED:
        assert isinstance(found["reward"], float)
        assert math.isfinite(found["reward"])
    else:
        assert found["reward"] is None
        assert found["error"]["type"]
    assert found["outcome"] in Outcome.__members__
    json.dumps(found, allow_nan=False)  # never NaN, wherever it stands


TRIALS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"outcome": st.sampled_from(sorted(SCORED)), "reward": st.floats(0, 1)}),
        st.fixed_dictionaries({"outcome": st.sampled_from(sorted(set(Outcome) - SCORED)), "reward": st.none()}),
    ),
    max_size=6,
)
BASES = st.one_of(st.just({}), st.fixed_dictionaries({"m": st.floats(0, 1)}))


@given(TRIALS, st.integers(0, 3), BASES, st.sampled_from(MissingScore))
@example([{"outcome": Outcome.infra_error, "reward": None}], 0, {"m": 0.5}, MissingScore.base_model)
def test_score_arithmetic(trials, unstarted, bases, policy):
    benchmark = BenchmarkConfig(zero_shot=bases, missing_score=policy)
    found = score(trials, len(trials) + unstarted, benchmark, "m")
    rewards = [trial["reward"] for trial in trials if trial["outcome"] in SCORED]
    replaced = sum(trial["outcome"] in UNSCORABLE for trial in trials)
    assert found["n_expected"] == len(trials) + unstarted
    assert found["n_scored"] == len(rewards)
    assert (found["raw"] is None) == (not rewards)
    if rewards:
        assert found["raw"] == pytest.approx(sum(rewards) / len(rewards))
    assert (found["final"] is None) == (found["final_source"] is None)
    if policy is MissingScore.nothing or not replaced:
        # Errors of infrastructure and cancelled trials change nothing but the coverage.
        assert found["final"] == found["raw"]
    elif not bases:
        assert found["final"] is None
    else:
        expected = sum(rewards) + replaced * bases["m"]
        assert found["final"] == pytest.approx(expected / (len(rewards) + replaced))
        assert found["final_source"] == ("mixed" if rewards else "base_model_zero_shot")


@given(TRIALS, TRIALS)
def test_a_cells_outcome_is_its_worst_trials(some, more):
    names = [str(trial["outcome"]) for trial in some]
    assert worst([]) is None
    if names:
        assert worst(names) in names
        both = worst(names + [str(trial["outcome"]) for trial in more])
        order = [str(outcome) for outcome in Outcome]
        assert order.index(both or "") >= order.index(worst(names) or "")
