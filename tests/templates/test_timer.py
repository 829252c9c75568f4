"""timer.sh, in a copy whose two absolute paths lie in the test's folder."""

import time
from pathlib import Path

import pytest
from template_kit import POST_TRAIN, run

TIMER = POST_TRAIN / "environment" / "timer.sh"


@pytest.fixture
def timer(tmp_path):
    """Runs the timer with a start so many seconds ago (None: no file) and a budget."""

    def ask(elapsed: float | None, budget: str | None, cwd: Path = tmp_path):
        script, start, limit = tmp_path / "timer.sh", tmp_path / "timer_start", tmp_path / "budget_sec"
        text = TIMER.read_text().replace("=/timer_start", f"={start}").replace("=/opt/ptb/budget_sec", f"={limit}")
        script.write_text(text)
        for path, content in ((start, None if elapsed is None else str(int(time.time() - elapsed))), (limit, budget)):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_text(content)
        return run("bash", script, cwd=cwd)

    return ask


@pytest.mark.parametrize(
    ("elapsed", "budget", "said"),
    [
        (100, "36000", "9 h 58 min left of 10 h"),
        (0.5, "36000.0\n", "9 h 59 min left of 10 h|10 h left of 10 h"),
        (35000, "36000", "16 min 40 s left of 10 h"),
        (30, "300", "4 min 30 s left of 5 min"),
        (5, "5400", "1 h 29 min left of 1 h 30 min"),
        (5, "0050", "45 s left of 50 s"),
        (300, "300", "time is up: the budget was 5 min"),
        (4000, "300", "time is up: the budget was 5 min"),
    ],
)
def test_what_it_says(timer, elapsed, budget, said):
    done = timer(elapsed, budget)
    assert done.returncode == 0, done.stderr
    # A second may pass between writing the start and asking.
    assert done.stdout.strip() in said.split("|") or done.stdout.strip() in timer(elapsed + 1, budget).stdout


@pytest.mark.parametrize(
    ("elapsed", "budget", "named"),
    [
        (None, "300", "timer_start"),
        (5, None, "budget_sec"),
        (5, "a[$(touch pwned)]", "budget_sec"),
        (5, "", "budget_sec"),
    ],
)
def test_a_missing_or_broken_file_is_named(timer, tmp_path, elapsed, budget, named):
    done = timer(elapsed, budget)
    assert done.returncode == 1
    assert done.stdout == ""
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "pwned").exists()


def test_it_reads_the_absolute_paths_and_no_variable_changes_that(tmp_path):
    text = TIMER.read_text()
    assert "START_FILE=/timer_start\n" in text
    assert "BUDGET_FILE=/opt/ptb/budget_sec\n" in text
    assert run("bash", TIMER, START_FILE=str(tmp_path), BUDGET_FILE="x").stderr.startswith("timer.sh: /")
