"""Whole runs of a cell, in real sandboxes: what comes out, what is kept, and what happens when things go wrong."""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from ptb_runner import run as runs
from ptb_runner.outcome import Outcome
from tests.run_kit import QUICK, REWARD_IF_OK, TASK_TOML, Cell, agent, in_phase, make_task, only_cell, start

ZERO_SHOT = "benchmark.zero_shot={nano: 0.0625}"


# --- What comes out -----------------------------------------------------------------------------------


def test_eight_oracles_at_once(ptb):
    ran = ptb("benchmark=hello", "agent=oracle", "attempts=8", "concurrency=8")
    assert (ran.code, ran.err) == (0, "")
    assert "8/8 trials passed" in ran.out
    assert "coverage 8/8 trials scored" in ran.out
    cell = only_cell()
    assert cell.outcomes == ["scored"] * 8
    assert sorted(trial["attempt"] for trial in cell.result["trials"]) == list(range(1, 9))
    assert (cell.status["state"], cell.status["outcome"]) == ("finished", "scored")
    assert cell.status["attempts"] == {"expected": 8, "finished": 8, "running": {}, "by_outcome": {"scored": 8}}


def test_doing_nothing_is_a_real_zero(ptb):
    ran = ptb("benchmark=hello", "agent=nop")
    assert ran.code == 0  # scored: the verifier says 0
    assert "0/1 trials passed" in ran.out
    score = only_cell().result["score"]
    told = {"raw": 0.0, "final": 0.0, "final_source": "verifier", "n_expected": 1, "n_scored": 1, "awaits_review": 0}
    assert score == told


def test_no_model_counts_as_the_base_model_and_says_so(ptb):
    ran = ptb("benchmark=addition", "agent=nop", ZERO_SHOT)
    assert ran.code == 1
    cell = only_cell()
    trial = cell.trial()
    assert (trial["outcome"], trial["reward"]) == ("no_model", None)
    assert trial["error"]["message"] == "the agent left no final_model"
    assert cell.result["score"] == {
        "raw": None,
        "final": 0.0625,
        "final_source": "base_model_zero_shot",
        "n_expected": 1,
        "n_scored": 0,
        "awaits_review": 0,
    }
    assert "raw null, final 0.0625 (base model zero shot), coverage 0/1" in ran.out
    assert not (cell.folder / "handoff").exists()


def test_the_default_command_trains_and_scores_a_model(ptb):
    ran = ptb()
    assert ran.code == 0, ran.out + ran.err
    trial = only_cell().trial()
    assert (trial["name"], trial["outcome"]) == ("addition__001", "scored")
    assert trial["reward"] >= 0.9
    assert f"final {trial['reward']:.4f} (verifier), coverage 1/1 trials scored" in ran.out
    assert "models: outputs" in ran.out


RESULT = {
    "schema_version": int,
    "cell_id": str,
    "benchmark": str,
    "model": str,
    "agent": str,
    "backend": str,
    "tasks": list,
    "attempts": int,
    "pass_reward": float,
    "max_error_rate": float,
    "trials": list,
    "score": dict,
    "started_at": str,
    "finished_at": str,
    "provenance": dict,
    "server_gpu_hours": type(None),  # nobody serves a model to this cell
}
TRIAL = {
    "name": str,
    "attempt": int,
    "outcome": str,
    "reward": float,
    "metrics": dict,
    "judgements": dict,
    "flags": list,
    "durations_sec": dict,
    "tokens": dict,
    "cost_usd": type(None),
    "error": type(None),
    "trial_dir": str,
}


@pytest.fixture
def honest(ptb) -> Cell:
    """An addition cell whose agent handed over the base model."""
    ran = ptb("benchmark=addition", *agent("Honest"))
    assert ran.code == 0, ran.out + ran.err
    return only_cell()


