"""One real container: commands, users, their end, and the container's."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from ptb_runner.sandbox.jobs import Command
from ptb_runner.sandbox.podman_cli import PodmanError
from ptb_runner.sandbox.podman_container import Container, Wanted
from tests.podman.podman_kit import containers, podman

pytestmark = pytest.mark.podman


def sh(shell: str, user: str | None = None, cwd: str | None = None, **env: str) -> Command:
    return Command(shell, cwd, env, user)


async def processes(container: Container) -> str:
    return (await container.run(sh("ps -eo args")))[1]


def test_a_command(inside):
    async def body(container: Container) -> None:
        given = sh('echo "$A $B"; pwd; cat; echo bad >&2; exit 3', cwd="/usr", B='it\'s "2"\nlines')
        assert await container.run(given) == (3, 'one two it\'s "2"\nlines\n/usr\n', "bad\n")
        assert (await container.run(sh("grep -E 'SigIgn' /proc/self/status")))[1].split()[1].endswith("00000000")
        assert (await container.run(sh("echo kept", cwd="/absent")))[0] != 0

    inside(body, env={"A": "one two"})


def test_output_comes_as_it_is_written(inside):
    async def body(container: Container) -> None:
        came: list[float] = []

        async def listen(_: str) -> None:
            came.append(time.monotonic())

        await container.run(sh("echo 1; sleep 0.5; echo 2"), None, (listen, None))
        assert 0.3 < came[-1] - came[0] < 1.5

    inside(body)


def test_commands_at_the_same_time(inside):
    async def body(container: Container) -> None:
        began = time.monotonic()
        said = await asyncio.gather(*(container.run(sh(f"sleep 0.5; echo {n}")) for n in range(8)))
        assert [out for _, out, _ in said] == [f"{n}\n" for n in range(8)]
        assert time.monotonic() - began < 3

    inside(body)


def test_other_users(inside):
    async def body(container: Container) -> None:
        for who, name in ((None, "root"), ("root", "root"), ("nobody", "nobody"), ("1001", "1001")):
            code, said, _ = await container.run(sh("id -un 2>/dev/null || id -u; touch /root/x", user=who))
            assert said.split()[-1] == name
            assert (code == 0) == (name == "root")
        assert "CapEff:\t0000000000000000" in (await container.run(sh("cat /proc/self/status", user="nobody")))[1]
        with pytest.raises(PodmanError, match="nosuchuser"):
            await container.run(sh("true", user="nosuchuser"))

    inside(body)


ESCAPES = "(setsid sleep 901 &); (env -i setsid sleep 902 &); unshare -p -f sleep 903 & sleep 904"


@pytest.mark.parametrize("user", [None, "nobody"])
def test_a_timed_out_command_dies_with_all_its_children(inside, user):
    async def body(container: Container) -> None:
        kept = asyncio.create_task(container.run(sh("sleep 3; echo kept")))
        await container.run(sh("setsid sleep 905 > /dev/null 2>&1 &"))
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await container.run(sh(ESCAPES, user=user), timeout_sec=0.7)
        assert time.monotonic() - began < 2
        left = await processes(container)
        assert [n for n in range(901, 906) if f"sleep {n}" in left] == [905]
        assert (await kept)[1] == "kept\n"

    inside(body)


def test_a_cancelled_command_dies_too(inside):
    async def body(container: Container) -> None:
        task = asyncio.create_task(container.run(sh(ESCAPES)))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "sleep 90" not in await processes(container)

    inside(body)


def test_who_kills_every_shell_kills_only_their_own(inside):
    async def body(container: Container) -> None:
        for user in (None, "nobody"):
            code, _, _ = await asyncio.wait_for(container.run(sh("pkill -9 exe; pkill -9 bash; sleep 9", user=user)), 5)
            assert code == 137
            assert (await container.run(sh("echo there", user=user)))[1] == "there\n"

    inside(body)


def test_a_container_that_ends_by_itself_is_told(inside):
    async def body(container: Container) -> None:
        task = asyncio.create_task(container.run(sh("sleep 99")))
        await asyncio.sleep(0.3)
        os.kill(container.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="the container is gone"):
            await asyncio.wait_for(task, 3)
        with pytest.raises(RuntimeError, match="the container is gone"):
            await container.run(sh("true"))

    inside(body)


def test_what_background_processes_print_later_hurts_nobody(inside):
    async def body(container: Container) -> None:
        loud = "(sleep 0.3; for i in 1 2 3; do echo late || touch /broken; done; touch /done) & echo now"
        assert (await container.run(sh(loud)))[1] == "now\n"
        await container.run(sh("while [ ! -e /done ]; do sleep 0.05; done"))
        assert (await container.run(sh("ls /broken")))[0] != 0

    inside(body)


def test_an_image_that_is_gone_and_one_without_bash(image, tmp_path):
    async def start(name: str, **more: str) -> None:
        await Container.start(podman(), Wanted("ptb-test-none", name, ["--network", "none"], {}), tmp_path)

    with pytest.raises(PodmanError, match=r"localhost/no-such-image"):
        asyncio.run(start("localhost/no-such-image"))
    assert containers("name=ptb-test-none") == []
    assert list(tmp_path.glob("ptb-sandboxes-*/*")) == []


OWNER = """
import asyncio, sys
from pathlib import Path
from ptb_runner.sandbox.engine_labels import labels
from ptb_runner.sandbox.podman_container import Container, Wanted
from ptb_runner.sandbox.jobs import Command
from tests.podman.podman_kit import podman

async def main():
    own = [word for pair in labels(Path("/a/b/c")).items() for word in ("--label", "=".join(pair))]
    wanted = Wanted("ptb-test-owned", "localhost/ptb-base:bookworm", ["--network", "none", *own], {})
    container = await Container.start(podman(), wanted, Path(sys.argv[1]))
    print("up", flush=True)
    await container.run(Command(sys.argv[2], None, {}))

asyncio.run(main())
"""


@pytest.mark.parametrize("command", ["sleep 99", "exec 9> /ptb/*[0-9a-f]; sleep 99"], ids=["plain", "clinging"])
def test_the_container_of_a_killed_runner(image, tmp_path, command):
    """It ends by itself, or when a process in it clings to life is ended by the next runner."""
    from ptb_runner.sandbox import podman_reap

    def left() -> list[object]:
        return [*containers("name=ptb-test-owned"), *tmp_path.glob("ptb-sandboxes-*/*")]

    stranger = podman().now("run", "-d", "--network", "none", "--label", "ptb.owner=elsewhere", image, "sleep", "99")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, tmp_path, command], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout
        assert owner.stdout.readline() == "up\n"
        assert podman_reap.reap(podman(), tmp_path) == []
        assert containers("name=ptb-test-owned") != []
        owner.kill()
        owner.wait()
        deadline = time.monotonic() + 3
        while left() and time.monotonic() < deadline:
            podman_reap.reap(podman(), tmp_path)
            time.sleep(0.1)
        assert left() == []
        assert stranger.stdout.strip() in podman().now("ps", "-q", "--no-trunc").stdout
    finally:
        owner.kill()
        podman().now("rm", "-f", "-t", "0", stranger.stdout.strip())


def test_a_lifetime_ends_it(image, tmp_path):
    async def main() -> None:
        wanted = Wanted("ptb-test-short", image, ["--network", "none", "--timeout", "1"], {})
        container = await Container.start(podman(), wanted, tmp_path)
        with pytest.raises(RuntimeError, match="gone"):
            await asyncio.wait_for(container.run(sh("sleep 99")), 10)
        await container.stop()

    asyncio.run(main())
