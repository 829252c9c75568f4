"""GPUs by CDI, with a description of devices that are none: what a container gets, and what is told without one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.podman.podman_kit import PODMAN
from tests.run_kit import TASK_TOML, agent, make_task, only_cell

pytestmark = [pytest.mark.podman, pytest.mark.usefixtures("image")]

GIVEN = {"path": "/dev/nvidia0", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3}
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {"env": ["GIVEN_BY=cdi"], "deviceNodes": [GIVEN]}}],
}


@pytest.fixture
def cdi() -> Iterator[None]:
    folder = Path("/var/run/cdi")
    if os.geteuid() != 0 or any(Path("/etc/cdi").glob("*")) or any(folder.glob("*")):
        pytest.skip("only root can describe GPUs, on a machine that has none described")
    folder.mkdir(exist_ok=True)
    spec = folder / "ptb-test.yaml"
    spec.write_text(yaml.safe_dump(SPEC))
    try:
        yield
    finally:
        spec.unlink()


def test_a_task_that_asks_for_a_gpu_gets_what_cdi_describes(ptb, tmp_path, cdi):
    toml = TASK_TOML.replace("[environment]", "[environment]\ngpus = 1")
    task = make_task(tmp_path / "mine", "echo 1 > /logs/verifier/reward.txt", toml)
    work = agent("Scripted", command="ls /dev/nvidia0 > answer.txt; echo $GIVEN_BY >> answer.txt")
    ran = ptb("benchmark=task", f"benchmark.path={task}", *PODMAN, *work)
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    answer = next(only_cell().folder.glob("job/*/artifacts/app/answer.txt")).read_text()
    assert answer.split() == ["/dev/nvidia0", "cdi"]


def test_without_a_description_it_is_refused_before(ptb, tmp_path):
    task = make_task(tmp_path / "mine", "true", TASK_TOML.replace("[environment]", "[environment]\ngpus = 1"))
    for chosen in (("benchmark=hello", "benchmark.gpus=1"), ("benchmark=task", f"benchmark.path={task}")):
        ran = ptb(*chosen, "agent=oracle", *PODMAN)
        assert ran.code == 2
        assert "nvidia-ctk cdi generate" in ran.err
