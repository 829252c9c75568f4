"""Promise 2: a trial whose time ran out and which has a reward keeps both, and is not run again."""

from pathlib import Path

from tests.agents import WRITE_OK
from tests.run_kit import agent, only_cell


def test_both_are_kept_and_resume_runs_nothing(ptb):
    ran = ptb("benchmark=hello", *agent("Sleeper", first=WRITE_OK), "agent.timeout_hours=0.0006")
    assert ran.code == 0, ran.out
    cell = only_cell()
    before = cell.trial()
    assert (before["outcome"], before["reward"]) == ("agent_timeout", 1.0)
    assert before["error"]["type"] == "AgentTimeoutError"
    times, shown = cell.mtimes(), cell.folder.relative_to(Path.cwd())
    for more in ([], ["--retry", "infra_error"]):
        assert ptb("resume", shown, *more).code == 0
        assert cell.mtimes() == times
        assert cell.trial() == before
    assert not (cell.folder / "superseded").exists()
