"""Images: pulled from a registry (a loopback one), built by several at once, and gone when they are needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import registry as fake
from tests.podman.podman_kit import IMAGE, dockerfile_task, images, podman
from tests.run_kit import REWARD_IF_OK, TASK_TOML, Cell, agent, make_task, only_cell

pytestmark = [pytest.mark.podman, pytest.mark.usefixtures("image")]

WORK = agent("Scripted", command="printf ok > answer.txt")


@pytest.fixture(scope="module")
def pushed(image, tmp_path_factory) -> Path:
    """The base image as a registry has it."""
    folder = tmp_path_factory.mktemp("registry") / "image"
    done = podman().now("push", "--quiet", IMAGE, f"dir:{folder}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def registry(pushed, monkeypatch) -> Iterator[fake.Registry]:
    """The mirror of registry.test, which exists nowhere else."""
    monkeypatch.setattr("ptb_runner.sandbox.podman_images.PULL_WAIT_SEC", 0.05)
    with fake.serving(pushed) as running:
        yield running
    podman().now("rmi", name_for(running))


def name_for(registry: fake.Registry) -> str:
    """A name that this process has not seen yet."""
    return f"registry.test/ptb/pulled:{registry.server_port}"


def pulling(tmp_path: Path, registry: fake.Registry) -> list[str]:
    toml = TASK_TOML.replace("[environment]", f'[environment]\ndocker_image = "{name_for(registry)}"')
    task = make_task(tmp_path / "mine", REWARD_IF_OK, toml)
    mirrors = f"backend.mirrors={{registry.test: 'http://{registry.address}'}}"
    own = (f"backend.image={IMAGE}", "backend.pull_tries=3", "retry.infra_errors=0")
    return ["benchmark=task", f"benchmark.path={task}", "backend=podman", mirrors, *own, *WORK]


def test_an_image_is_pulled_once_for_all_from_a_mirror_that_is_busy_at_first(ptb, tmp_path, registry):
    registry.failures = 2
    ran = ptb(*pulling(tmp_path, registry), "attempts=3")
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    assert only_cell().outcomes == ["scored"] * 3
    assert registry.n_manifests == 3
    assert name_for(registry) in images()


def test_a_registry_that_stays_busy_is_told(ptb, tmp_path, registry):
    registry.failures = 99
    ran = ptb(*pulling(tmp_path, registry))
    assert ran.code == 1
    assert registry.n_manifests == 3
    trial = only_cell().trial()
    assert (trial["outcome"], trial["reward"]) == ("infra_error", None)
    assert "500 Internal Server Error" in trial["error"]["message"]


def test_a_login_is_asked_for_before_and_used(ptb, tmp_path, registry, monkeypatch):
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    registry.login = ("me", "made-up-7Qx4vZr1Lw9sKd3f")
    chosen = [*pulling(tmp_path, registry), f"backend.logins=[{registry.address}]"]
    ran = ptb(*chosen)
    assert ran.code == 2
    assert f"podman login {registry.address}" in ran.err
    name, word = registry.login
    login = podman().now("login", "--tls-verify=false", "-u", name, "-p", word, registry.address)
    assert login.returncode == 0, login.stderr
    ran = ptb(*chosen)
    assert ran.code == 0, ran.out + ran.err
    assert not [path for path in only_cell().folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


def test_two_runners_build_an_image_once(tmp_path):
    recipe = f"FROM {IMAGE}\nRUN echo {tmp_path} && sleep 1 && date +%s%N > /built\n"
    task = dockerfile_task(tmp_path / "mine", recipe, "echo 1 > /logs/verifier/reward.txt")
    work = agent("Scripted", command="cat /built > answer.txt")
    command = [sys.executable, "-m", "ptb_runner", "benchmark=task", f"benchmark.path={task}", "backend=podman", *work]
    before = images()
    runners = [subprocess.Popen([*command, f"hydra.run.dir={tmp_path}/{number}"], cwd=tmp_path) for number in range(2)]
    assert [runner.wait(120) for runner in runners] == [0, 0]
    stamps = {path.read_text() for path in tmp_path.glob("*/job/*/artifacts/app/answer.txt")}
    (built,) = images() - before
    podman().now("rmi", built)
    assert len(stamps) == 1


def test_an_image_that_somebody_removed_is_built_again(ptb, tmp_path):
    recipe = f"FROM {IMAGE}\nRUN echo {tmp_path}\n"
    task = dockerfile_task(tmp_path / "mine", recipe, REWARD_IF_OK)
    chosen = ("benchmark=task", f"benchmark.path={task}", "backend=podman", "retry.wait_sec=0", *WORK)
    before = images()
    assert ptb(*chosen, "hydra.run.dir=first").code == 0
    (built,) = images() - before
    assert podman().now("rmi", built).returncode == 0
    ran = ptb(*chosen, "hydra.run.dir=second")
    podman().now("rmi", built)
    assert ran.code == 0, ran.out + ran.err
    cell = Cell(Path("second").resolve())
    assert cell.outcomes == ["scored"]
    (lost,) = cell.folder.glob("superseded/*")
    assert built in (lost / "exception.txt").read_text()
