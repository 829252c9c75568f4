"""`ptb doctor --fix`: what it makes of a restricted machine for podman, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ptb_runner.backend import podman as backend
from ptb_runner.config import PodmanConfig
from ptb_runner.sandbox import podman_machine, podman_nested, podman_setup
from ptb_runner.sandbox.podman_cli import Podman
from tests.podman.podman_kit import IMAGE
from tests.run_kit import is_alive

FIX = ("doctor", "--fix", "backend=podman", "podman.nested=true")


@pytest.fixture
def own_temp(tmp_path, monkeypatch) -> Iterator[Path]:
    """A temp folder of its own, and so a configuration and a service of its own, which is ended afterwards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(podman_setup, "SOCKETS", Path(tempfile.mkdtemp(dir="/tmp")))
    for name in ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    for process in services():
        process.kill()
    shutil.rmtree(podman_setup.SOCKETS)


def services() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(podman_setup.SOCKETS) in word for word in process.info["cmdline"] or []) and is_alive(process)
    ]


def broken_podman(folder: Path, monkeypatch) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "podman").write_text("#!/bin/sh\necho cannot clone: Operation not permitted >&2\nexit 125\n")
    (folder / "bin" / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")


def test_what_is_missing_is_made_once(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(os, "mknod", lambda path, *rest: made.append((path, *rest)) or Path(path).touch())
    monkeypatch.setattr(podman_setup, "_service", lambda podman, address: (("service", False, str(address)), None))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(podman_setup, "SOCKETS", tmp_path / "so ck")
    podman = Podman({"CONTAINERS_CONF": str(tmp_path / "a b.conf")})
    setup = podman_setup.set_up(podman, nested=True, own_network=False, root=tmp_path)
    assert made == [(tmp_path / "dev/net/tun", stat.S_IFCHR, os.makedev(10, 200))]
    assert (tmp_path / "dev/net/tun").stat().st_mode & 0o777 == 0o666
    assert (tmp_path / "run/containers/networks/aardvark-dns").is_dir()
    assert f"export CONTAINERS_CONF='{tmp_path}/a b.conf'\n" in setup.commands
    assert f"export DOCKER_HOST='unix://{tmp_path}/so ck/ptb-sandboxes-0/a b.sock'\n" in setup.commands
    monkeypatch.setattr(Path, "is_char_device", lambda self: self.exists())
    again = podman_setup.set_up(podman, nested=True, own_network=False, root=tmp_path)
    assert [text for _, _, text in again.steps[:2]] == [
        f"{tmp_path}/dev/net/tun was there",
        f"{tmp_path}/run/containers/networks/aardvark-dns was there",
    ]
    assert (len(made), again.exports) == (1, setup.exports)


@pytest.mark.parametrize(("needed", "said"), [(True, "as root: mkdir -p"), (False, "nothing needs it here")])
def test_a_device_that_cannot_be_made_is_told_with_the_command(tmp_path, monkeypatch, needed, said):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", refuse)
    ((_, failed, text),) = podman_setup.set_up(Podman(), nested=False, own_network=needed, root=tmp_path).steps
    assert failed is needed
    assert "cannot be made (Operation not permitted)" in text
    assert said in text


def test_a_service_that_does_not_start_is_told_and_not_exported(own_temp, monkeypatch):
    broken_podman(own_temp, monkeypatch)
    conf = own_temp / "x.conf"
    setup = podman_setup.set_up(Podman({"CONTAINERS_CONF": str(conf)}), nested=True, own_network=False, root=own_temp)
    (service,) = (text for name, failed, text in setup.steps if name == "service" and failed)
    assert "cannot clone: Operation not permitted" in service
    assert f"CONTAINERS_CONF={conf} podman system service" in service
    assert "DOCKER_HOST" not in setup.exports


def test_our_configuration_in_the_environment_leaves_the_machine_restricted(tmp_path, monkeypatch):
    monkeypatch.setattr(podman_nested, "restrictions", lambda: ("no systemd",))
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text(podman_nested.containers_conf((4, 3), 1, 1, binds_proc=False, has_mqueue=True, helper_dir=None))
    theirs.write_text("[containers]\n")
    for path, nested in ((ours, True), (theirs, False), (tmp_path / "gone", False)):
        monkeypatch.setenv("CONTAINERS_CONF", str(path))
        assert backend.is_nested(PodmanConfig()) is nested


def test_only_podman_can_be_set_up(ptb):
    ran = ptb("doctor", "--fix", "backend=bubblewrap")
    assert ran.code == 2
    assert ran.err == (
        "error: ptb doctor --fix: there is nothing to set up for backend=bubblewrap\n"
        "  backend=podman is the one that needs a machine set up\n"
    )


def test_without_podman_the_exports_are_printed_and_the_rest_is_told(ptb, own_temp, monkeypatch):
    (own_temp / "bin").mkdir()
    (own_temp / "bin" / "stat").symlink_to("/usr/bin/stat")
    monkeypatch.setenv("PATH", str(own_temp / "bin"))
    podman_machine.version.cache_clear()
    ran = ptb(*FIX)
    podman_machine.version.cache_clear()
    assert ran.code == 1
    assert ran.out.startswith("export CONTAINERS_CONF=")
    assert "DOCKER_HOST" not in ran.out
    assert "apt-get install podman crun" in ran.err


@pytest.mark.podman
def test_it_can_be_evaluated_and_typed_again(ptb, own_temp, image, monkeypatch):
    first = ptb(*FIX, f"backend.image={IMAGE}")
    assert first.code == 0, first.err
    (service,) = services()
    second = ptb(*FIX, f"backend.image={IMAGE}")
    assert (second.code, second.out) == (0, first.out)
    assert services() == [service]
    assert "could be read and" in " ".join(second.err.split())
    typed = f'{first.out} podman run --rm --pull never {IMAGE} cat /proc/sys/kernel/hostname; echo "$DOCKER_HOST"'
    done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=True)
    hostname, address = done.stdout.split()
    assert hostname == os.uname().nodename  # the host's UTS namespace: our configuration is in force
    for line in first.out.splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value)
    assert ptb("benchmark=hello", "agent=oracle", "backend=podman", f"backend.image={IMAGE}").code == 0
    assert address.startswith(f"unix://{podman_setup.SOCKETS}")
