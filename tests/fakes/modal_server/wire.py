"""From classes whose methods are named after calls to a gRPC service.

    class Volumes:
        async def VolumeDelete(self, request): ...          # one request, one answer
        async def VolumeListFiles(self, request): yield ... # a stream of answers

Every call is counted and may be made to fail. Calls that create something honour `x-idempotency-key`: a repeated key
gets the first answer, and nothing is made twice.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from grpclib import Status
from grpclib.events import RecvRequest, listen
from grpclib.server import Server
from modal_proto import api_pb2 as api

from tests.fakes.modal_server.state import TOKEN_ID, TOKEN_SECRET, State, fail


def whole_stream(method: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a method that takes the stream itself, for calls with many requests."""
    method.__dict__["whole_stream"] = True
    return method


def service(base: type, state: State, parts: list[Any]) -> Any:
    """An instance of the generated class `base` whose calls are the parts' methods; others are UNIMPLEMENTED."""
    names: frozenset[str] = getattr(base, "__abstractmethods__")  # noqa: B009
    handlers = {name: _handler(name, state, parts) for name in names}
    return type(base.__name__.removesuffix("Base"), (base,), handlers)()


def _handler(name: str, state: State, parts: list[Any]) -> Callable[..., Any]:
    method = next((getattr(part, name) for part in parts if hasattr(part, name)), None)

    async def handle(_self: Any, stream: Any) -> None:
        state.calls[name] += 1
        if method is None:
            print("not played:", name, flush=True)
            fail(Status.UNIMPLEMENTED, f"{name} is not played by this fake")
        if method.__dict__.get("whole_stream") or method.__func__.__dict__.get("whole_stream"):
            await state.faults.before(name, None)
            await method(stream)
            return
        request = await stream.recv_message()
        error = await state.faults.before(name, request)
        if inspect.isasyncgenfunction(method):
            async for message in method(request):
                await stream.send_message(message)
                if error:
                    raise error
            return
        answer = await _once(state, name, stream.metadata.get("x-idempotency-key"), method, request)
        if error:
            raise error
        await stream.send_message(answer)

    return handle


async def _once(state: State, name: str, key: str | None, method: Callable[..., Any], request: Any) -> Any:
    """The call's answer; with a key that was seen before, the answer of that time."""
    if not key or "Create" not in name:
        return await method(request)
    if key not in state.answers:
        # A task of its own: a client that hangs up does not undo what it asked for.
        state.answers[key] = asyncio.ensure_future(method(request))
    work = state.answers[key]
    try:
        return await asyncio.shield(work)
    except Exception:
        state.answers.pop(key, None)
        raise


def check_tokens(server: Server) -> None:
    """Refuse calls without the token, as the real one does."""

    async def check(event: RecvRequest) -> None:
        given = event.metadata
        if "/modal.client.ModalClient/" in event.method_name:
            if given.get("x-modal-client-type") == str(api.CLIENT_TYPE_CONTAINER):
                return  # known by where it comes from
            if (given.get("x-modal-token-id"), given.get("x-modal-token-secret")) != (TOKEN_ID, TOKEN_SECRET):
                fail(Status.UNAUTHENTICATED, "Token missing or invalid")
        elif not str(given.get("authorization", "")).startswith("Bearer "):
            fail(Status.UNAUTHENTICATED, "no bearer token")

    listen(server, RecvRequest, check)