def test_a_scored_model_gives_what_the_contract_promises(honest):
    result = honest.result
    assert {key: type(value) for key, value in result.items()} == RESULT
    trial = result["trials"][0]
    assert {key: type(trial[key]) for key in TRIAL} == TRIAL
    assert set(TRIAL) <= set(trial)
    assert set(trial["durations_sec"]) == {"environment", "agent", "verifier", "total"}
    assert all(isinstance(value, float) for value in trial["durations_sec"].values())
    assert trial["outcome"] in Outcome.__members__
    assert math.isclose(trial["reward"], trial["metrics"]["accuracy"])
    assert 0 < trial["reward"] < 0.1  # an untrained model is hardly ever right
    assert (honest.folder / trial["trial_dir"]).is_dir()
    began, ended = (datetime.fromisoformat(result[key]) for key in ("started_at", "finished_at"))
    assert 0 < (ended - began).total_seconds() < 60

    base = honest.folder / "task" / "environment" / "base_model" / "model.safetensors"
    kept = honest.folder / "handoff" / trial["name"] / "final_model" / "model.safetensors"
    assert kept.read_bytes() == base.read_bytes()

    # The base model's zero-shot score in conf/ is that of this very model.
    assert yaml.safe_load((honest.folder / "cell.yaml").read_text())["config"]["benchmark"]["zero_shot"]["nano"] == (
        pytest.approx(trial["reward"], abs=0.001)
    )
    _loads_in_harbor(honest)


def _loads_in_harbor(cell: Cell) -> None:
    from harbor.models.job.config import JobConfig
    from harbor.models.job.lock import JobLock
    from harbor.models.job.result import JobResult
    from harbor.models.trial.config import TrialConfig
    from harbor.models.trial.result import TrialResult

    job = cell.folder / "job"
    config = JobConfig.model_validate_json((job / "config.json").read_text())
    assert config.n_attempts == 1
    JobLock.model_validate_json((job / "lock.json").read_text())
    result = JobResult.model_validate_json((job / "result.json").read_text())
    assert (result.n_total_trials, result.stats.n_completed_trials, result.stats.n_errored_trials) == (1, 1, 0)
    assert result.finished_at
    trial = cell.folder / cell.trial()["trial_dir"]
    TrialConfig.model_validate_json((trial / "config.json").read_text())
    found = TrialResult.model_validate_json((trial / "result.json").read_text())
    assert found.verifier_result is not None
    assert (found.verifier_result.rewards or {})["reward"] == cell.trial()["reward"]
    assert found.trial_name == cell.trial()["name"]


# --- Task folders of one's own ------------------------------------------------------------------------


@pytest.mark.parametrize("relative", [False, True])
def test_a_task_folder_of_ones_own(ptb, relative):
    folder = make_task(Path("mine").absolute(), REWARD_IF_OK)
    ran = ptb("benchmark=task", f"benchmark.path={'mine' if relative else folder}", *agent("Honest"))
    assert ran.code == 0, ran.out + ran.err
    assert "1/1 trials passed" in ran.out
    assert only_cell().trial()["name"] == "mine__001"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda task: (task / "environment" / "Dockerfile").write_text("FROM x\n"), "environment/Dockerfile"),
        (lambda task: (task / "tests" / "Dockerfile").write_text("FROM x\n"), "tests/Dockerfile"),
        (
            lambda task: (task / "task.toml").write_text(
                TASK_TOML.replace("[environment]", '[environment]\ndocker_image = "x:1"')
            ),
            "docker_image 'x:1'",
        ),
    ],
)
def test_a_task_that_needs_an_image_is_refused_with_the_backends_that_run_it(ptb, spoil, said):
    folder = make_task(Path("mine").absolute(), REWARD_IF_OK)
    spoil(folder)
    ran = ptb("benchmark=task", f"benchmark.path={folder}")
    assert ran.code == 2
    assert said in ran.err
    for backend in ("podman", "docker"):
        assert backend in ran.err.splitlines()[1]
    assert str(folder) in ran.err
    assert [entry.name for entry in Path.cwd().iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "toml",
    [
        "schema_version = 7\n",
        TASK_TOML.replace('network_mode = "no-network"', 'network_mode = "sometimes"', 1),
        TASK_TOML.replace("timeout_sec = 60", "timeout_secs = 60", 1),
        "[task\n",
    ],
)
def test_a_task_that_harbor_refuses_leaves_no_folder(ptb, toml):
    folder = make_task(Path("mine").absolute(), REWARD_IF_OK, toml)
    ran = ptb("benchmark=task", f"benchmark.path={folder}")
    assert ran.code == 2
    assert "task.toml" in ran.err or "not valid for Harbor" in ran.err
    assert list(Path.cwd().glob("outputs/*/*")) == []


