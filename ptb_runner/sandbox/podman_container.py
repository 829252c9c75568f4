"""One podman container that takes commands, at the cost of one podman process to start it and one to remove it.

`podman exec` takes a podman, a conmon and a crun for each command, a third of a second. Instead, process 1 of the
container (templates/sandbox/serve.sh) starts what it is told. Container and runner share a folder, read-only inside:

    /ptb/serve.sh       the program
    /ptb/<random>       FIFOs for commands and their input and output, and the scripts to run; names cannot be listed
    /ptb/replies        FIFO: "ready NAME UID", "started SCRIPT", "exit SCRIPT CODE", a line each

For another user than the container's own, a second serve.sh is started with `podman exec`, once.

Processes are ended from outside, by the host's /proc: a container's owner may always do that, also rootless. When the
runner dies, whatever way, the FIFO of process 1 ends, and with it the container, which podman then removes.
"""

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import override

from ptb_runner.paths import TEMPLATES
from ptb_runner.sandbox import podman_cli, podman_images, scratch
from ptb_runner.sandbox.jobs import KILL_SEC, Command, Job, Jobs
from ptb_runner.sandbox.podman_cli import Podman, PodmanError
from ptb_runner.sandbox.podman_processes import MARK, Process, namespace, processes, runs

BOX = "/ptb"
SERVE_SEC = 60
WATCH_SEC = 1.0
LAST_SEC = 0.3
KILLED = 128 + signal.SIGKILL

_live: set["Container"] = set()


def kill_all() -> None:
    """Kills every container of this process at once, without waiting."""
    podman_cli.kill_all()
    for container in list(_live):
        container.kill()


@dataclass(frozen=True)
class Wanted:
    """What to start: an image, and how. `options` are of `podman run`."""

    name: str
    image: str
    options: list[str]
    env: dict[str, str]


