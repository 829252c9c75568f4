"""Promise 8: nothing of the verifier's is in the agent's sandbox but what the benchmark declares."""

import hashlib
from pathlib import Path

import pytest

from ptb_runner.config import typed
from ptb_runner.render import render
from tests.run_kit import Cell, agent
from tests.test_cell import composed
from tests.test_render import BENCHMARKS


def hashes(folder: Path) -> dict[str, str]:
    """Name by hash of each file with a content."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    return {hashlib.sha256(path.read_bytes()).hexdigest(): path.relative_to(folder).as_posix() for path in files}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_only_the_declared_overlap(tmp_path, benchmark):
    config = typed(composed(f"benchmark={benchmark}"))
    render(config, tmp_path / "task")
    of_tests, of_agent, of_solution = (
        hashes(tmp_path / "task" / name) for name in ("tests", "environment", "solution")
    )
    both = {of_tests[digest] for digest in of_tests.keys() & of_agent.keys()}
    declared = tuple(f"{name}/" for name in config.benchmark.shared)
    assert both == {name for name in of_tests.values() if f"{name}/".startswith(declared)}
    assert not of_solution.keys() & (of_tests.keys() | of_agent.keys())


def test_no_item_of_the_test_set_is_among_what_the_agent_gets(tmp_path):
    render(typed(composed("benchmark=addition")), tmp_path / "task")
    held_out = set((tmp_path / "task/tests/test.txt").read_text().split())
    assert len(held_out) > 100
    for path in (tmp_path / "task" / "environment").rglob("*.txt"):
        assert not held_out & set(path.read_text().split()), path.name


def test_the_running_agent_finds_neither_tests_nor_solution(ptb):
    names = "-name test.txt -o -name verify.py -o -name train.py"
    look = (
        f"find / -path /proc -prune -o -path '*/addition/*' '(' {names} ')' -print 2>/dev/null; ls -R /tests /solution"
    )
    ran = ptb("benchmark=addition", *agent("Scripted", command=look), "hydra.run.dir=run")
    assert ran.code == 1  # no model
    seen = (Cell(Path("run")).folder / "job/addition__001/agent/scripted.txt").read_text()
    assert seen.split() == ["/solution:", "/tests:"]