def test_a_cell_resumes_from_elsewhere_and_without_the_folder_its_task_came_from(ptb, tmp_path, monkeypatch):
    folder = make_task(Path("mine").absolute(), REWARD_IF_OK)
    assert ptb("benchmark=task", "benchmark.path=mine", *agent("Honest"), "dry_run=true").code == 0
    cell = only_cell()
    folder.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    ran = ptb("resume", cell.folder)
    assert ran.code == 0, ran.err
    assert cell.outcomes == ["scored"]


# --- Plan first, run later ----------------------------------------------------------------------------


def test_a_dry_run_launches_nothing_and_resume_runs_it(ptb):
    ran = ptb("benchmark=hello", "dry_run=true", "attempts=2")
    assert ran.code == 0
    cell = only_cell()
    shown = cell.folder.relative_to(Path.cwd())
    assert f"next: ptb resume {shown}" in ran.out
    assert (cell.folder / "task" / "task.toml").is_file()
    assert (cell.status["state"], cell.status["outcome"]) == ("planned", None)
    assert not (cell.folder / "job").exists()
    assert not (cell.folder / "result.json").exists()

    ran = ptb("resume", shown)
    assert ran.code == 0, ran.err
    assert "2/2 trials passed" in ran.out
    before = cell.mtimes()
    assert ptb("resume", shown).code == 0  # nothing is missing any more
    assert cell.mtimes() == before


