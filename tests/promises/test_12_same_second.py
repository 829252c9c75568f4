"""Promise 12: runs that start in the same second each have a folder of their own."""

import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path


def _start(barrier, folder: str) -> None:
    from ptb_runner import cli

    os.chdir(folder)
    sys.stdout = sys.stderr = Path("/dev/null").open("w")  # noqa: SIM115
    barrier.wait(30)
    os._exit(cli.main(["benchmark=hello", "dry_run=true"]))


def test_twenty_starts_at_once(ptb):
    assert ptb("benchmark=hello", "dry_run=true", "hydra.run.dir=first").code == 0  # imports what children inherit
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(20)
    children = [context.Process(target=_start, args=(barrier, str(Path.cwd()))) for _ in range(20)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 20
    cells = list(Path.cwd().glob("outputs/*/*/cell.yaml"))
    assert len(cells) == 20
    seconds = Counter(path.parent.name[:8] for path in cells)
    assert seconds.most_common(1)[0][1] > 1  # else this would have tested nothing
    for cell in cells:
        assert (cell.parent / "status.json").is_file()
        assert (cell.parent / "task" / "task.toml").is_file()
