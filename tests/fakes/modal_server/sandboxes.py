"""Sandboxes: a process in namespaces of its own, chrooted into an overlay of its image, with volumes bound in.

A sandbox ends when its process does, when it is terminated, when its time is up, and when something inside writes
`/__modal/end` with the name of a status and an exit code, such as `KERNEL_OOM_KILL 137`: so a test's agent can have
the provider end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib import Status
from modal_proto import api_pb2 as api
from modal_proto import task_command_router_pb2 as tcr

from tests.fakes.modal_server import root
from tests.fakes.modal_server.state import State, fail, jwt, new_id
from tests.fakes.modal_server.volumes import VolumeMount

FS_TOOLS = "/__modal/.bin/modal-sandbox-fs-tools"  # the program that the client wants run to read and write files
END = "__modal/end"
WATCH_SEC = 0.2
START_SEC = 20


class Command:
    """A command that runs, or ran, in a sandbox."""

    def __init__(self, process: asyncio.subprocess.Process, out: Path, err: Path) -> None:
        self.process, self.out, self.err = process, out, err
        self.written, self.closed, self.timed_out = 0, False, False

    async def feed(self, data: bytes, is_last: bool) -> None:
        assert self.process.stdin
        try:
            if data:
                self.process.stdin.write(data)
                await self.process.stdin.drain()
                self.written += len(data)
            if is_last and not self.closed:
                self.closed = True
                self.process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            fail(Status.FAILED_PRECONDITION, "process stdin is closed")

    async def limit(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(self.process.wait())), seconds)
        except TimeoutError:
            self.timed_out = True
            os.killpg(self.process.pid, signal.SIGKILL)


class Sandbox:
    """One sandbox, running or over."""

    def __init__(self, state: State, version: int, app_id: str, definition: api.Sandbox) -> None:
        # The client tells the two kinds apart by the length of the id.
        self.id = new_id("sb", 22) if version == 1 else new_id("sb", 23) + "V"
        self.task_id = new_id("ta") + ("V" if version == 2 else "")
        self.app_id, self.definition, self.created = app_id, definition, time.time()
        self.tags: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.commands: dict[str, Command] = {}
        self.result: api.GenericResult | None = None
        self.done = asyncio.Event()
        self.folder = state.folder / "sandboxes" / self.id
        self._state = state
        self._mounts: list[VolumeMount] = []
        self._ended_by: tuple[str, int] | None = None  # status and exit code, where the provider ends it

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def gpu(self) -> str:
        """The GPU type that was asked for, such as H100!."""
        return self.definition.resources.gpu_config.gpu_type

    async def start(self) -> None:
        image = self._state.images.get(self.definition.image_id)
        if not image:
            fail(Status.NOT_FOUND, f"Image {self.definition.image_id} not found")
        self.env = {"PATH": root.PATH, "HOME": "/root", **image.env, **self.env}
        self.env |= {"MODAL_SANDBOX_ID": self.id, "MODAL_TASK_ID": self.task_id}
        self.workdir = self.definition.workdir or image.workdir
        (self.folder / "io").mkdir(parents=True)
        for number, mount in enumerate(self.definition.volume_mounts):
            volume = self._state.volume(mount.volume_id)
            self._mounts.append(VolumeMount(volume, mount, self.folder / "vol" / str(number)))
        if self.gpu:
            self._add_gpus()
        blocked = self.definition.network_access.network_access_type == api.NetworkAccess.BLOCKED
        self._namespaces = ["-m", "-p", "-i", "-u", *(["-n"] if blocked else [])]
        with open(self.folder / "io" / "main.out", "wb") as out, open(self.folder / "io" / "main.err", "wb") as err:  # noqa: ASYNC230, PTH123
            self._process = await asyncio.create_subprocess_exec(
                *("unshare", *self._namespaces, "--fork", "--kill-child", "sh", "-c", self._script(image.layers)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.env,
                start_new_session=True,
            )
        await self._entered()
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._keep_house())]

    def _script(self, layers: list[Path]) -> str:
        inside = self.folder / "root"
        lines = root.mount_script(layers, self.folder)
        for mount in self._mounts:
            lines += root.bind(mount.local, inside, mount.path, mount.read_only)
        lines.append(f"mkdir -p {root.quote(inside)}{root.quote(self.workdir)} {root.quote(inside)}/__modal")
        arguments = list(self.definition.entrypoint_args) or ["sleep", "infinity"]
        lines.append(f"exec chroot {root.quote(inside)} " + " ".join(map(root.quote, arguments)))
        return "\n".join(lines)

    def _add_gpus(self) -> None:
        """An nvidia-smi that names the GPUs, where the overlay will show it."""
        shown = self._state.gpu_names.get(self.gpu, f"NVIDIA {self.gpu.rstrip('!')}")
        tool = self.folder / "upper" / "usr" / "bin" / "nvidia-smi"
        tool.parent.mkdir(parents=True)
        lines = [f"echo {root.quote(shown)}"] * (self.definition.resources.gpu_config.count or 1)
        tool.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        tool.chmod(0o755)

    def _is_inside(self, pid: str) -> bool:
        return str(Path(f"/proc/{pid}/root").readlink()) == str(self.folder / "root")

    async def _entered(self) -> None:
        """Wait until process 1 is in its root, so that commands see the finished mounts."""
        deadline = time.monotonic() + START_SEC
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        while self._process.returncode is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError, IndexError):
                first = children.read_text().split()[0]  # noqa: ASYNC240
                if self._is_inside(first):
                    self.pid = int(first)
                    return
            await asyncio.sleep(0.01)
        said = (self.folder / "io" / "main.err").read_text()[-500:]
        fail(Status.INTERNAL, f"the sandbox did not start: {said}")

    async def _watch(self) -> None:
        code = await self._process.wait()
        for mount in self._mounts:
            await asyncio.to_thread(mount.close)
        kinds = api.GenericResult.GenericStatus
        status, code = self._ended_by or ("SUCCESS" if code == 0 else "FAILURE", code if code >= 0 else 128 - code)
        self.result = api.GenericResult(status=kinds.Value(f"GENERIC_STATUS_{status}"), exitcode=code)
        self.done.set()
        for name in ("upper", "work", "vol"):
            await asyncio.to_thread(shutil.rmtree, self.folder / name, ignore_errors=True)

    async def _keep_house(self) -> None:
        committed = time.time()
        order = self.folder / "upper" / "files" / END
        while not self.done.is_set():
            await asyncio.sleep(WATCH_SEC)
            if order.exists() and len(words := order.read_text().split()) == 2:
                self.end(words[0], int(words[1]))
            if time.time() - self.created > self.definition.timeout_secs:
                self.end("TIMEOUT", 124)
            if self._mounts and time.time() - committed > self._state.commit_sec:
                committed = time.time()
                for mount in self._mounts:
                    await asyncio.to_thread(mount.commit)

    def end(self, status: str, code: int) -> None:
        """End it as the provider does; the first reason counts."""
        if self.done.is_set() or self._ended_by:
            return
        self._ended_by = (status, code)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    async def run(self, request: tcr.TaskExecStartRequest) -> None:
        if request.exec_id in self.commands:
            return  # the client asks again after a broken connection
        if self.done.is_set():
            fail(Status.NOT_FOUND, "the sandbox has finished")
        env = self.env | self._state.secret_env(request.secret_sources)
        out, err = (self.folder / "io" / f"{request.exec_id}.{end}" for end in ("out", "err"))
        with open(out, "wb") as out_file, open(err, "wb") as err_file:  # noqa: ASYNC230, PTH123
            process = await asyncio.create_subprocess_exec(
                *self._arguments(list(request.command_args), request.workdir or self.workdir),
                stdin=subprocess.PIPE,
                stdout=out_file,
                stderr=err_file,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        command = self.commands[request.exec_id] = Command(process, out, err)
        if request.HasField("timeout_secs") and request.timeout_secs:
            self._tasks.append(asyncio.create_task(command.limit(request.timeout_secs)))

    def _arguments(self, given: list[str], workdir: str) -> list[str]:
        if given[0] == FS_TOOLS:
            return [sys.executable, "-I", str(Path(__file__).with_name("fs_tools.py")), str(self.pid), given[1]]
        place = f"/proc/{self.pid}/root"
        enter = ["nsenter", "-t", str(self.pid), *self._namespaces, f"--root={place}", f"--wd={place}", "--"]
        return [*enter, "/bin/sh", "-c", 'cd "$0" || exit 1; exec "$@"', workdir, *given]

    async def reload(self) -> None:
        for mount in self._mounts:
            await asyncio.to_thread(mount.reload)

    async def tail(self, path: Path, offset: int, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
        """What is in a file, and what is added to it until `is_over`."""
        with open(path, "rb") as file:  # noqa: ASYNC230, PTH123
            file.seek(offset)
            while True:
                over = is_over()
                if data := file.read(1 << 20):
                    yield data
                elif over:
                    return
                else:
                    await asyncio.sleep(0.01)


class Sandboxes:
    """The calls. The second version of each is the same here, but for how a sandbox is created."""

    def __init__(self, state: State) -> None:
        self.state = state

    async def SandboxCreate(self, request: api.SandboxCreateRequest) -> api.SandboxCreateResponse:
        env: dict[str, str] = {}
        for secret in request.definition.secret_ids:
            env |= self.state.secrets[secret]
        sandbox = await self._create(1, request, env)
        return api.SandboxCreateResponse(sandbox_id=sandbox.id, metadata=_metadata(sandbox))

    async def SandboxCreateV2(self, request: api.SandboxCreateV2Request) -> api.SandboxCreateV2Response:
        sandbox = await self._create(2, request, self.state.secret_env(request.secret_sources))
        return api.SandboxCreateV2Response(
            sandbox_id=sandbox.id,
            task_id=sandbox.task_id,
            sandbox_token="token",
            metadata=_metadata(sandbox),
            command_router_access=api.CommandRouterAccess(url=self.state.url, jwt=jwt()),
        )

    async def _create(self, version: int, request: Any, env: dict[str, str]) -> Sandbox:
        name = request.definition.name
        if name and any(one.name == name and not one.done.is_set() for one in self.state.sandboxes.values()):
            fail(Status.ALREADY_EXISTS, f"Sandbox with name '{name}' already exists")
        definition = api.Sandbox.FromString(request.definition.SerializeToString())
        sandbox = Sandbox(self.state, version, request.app_id, definition)
        sandbox.tags, sandbox.env = {tag.tag_name: tag.tag_value for tag in request.tags}, env
        self.state.sandboxes[sandbox.id] = sandbox
        try:
            await sandbox.start()
        except BaseException:
            del self.state.sandboxes[sandbox.id]
            raise
        return sandbox

    async def SandboxGetTaskId(self, request: api.SandboxGetTaskIdRequest) -> api.SandboxGetTaskIdResponse:
        return api.SandboxGetTaskIdResponse(task_id=self.state.sandbox(request.sandbox_id).task_id)

    async def TaskGetCommandRouterAccess(
        self, request: api.TaskGetCommandRouterAccessRequest
    ) -> api.TaskGetCommandRouterAccessResponse:
        self.state.sandbox_of(request.task_id)
        return api.TaskGetCommandRouterAccessResponse(url=self.state.url, jwt=jwt())

    async def SandboxGetCommandRouterAccess(
        self, request: api.SandboxGetCommandRouterAccessRequest
    ) -> api.SandboxGetCommandRouterAccessResponse:
        return api.SandboxGetCommandRouterAccessResponse(url=self.state.url, jwt=jwt())

    async def SandboxWait(self, request: api.SandboxWaitRequest) -> api.SandboxWaitResponse:
        sandbox = self.state.sandbox(request.sandbox_id)
        if request.timeout > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sandbox.done.wait(), request.timeout)
        return api.SandboxWaitResponse(result=sandbox.result, metadata=_metadata(sandbox))

    async def SandboxTerminate(self, request: api.SandboxTerminateRequest) -> api.SandboxTerminateResponse:
        self.state.sandbox(request.sandbox_id).end("TERMINATED", 137)
        return api.SandboxTerminateResponse()

    async def SandboxTagsGet(self, request: api.SandboxTagsGetRequest) -> api.SandboxTagsGetResponse:
        return api.SandboxTagsGetResponse(tags=_tags(self.state.sandbox(request.sandbox_id)))

    async def SandboxTagsSet(self, request: api.SandboxTagsSetRequest) -> Empty:
        sandbox = self.state.sandbox(request.sandbox_id)
        sandbox.tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return Empty()

    async def SandboxGetFromName(self, request: api.SandboxGetFromNameRequest) -> api.SandboxGetFromNameResponse:
        found = [one for one in self.state.sandboxes.values() if one.name == request.sandbox_name]
        running = [one for one in found if not one.done.is_set()]
        if not running:
            fail(Status.NOT_FOUND, f"Sandbox with name '{request.sandbox_name}' not found")
        return api.SandboxGetFromNameResponse(sandbox_id=running[0].id, metadata=_metadata(running[0]))

    async def SandboxList(self, request: api.SandboxListRequest) -> api.SandboxListResponse:
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        before = request.before_timestamp or float("inf")
        found = [
            one
            for one in self.state.sandboxes.values()
            if request.app_id in ("", one.app_id)
            and (request.include_finished or not one.done.is_set())
            and wanted.items() <= one.tags.items()
            and one.created < before
        ]
        found.sort(key=lambda one: -one.created)
        return api.SandboxListResponse(sandboxes=[_info(one) for one in found])

    SandboxGetTaskIdV2 = SandboxGetTaskId
    SandboxWaitV2 = SandboxWait
    SandboxTerminateV2 = SandboxTerminate
    SandboxTagsGetV2 = SandboxTagsGet
    SandboxTagsSetV2 = SandboxTagsSet
    SandboxGetFromNameV2 = SandboxGetFromName

    async def SandboxListV2(self, request: api.SandboxListRequest) -> api.SandboxListResponse:
        # The first version's list has both kinds already.
        return await self.SandboxList(request)


def _tags(sandbox: Sandbox) -> list[api.SandboxTag]:
    return [api.SandboxTag(tag_name=key, tag_value=value) for key, value in sandbox.tags.items()]


def _metadata(sandbox: Sandbox) -> api.SandboxHandleMetadata:
    return api.SandboxHandleMetadata(app_id=sandbox.app_id, result=sandbox.result)


def _info(sandbox: Sandbox) -> api.SandboxInfo:
    return api.SandboxInfo(
        id=sandbox.id,
        created_at=sandbox.created,
        app_id=sandbox.app_id,
        name=sandbox.name,
        metadata=_metadata(sandbox),
        task_info=api.TaskInfo(id=sandbox.task_id, started_at=sandbox.created, result=sandbox.result),
        tags=_tags(sandbox),
    )