def contents(folder: Path) -> dict[Path, bytes]:
    """All files of a cell but Hydra's own and the log."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".hydra" not in path.parts]
    return {path: path.read_bytes() for path in files if path.name != "runner.log"}


def test_more_attempts_widen_a_cell_and_anything_else_is_refused(ptb):
    folder = "hydra.run.dir=here"
    assert ptb("benchmark=hello", folder).code == 0
    cell = Cell(Path("here").absolute())
    before = cell.mtimes()
    ran = ptb("benchmark=hello", folder, "attempts=2")
    assert ran.code == 0, ran.err
    assert cell.outcomes == ["scored", "scored"]
    assert cell.mtimes()["hello__001"] == before["hello__001"]

    texts = contents(cell.folder)
    ran = ptb("benchmark=hello", folder, "attempts=2", "seed=1")
    assert ran.code == 2
    assert "seed: 0 -> 1" in ran.err
    assert contents(cell.folder) == texts
    assert ptb("benchmark=hello", folder, "attempts=1").code == 2


def test_a_second_runner_on_a_folder_is_refused_and_changes_nothing(ptb):
    from ptb_runner.cell import locked

    assert ptb("benchmark=hello", "hydra.run.dir=here", "dry_run=true").code == 0
    folder = Path("here").absolute()
    texts = contents(folder)
    with locked(folder):
        for arguments in (["resume", "here"], ["benchmark=hello", "hydra.run.dir=here", "attempts=3"]):
            ran = ptb(*arguments)
            assert ran.code == 2
            assert "another runner is at work" in ran.err
    assert contents(folder) == texts
    assert not (folder / "job").exists()


def test_somebody_elses_folder_is_refused_and_left_alone(ptb):
    Path("theirs").mkdir()
    Path("theirs/thesis.txt").write_text("years of work")
    for folder in ("theirs", "."):
        ran = ptb("benchmark=hello", f"hydra.run.dir={folder}")
        assert ran.code == 2
        assert "is no cell's folder, and not empty" in ran.err
        assert Path("theirs/thesis.txt").read_text() == "years of work"
        found = {path.name for path in Path.cwd().rglob("*")}
        assert found <= {"theirs", "thesis.txt", "runner.log"}  # Hydra makes its log before anybody is asked
    Path("empty").mkdir()
    assert ptb("benchmark=hello", "hydra.run.dir=empty").code == 0


# --- Models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "kept"), [("never", []), ("scored", [1]), ("always", [1, 2])], ids=["never", "scored", "always"]
)
def test_which_models_stay(ptb, keep, kept):
    spoiled = "cp -r base_model final_model && echo {} > final_model/config.json"
    ran = ptb(
        "benchmark=addition",
        *agent("Honest", by_attempt={2: spoiled}),
        "attempts=2",
        f"backend.keep_model={keep}",
        "benchmark.evaluation.limit=5",
    )
    assert ran.code == 1
    cell = only_cell()
    assert cell.outcomes == ["scored", "invalid_model"]
    found = sorted(int(path.parent.name[-3:]) for path in cell.folder.glob("handoff/*/final_model"))
    assert found == kept
    assert (f"models: {cell.folder.relative_to(Path.cwd())}" in ran.out) == bool(kept)


# --- Errors -------------------------------------------------------------------------------------------


def test_an_infrastructure_error_is_run_again_and_the_earlier_try_kept(ptb, tmp_path):
    ran = ptb(*QUICK, *agent("FailsFirst", counter=str(tmp_path / "n"), times=1))
    assert ran.code == 0, ran.out
    assert "infra_error, again in 0 s: RuntimeError: no agent today (1)" in ran.out
    cell = only_cell()
    assert cell.trial()["reward"] == 1
    earlier = json.loads((cell.folder / "superseded" / "hello__001.1" / "result.json").read_text())
    assert earlier["exception_info"]["exception_message"] == "no agent today (1)"


def test_reruns_are_bounded_and_the_user_can_ask_for_more(ptb, tmp_path):
    counter = tmp_path / "n"
    ran = ptb(*QUICK, *agent("FailsFirst", counter=str(counter), times=3), "retry.infra_errors=2")
    assert (ran.code, counter.read_text()) == (1, "3")
    cell = only_cell()
    shown = cell.folder.relative_to(Path.cwd())
    assert cell.outcomes == ["infra_error"]
    assert cell.trial()["error"] == {
        "type": "RuntimeError",
        "message": "no agent today (3)",
        "phase": "agent_setup",
    }
    assert f"next: ptb resume {shown} --retry infra_error" in ran.out
    assert ptb("resume", shown).code == 1  # an ended trial is not missing
    assert counter.read_text() == "3"
    ran = ptb("resume", shown, "--retry", "infra_error")
    assert ran.code == 0, ran.out
    assert (counter.read_text(), cell.trial()["reward"]) == ("4", 1)
    assert len(list((cell.folder / "superseded").iterdir())) == 3


def test_one_trials_failing_constructor_hurts_no_other(ptb):
    ran = ptb(*QUICK, *agent("CannotBeMade", attempts=[2]), "attempts=3", "retry.infra_errors=0")
    assert ran.code == 1
    assert "hello__002: RuntimeError: this agent cannot be made" in ran.out
    cell = only_cell()
    assert [(trial["attempt"], trial["outcome"]) for trial in cell.result["trials"]] == [
        (1, "scored"),
        (2, "infra_error"),
        (3, "scored"),
    ]
    assert cell.result["score"]["n_scored"] == 2
    assert cell.result["score"]["raw"] == 1


@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException"])
@pytest.mark.parametrize(
    ("where", "phase"), [("init", None), ("setup", "agent_setup"), ("run", "agent"), ("task", "agent")]
)
def test_an_agent_that_raises_what_is_no_exception_hurts_no_other(ptb, error, where, phase):
    raising = agent("RaisesAnything", error=error, where=where, attempts=[2])
    ran = ptb(*QUICK, *raising, "attempts=2", "concurrency=2", "retry.infra_errors=0")
    assert ran.code == 1
    assert "Traceback" not in ran.out + ran.err
    cell = only_cell()
    assert cell.outcomes == ["scored", "infra_error"]
    if (where, error) != ("task", "GeneratorExit"):  # which asyncio itself turns into another error
        assert cell.trial(2)["error"] == {"type": error, "message": "out of order", "phase": phase}
    assert cell.status["state"] == "finished"


@pytest.mark.parametrize(
    ("options", "outcome", "reward", "said"),
    [
        ({"error": "ValueError", "message": "boom"}, "infra_error", None, "boom"),
        ({"error": "ApiRateLimitError", "message": "429"}, "infra_error", None, "429"),
        ({"error": "NonZeroAgentExitCodeError", "message": "exit 1"}, "infra_error", None, "exit 1"),
        ({"error": "NonZeroAgentExitCodeError", "message": "exit 1", "output_tokens": 5}, "scored", 0.0, None),
    ],
)
def test_an_agent_that_ends_in_an_error(ptb, options, outcome, reward, said):
    ran = ptb(*QUICK, *agent("Raises", **options))
    trial = only_cell().trial()
    assert (trial["outcome"], trial["reward"]) == (outcome, reward)
    assert ran.code == (0 if outcome == "scored" else 1)
    if said:
        assert trial["error"] == {"type": options["error"], "message": said, "phase": "agent"}
        assert f"hello__001: {options['error']}: {said}" in ran.out
        # The agent's work is not repeated by itself; an LLM that refused before the first answer has done none.
        assert (only_cell().folder / "superseded").exists() == (options["error"] == "ApiRateLimitError")
    else:
        assert trial["flags"] == ["agent_error:NonZeroAgentExitCodeError"]


def test_an_unexpected_error_is_whole_in_the_log_and_short_on_the_terminal(ptb, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(runs, "write_result", broken)
    ran = ptb("benchmark=hello")
    assert ran.code == 1
    assert "ZeroDivisionError: nobody thought of this" in ran.err
    assert "runner.log" in ran.err
    assert "Traceback" not in ran.out + ran.err
    assert "Traceback (most recent call last)" in only_cell().log
    assert "nobody thought of this" in only_cell().log


def test_a_folder_that_is_removed_while_it_runs_is_one_line(tmp_path):
    running = start(tmp_path, "benchmark=hello", *agent("Scripted", command="sleep 2"), "retry.infra_errors=0")
    running.wait_for(in_phase("agent"))
    shutil.rmtree(running.cell.folder)
    out, err = running.process.communicate(timeout=30)
    assert running.process.returncode == 1
    assert "Traceback" not in out + err
    assert err.strip() == f"error: {running.cell.folder}: was removed while the cell ran"


def test_a_signal_ends_the_planning_of_many_attempts(tmp_path):
    running = start(tmp_path, "benchmark=hello", "attempts=3000")
    running.wait_for(lambda status: status["state"] == "planned")
    time.sleep(1)
    running.process.send_signal(signal.SIGTERM)
    out, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 130
    assert "Traceback" not in out + err
    assert not (running.cell.folder / "job").exists()


def test_an_agents_traceback_is_not_on_the_terminal_either(ptb):
    ran = ptb(*QUICK, *agent("CannotBeMade", attempts=[1]), "retry.infra_errors=0")
    assert "Traceback" not in ran.out + ran.err
    assert "Traceback" in only_cell().log


# --- The agent's time runs out ------------------------------------------------------------------------


def test_time_up_with_a_model_is_scored_and_the_agents_processes_are_dead(ptb, tmp_path):
    """The agent's child would write on for ever: the snapshot must not hold anything from after the end."""
    seconds = 1.5
    ran = ptb(
        "benchmark=addition",
        *agent("Sleeper", first="cp -r base_model final_model"),
        f"agent.timeout_hours={seconds / 3600}",
        "benchmark.evaluation.limit=20",
    )
    assert ran.code == 0, ran.out
    cell = only_cell()
    trial = cell.trial()
    assert (trial["outcome"], trial["error"]["type"]) == ("agent_timeout", "AgentTimeoutError")
    assert trial["error"]["phase"] == "agent"
    assert isinstance(trial["reward"], float)
    assert cell.result["score"]["n_scored"] == 1
    assert seconds <= trial["durations_sec"]["agent"] < seconds + 4
    assert cell.result["provenance"]["comparable"] is False

    harbor = json.loads((cell.folder / trial["trial_dir"] / "result.json").read_text())
    last = float((cell.folder / trial["trial_dir"] / "artifacts/logs/artifacts/workspace/alive").read_text())
    assert last <= datetime.fromisoformat(harbor["agent_execution"]["finished_at"]).timestamp() + 0.1


