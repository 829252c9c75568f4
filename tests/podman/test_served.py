"""An agent in a container asks a model that the runner serves, by a real process on the machine's own port."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import model_server
from tests.podman.podman_kit import IMAGE, PODMAN, containers, dockerfile_task, images, podman
from tests.run_kit import REWARD_IF_OK, TASK_TOML, agent, make_task, only_cell
from tests.served_kit import TERMINUS_WRITES_OK, check_served_dataset

pytestmark = [pytest.mark.podman, pytest.mark.usefixtures("image")]

TMUX = "/usr/bin/tmux"
FAKE = Path(__file__).parents[1] / "fakes" / "vllm_server.py"
VLLM = ("serve=vllm", f"serve.command=[{sys.executable},{FAKE}]", "model=hf", "model.id=org/tiny")


def test_an_agent_in_a_container_asks_the_model_that_is_served(ptb, tmp_path, monkeypatch):
    starts = tmp_path / "starts"
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"delay": 0.5, "starts": str(starts)}))
    task = make_task(tmp_path / "mine", REWARD_IF_OK, TASK_TOML.replace("no-network", "public"))
    work = agent("Asks", questions=2)
    ran = ptb("benchmark=task", f"benchmark.path={task}", *VLLM, *PODMAN, *work, "attempts=3")
    assert ran.code == 0, ran.out + ran.err
    assert only_cell().outcomes == ["scored"] * 3
    assert starts.read_text() == "."
    assert containers() == []


def test_a_registry_of_tasks_is_run_against_it_although_it_dies_once(ptb, tmp_path, monkeypatch):
    check_served_dataset(ptb, tmp_path, monkeypatch, PODMAN)
    assert containers() == []


def test_containers_with_a_network_of_their_own_are_told_this_machines_name(ptb, tmp_path):
    task = make_task(tmp_path / "mine", REWARD_IF_OK, TASK_TOML.replace("no-network", "public"))
    own = ("backend.nested=false", "backend.network=own", "dry_run=true")
    ran = ptb("benchmark=task", f"benchmark.path={task}", *VLLM, *PODMAN, *agent("Asks"), *own)
    assert "--host0.0.0.0" in "".join(ran.out.replace("│", "").split())


def test_terminus_types_into_a_container_what_the_served_model_says(ptb, tmp_path):
    """Terminus 2 runs beside the runner, and needs tmux in the container."""
    recipe = f"FROM {IMAGE}\nCOPY tmux /\n"
    task = dockerfile_task(tmp_path / "mine", recipe, REWARD_IF_OK)
    for line in subprocess.run(["ldd", TMUX], capture_output=True, text=True, check=True).stdout.splitlines():
        if (found := re.search(r"/\S+", line)) and "/lib" in found.group():
            put(Path(found.group()), task / "environment" / "tmux")
    put(Path(TMUX), task / "environment" / "tmux")
    before = images()
    with model_server.serving(TERMINUS_WRITES_OK) as server:
        served = ("serve=external", f"serve.base_url={server.url}", "serve.max_model_len=8192")
        chosen = ("benchmark=task", f"benchmark.path={task}", "backend=podman", "agent=terminus-2")
        ran = ptb(*chosen, *served, "model=hf", "model.id=org/tiny", "agent.options.record_terminal_session=false")
    podman().now("rmi", *(images() - before))
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    assert only_cell().trial()["reward"] == 1


def put(file: Path, root: Path) -> None:
    """Copy a file of this machine to where it belongs below another root."""
    place = root / "usr" / file.resolve().relative_to("/usr").with_name(file.name)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file.resolve(), place)