class Container(Jobs):
    """Made by `await Container.start(...)`; ended by `await container.stop()`."""

    def __init__(self, podman: Podman, wanted: Wanted, folder: scratch.Scratch) -> None:
        super().__init__()
        self.podman = podman
        self.wanted = wanted
        self.pid = 0
        """Process 1 of the container, in the host's numbers."""
        self._folder = folder
        self._box = folder.path / "box"
        self._loop = asyncio.get_running_loop()
        self._pidfd = -1
        self._lost = False
        self._paths: dict[int, Path] = {}
        self._servers: dict[str | None, _Server] = {}
        self._awaited: dict[str, asyncio.Future[int]] = {}
        self._jobs: dict[str, _Running] = {}
        self._starting = asyncio.Lock()
        self._make_box()
        _live.add(self)

    def _make_box(self) -> None:
        self._box.mkdir()
        shutil.copyfile(TEMPLATES / "sandbox" / "serve.sh", self._box / "serve.sh")
        (self._box / "serve.sh").chmod(0o644)
        self._replies = self._fifo("replies")
        # Held open, so that it never ends.
        self._replies_end = os.open(self._box / "replies", os.O_WRONLY)
        self._unread = b""
        self._box.chmod(0o711)
        self._loop.add_reader(self._replies, self._read_replies)

    @classmethod
    async def start(cls, podman: Podman, wanted: Wanted, scratch_dir: Path | None) -> "Container":
        """Raises PodmanError or RuntimeError when it does not come up; then nothing is left of it."""
        container = cls(podman, wanted, await asyncio.to_thread(scratch.create, scratch_dir))
        try:
            await container._run()
        except BaseException:
            podman_images.forget(wanted.image)
            await asyncio.shield(container.stop())
            raise
        return container

    async def _run(self) -> None:
        server = _Server(secrets.token_hex(8), self._box)
        env_file = self._folder.path / "env"
        env_file.touch(0o600)
        # What holds a line break cannot be in such a file; every command gets all variables once more anyway.
        env_file.write_text("".join(f"{k}={v}\n" for k, v in self.wanted.env.items() if "\n" not in v))
        pid_file = self._folder.path / "pid"
        options = [
            *("--detach", "--rm", "--name", self.wanted.name, "--pull", "never", "--no-healthcheck"),
            *("--env-file", str(env_file), "--pidfile", str(pid_file), "--security-opt", "label=disable"),
            *("--log-driver", "k8s-file", "--log-opt", f"path={self._folder.path / 'log'}"),
            *("--volume", f"{self._box}:{BOX}:ro"),
            *self.wanted.options,
        ]
        self._servers[None] = server
        with self._asked(f"ready {server.name}") as reply:
            await self.podman("run", *options, self.wanted.image, "bash", f"{BOX}/serve.sh", server.name)
            env_file.unlink()
            self._watch(int(pid_file.read_text()))
            server.is_ready(await self._answered(reply))

    def _watch(self, pid: int) -> None:
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._lost = True
            raise self.gone() from None
        self._namespace = namespace(pid)
        self._folder.record(pid)
        self._loop.add_reader(self._pidfd, self._lose)

    @contextlib.contextmanager
    def _asked(self, question: str) -> Iterator[asyncio.Future[int]]:
        """The number that the reply to a question will bring; to be entered before the question is put."""
        self._awaited[question] = reply = self._loop.create_future()
        try:
            yield reply
        finally:
            del self._awaited[question]

    async def _answered(self, reply: asyncio.Future[int]) -> int:
        try:
            async with asyncio.timeout(SERVE_SEC):
                return await reply
        except TimeoutError:
            raise RuntimeError(f"the container does not answer: {self.last_words()}") from None

    # --- Commands -------------------------------------------------------------------------------------

    @override
    def pipe(self) -> tuple[int, int]:
        name = secrets.token_hex(8)
        source = self._fifo(name)
        sink = os.open(self._box / name, os.O_WRONLY)
        self._paths[source] = self._paths[sink] = self._box / name
        return source, sink

    def _fifo(self, name: str) -> int:
        path = self._box / name
        os.mkfifo(path)
        path.chmod(0o666)
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(source, False)
        return source

    @override
    @contextlib.contextmanager
    def text(self, content: str) -> Iterator[int]:
        path = self._box / secrets.token_hex(8)
        path.write_text(content, errors="surrogateescape")
        path.chmod(0o644)
        with path.open() as file:
            self._paths[file.fileno()] = path
            try:
                yield file.fileno()
            finally:
                path.unlink(missing_ok=True)

    @override
    async def spawn(self, command: Command, stdout: int, stderr: int, stdin: int | None = None) -> Job:
        server = await self._server(command.user)
        if self._lost:
            raise self.gone()
        job = Job(secrets.token_hex(8), self._loop.create_future())
        script = self._box / job.name
        ends = [self._paths[end] for end in (stdout, stderr)]
        source = self._paths[stdin] if stdin is not None else None
        script.write_text(_script(job.name, command, source, *ends), errors="surrogateescape")
        script.chmod(0o644)
        self._jobs[job.name] = running = _Running(job, time.clock_gettime(time.CLOCK_BOOTTIME))
        try:
            with self._asked(f"started {job.name}") as reply:
                server.send(job.name)
                await self._answered(reply)
        except BaseException:
            await asyncio.shield(self.end(job))
            raise
        finally:
            for path in {script, source, *ends} - {None}:
                path.unlink(missing_ok=True)  # both ends are open by now
        # Later: most commands are over by then, and looking takes longer than they do.
        self._loop.call_later(WATCH_SEC, self._watch_job, running)
        return job

    async def _server(self, user: str | None) -> "_Server":
        main = self._servers[None]
        if user is None or (user in ("root", "0") and main.uid == 0):
            return main
        async with self._starting:
            if user not in self._servers or not self._servers[user].is_alive():
                self._servers[user] = await self._serve(user)
        return self._servers[user]

    async def _serve(self, user: str) -> "_Server":
        server = _Server(secrets.token_hex(8), self._box)
        serve = (self.wanted.name, "bash", f"{BOX}/serve.sh", server.name)
        try:
            with self._asked(f"ready {server.name}") as reply:
                await self.podman("exec", "--detach", "--user", user, "--env", f"{MARK.decode()}-", *serve)
                server.is_ready(await self._answered(reply))
        except BaseException:
            server.close()
            raise
        return server

    def _watch_job(self, running: "_Running") -> None:
        """A job's own shell may be killed by what runs in the container, and would then never reply."""
        if running.job.exit.done() or self._lost:
            return
        own = running.job.name.encode()
        shell = next((found for found in self._inside() if found.mark == own and runs(found.pid, own)), None)
        try:
            running.pidfd = os.pidfd_open(shell.pid if shell else 0)
        except OSError:
            self._shell_ended(running)
        else:
            self._loop.add_reader(running.pidfd, self._shell_ended, running)

    def _shell_ended(self, running: "_Running") -> None:
        if running.pidfd >= 0:
            self._loop.remove_reader(running.pidfd)
        self._read_replies()
        # When the container ends, process 1 is the last that is seen to; that is then what is to be told.
        self._loop.call_later(LAST_SEC, self._finish, running.job.name, KILLED)

    def _finish(self, name: str, code: int | None) -> None:
        if running := self._jobs.pop(name, None):
            if running.pidfd >= 0:
                self._loop.remove_reader(running.pidfd)
                os.close(running.pidfd)
            if not running.job.exit.done():
                running.job.exit.set_result(code)

    def _read_replies(self) -> None:
        """Anything may write there: what is not a reply to a question of ours is nothing to us."""
        if self._replies < 0:
            return
        with contextlib.suppress(BlockingIOError):
            self._unread += os.read(self._replies, 1 << 16)
        *lines, rest = self._unread.split(b"\n")
        self._unread = rest[-4096:]
        for line in lines:
            match line.decode(errors="replace").split(" "):
                case ["ready", name, uid] if uid.isdigit():
                    self._answer(f"ready {name}", int(uid))
                case ["started", name]:
                    self._answer(f"started {name}", 0)
                case ["exit", name, code] if code.isdigit():
                    self._finish(name, int(code))

    def _answer(self, question: str, number: int) -> None:
        if (waiting := self._awaited.get(question)) and not waiting.done():
            waiting.set_result(number)

    # --- The end --------------------------------------------------------------------------------------

    @override
    async def end(self, job: Job) -> None:
        running = self._jobs.get(job.name)
        deadline = time.monotonic() + KILL_SEC
        while running and not self._lost and (victims := self._offspring(running)):
            if time.monotonic() > deadline:
                self.kill()  # they breed faster than they are killed
                break
            for found in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found.pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        self._finish(job.name, KILLED)

    def _offspring(self, running: "_Running") -> list[Process]:
        """A job's processes: those with its mark, and those without any that were born after it.

        The mark is in the environment, which every descendant inherits however far it goes away. Who wiped it off
        is not told apart from another command's children that did the same.
        """
        own = running.job.name.encode()
        return [
            found
            for found in self._inside()
            if found.pid != self.pid and (found.mark == own or (not found.mark and found.started >= running.began))
        ]

    def _inside(self) -> list[Process]:
        """The container's processes, also those in namespaces of their own."""
        all_ = {found.pid: found for found in processes()}
        inside: dict[int, bool] = {}

        def is_inside(pid: int) -> bool:
            if pid not in inside:
                found = all_.get(pid)
                inside[pid] = False
                inside[pid] = found is not None and (
                    pid == self.pid or namespace(pid) == self._namespace or is_inside(found.parent)
                )
            return inside[pid]

        return [found.with_mark() for found in all_.values() if is_inside(found.pid)]

    @override
    def kill(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def stop(self) -> None:
        """Ends and removes the container. May be called again."""
        if self not in _live:
            return
        self.kill()
        try:
            await self._remove()
        finally:
            self._lose()
            self._close()
            await asyncio.to_thread(self._folder.remove)

    async def _remove(self) -> None:
        for left in (2, 1, 0):
            try:
                await self.podman(
                    "rm", "--force", "--ignore", "--volumes", "--time", "0", self.wanted.name, removes=True
                )
                return
            except PodmanError:
                if not left:
                    raise
                await asyncio.sleep(0.5)  # busy with the same: conmon has it removed when it ends

    def _lose(self) -> None:
        """Process 1 has ended, and all others with it."""
        self._lost = True
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        for name in list(self._jobs):
            self._finish(name, None)
        for reply in self._awaited.values():
            if not reply.done():
                reply.set_exception(self.gone())

    def _close(self) -> None:
        _live.discard(self)
        self._loop.remove_reader(self._replies)
        for server in self._servers.values():
            server.close()
        for end in (self._replies, self._replies_end):
            os.close(end)
        self._replies = -1
        self.close_outputs()

    @override
    def gone(self) -> RuntimeError:
        return RuntimeError(f"the container is gone: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what the image's own entry point printed."""
        try:
            log = (self._folder.path / "log").read_text(errors="replace")
        except OSError:
            log = ""
        lines = [" ".join(line.split(" ")[3:]) for line in log.strip().splitlines()]  # time, stream, flag, text
        return " | ".join(lines[-5:]) or "it printed nothing"


class _Server:
    """A serve.sh in the container, and the FIFO through which it gets the names of scripts."""

    def __init__(self, name: str, box: Path) -> None:
        self.name = name
        self.uid = -1
        self._path = box / name
        os.mkfifo(self._path)
        self._path.chmod(0o644)
        # Reading too, for as long as the other end is not there.
        self._end = os.open(self._path, os.O_RDWR)

    def is_ready(self, uid: int) -> None:
        """It reads now; from here on writing fails when it is dead."""
        self.uid = uid
        both, self._end = self._end, os.open(self._path, os.O_WRONLY)
        os.close(both)

    def send(self, script: str) -> None:
        try:
            os.write(self._end, f"{script}\n".encode())
        except BrokenPipeError:
            raise RuntimeError("the container takes no commands any more") from None

    def is_alive(self) -> bool:
        """An empty line is no script's name, and harmless."""
        try:
            os.write(self._end, b"\n")
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        os.close(self._end)


@dataclass
class _Running:
    job: Job
    began: float
    pidfd: int = -1


def _script(name: str, command: Command, source: Path | None, out: Path, err: Path) -> str:
    """What serve.sh runs for a command. The variables are in here and not in arguments, which everybody can see."""
    inside = {path: shlex.quote(f"{BOX}/{path.name}") for path in (out, err)}
    given = f"{BOX}/{source.name}" if source else "/dev/null"
    exports = [f"export {key}={shlex.quote(value)}" for key, value in command.env.items() if _is_name(key)]
    where = [f"cd -- {shlex.quote(command.cwd)} || exit 1"] if command.cwd else []
    lines = [
        f"exec <{given} >{inside[out]} 2>{inside[err]}",
        f"echo started {name} >{BOX}/replies",
        "(",
        *where,
        *exports,
        f"exec bash -c {shlex.quote(command.shell)}",
        ")",
        f'echo "exit {name} $?" >{BOX}/replies',
    ]
    return "\n".join(lines) + "\n"


def _is_name(key: str) -> bool:
    return key.isidentifier() and key.isascii()