def test_time_up_without_a_model(ptb):
    ran = ptb("benchmark=addition", *agent("Sleeper"), "agent.timeout_hours=0.0002", ZERO_SHOT)
    assert ran.code == 1
    cell = only_cell()
    assert (cell.trial()["outcome"], cell.trial()["reward"]) == ("no_model", None)
    assert cell.result["score"]["final"] == 0.0625


def test_a_verifier_that_gives_no_reward_is_no_zero(ptb):
    make_task(Path("mine").absolute(), "exit 0")
    ran = ptb("benchmark=task", "benchmark.path=mine", *agent("Honest"))
    assert ran.code == 1
    assert (only_cell().trial()["outcome"], only_cell().trial()["reward"]) == ("eval_failed", None)
    assert "0/1 trials passed" in ran.out
    assert "RewardFileNotFoundError" in ran.out


def test_of_several_rewards_the_one_that_is_named_counts(ptb):
    make_task(Path("mine").absolute(), """echo '{"style": 0.25, "tests": 0.75}' > /logs/verifier/reward.json""")
    mine = ("benchmark=task", "benchmark.path=mine", *agent("Honest"))
    assert ptb(*mine, "benchmark.reward=style", "hydra.run.dir=named").code == 0
    assert Cell(Path("named")).result["score"]["raw"] == 0.25

    assert ptb(*mine, "hydra.run.dir=open").code == 1
    cell = Cell(Path("open"))
    assert "2 rewards (style, tests), none called reward" in cell.trial()["error"]["message"]
    times = cell.mtimes()
    assert ptb("collect", "open", "--reward", "tests").code == 0
    assert (cell.result["score"]["raw"], cell.status["outcome"], cell.mtimes()) == (0.75, "scored", times)
    assert ptb("resume", "open").code == 0  # and so it stays
    assert cell.result["score"]["raw"] == 0.75


