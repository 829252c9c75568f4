"""How commands run, end and are ended, and how sandboxes do."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from ptb_runner.sandbox import box as box_module
from ptb_runner.sandbox import bwrap, output, scratch
from ptb_runner.sandbox.bubblewrap import BubblewrapEnvironment, kill_all, reap


def processes(marker: str) -> list[psutil.Process]:
    """The living processes of this machine with the marker in their command line, but for this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found += [process] if any(marker in word for word in process.cmdline()) else []
    return found


def gone(marker: str, within_sec: float = 2) -> bool:
    deadline = time.monotonic() + within_sec
    while processes(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes(marker)


async def appeared(marker: str) -> None:
    """Returns when the BREEDER's processes run."""
    for _ in range(500):
        if len(processes(marker)) >= 4:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("they did not start")


@pytest.fixture
def marker() -> str:
    return f"marker-{uuid.uuid4().hex}"


# Each starts a process that outlives it: a child, a grandchild of a dead parent, one in a session of its own.
BREEDER = """
python -c 'import time; time.sleep(99)' {0} &
( ( python -c 'import time; time.sleep(99)' {0} & ) & )
setsid -f python -c 'import time; time.sleep(99)' {0}
python -c '
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(99)
    os._exit(0)
' {0}
"""


def test_a_timeout_kills_all_descendants_and_nothing_else(run, marker):
    async def body(env: BubblewrapEnvironment) -> None:
        other = asyncio.create_task(env.exec("sleep 1.5; echo unharmed"))
        begun = time.monotonic()
        with pytest.raises(RuntimeError, match=r"^Command timed out after 1 seconds$"):
            await env.exec(BREEDER.format(marker) + "wait; sleep 99", timeout_sec=1)
        assert time.monotonic() - begun < 2.5
        assert processes(marker) == []
        assert (await other).stdout == "unharmed\n"
        assert (await env.exec("echo still here")).stdout == "still here\n"

    run(body)


def test_cancellation_kills_all_descendants(run, marker):
    async def body(env: BubblewrapEnvironment) -> None:
        task = asyncio.create_task(env.exec(BREEDER.format(marker) + "sleep 99"))
        await appeared(marker)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes(marker) == []

    run(body)


def test_processes_that_outbreed_the_killing_take_the_sandbox_with_them(run, marker, monkeypatch):
    monkeypatch.setattr(box_module, "KILL_SEC", 1)
    # A command may stop its own supervisor, which then cannot kill.
    stopper = f"kill -STOP $PPID; exec python -c 'import time; time.sleep(99)' {marker}"

    async def body(env: BubblewrapEnvironment) -> None:
        with pytest.raises(RuntimeError, match="timed out"):
            await env.exec(stopper, timeout_sec=1)
        assert gone(marker)
        with pytest.raises(RuntimeError, match="gone"):
            await env.exec("true")

    run(body)


def test_a_background_process_lives_on_and_holds_nothing_up(run, marker):
    background = f"python -uc 'import time\nwhile True: print(time.time()); time.sleep(.001)' {marker} & echo started"

    async def body(env: BubblewrapEnvironment) -> None:
        begun = time.monotonic()
        result = await env.exec(background)
        assert (result.stdout or "").startswith("started\n")
        assert time.monotonic() - begun < 1
        await asyncio.sleep(0.3)
        assert processes(marker), "it must not die of a broken pipe"

    run(body)
    assert processes(marker) == []


def test_exit_codes(run):
    async def body(env: BubblewrapEnvironment) -> None:
        commands = ("exit 7", "kill -9 $$", "kill -TERM $$", "nonsense-command", "yes | head -1")
        assert [(await env.exec(command)).return_code for command in commands] == [7, 137, 143, 127, 0]
        unreachable = await env.exec("true", cwd="/etc/passwd/x")
        assert unreachable.return_code == 126
        assert "cannot start" in (unreachable.stderr or "")
        too_long = await env.exec("true " + "x" * 200_000)
        assert too_long.return_code == 126
        assert "too long" in (too_long.stderr or "")

    run(body)


def test_output_is_whole_in_order_and_bounded(run, monkeypatch):
    monkeypatch.setattr(output, "KEPT_BYTES", 1000)

    async def body(env: BubblewrapEnvironment) -> None:
        reopened = await env.exec("echo one; echo two > /dev/stdout; echo three; echo err > /dev/stderr")
        assert (reopened.stdout, reopened.stderr) == ("one\ntwo\nthree\n", "err\n")
        long = await env.exec("seq 100000; printf '\\xff\\xfe'")
        assert (long.stdout or "").startswith("[the first 587897 bytes are left out]\n")
        assert (long.stdout or "").endswith("99999\n100000\n\ufffd\ufffd")

    run(body)


def test_output_is_streamed_while_the_command_runs(run):
    async def body(env: BubblewrapEnvironment) -> None:
        heard: list[tuple[str, str, float]] = []

        async def listen(text: str, stream: str) -> None:
            heard.append((text, stream, time.monotonic()))

        with env.scoped_output_callback(listen):
            result = await env.exec("echo a; sleep 0.5; echo b >&2; printf '\\xc3'; sleep 0.2; printf '\\xa9'")
        assert result.stdout == "a\né"
        assert "".join(text for text, stream, _ in heard if stream == "stdout") == "a\né"
        assert heard[1][2] - heard[0][2] > 0.3

    run(body)


def test_stdin_is_empty(run):
    async def body(env: BubblewrapEnvironment) -> None:
        assert (await env.exec("cat; read x || echo none", timeout_sec=5)).stdout == "none\n"

    run(body)


def test_other_users_are_refused(run):
    async def body(env: BubblewrapEnvironment) -> None:
        assert (await env.exec("true", user="root")).return_code == 0
        assert (await env.exec("true", user=0)).return_code == 0
        with pytest.raises(ValueError, match="only root"):
            await env.exec("true", user="agent")
        with env.with_default_user(1000), pytest.raises(ValueError, match="only root"):
            await env.exec("true")

    run(body)


def test_many_at_once(make, scratch_dir):
    async def one(number: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            env = make(session_id=f"t{number}__env")
            await env.start(force_build=False)
            answers = await asyncio.gather(*(env.exec(f"echo {number}.{i} | tee -a /app/log") for i in range(10)))
            assert [answer.stdout for answer in answers] == [f"{number}.{i}\n" for i in range(10)]
            assert (await env.exec("wc -l < /app/log")).stdout == "10\n"
            await env.stop(delete=True)

    async def main() -> None:
        gate = asyncio.Semaphore(4)
        await asyncio.gather(*(one(number, gate) for number in range(8)))

    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    assert list(scratch_dir.glob("*/*")) == []


def test_stop_may_be_called_at_any_time(make, marker):
    async def main() -> None:
        env = make()
        await env.stop(delete=True)
        await env.start(force_build=False)
        running = asyncio.create_task(env.exec(BREEDER.format(marker) + "sleep 99"))
        await appeared(marker)
        await asyncio.gather(env.stop(delete=False), env.stop(delete=True))
        assert processes(marker) == []
        with pytest.raises(RuntimeError, match="gone"):
            await running
        with pytest.raises(RuntimeError, match="not running"):
            await env.exec("true")
        await env.stop(delete=True)

    asyncio.run(main())


HOSTILE_TREE = """
mkdir -p a/b/c && touch a/b/c/f && ln -s / a/root && chmod 000 a/b/c a/b && mkdir ro && touch ro/x && chmod 500 ro
python -c "
import os
for _ in range(1500): os.mkdir('d' * 20); os.chdir('d' * 20)
"
chmod 000 a; chmod 000 /app
"""


def test_stop_removes_hostile_folders(run):
    async def body(env: BubblewrapEnvironment) -> None:
        result = await env.exec(HOSTILE_TREE)
        assert result.return_code == 0, result.stderr

    run(body)


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's right to read everything")
def test_delete_without_the_right_to_override_modes(tmp_path):
    app = tmp_path / "x" / "private" / "app"
    app.mkdir(parents=True)
    subprocess.run(["bash", "-c", HOSTILE_TREE.replace("/app", str(app))], cwd=app, check=True)
    script = f"from ptb_runner.sandbox.scratch import *; delete(Path({str(tmp_path)!r}) / 'x')"
    drop = "-dac_override,-dac_read_search,-fowner"
    try:
        weak = ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}"]
        subprocess.run([*weak, sys.executable, "-c", script], check=True)
        assert not (tmp_path / "x").exists()
    finally:
        # Too deep for pytest's own removal.
        subprocess.run(["rm", "-rf", tmp_path / "x"], check=True)


def test_a_failed_start_leaves_nothing(make, scratch_dir, monkeypatch, tmp_path):
    async def main() -> None:
        env = make(read_only_paths=[tmp_path / "absent"])
        with pytest.raises(RuntimeError, match=r"did not start: .*absent"):
            await env.start(force_build=False)
        monkeypatch.setenv("PTB_BWRAP", str(tmp_path / "no-bwrap"))
        with pytest.raises(FileNotFoundError, match="PTB_BWRAP"):
            await make().start(force_build=False)

    asyncio.run(main())
    assert list(scratch_dir.glob("*/*")) == []


def test_a_start_that_is_cancelled_leaves_nothing(make, scratch_dir):
    async def main() -> None:
        for delay in (0, 0.005, 0.01, 0.02, 0.03):
            with contextlib.suppress(TimeoutError):
                env = make()
                await asyncio.wait_for(env.start(force_build=False), delay)
                await env.stop(delete=True)

    asyncio.run(main())
    assert list(scratch_dir.glob("*/*")) == []


def test_a_sandbox_that_dies_says_so_at_once(run):
    async def body(env: BubblewrapEnvironment) -> None:
        running = asyncio.create_task(env.exec("sleep 99"))
        await asyncio.sleep(0.1)
        assert env._box
        assert env._box.pid
        os.kill(env._box.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="gone"):
            await asyncio.wait_for(running, 2)
        with pytest.raises(RuntimeError, match="gone"):
            await env.exec("true")

    run(body)


def test_kill_all_during_an_exec(run, marker):
    async def body(env: BubblewrapEnvironment) -> None:
        running = asyncio.create_task(env.exec(BREEDER.format(marker) + "sleep 99"))
        await appeared(marker)
        kill_all()
        with pytest.raises(RuntimeError, match="gone"):
            await asyncio.wait_for(running, 2)
        assert gone(marker)

    run(body)


OWNER = """
import asyncio, sys
from pathlib import Path
from ptb_runner.sandbox import bwrap, scratch
from ptb_runner.sandbox.box import Box, Command

async def main():
    folder = scratch.create(Path(sys.argv[1]))
    box = await Box.start(bwrap.Layout(folder.path))
    folder.record(box.pid)
    command = "setsid -f python -c 'import time; time.sleep(99)' " + sys.argv[2] + "; echo x > /app/file; sleep 99"
    asyncio.create_task(box.run(Command(command, "/app", {"PATH": sys.prefix + "/bin:/usr/bin:/bin"})))
    await asyncio.sleep(0.5)
    print(folder.path, flush=True)
    await asyncio.sleep(99)

asyncio.run(main())
"""


def test_a_killed_owner_leaves_no_process_and_its_folder_is_reaped(scratch_dir, marker):
    command = [sys.executable, "-c", OWNER, str(scratch_dir), marker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        folder = Path(owner.stdout.readline().strip())
        assert (folder / "private" / "app" / "file").exists()
        assert reap(scratch_dir) == []
        assert folder.exists()
        assert len(processes(marker)) >= 2
        owner.kill()
    assert gone(marker)
    assert reap(scratch_dir) == [folder]
    assert not folder.exists()


def test_reap_ends_what_a_dead_owner_left(tmp_path):
    dead = scratch.create(tmp_path)
    orphan = subprocess.Popen(["sleep", "99"])
    dead.record(orphan.pid)
    os.close(dead.lock)
    assert reap(tmp_path) == [dead.path]
    assert orphan.wait(2) == -signal.SIGKILL


def test_reap_does_not_kill_a_process_that_got_the_number(tmp_path):
    dead = scratch.create(tmp_path)
    os.write(dead.lock, f"{os.getpid()} 12345".encode())
    os.close(dead.lock)
    assert reap(tmp_path) == [dead.path]


def test_twenty_reapers_and_creators_at_once(tmp_path):
    for _ in range(30):
        os.close(scratch.create(tmp_path).lock)
    script = (
        "import sys, time; from ptb_runner.sandbox.scratch import *; base = Path(sys.argv[1])\n"
        "made = [create(base) for _ in range(5)]; print(len(reap(base)))\n"
        "assert all(m.path.exists() for m in made); [m.remove() for m in made]"
    )
    reapers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(20)
    ]
    counts = [int(reaper.communicate()[0]) for reaper in reapers]
    assert [reaper.returncode for reaper in reapers] == [0] * 20
    assert sum(counts) == 30
    assert list(scratch.parent(tmp_path).iterdir()) == []


def test_a_foreign_parent_folder_is_refused(tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / f"ptb-sandboxes-{os.geteuid()}").symlink_to(target)
    with pytest.raises(PermissionError):
        scratch.create(tmp_path)
    assert "cannot be written" in scratch.problems(tmp_path)[0]


def test_speed(make):
    async def main() -> tuple[float, float]:
        env = make()
        begun = time.perf_counter()
        await env.start(force_build=False)
        await env.exec("echo hello")
        await env.stop(delete=True)
        whole = time.perf_counter() - begun
        await env.start(force_build=False)
        begun = time.perf_counter()
        for _ in range(20):
            await env.exec("true")
        each = (time.perf_counter() - begun) / 20
        await env.stop(delete=True)
        return whole, each

    best = [min(column) for column in zip(*(asyncio.run(main()) for _ in range(3)), strict=True)]
    # Three times what an idle machine needs: this is to notice a blunder, not a busy neighbour.
    assert best[0] < 0.3
    assert best[1] < 0.03


def test_layout_never_shows_a_parent_of_the_interpreter():
    folders = bwrap.interpreter_folders()
    assert {folder.resolve() for folder in folders} <= {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
