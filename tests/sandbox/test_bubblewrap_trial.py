"""Whole Harbor trials in bubblewrap sandboxes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import TrialConfig
from harbor.trial.trial import Trial

TASK = """
schema_version = "1.4"
artifacts = ["/app/answer.txt"]
[agent]
timeout_sec = {timeout}
[verifier]
timeout_sec = 20
{verifier}
[environment]
workdir = "/app"
[environment.env]
WORD = "ok"
"""
SEPARATE = '[verifier.environment]\nworkdir = "/app"\n'
SOLVE = '#!/bin/bash\ncat given.txt\nprintf "$WORD" > answer.txt\nprintf handed > /handoff/model\n'
TEST = """#!/bin/bash
[ "$(cat answer.txt)" = ok ] && [ "$(cat /handoff/model)" = handed ] && [ ! -e /solution/solve.sh ] {more}
if [ $? = 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def trial(tmp_path: Path, scratch_dir: Path, verifier: str = "", more: str = "", timeout: int = 20, solve: str = SOLVE):
    """Runs one trial of a task whose solution writes answer.txt and hands over a file. Returns Harbor's result."""
    task = tmp_path / "task"
    for name, text in {
        "task.toml": TASK.format(verifier=verifier, timeout=timeout),
        "instruction.md": "Write ok to answer.txt.",
        "environment/given.txt": "given",
        "solution/solve.sh": solve,
        "tests/test.sh": TEST.format(more=more),
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    (tmp_path / "handoff").mkdir()
    config: dict[str, Any] = {
        "task": {"path": str(task)},
        "trials_dir": str(tmp_path / "trials"),
        "agent": {"name": "oracle"},
        "environment": {
            "import_path": "ptb_runner.sandbox.bubblewrap:BubblewrapEnvironment",
            "kwargs": {"scratch_dir": str(scratch_dir), "handoff": str(tmp_path / "handoff")},
        },
    }

    async def main():
        return await (await Trial.create(TrialConfig.model_validate(config))).run()

    result = asyncio.run(main())
    assert list(scratch_dir.glob("*/*")) == []
    return result


def reward(result: Any) -> float | None:
    return result.verifier_result.rewards["reward"] if result.verifier_result else None


@pytest.mark.parametrize(
    ("verifier", "more"),
    [
        (SEPARATE, "&& ! touch /handoff/model"),
        ("", "|| [ -e /solution/solve.sh ]"),
    ],
    ids=["separate", "shared"],
)
def test_a_trial_is_scored(tmp_path, scratch_dir, verifier, more):
    result = trial(tmp_path, scratch_dir, verifier, more)
    assert result.exception_info is None
    assert reward(result) == 1
    (folder,) = (tmp_path / "trials").iterdir()
    assert (folder / "agent" / "oracle.txt").read_text() == "given"
    assert (folder / "artifacts" / "app" / "answer.txt").read_text() == "ok"


def test_an_agent_that_runs_out_of_time_is_ended(tmp_path, scratch_dir):
    solve = SOLVE + "setsid -f bash -c 'sleep 3; echo late > answer.txt'\nsleep 99\n"
    result = trial(tmp_path, scratch_dir, SEPARATE, timeout=2, solve=solve)
    assert result.exception_info
    assert "timed out" in result.exception_info.exception_message
    assert reward(result) == 1