@pytest.mark.parametrize(
    "leaves",
    [
        """echo '{"reward": NaN}' > /logs/verifier/reward.json""",
        """echo '{"reward": "1"}' > /logs/verifier/reward.json""",
        "echo nan > /logs/verifier/reward.txt",
        "echo inf > /logs/verifier/reward.txt",
        "echo perfect > /logs/verifier/reward.txt",
        "touch /logs/verifier/reward.txt",
        "echo 1 > /tmp/1; ln -s /tmp/1 /logs/verifier/reward.txt",
        """echo '{"outcome": ["scored"], "metrics": NaN}' > /logs/verifier/verdict.json""",
    ],
)
def test_a_verifier_that_leaves_nonsense_gives_no_reward_and_a_whole_result(ptb, leaves):
    make_task(Path("mine").absolute(), leaves)
    ran = ptb("benchmark=task", "benchmark.path=mine", *agent("Honest"), "retry.infra_errors=0")
    assert ran.code == 1
    trial = only_cell().trial()
    assert trial["reward"] is None
    assert trial["outcome"] in ("eval_failed", "infra_error")
    assert trial["error"]["message"]


def test_a_verifier_that_hangs_is_ended(ptb):
    toml = TASK_TOML.replace("[verifier]\ntimeout_sec = 60", "[verifier]\ntimeout_sec = 1")
    make_task(Path("mine").absolute(), "sleep 600", toml)
    began = time.monotonic()
    ran = ptb("benchmark=task", "benchmark.path=mine", *agent("Honest"))
    assert "VerifierTimeoutError" in ran.out
    assert time.monotonic() - began < 15
    assert ran.code == 1
    assert (only_cell().trial()["outcome"], only_cell().trial()["reward"]) == ("eval_failed", None)
