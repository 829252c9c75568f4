"""A compose task with a second service, on a real podman."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptb_runner.sandbox import engine_labels
from tests.podman.podman_kit import ASK, COMPOSE, IMAGE, PODMAN, TWO_CONTAINERS, containers, images, podman
from tests.run_kit import REWARD_IF_OK, TASK_TOML, agent, make_task, only_cell

pytestmark = [pytest.mark.podman, pytest.mark.usefixtures("image")]

DOCKER = Path(__file__).parents[1] / "fakes" / "docker_as_podman.sh"


@pytest.fixture(scope="module")
def compose(tmp_path_factory) -> Path:
    """The folder with a podman-compose that Harbor can use; Debian's own is too old."""
    venv = tmp_path_factory.mktemp("compose")
    make = [[sys.executable, "-m", "venv", venv], [venv / "bin" / "pip", "install", "-q", "podman-compose==1.6.0"]]
    for command in make:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"podman-compose cannot be had: {done.stderr[-200:]}")
    return venv / "bin"


def test_two_services(ptb, tmp_path, compose, monkeypatch):
    task = make_task(
        tmp_path / "mine",
        '[ "$(cat /root/answer.txt)" = from-web ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt',
        TWO_CONTAINERS,
    )
    (task / "environment" / "docker-compose.yaml").write_text(COMPOSE)
    monkeypatch.setenv("PATH", f"{compose}:{os.environ['PATH']}")
    before = images()
    ran = ptb("benchmark=task", f"benchmark.path={task}", *PODMAN, *agent("Scripted", command=ASK))
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    assert only_cell().trial()["reward"] == 1
    assert before <= images()
    assert containers() == []


WAITING = f"""
volumes: {{shared: }}
services:
  main:
    image: "{IMAGE}"
    command: [sh, -c, "sleep infinity"]
    depends_on: {{web: {{condition: service_healthy}}}}
    volumes: ["shared:/shared"]
  web:
    image: "{IMAGE}"
    command: [sh, -c, "sleep 8; touch '/shared/a b'; sleep infinity"]
    healthcheck: {{test: [CMD, test, -e, /shared/a b], interval: 1s, retries: 30}}
    volumes: ["shared:/shared"]
"""


def test_a_service_that_waits_for_anothers_health(ptb, tmp_path, compose, monkeypatch):
    """Where no systemd runs podman's timers, too; and podman's interface tears words with blanks apart."""
    test = '[ -e "/shared/a b" ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt'
    task = make_task(tmp_path / "mine", test, TWO_CONTAINERS)
    (task / "environment" / "docker-compose.yaml").write_text(WAITING)
    monkeypatch.setenv("PATH", f"{compose}:{os.environ['PATH']}")
    ran = ptb("benchmark=task", f"benchmark.path={task}", *PODMAN, *agent("Scripted", command="ls '/shared/a b'"))
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    assert only_cell().trial()["reward"] == 1
    assert containers() == []


def test_a_service_that_ends_is_not_waited_for(ptb, tmp_path, compose, monkeypatch):
    task = make_task(tmp_path / "mine", "echo 1 > /logs/verifier/reward.txt", TWO_CONTAINERS)
    (task / "environment" / "docker-compose.yaml").write_text(WAITING.replace("sleep 8; touch", "exit 3; touch"))
    monkeypatch.setenv("PATH", f"{compose}:{os.environ['PATH']}")
    work = agent("Scripted", command="true")
    ran = ptb("benchmark=task", f"benchmark.path={task}", *PODMAN, *work, "retry.infra_errors=0")
    assert ran.code == 1, ran.out + ran.err
    assert "the service web ended before it was healthy" in only_cell().trial()["error"]["message"]
    assert containers() == []


def test_harbors_docker_environment_over_podman_under_dockers_name(ptb, tmp_path, compose, monkeypatch):
    """No Docker daemon is at hand: what is seen here is that the commands given to it are whole ones."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").symlink_to(DOCKER)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{compose}:{os.environ['PATH']}")
    for name, value in podman().variables.items():
        monkeypatch.setenv(name, value)
    before = images()
    host, boot, namespace, *_ = engine_labels.owner().split(" ")
    label = f"{engine_labels.LABEL}={host} {boot} {namespace} 999999999 1"  # of a runner that is gone
    assert podman().now("create", "--label", label, "--network", "none", IMAGE, "true").returncode == 0
    assert len(containers()) == 1
    task = make_task(tmp_path / "mine", REWARD_IF_OK, TASK_TOML.replace("no-network", "public"))
    chosen = ("benchmark=task", f"benchmark.path={task}", "backend=docker", f"backend.image={IMAGE}")
    ran = ptb(*chosen, *agent("Scripted", command="printf ok > answer.txt"), "retry.infra_errors=0")
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    assert only_cell().trial()["reward"] == 1
    assert before <= images()
    assert containers() == []
