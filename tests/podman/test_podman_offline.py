"""What of the podman backend needs no podman: arguments, refusals, configuration for restricted machines, overlays."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from ptb_runner.backend import lifetime
from ptb_runner.sandbox import engine_labels, podman, podman_compose, podman_machine, podman_nested, scratch
from ptb_runner.sandbox.podman_cli import Podman
from ptb_runner.sandbox.podman_machine import Needs
from tests.run_kit import REWARD_IF_OK, TASK_TOML, agent, make_task

INFO = {
    "host": {
        "serviceIsRemote": False,
        "ociRuntime": {"name": "runc"},
        "security": {"rootless": False},
        "idMappings": {"uidmap": None},
        "networkBackend": "netavark",
        "networkBackendInfo": {"path": "netavark"},
        "cgroupVersion": "v2",
    },
    "store": {"graphRoot": "/", "graphDriverName": "overlay"},
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(version, info, **programs): a machine with that podman, and other programs with those versions."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    podman_machine.version.cache_clear()

    def make(version: str, host: dict | None = None, **programs: str) -> None:
        info = {"host": INFO["host"] | (host or {}), "store": INFO["store"]}
        (tmp_path / "info.json").write_text(json.dumps(info))
        say = (
            f'case "$1" in --version) echo podman version {version};; info) cat {tmp_path}/info.json;; *) exit 1;; esac'
        )
        for name, script in {"podman": say, **{k: f"echo {k} {v}" for k, v in programs.items()}}.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / "bin" / name).chmod(0o755)

    yield make
    podman_machine.version.cache_clear()


def problems(**needs) -> str:
    return "\n".join(podman_machine.problems(Podman(), Needs(**needs)))


def test_a_machine_with_all_it_needs(machine):
    machine("5.4.0", netavark="1.14.0", crun="1.8")
    assert problems(nested=True) == ""


def test_no_podman_and_an_old_one(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "podman is not installed" in problems()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    machine("3.4.4")
    assert "3.4.4, and 4.0 is needed" in problems()


@pytest.mark.parametrize(
    ("version", "host", "needs", "said"),
    [
        ("5.2.0", {}, {}, "netavark 1.4.0 is too old for podman 5"),
        ("4.3.1", {}, {}, ""),
        ("5.2.0", {}, {"own_network": False}, ""),
        ("5.2.0", {"serviceIsRemote": True}, {"own_network": False}, "works on another machine"),
        ("4.3.1", {"security": {"rootless": True}, "idMappings": {"uidmap": [{"size": 1}]}}, {}, "0 subordinate ids"),
        ("4.3.1", {}, {"logins": ("registry.test",)}, "podman login registry.test"),
        ("4.3.1", {}, {"images": ("localhost/gone:1",)}, "localhost/gone:1 is not here"),
        ("4.3.1", {}, {"images": ("python:3.12",)}, ""),
        ("4.3.1", {}, {"gpus": True}, "nvidia-ctk cdi generate"),
    ],
)
def test_what_is_missing_is_told_with_its_remedy(machine, version, host, needs, said):
    machine(version, host, netavark="1.4.0")
    found = problems(**needs)
    assert said in found
    assert bool(found) == bool(said)
    assert all("\n  " in problem for problem in podman_machine.problems(Podman(), Needs(**needs)))


def test_the_configuration_for_a_restricted_machine():
    text = podman_nested.containers_conf((4, 3, 1), 20000, 32768, binds_proc=False, has_mqueue=True, helper_dir=None)
    settings = tomllib.loads(text)
    assert settings["containers"]["netns"] == settings["containers"]["ipcns"] == "host"
    assert settings["containers"]["cgroups"] == "disabled"
    assert settings["containers"]["default_ulimits"] == ["nofile=20000:20000", "nproc=32768:32768"]
    assert "volumes" not in settings["containers"]
    assert "compose_warning_logs" not in settings["engine"]
    text = podman_nested.containers_conf((5, 0), 1, 1, binds_proc=True, has_mqueue=False, helper_dir="/opt/netavark")
    settings = tomllib.loads(text)
    assert "ipcns" not in settings["containers"]
    assert settings["containers"]["volumes"] == ["/proc:/proc"]
    assert settings["engine"]["compose_warning_logs"] is False
    assert settings["engine"]["helper_binaries_dir"] == ["/opt/netavark"]
    assert tomllib.loads(podman_nested.storage_conf(Path("/a"), Path("/b"), None))["storage"]["driver"] == "vfs"


def test_it_is_handed_over_by_variables_only(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    variables = podman_nested.variables(True, (4, 3), None, {"registry.test": "mirror.test"})
    assert set(variables) <= {"CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF"}
    assert all(Path(path).is_relative_to(tmp_path) for path in variables.values())
    mirrors = tomllib.loads(Path(variables["CONTAINERS_REGISTRIES_CONF"]).read_text())
    assert mirrors["registry"][-1] == {"location": "registry.test", "mirror": [{"location": "mirror.test"}]}
    assert podman_nested.variables(True, (4, 3), None, {"registry.test": "mirror.test"}) == variables
    plain = tomllib.loads(podman_nested.registries_conf({"a.test": "http://b.test:5000/"}, 'short-name-mode="x"'))
    assert plain["registry"] == [{"location": "a.test", "mirror": [{"location": "b.test:5000", "insecure": True}]}]
    assert podman_nested.variables(False, (4, 3), None, {}) == {}


def test_our_files_are_not_taken_for_a_dead_owners(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    variables = podman_nested.variables(True, (4, 3), None, {})
    assert scratch.reap() == []
    assert Path(variables["CONTAINERS_CONF"]).exists()


def test_owners():
    own = engine_labels.owner()
    assert not engine_labels.is_dead(own)
    host, boot, namespace, pid, started = own.split(" ")
    assert engine_labels.is_dead(" ".join([host, boot, namespace, pid, str(int(started) + 1)]))
    assert engine_labels.is_dead(" ".join([host, "an-earlier-boot", namespace, pid, started]))
    assert not engine_labels.is_dead(" ".join(["elsewhere", boot, namespace, "1", "1"]))
    assert not engine_labels.is_dead(" ".join([host, boot, "1", pid, "1"]))
    assert not engine_labels.is_dead("")
    assert not engine_labels.is_dead("somebody")


def test_what_a_task_needs(tmp_path):
    task = make_task(tmp_path / "a", REWARD_IF_OK)
    assert "backend.image=NAME" in podman.unsupported(task, None)[0]
    assert podman.unsupported(task, "image") == []
    (task / "environment" / "Dockerfile").write_text("FROM x\n")
    assert podman.unsupported(task, None) == []
    (task / "task.toml").write_text(TASK_TOML.replace('"no-network"', '"allowlist"'))
    assert len(podman.unsupported(task, None)) == 3


def test_the_lifetime_is_the_sum_of_the_phases(tmp_path, ptb):
    from ptb_runner.doctor import compose

    config = compose(["benchmark=addition", "model=nano", "agent=oracle", "backend=podman", "agent.timeout_hours=10"])
    task = make_task(tmp_path / "a", REWARD_IF_OK)
    own = config.benchmark
    between = lifetime.TRANSFER_HOURS + lifetime.SETUP_SEC / 3600
    hours = 10 + (own.verifier_hours or 0) + own.build_hours + between
    assert lifetime.lifetime_sec(config, task) == pytest.approx(hours * 3600)
    chosen = ["benchmark=task", f"benchmark.path={task}", "agent=oracle", "backend=podman"]
    config = compose(chosen)
    hours = 2 / 60 + config.benchmark.build_hours + between
    assert lifetime.lifetime_sec(config, task) == pytest.approx(hours * 3600)
    limits = ("agent_multiplier=600", "verifier_sec=7200", "build_multiplier=12", "agent_setup_multiplier=10")
    config = compose([*chosen, *(f"benchmark.limits.{one}" for one in limits)])
    hours = 600 / 60 + 2 + 12 * 600 / 3600 + 10 * lifetime.SETUP_SEC / 3600 + lifetime.TRANSFER_HOURS
    assert lifetime.lifetime_sec(config, task) == pytest.approx(hours * 3600)


def test_an_allowlist_is_refused(ptb):
    make_task(
        Path("mine"), REWARD_IF_OK, TASK_TOML.replace('"no-network"', '"allowlist"\nallowed_hosts = ["a.test"]', 1)
    )
    ran = ptb("benchmark=task", "benchmark.path=mine", "backend=podman", "backend.image=x", *agent("Honest"))
    assert ran.code == 2
    assert "podman cannot enforce it" in ran.err
    assert [entry.name for entry in Path.cwd().iterdir()] == ["mine"]


COMPOSE = """
networks: {inner: {}}
volumes: {data: , given: {external: true}}
services:
  main: {build: ., networks: [inner], depends_on: [db], healthcheck: {test: [CMD, test, -e, "/a b"]}}
  db: {image: x, ports: ["5432:5432"]}
