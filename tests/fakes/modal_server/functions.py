"""Apps that are deployed, their functions, and calls of them: each runs the client's own container program.

A container is a process in namespaces of its own whose root is the function's image, made by pivot_root and not by
chroot, so that sandboxes of namespaces work in it. It runs `python -m modal._container_entrypoint`, which asks this
server for its input and gives it its output, as in the real thing. One container a call.
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
from collections.abc import AsyncIterator
from pathlib import Path

from google.protobuf.empty_pb2 import Empty
from grpclib import Status
from modal_proto import api_pb2 as api

from tests.fakes.modal_server import root
from tests.fakes.modal_server.state import State, fail, new_id
from tests.fakes.modal_server.volumes import VolumeMount

KINDS = api.GenericResult.GenericStatus
OUTPUTS_SEC = 55.0


class Call:
    """A call of a function, and its container."""

    def __init__(self, state: State, function: Function, given: api.FunctionInput) -> None:
        self.id, self.input_id, self.task_id = new_id("fc"), new_id("in"), new_id("ta")
        self.function, self.given = function, given
        self.result: api.GenericResult | None = None
        self.data_format = api.DATA_FORMAT_PICKLE
        self.done = asyncio.Event()
        self.cancelled = self.given_out = False
        self.folder = state.folder / "containers" / self.task_id
        self.mounts: list[VolumeMount] = []
        self.chunks: list[api.DataChunk] = []
        self.process: asyncio.subprocess.Process | None = None
        self._state = state
        self.task = asyncio.create_task(self._run())

    def finish(self, status: str, exception: str = "", result: api.GenericResult | None = None) -> None:
        if self.result is None:
            self.result = result or api.GenericResult(
                status=KINDS.Value(f"GENERIC_STATUS_{status}"), exception=exception
            )
            self.done.set()

    async def _run(self) -> None:
        """The container's life; of a function with `max_containers`, when one is free."""
        try:
            async with self.function.slots:
                if self.result is None:
                    await self._contain()
        except Exception as error:
            self.finish("FAILURE", f"the fake cannot run the container: {error!r}")
            raise

    async def _contain(self) -> None:
        image = self._state.images[self.function.definition.image_id]
        self.folder.mkdir(parents=True)
        for number, mount in enumerate(self.function.definition.volume_mounts):
            volume = self._state.volume(mount.volume_id)
            self.mounts.append(VolumeMount(volume, mount, self.folder / "vol" / str(number)))
        (self.folder / "arguments").write_bytes(self._arguments().SerializeToString())
        with (self.folder / "output").open("wb") as output:
            self.process = await asyncio.create_subprocess_exec(
                *(
                    "unshare",
                    "-m",
                    "-p",
                    "-i",
                    "-u",
                    "--fork",
                    "--kill-child",
                    "bash",
                    "-c",
                    self._script(image.layers),
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(image.env),
                start_new_session=True,
            )
        limit = self.function.definition.timeout_secs or None
        try:
            await asyncio.wait_for(self.process.wait(), limit)
        except TimeoutError:
            self.finish("TIMEOUT", "the function's time is up")
            self.kill()
            await self.process.wait()
        for mount in self.mounts:
            await asyncio.to_thread(mount.close)
        said = (self.folder / "output").read_text(errors="replace")[-2000:]
        self.finish("TERMINATED" if self.cancelled else "INTERNAL_FAILURE", f"the container ended: {said}")
        for name in ("root", "upper", "work", "vol"):
            await asyncio.to_thread(shutil.rmtree, self.folder / name, ignore_errors=True)

    def _script(self, layers: list[Path]) -> str:
        inside = self.folder / "root"
        lines = root.mount_script(layers, self.folder)
        for mount_id in self.function.definition.mount_ids:
            for name, (digest, mode) in self._state.mounts.get(mount_id, {}).items():
                path = self.folder / "upper" / "files" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._state.blobs[digest])
                path.chmod(mode & 0o7777 or 0o644)
        for mount in self.mounts:
            lines += root.bind(mount.local, inside, mount.path, mount.read_only)
        shutil.copy(self.folder / "arguments", self.folder / "upper" / "files" / "modal-arguments")
        lines += [f"cd {root.quote(inside)}", "mkdir -p .old", "pivot_root . .old", "umount -l /.old"]
        return "\n".join([*lines, "cd /", f"exec {sys.executable} -m modal._container_entrypoint"])

    def _environment(self, image: dict[str, str]) -> dict[str, str]:
        secrets: dict[str, str] = {}
        for secret in self.function.definition.secret_ids:
            secrets |= self._state.secrets[secret]
        return {
            "PATH": root.PATH,
            "HOME": "/root",
            **image,
            **secrets,
            "MODAL_SERVER_URL": self._state.url,
            "MODAL_IS_REMOTE": "1",
            "MODAL_TASK_ID": self.task_id,
            "MODAL_FUNCTION_RUNTIME": "runc",
            "MODAL_ENVIRONMENT": "main",
            "MODAL_IMAGE_ID": self.function.definition.image_id,
            "MODAL_CONTAINER_ARGUMENTS_PATH": "/modal-arguments",
            "MODAL_HEARTBEAT_INTERVAL": "0.5",
        }

    def _arguments(self) -> api.ContainerArguments:
        function = self.function
        known = api.Object(object_id=function.id, function_handle_metadata=function.metadata)
        layout = api.AppLayout(objects=[known], function_ids={function.definition.function_name: function.id})
        return api.ContainerArguments(
            task_id=self.task_id,
            function_id=function.id,
            app_id=function.app_id,
            function_def=function.definition,
            environment_name="main",
            app_layout=layout,
        )

    def kill(self) -> None:
        if self.process and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


