"""Making a job ready for containers: each step, and in two lines what is wrong when it fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptb_runner.config import BeakerConfig, BeakerLauncherConfig
from ptb_runner.explain import UsageError
from ptb_runner.launch import beaker_setup
from ptb_runner.sandbox.podman_cli import Podman
from ptb_runner.sandbox.podman_setup import Setup
from tests.fakes import registry as fake
from tests.podman import podman_kit
from tests.podman.podman_kit import IMAGE
from tests.run_kit import make_task

pytestmark = pytest.mark.beaker

TOKEN = "made-up-4Qx9vZr2Lw8sKd6f"


@pytest.fixture(scope="module")
def pushed(tmp_path_factory) -> Path:
    podman_kit.make_image()
    folder = tmp_path_factory.mktemp("registry") / "image"
    done = podman_kit.podman().now("push", "--quiet", IMAGE, f"dir:{folder}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def registry(pushed) -> Iterator[fake.Registry]:
    with fake.serving(pushed) as running:
        yield running


@pytest.fixture
def job(registry, tmp_path, monkeypatch) -> Any:
    """A cell as `ready` looks at it: its task wants an image of registry.example, which the registry stands for."""
    monkeypatch.setenv("BEAKER_ALLOW_SUBCONTAINERS", "1")
    monkeypatch.setattr(beaker_setup.backend, "set_up", lambda config: Setup([], dict(podman.variables), None))
    conf = tmp_path / "registries.conf"
    conf.write_text(f'[[registry]]\nlocation="{registry.address}"\ninsecure=true\n')
    podman = Podman({**podman_kit.podman().variables, "CONTAINERS_REGISTRIES_CONF": str(conf)})
    toml = '[environment]\ndocker_image = "registry.example/team/tool:1"\n'
    task = make_task(tmp_path / "task", "true", toml)
    for name in podman.variables:
        monkeypatch.setenv(name, "")  # so that what `ready` exports is taken back
    backend = BeakerConfig(image=IMAGE, mirrors={"registry.example": f"http://{registry.address}"})
    launcher = BeakerLauncherConfig(registry=registry.address, registry_user="me", registry_token_secret="TOKEN")
    return SimpleNamespace(config=SimpleNamespace(backend=backend, launcher=launcher), task=task)


def fault(job: Any) -> list[str]:
    with pytest.raises(UsageError) as found, beaker_setup.ready(job):
        pass
    lines = str(found.value).splitlines()
    assert len(lines) == 2, lines
    return lines


def test_logged_in_only_while_the_job_runs_and_with_the_token_nowhere_else(job, registry, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    registry.login = ("me", TOKEN)
    monkeypatch.setenv("PTB_REGISTRY_TOKEN", TOKEN)
    with beaker_setup.ready(job):
        file = Path(os.environ["REGISTRY_AUTH_FILE"])
        assert file.is_relative_to("/dev/shm")
        assert Path(os.environ["DOCKER_CONFIG"], "config.json") == file
        assert registry.address in file.read_text()
        assert "PTB_REGISTRY_TOKEN" not in os.environ
    assert not file.exists()
    assert "REGISTRY_AUTH_FILE" not in os.environ
    assert f"login: {registry.address} as me" in caplog.text
    assert f"http://{registry.address} gives team/tool:1" in caplog.text
    assert f"a container of {IMAGE} started" in caplog.text
    assert TOKEN not in caplog.text


def test_a_token_that_is_refused(job, registry, monkeypatch):
    registry.login = ("me", TOKEN)
    monkeypatch.setenv("PTB_REGISTRY_TOKEN", "another")
    said, remedy = fault(job)
    assert f"cannot log in to {registry.address} as me" in said
    assert "registry_token_secret" in remedy
    assert "another" not in said


def test_a_job_without_its_token(job):
    assert "the job has no PTB_REGISTRY_TOKEN" in fault(job)[0]


def test_a_mirror_that_does_not_give_what_is_needed(job, registry, monkeypatch):
    monkeypatch.setenv("PTB_REGISTRY_TOKEN", TOKEN)
    registry.failures = 99
    said, remedy = fault(job)
    assert f"the mirror http://{registry.address} does not give team/tool:1" in said
    assert remedy == "  backend.mirrors: mend or leave out the one of registry.example"


def test_a_container_that_does_not_start(job, monkeypatch):
    monkeypatch.setenv("PTB_REGISTRY_TOKEN", TOKEN)
    job.config.backend.mirrors = {}
    job.config.backend.image = "localhost/nowhere:1"
    said, _ = fault(job)
    assert said.startswith("no container of localhost/nowhere:1 runs in this job: Error: ")


def test_containers_that_are_not_allowed(job, monkeypatch):
    monkeypatch.delenv("BEAKER_ALLOW_SUBCONTAINERS")
    assert "BEAKER_ALLOW_SUBCONTAINERS" in fault(job)[0]


def test_a_podman_that_cannot_be_set_up(job, monkeypatch):
    steps = [("service", True, "podman's service does not answer: no\n  podman system service")]
    monkeypatch.setattr(beaker_setup.backend, "set_up", lambda config: Setup(steps, {}, None))
    assert fault(job) == ["service: podman's service does not answer: no", "  podman system service"]


@pytest.mark.parametrize(
    ("registry_name", "image", "path"),
    [
        ("registry.example", "registry.example/a/b:1", "a/b:1"),
        ("registry.example/a", "registry.example/a/b:1", "b:1"),
        ("registry.example", "other.example/a/b:1", None),
        ("registry.example", "ubuntu:24.04", None),
        ("docker.example", "ubuntu:24.04", "library/ubuntu:24.04"),
        ("docker.example", "team/tool", "team/tool"),
        ("docker.example", "localhost/tool", None),
        ("docker.example", "127.0.0.1:5000/tool", None),
    ],
)
def test_what_an_image_is_called_at_a_mirror(registry_name, image, path):
    assert beaker_setup._path_at(registry_name, image) == path
