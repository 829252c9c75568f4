"""What goes wrong around a container: it costs the trial that it happens to, and what is somebody else's stays."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ptb_runner.sandbox import engine_labels, podman_reap
from ptb_runner.sandbox.jobs import Command
from ptb_runner.sandbox.podman_container import Container
from tests.podman.podman_kit import IMAGE, PODMAN, containers, dockerfile_task, podman
from tests.run_kit import REWARD_IF_OK, TASK_TOML, agent, make_task, only_cell

pytestmark = [pytest.mark.podman, pytest.mark.usefixtures("image")]

OK = "printf ok > answer.txt"


def test_a_container_that_somebody_kills_is_its_trials_loss_only(ptb, tmp_path):
    task = make_task(tmp_path / "mine", REWARD_IF_OK)
    work = agent("Scripted", command=OK, by_attempt={2: "sleep 60"})

    def kill() -> None:
        deadline = time.monotonic() + 60
        while not (found := containers("label=ptb.trial=mine__002")) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        podman().now("kill", *found)

    killer = threading.Thread(target=kill)
    killer.start()
    ran = ptb("benchmark=task", f"benchmark.path={task}", *PODMAN, *work, "attempts=3", "concurrency=3")
    killer.join()
    assert ran.code == 1, ran.out + ran.err
    assert only_cell().outcomes == ["scored", "infra_error", "scored"]
    error = only_cell().trial(2)["error"]
    assert (error["phase"], "the container is gone" in error["message"]) == ("agent", True)
    assert only_cell().trial(2)["reward"] is None
    assert containers() == []


def test_podmans_own_process_may_die_beside_a_container(inside):
    async def body(container: Container) -> None:
        monitor = psutil.Process(container.pid).parent()
        assert monitor is not None
        assert monitor.name() == "conmon"
        monitor.kill()
        for user in (None, "nobody"):
            assert (await container.run(Command("echo there", None, {}, user)))[1] == "there\n"

    inside(body)


def test_a_sandbox_that_never_gets_healthy_is_an_error_and_no_score(ptb, tmp_path):
    check = '\n[environment.healthcheck]\ncommand = "cat /no-such-file"\nretries = 2\ninterval_sec = 0.1\n'
    task = make_task(tmp_path / "mine", REWARD_IF_OK, TASK_TOML + check)
    chosen = ("benchmark=task", f"benchmark.path={task}", *PODMAN, "retry.infra_errors=0")
    ran = ptb(*chosen, *agent("Scripted", command=OK))
    assert ran.code == 1, ran.out + ran.err
    assert only_cell().outcomes == ["infra_error"]
    assert "ealthcheck" in only_cell().trial()["error"]["message"]
    assert containers() == []


@pytest.fixture
def small_disk(tmp_path, monkeypatch) -> Iterator[None]:
    """A place for images that has room for the base image and little more."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700m", "tmpfs", disk], check=True)
    conf = tmp_path / "storage.conf"
    conf.write_text(f'[storage]\ndriver="overlay"\ngraphroot="{disk}/images"\nrunroot="{disk}/run"\n')
    archive = tmp_path / "base.tar"
    assert podman().now("save", "--output", str(archive), IMAGE).returncode == 0
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(conf))
    monkeypatch.setattr("ptb_runner.sandbox.podman_machine.LITTLE_DISK_GB", 0.01)
    try:
        loaded = podman().now("load", "--input", str(archive))
        assert loaded.returncode == 0, loaded.stderr
        archive.unlink()
        yield
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_is_told(ptb, tmp_path, small_disk):
    recipe = f"FROM {IMAGE}\nRUN head -c 800M /dev/zero > /big\n"
    task = dockerfile_task(tmp_path / "mine", recipe, REWARD_IF_OK)
    chosen = ("benchmark=task", f"benchmark.path={task}", "backend=podman", "retry.wait_sec=0", "retry.infra_errors=1")
    ran = ptb(*chosen, *agent("Scripted", command=OK))
    assert ran.code == 1, ran.out + ran.err
    cell = only_cell()
    assert cell.outcomes == ["infra_error"]
    assert "No space left on device" in cell.trial()["error"]["message"]
    assert len(list(cell.folder.glob("superseded/*"))) == 1


def test_only_what_a_dead_runner_of_ours_made_is_removed(tmp_path):
    """Also volumes and networks, which compose tasks have."""
    host, boot, namespace, *_ = engine_labels.owner().split(" ")
    dead = f"{host} {boot} {namespace} 999999999 1"
    owners = {"dead": dead, "living": engine_labels.owner(), "elsewhere": dead.replace(host, "other-host"), "none": ""}
    made = []
    for name, owner in owners.items():
        label = ["--label", f"{engine_labels.LABEL}={owner}"] if owner else ["--label", "of.another=program"]
        made.append(podman().now("volume", "create", *label, f"ptb-test-{name}"))
        made.append(podman().now("network", "create", *label, f"ptb-test-{name}"))
        made.append(podman().now("create", "--name", f"ptb-test-{name}", "--network", "none", *label, IMAGE, "true"))
    try:
        assert [one.returncode for one in made] == [0] * 12, [one.stderr for one in made]
        removed = set(podman_reap.reap(podman(), tmp_path))
        assert removed == {f"{kind} ptb-test-dead" for kind in ("container", "volume", "network")}
        left = {kind: podman().now(*listing, "--format", "{{.Name}}").stdout for kind, listing in LISTINGS.items()}
        left["container"] = " ".join(containers("name=ptb-test-"))
        for kind, names in left.items():
            assert all(f"ptb-test-{name}" in names for name in ("living", "elsewhere", "none")), kind
            assert "ptb-test-dead" not in names
    finally:
        for name in owners:
            podman().now("rm", "--force", "--ignore", f"ptb-test-{name}")
            podman().now("volume", "rm", "--force", f"ptb-test-{name}")
            podman().now("network", "rm", "--force", f"ptb-test-{name}")


LISTINGS = {"volume": ("volume", "ls"), "network": ("network", "ls")}


def peak_mb() -> int:
    """The most memory that this process has had since the mark was last reset."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) >> 10


def test_a_large_file_goes_in_and_out_without_being_held_in_memory(ptb, tmp_path):
    """An artifact comes out of the agent's container, into the cell, and goes into the verifier's."""
    test = "stat -c %s answer.txt; [ $(stat -c %s answer.txt) = 314572800 ] && echo 1 > /logs/verifier/reward.txt"
    task = make_task(tmp_path / "mine", test)
    chosen = ("benchmark=task", f"benchmark.path={task}", *PODMAN)
    assert ptb(*chosen, *agent("Scripted", command=OK), "hydra.run.dir=first", "retry.infra_errors=0").code == 1
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mb()
    ran = ptb(*chosen, *agent("Scripted", command="truncate -s 300M answer.txt"), "hydra.run.dir=second")
    assert ran.code == 0, ran.out + ran.err
    assert Path("second").resolve().joinpath("job/mine__001/artifacts/app/answer.txt").stat().st_size == 300 << 20
    assert peak_mb() - before < 100
