"""The same as an ordinary user, without any right of root's: rootless podman."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.podman.podman_kit import IMAGE, dockerfile_task
from tests.run_kit import TASK_TOML, Cell

pytestmark = pytest.mark.podman

USER = "ptb-rootless"
ROOT = Path(__file__).resolve().parents[2]
REWARD = "echo $r > /logs/verifier/reward.txt"


@pytest.fixture(scope="module")
def home(image) -> Iterator[Path]:
    """The home of a user made for these tests, with subordinate ids and the base image."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a user to be")
    subprocess.run(["useradd", "--create-home", USER], check=True)
    archive = Path(os.environ.get("PTB_CACHE", "/var/cache/ptb-tests")) / "ptb-base-bookworm.tar"
    try:
        assert as_user("podman", "import", "-q", str(archive), IMAGE).returncode == 0
        yield Path(pwd.getpwnam(USER).pw_dir)
    finally:
        as_user("podman", "unshare", "rm", "-rf", f"/home/{USER}/run", f"/home/{USER}/.local/share/containers")
        subprocess.run(["userdel", "--remove", "--force", USER], check=True, capture_output=True)


def as_user(*command: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("rootless.sh")
    environment = {**os.environ, "PTB_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["unshare", "--mount", script, USER, *command], env=environment, capture_output=True, text=True, timeout=280
    )


def test_another_user_of_the_container_leaves_what_we_can_read_and_delete(home):
    """Promise 18, and a build, without being root."""
    recipe = f"FROM {IMAGE}\nRUN useradd -u 1001 -m worker\n"
    toml = TASK_TOML.replace("[agent]", '[agent]\nuser = "1001"')
    test = f'if [ "$(cat answer.txt)" = 1001 ]; then r=1; else r=0; fi; {REWARD}'
    dockerfile_task(home / "mine", recipe, test, toml)
    subprocess.run(["chown", "-R", USER, home / "mine"], check=True)
    work = "id -u > answer.txt; echo mine > /logs/agent/own.txt; chmod 600 /logs/agent/own.txt"
    task = ("benchmark=task", f"benchmark.path={home}/mine", "backend=podman", "agent=custom", "agent.id=test")
    agent = ("agent.import_path=tests.agents:Scripted", f"agent.options.command='{work}'")
    done = as_user(sys.executable, "-m", "ptb_runner", *task, *agent, f"hydra.run.dir={home}/run")
    assert done.returncode == 0, done.stdout + done.stderr
    own = next((home / "run").glob("job/*/agent/own.txt"))
    assert (own.read_text(), own.owner()) == ("mine\n", USER)
    assert as_user("rm", "-r", str(home / "run" / "job")).returncode == 0
    assert Cell(home / "run").outcomes == ["scored"]
    assert as_user("podman", "ps", "-aq").stdout == ""


def test_a_machine_is_set_up_without_being_root(home):
    fix = (sys.executable, "-m", "ptb_runner", "doctor", "--fix", "backend=podman", "podman.nested=true")
    before = set(home.rglob("*"))
    done = as_user(*fix, f"backend.image={IMAGE}")
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        variables = [line.split("=")[0] for line in done.stdout.splitlines()]
        assert variables == ["export CONTAINERS_CONF", "export DOCKER_HOST"]
        ran = as_user("sh", "-c", f"{done.stdout} podman run --rm {IMAGE} cat /proc/sys/kernel/hostname")
        assert ran.stdout.strip() == os.uname().nodename, ran.stderr
        assert [path for path in set(home.rglob("*")) - before if "containers" not in path.parts] == []
    finally:
        if service := re.search(r"`kill (\d+)` ends it", " ".join(done.stderr.split())):
            os.kill(int(service.group(1)), signal.SIGTERM)
        shutil.rmtree(f"/tmp/ptb-sandboxes-{pwd.getpwnam(USER).pw_uid}", ignore_errors=True)


SETTLE = """
import sys
from pathlib import Path
from types import SimpleNamespace
from ptb_runner.backend import podman
from ptb_runner.config import PodmanConfig
cell = SimpleNamespace(handoff=Path(sys.argv[1]), config=SimpleNamespace(backend=PodmanConfig()))
podman.settle_handoff(cell, "mine__001", keep=False)
"""


def test_a_hand_off_that_a_killed_container_left_is_removed(home):
    place = home / "cell" / "handoff" / "mine__001"
    made = f"mkdir -p {place}/final_model && echo x > {place}/final_model/weights"
    others = f"podman unshare sh -c 'chown -R 1001:1001 {place}/final_model && chmod 700 {place}/final_model'"
    assert as_user("sh", "-c", f"{made} && {others}").returncode == 0
    assert as_user("rm", "-rf", str(place)).returncode != 0
    done = as_user(sys.executable, "-c", SETTLE, str(place.parent))
    assert done.returncode == 0, done.stderr
    assert not place.exists()
