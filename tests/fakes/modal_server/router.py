"""The command router: commands in a sandbox, what they read and print."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from grpclib import Status
from modal_proto import task_command_router_pb2 as tcr

from tests.fakes.modal_server.sandboxes import Command
from tests.fakes.modal_server.state import State, fail
from tests.fakes.modal_server.wire import whole_stream


class Router:
    """The calls."""

    def __init__(self, state: State) -> None:
        self.state = state

    def _command(self, request: Any) -> Command:
        found = self.state.sandbox_of(request.task_id).commands.get(request.exec_id)
        return found or fail(Status.NOT_FOUND, f"command {request.exec_id} not found")

    async def TaskExecStart(self, request: tcr.TaskExecStartRequest) -> tcr.TaskExecStartResponse:
        await self.state.sandbox_of(request.task_id).run(request)
        return tcr.TaskExecStartResponse()

    async def TaskExecStdioRead(
        self, request: tcr.TaskExecStdioReadRequest
    ) -> AsyncIterator[tcr.TaskExecStdioReadResponse]:
        command, sandbox = self._command(request), self.state.sandbox_of(request.task_id)
        is_out = request.file_descriptor == tcr.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        path = command.out if is_out else command.err

        def is_over() -> bool:
            return command.process.returncode is not None or sandbox.done.is_set()

        async for data in sandbox.tail(path, request.offset, is_over):
            yield tcr.TaskExecStdioReadResponse(data=data)

    async def TaskExecStdinWrite(self, request: tcr.TaskExecStdinWriteRequest) -> tcr.TaskExecStdinWriteResponse:
        await self._command(request).feed(request.data, request.eof)
        return tcr.TaskExecStdinWriteResponse()

    @whole_stream
    async def TaskExecStdinWriteStream(self, stream: Any) -> None:
        first = await stream.recv_message()
        command = self._command(first.start)
        async for message in stream:
            is_data = message.WhichOneof("payload") == "data"
            await command.feed(message.data if is_data else b"", not is_data)
        await stream.send_message(tcr.TaskExecStdinWriteStreamResponse())

    async def TaskExecStdinStatus(self, request: tcr.TaskExecStdinStatusRequest) -> tcr.TaskExecStdinStatusResponse:
        command = self._command(request)
        return tcr.TaskExecStdinStatusResponse(num_bytes_written=command.written, closed=command.closed)

    async def TaskExecWait(self, request: tcr.TaskExecWaitRequest) -> tcr.TaskExecWaitResponse:
        code = await self._command(request).process.wait()
        return tcr.TaskExecWaitResponse(code=code) if code >= 0 else tcr.TaskExecWaitResponse(signal=-code)

    async def TaskExecPoll(self, request: tcr.TaskExecPollRequest) -> tcr.TaskExecPollResponse:
        code = self._command(request).process.returncode
        if code is None:
            return tcr.TaskExecPollResponse()
        return tcr.TaskExecPollResponse(code=code) if code >= 0 else tcr.TaskExecPollResponse(signal=-code)

    async def SandboxStdioReadV2(
        self, request: tcr.SandboxStdioReadV2Request
    ) -> AsyncIterator[tcr.SandboxStdioReadV2Response]:
        sandbox = self.state.sandbox_of(request.task_id)
        is_out = request.file_descriptor == tcr.SANDBOX_STDIO_FILE_DESCRIPTOR_STDOUT
        path = sandbox.folder / "io" / ("main.out" if is_out else "main.err")
        offset = request.offset
        async for data in sandbox.tail(path, offset, sandbox.done.is_set):
            yield tcr.SandboxStdioReadV2Response(data=data, starting_offset=offset)
            offset += len(data)

    async def TaskReloadVolumes(self, request: tcr.TaskReloadVolumesRequest) -> tcr.TaskReloadVolumesResponse:
        await self.state.sandbox_of(request.task_id).reload()
        return tcr.TaskReloadVolumesResponse()

    async def TaskSetNetworkAccess(self, request: tcr.TaskSetNetworkAccessRequest) -> tcr.TaskSetNetworkAccessResponse:
        # Noted, not enforced.
        self.state.sandbox_of(request.task_id).definition.network_access.CopyFrom(request.network_access)
        return tcr.TaskSetNetworkAccessResponse()
