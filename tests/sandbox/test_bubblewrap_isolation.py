"""What a command in the sandbox can see and do, whoever runs the tests: for root it matters most."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from ptb_runner.sandbox.bubblewrap import BubblewrapEnvironment
from ptb_runner.sandbox.bwrap import interpreter_folders


async def out(box: BubblewrapEnvironment, command: str, **more: Any) -> str:
    result = await box.exec(command, **more)
    return (result.stdout or "") + (result.stderr or "")


def test_hello(run):
    async def body(box: BubblewrapEnvironment) -> None:
        result = await box.exec("echo hello; echo problem >&2; exit 3")
        assert (result.stdout, result.stderr, result.return_code) == ("hello\n", "problem\n", 3)

    run(body)


def test_the_environment_of_commands_is_exactly_what_harbor_passes(run, monkeypatch):
    monkeypatch.setenv("SECRET_API_KEY", "on the host")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "HASWELL")
    monkeypatch.delenv("OPENBLAS_L2_SIZE", raising=False)

    async def body(box: BubblewrapEnvironment) -> None:
        lines = (await out(box, "env -u _ -u PWD -u SHLVL", env={"MINE": "3"})).splitlines()
        assert sorted(lines) == sorted(
            [
                f"PATH={sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                *("HOME=/root", "USER=root", "LANG=C.UTF-8", "TERM=dumb", "TMPDIR=/tmp", "PYTHONDONTWRITEBYTECODE=1"),
                *("OPENBLAS_CORETYPE=HASWELL", "TASK=1", "KEPT=2", "MINE=3"),
            ]
        )
        assert "on the host" not in await out(box, "cat /proc/*/environ | tr '\\0' '\\n'")

    run(body, config={"env": {"TASK": "1"}}, persistent_env={"KEPT": "2"})


def test_no_privileges(run):
    core_pattern = Path("/proc/sys/kernel/core_pattern").read_text()

    async def body(box: BubblewrapEnvironment) -> None:
        status = await out(box, "cat /proc/self/status")
        for line in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert f"{line}:\t{0:016x}" in status
        assert "NoNewPrivs:\t1" in status
        for forbidden in (
            "echo x > /proc/sys/kernel/core_pattern",
            "echo h > /proc/sysrq-trigger",
            "mount -t tmpfs x /mnt || mount -t tmpfs x /tmp",
            "mount -o remount,rw /usr",
            "umount /proc/sys",
            "unshare -U true",
            "unshare -m true",
            "chroot / true",
            "touch /usr/x",
            f"touch {sys.prefix}/x",
            "cat /etc/shadow",
            "echo x >> /etc/passwd",
            "kill -9 1 && ! sleep 1",
            "cat /proc/1/environ",
            "readlink /proc/1/fd/3",
            ": > /proc/1/mem",
            "ls /sys",
            "ls /work/shared",
            f"ls {Path(__file__).parent}",
        ):
            result = await box.exec(forbidden)
            assert result.return_code != 0, f"{forbidden}: {result.stdout}"
        assert (await out(box, "id -u; id -g; hostname; grep -c . /etc/passwd")).split() == ["0", "0", "sandbox", "2"]

    run(body)
    assert Path("/proc/sys/kernel/core_pattern").read_text() == core_pattern


def test_device_nodes_are_not_the_hosts(run):
    before = Path("/dev/null").stat().st_mode

    async def body(box: BubblewrapEnvironment) -> None:
        assert await out(box, "echo gone > /dev/null; head -c 3 /dev/zero | wc -c") == "3\n"
        await box.exec("chmod 600 /dev/null /dev/zero /dev/tty")

    try:
        run(body)
        assert Path("/dev/null").stat().st_mode == before
    finally:
        if os.geteuid() == 0:
            Path("/dev/null").chmod(before & 0o777)


def test_private_folders_and_the_users_home(run, scratch_dir, tmp_path):
    async def body(box: BubblewrapEnvironment) -> None:
        for folder in ("/logs", "/tests", "/solution", "/installed-agent", "/tmp", "/var/tmp", "/home", "/app"):
            # But for the way to the interpreter, should it lie there (a checkout below /tmp, say).
            way = [path.relative_to(folder).parts[0] for path in interpreter_folders() if path.is_relative_to(folder)]
            hidden = " ".join(f"-e {name}" for name in ("agent", "verifier", "artifacts", *way))
            assert await out(box, f"ls -A {folder} | grep -v {hidden}; touch {folder}/of-ptb-test") == ""
            assert not (Path(folder) / "of-ptb-test").exists()
        assert await out(box, "ls -d /logs/agent /logs/verifier /logs/artifacts | wc -l") == "3\n"
        # Of a home that holds the interpreter, the way to it and no more.
        shown = set((await out(box, "find /root -maxdepth 2 -printf '%P\\n'")).split())
        allowed = {str(Path(*Path(p).parts[2:][:n])) for p in (sys.prefix, sys.base_prefix) for n in (1, 2)}
        assert shown <= allowed
        assert str(tmp_path) not in await out(box, "ls -d /tmp/* /var/tmp/*")

    run(body)


def test_other_processes_are_invisible(run):
    async def body(box: BubblewrapEnvironment) -> None:
        pids = (await out(box, "ls /proc | grep -E '^[0-9]+$' | wc -l")).strip()
        assert int(pids) < 10
        assert (await box.exec(f"kill -0 {os.getpid()} 2>/dev/null && [ {os.getpid()} -gt 50 ]")).return_code != 0

    run(body)


def test_commands_inherit_no_descriptor_and_no_ignored_signal(run):
    async def body(box: BubblewrapEnvironment) -> None:
        assert (await out(box, "echo /proc/self/fd/*; ls -l /proc/$$/fd | grep -c '[0-9] ->'")).split()[-1] == "3"
        ignored = (await out(box, "grep SigIgn /proc/self/status; grep SigBlk /proc/self/status")).split()
        assert [int(mask, 16) for mask in ignored[1::2]] == [0, 0]

    run(body)


def test_the_interpreter_and_its_packages(run):
    async def body(box: BubblewrapEnvironment) -> None:
        script = "import numpy, sys; print(int(numpy.ones((9, 9)).sum()), sys.prefix)"
        assert await out(box, f"python -c '{script}'; which python") == f"81 {sys.prefix}\n{sys.prefix}/bin/python\n"

    run(body)


@pytest.mark.parametrize("workdir", ["/app", "/home/agent/workspace", "/data/deep/er"])
def test_workdir_holds_the_tasks_loose_files(run, tmp_path, workdir):
    folder = tmp_path / "task" / "environment"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a.txt").write_text("loose")
    (folder / ".gitkeep").touch()

    async def body(box: BubblewrapEnvironment) -> None:
        assert await out(box, "pwd; cat data/a.txt; ls -A") == f"{workdir}\nloosedata\n"
        assert await out(box, "pwd", cwd="/app/new/folder") == "/app/new/folder\n"

    run(body, config={"workdir": workdir})


def test_loose_files_stay_out_when_harbor_says_so(run, tmp_path):
    (tmp_path / "task" / "environment").mkdir(parents=True)
    (tmp_path / "task" / "environment" / "a.txt").touch()

    async def body(box: BubblewrapEnvironment) -> None:
        assert await out(box, "ls -A") == ""

    run(body, enable_environment_dir_upload=False)


@pytest.mark.parametrize("workdir", ["/", "/usr", "/usr/src/app", "/etc/x", "/proc", "app", "/a/../b", sys.prefix])
def test_a_workdir_that_hides_the_system_is_refused(make, workdir):
    with pytest.raises(ValueError, match="workdir"):
        make(config={"workdir": workdir})


@pytest.mark.parametrize(
    ("session_id", "writable"),
    [
        ("t__x__env", True),
        ("t__x__verifier__grade", False),
        ("t__x__verifier__env", False),
        ("t__cut__1a2b3c4d", False),
    ],
)
def test_handoff_is_writable_for_the_agent_only(run, tmp_path, session_id, writable):
    (tmp_path / "handoff").mkdir()
    (tmp_path / "handoff" / "model").write_text("weights")

    async def body(box: BubblewrapEnvironment) -> None:
        assert await out(box, "cat /handoff/model") == "weights"
        assert ((await box.exec("echo more > /handoff/new")).return_code == 0) is writable

    run(body, handoff=tmp_path / "handoff", session_id=session_id)
    assert (tmp_path / "handoff" / "new").exists() is writable


def test_host_folders_that_the_user_named(run, tmp_path):
    for name in ("seen", "mounted", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    mounts = [
        {"type": "bind", "source": str(tmp_path / "mounted"), "target": "/logs/mounted"},
        {"type": "bind", "source": str(tmp_path / "kept"), "target": "/opt/kept", "read_only": True},
    ]

    async def body(box: BubblewrapEnvironment) -> None:
        assert await out(box, f"cat {tmp_path}/seen/file /logs/mounted/file /opt/kept/file") == "seenmountedkept"
        writes = f"for d in {tmp_path}/seen /logs/mounted /opt/kept; do touch $d/new 2>/dev/null && echo $d; done"
        assert await out(box, writes) == "/logs/mounted\n"
        assert box.is_path_mounted("/logs/mounted", tmp_path / "mounted")

    run(body, mounts=mounts, read_only_paths=[tmp_path / "seen"])


def test_auto_mounting_writes_straight_to_the_trial(run, tmp_path):
    async def body(box: BubblewrapEnvironment) -> None:
        await box.exec("echo done > /logs/agent/log.txt")
        assert box.is_path_mounted("/logs/agent", tmp_path / "trial" / "agent")

    run(body, auto_mounting=True)
    assert (tmp_path / "trial" / "agent" / "log.txt").read_text() == "done\n"


CONNECT = "import socket; socket.create_connection(('127.0.0.1', {port}), 3).close(); print('in')"
LOOPBACK = """
import socket, threading
s = socket.create_server(("127.0.0.1", 0)); socket.create_connection(s.getsockname(), 3); print("up")
"""


@pytest.mark.parametrize(("mode", "reached"), [("public", True), ("no-network", False)])
def test_network(run, mode, reached):
    from harbor.models.task.config import NetworkMode, NetworkPolicy

    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = CONNECT.format(port=server.getsockname()[1])

        async def body(box: BubblewrapEnvironment) -> None:
            assert ((await box.exec(f'python -c "{connect}"')).stdout == "in\n") is reached
            assert await out(box, f"python -c '{LOOPBACK}'") == "up\n"
            assert await out(box, "getent hosts localhost | wc -l") == "1\n"

        run(body, network_policy=NetworkPolicy(network_mode=NetworkMode(mode)))


def test_allowlists_are_refused(make):
    from harbor.models.task.config import NetworkMode, NetworkPolicy

    with pytest.raises(ValueError, match="allowlist"):
        make(network_policy=NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["example.org"]))