"""


def test_the_overlay_of_compose_tasks(tmp_path):
    import yaml

    file = tmp_path / "docker-compose.yaml"
    file.write_text(COMPOSE)
    text = podman_compose.overlay([file], {"ptb.owner": "me"}, host_network=True)
    read = yaml.load(text, podman_compose._Loader)
    assert set(read["services"]) == {"main", "db"}
    for service in read["services"].values():
        assert service["network_mode"] == "host"
        assert service["labels"] == {"ptb.owner": "me"}
        assert sorted(service["extra_hosts"]) == ["db:127.0.0.1", "main:127.0.0.1"]
    assert read["services"]["main"]["healthcheck"]["test"] == ["CMD-SHELL", "test -e '/a b'"]
    assert "networks: !reset {}" in text
    assert "ports: !reset []" in text
    plain = yaml.safe_load(podman_compose.overlay([file], {"ptb.owner": "me"}, host_network=False))
    assert plain["networks"] == {name: {"labels": {"ptb.owner": "me"}} for name in ("default", "inner")}
    assert plain["volumes"] == {"data": {"labels": {"ptb.owner": "me"}}}
    assert plain["services"]["db"] == {"stop_grace_period": "0s", "labels": {"ptb.owner": "me"}}


def test_whose_health_is_waited_for(tmp_path):
    file = tmp_path / "docker-compose.yaml"
    file.write_text(COMPOSE.replace("[db]", "{db: {condition: service_healthy}, web: {condition: service_started}}"))
    assert podman_compose.awaited([file]) == {"db"}
    file.write_text(COMPOSE)
    assert podman_compose.awaited([file]) == set()


def test_docker_is_asked_for_before_anything_is_launched(ptb, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\necho cannot connect to the daemon >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    chosen = ("benchmark=hello", "agent=oracle", "backend=docker", "backend.image=x")
    (tmp_path / "bin" / "docker").chmod(0o755)
    ran = ptb(*chosen)
    assert ran.code == 2
    assert "the Docker daemon does not answer: cannot connect to the daemon" in ran.err
    assert list(Path.cwd().iterdir()) == []


def test_a_misspelt_nested(ptb):
    ran = ptb("benchmark=hello", "agent=oracle", "backend=podman", "backend.image=x", "backend.nested=maybe")
    assert ran.code == 2
    assert "backend.nested=maybe" in ran.err