class Function:
    """A function of an app."""

    def __init__(self, app_id: str, function_id: str, definition: api.Function) -> None:
        self.app_id, self.id, self.definition = app_id, function_id, definition
        self.slots = asyncio.Semaphore(
            definition.autoscaler_settings.max_containers or definition.concurrency_limit or 64
        )

    @property
    def metadata(self) -> api.FunctionHandleMetadata:
        return api.FunctionHandleMetadata(
            function_name=self.definition.function_name,
            function_type=self.definition.function_type,
            supported_input_formats=[api.DATA_FORMAT_PICKLE],
            supported_output_formats=[api.DATA_FORMAT_PICKLE],
            app_id=self.app_id,
            definition_id=f"de-{self.id}",
        )


class Functions:
    """The calls: of those who deploy and call, and of containers."""

    def __init__(self, state: State) -> None:
        self.state = state

    # --- Apps -----------------------------------------------------------------------------------------

    async def AppGetByDeploymentName(
        self, request: api.AppGetByDeploymentNameRequest
    ) -> api.AppGetByDeploymentNameResponse:
        return api.AppGetByDeploymentNameResponse(app_id=self.state.apps.get(request.name, ""))

    async def AppCreate(self, request: api.AppCreateRequest) -> api.AppCreateResponse:
        return api.AppCreateResponse(app_id=new_id("ap"))

    async def AppPublish(self, request: api.AppPublishRequest) -> api.AppPublishResponse:
        if request.app_state == api.APP_STATE_DEPLOYED:
            self.state.apps[request.name] = request.app_id
        return api.AppPublishResponse(url="", deployed_at=time.time())

    async def AppGetLayout(self, request: api.AppGetLayoutRequest) -> api.AppGetLayoutResponse:
        mine = [one for one in self.state.functions.values() if one.app_id == request.app_id]
        layout = api.AppLayout(
            objects=[api.Object(object_id=one.id, function_handle_metadata=one.metadata) for one in mine],
            function_ids={one.definition.function_name: one.id for one in mine},
        )
        return api.AppGetLayoutResponse(app_layout=layout)

    async def AppHeartbeat(self, request: api.AppHeartbeatRequest) -> Empty:
        return Empty()

    async def AppClientDisconnect(self, request: api.AppClientDisconnectRequest) -> Empty:
        if request.app_id not in self.state.apps.values():  # one that is not deployed ends with its client
            await self.AppStop(api.AppStopRequest(app_id=request.app_id))
        return Empty()

    async def AppStop(self, request: api.AppStopRequest) -> Empty:
        for name in [name for name, app_id in self.state.apps.items() if app_id == request.app_id]:
            del self.state.apps[name]
        for call in self.state.function_calls.values():
            if call.function.app_id == request.app_id and call.result is None:
                call.cancelled = True
                call.finish("TERMINATED")
                call.kill()
        for sandbox in self.state.sandboxes.values():
            if sandbox.app_id == request.app_id:
                sandbox.end("TERMINATED", 137)
        return Empty()

    # --- Functions and calls of them ------------------------------------------------------------------

    async def FunctionPrecreate(self, request: api.FunctionPrecreateRequest) -> api.FunctionPrecreateResponse:
        metadata = api.FunctionHandleMetadata(function_name=request.function_name, function_type=request.function_type)
        function_id = request.existing_function_id or new_id("fu")
        return api.FunctionPrecreateResponse(function_id=function_id, handle_metadata=metadata)

    async def FunctionCreate(self, request: api.FunctionCreateRequest) -> api.FunctionCreateResponse:
        function_id = request.existing_function_id or new_id("fu")
        definition = api.Function.FromString(request.function.SerializeToString())
        function = self.state.functions[function_id] = Function(request.app_id, function_id, definition)
        ranked = api.FunctionData.RankedFunction(rank=0, function=definition)
        return api.FunctionCreateResponse(
            function_id=function_id,
            function=definition,
            function_data=api.FunctionData(ranked_functions=[ranked], function_name=definition.function_name),
            handle_metadata=function.metadata,
        )

    async def FunctionMap(self, request: api.FunctionMapRequest) -> api.FunctionMapResponse:
        function = self.state.functions[request.function_id]
        [item] = request.pipelined_inputs
        given = api.FunctionInput.FromString(item.input.SerializeToString())
        call = Call(self.state, function, given)
        self.state.function_calls[call.id] = call
        accepted = api.FunctionPutInputsResponseItem(idx=0, input_id=call.input_id, input_jwt="jwt")
        return api.FunctionMapResponse(function_call_id=call.id, pipelined_inputs=[accepted], function_call_jwt="jwt")

    def _call(self, call_id: str) -> Call:
        return self.state.function_calls.get(call_id) or fail(Status.NOT_FOUND, f"Function call {call_id} not found")

    async def FunctionCallFromId(self, request: api.FunctionCallFromIdRequest) -> api.FunctionCallFromIdResponse:
        return api.FunctionCallFromIdResponse(function_call_id=self._call(request.function_call_id).id, num_inputs=1)

    async def FunctionGetOutputs(self, request: api.FunctionGetOutputsRequest) -> api.FunctionGetOutputsResponse:
        call = self._call(request.function_call_id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call.done.wait(), min(request.timeout, OUTPUTS_SEC) or 0.01)
        if call.result is None:
            return api.FunctionGetOutputsResponse(num_unfinished_inputs=1)
        output = api.FunctionGetOutputsItem(
            result=call.result, idx=0, input_id=call.input_id, data_format=call.data_format
        )
        return api.FunctionGetOutputsResponse(outputs=[output], idxs=[0])

    async def FunctionCallGetDataOut(self, request: api.FunctionCallGetDataRequest) -> AsyncIterator[api.DataChunk]:
        """What a function yields."""
        call = self._call(request.function_call_id)
        for _ in range(round(OUTPUTS_SEC / 0.05)):
            for chunk in call.chunks:
                if chunk.index > request.last_index:
                    request.last_index = chunk.index
                    yield chunk
            if call.result is not None and request.last_index >= len(call.chunks):
                return
            await asyncio.sleep(0.05)

    async def FunctionCallPutDataOut(self, request: api.FunctionCallPutDataRequest) -> Empty:
        chunks = [api.DataChunk.FromString(one.SerializeToString()) for one in request.data_chunks]
        self._call(request.function_call_id).chunks += chunks
        return Empty()

    async def FunctionCallCancel(self, request: api.FunctionCallCancelRequest) -> Empty:
        call = self._call(request.function_call_id)
        call.cancelled = True
        if not call.given_out:
            call.finish("TERMINATED")  # it has not begun
        if request.terminate_containers:
            call.finish("TERMINATED")
            call.kill()
        return Empty()

    # --- From inside a container ----------------------------------------------------------------------

    def _mine(self, task_id: str) -> Call:
        found = next((one for one in self.state.function_calls.values() if one.task_id == task_id), None)
        return found or fail(Status.NOT_FOUND, f"no container {task_id}")

    async def ContainerHello(self, request: Empty) -> Empty:
        return Empty()

    async def ContainerHeartbeat(self, request: api.ContainerHeartbeatRequest) -> api.ContainerHeartbeatResponse:
        cancelled = [one.input_id for one in self.state.function_calls.values() if one.cancelled and one.result is None]
        if not cancelled:
            return api.ContainerHeartbeatResponse()
        event = api.CancelInputEvent(input_ids=cancelled)  # a container passes over those that are not its own
        return api.ContainerHeartbeatResponse(cancel_input_event=event)

    async def FunctionGetInputs(self, request: api.FunctionGetInputsRequest) -> api.FunctionGetInputsResponse:
        waiting = (
            one
            for one in self.state.function_calls.values()
            if one.function.id == request.function_id and one.process and not one.given_out and one.result is None
        )
        call = next(waiting, None)
        if call is None:
            stop = api.FunctionGetInputsItem(kill_switch=True)
            return api.FunctionGetInputsResponse(inputs=[stop])
        call.given_out = True
        item = api.FunctionGetInputsItem(
            input_id=call.input_id,
            input=call.given,
            function_call_id=call.id,
            function_call_invocation_type=api.FUNCTION_CALL_INVOCATION_TYPE_ASYNC,
        )
        item.input.final_input = True
        return api.FunctionGetInputsResponse(inputs=[item])

    async def FunctionPutOutputs(self, request: api.FunctionPutOutputsRequest) -> Empty:
        for output in request.outputs:
            for call in self.state.function_calls.values():
                if call.input_id == output.input_id:
                    call.data_format = output.data_format
                    call.finish("", result=api.GenericResult.FromString(output.result.SerializeToString()))
        return Empty()

    async def TaskResult(self, request: api.TaskResultRequest) -> Empty:
        print("a container failed:", request.result.exception, request.result.traceback, flush=True)
        return Empty()

    async def VolumeCommit(self, request: api.VolumeCommitRequest) -> api.VolumeCommitResponse:
        for call in self.state.function_calls.values():
            for mount in call.mounts if call.process and call.process.returncode is None else ():
                if mount.volume_id == request.volume_id:
                    await asyncio.to_thread(mount.commit)
        return api.VolumeCommitResponse(skip_reload=True)
