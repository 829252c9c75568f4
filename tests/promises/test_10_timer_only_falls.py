"""Promise 10: the budget timer does not restart when the agent changes folder."""

import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "templates"))

from template_kit import POST_TRAIN, run  # pyright: ignore[reportMissingImports]


def test_the_time_left_only_falls_in_any_folder(tmp_path):
    start, budget, script = tmp_path / "timer_start", tmp_path / "budget_sec", tmp_path / "timer.sh"
    text = (POST_TRAIN / "environment" / "timer.sh").read_text()
    script.write_text(text.replace("=/timer_start", f"={start}").replace("=/opt/ptb/budget_sec", f"={budget}"))
    start.write_text(str(int(time.time())))
    budget.write_text("59")
    seen = []
    for name in ("a", "b", "c"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "timer_start").write_text(str(int(time.time()) + 10_000))  # a planted start nearby changes nothing
        said = run("bash", script, cwd=folder).stdout
        found = re.fullmatch(r"(\d+) s left of 59 s\n", said)
        assert found, said
        seen.append(int(found[1]))
        time.sleep(1.1)
    assert seen == sorted(set(seen), reverse=True)
    assert start.read_text() != ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "budget_sec", "c", "timer.sh", "timer_start"]
