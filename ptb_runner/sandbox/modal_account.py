"""What the account has: the app, each trial's volume, the sandboxes; and what runners that are gone left of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import modal
from modal.exception import (
    ConnectionError as ModalConnectionError,
)
from modal.exception import (
    InternalError,
    NotFoundError,
    ResourceExhaustedError,
    SandboxTimeoutError,
    ServiceError,
)
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from ptb_runner.sandbox import modal_notes, modal_owner

# Longer than an API that is away for a minute; the client itself tries for a few seconds only.
PATIENCE_SEC = 180.0
LONGEST_WAIT_SEC = 20.0
_TRANSIENT = (ModalConnectionError, ServiceError, InternalError, ResourceExhaustedError, OSError)

OWNER, HOST, RUN, CELL, TRIAL = "ptb.owner", "ptb.host", "ptb.run", "ptb.cell", "ptb.trial"
STARTED, USD = "ptb.started", "ptb.usd_per_hour"


async def patiently[T](work: Callable[[], Awaitable[T]], patience_sec: float = PATIENCE_SEC) -> T:
    """Do something that may be done again, until it succeeds or the trouble has lasted too long."""
    attempts = AsyncRetrying(
        retry=retry_if_exception_type(_TRANSIENT),
        wait=wait_random_exponential(multiplier=1, max=LONGEST_WAIT_SEC),
        stop=stop_after_delay(patience_sec),
        reraise=True,
    )
    async for attempt in attempts:
        with attempt:
            return await work()
    raise AssertionError("the last attempt raises")


def blocking[T](work: Callable[[], Awaitable[T]]) -> T:
    """Run something from code that is not async, whether or not a loop runs in this thread."""

    async def main() -> T:
        return await work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(main())).result()


_apps: dict[str, modal.App] = {}
_looking_up = threading.Lock()


async def app(name: str) -> modal.App:
    """The app in which sandboxes are made, looked up once by each process."""

    def look_up() -> modal.App:
        with _looking_up:
            if name not in _apps:
                _apps[name] = modal.App.lookup(name, create_if_missing=True)
            return _apps[name]

    return await patiently(lambda: asyncio.to_thread(look_up))


# --- Volumes ------------------------------------------------------------------------------------------


async def make_volume(name: str) -> None:
    await patiently(lambda: modal.Volume.objects.create.aio(name, version=2, allow_existing=True))


async def delete_volume(name: str) -> None:
    await patiently(lambda: modal.Volume.objects.delete.aio(name, allow_missing=True))


async def rename_volume(old: str, new: str) -> None:
    """Give a volume another name; done already when only the new one is there."""

    async def rename() -> None:
        try:
            await modal.Volume.rename.aio(old, new)
        except NotFoundError:
            await modal.Volume.from_name(new).hydrate.aio()

    await patiently(rename)


async def volumes(prefix: str = modal_owner.PREFIX) -> list[str]:
    """The names of the volumes that begin so; by default, of trials' volumes."""
    listed = await modal.Volume.objects.list.aio()
    return sorted(one.name for one in listed if one.name and one.name.startswith(prefix))


# --- Sandboxes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A sandbox of ours that exists."""

    sandbox: modal.Sandbox
    tags: dict[str, str]

    @property
    def owner(self) -> str:
        return self.tags.get(OWNER, "")

    @property
    def hours(self) -> float:
        started = self.tags.get(STARTED, "")
        return (time.time() - int(started)) / 3600 if started.isdigit() else 0.0

    @property
    def usd_per_hour(self) -> float:
        try:
            return float(self.tags.get(USD, 0))
        except ValueError:
            return 0.0


async def sandboxes(app_name: str) -> list[Found]:
    """Our sandboxes that exist, of whatever runner; none when the app was never made."""
    try:
        own = await modal.App.lookup.aio(app_name)
    except NotFoundError:
        return []
    found = [one async for one in modal.Sandbox._experimental_list.aio(app_id=own.app_id)]
    tags = await asyncio.gather(*(_tags(one) for one in found))
    return [Found(one, its) for one, its in zip(found, tags, strict=True) if OWNER in its]


async def _tags(sandbox: modal.Sandbox) -> dict[str, str]:
    try:
        return await sandbox.get_tags.aio()
    except NotFoundError:
        return {}  # it ended meanwhile


async def end(sandbox: modal.Sandbox) -> None:
    """Terminate a sandbox and wait until it is over: what it wrote to volumes is safe then."""
    await patiently(lambda: sandbox.terminate.aio())
    with contextlib.suppress(SandboxTimeoutError):  # over by itself
        await patiently(lambda: sandbox.wait.aio(raise_on_termination=False))


async def reap(app_name: str, stays: Callable[[str], bool]) -> list[str]:
    """End the sandboxes of runners that are gone, then delete their volumes, and say what. No other's is touched.

    `stays` is asked whether a volume is to be left, by its name.
    """
    removed = []
    for one in await sandboxes(app_name):
        if modal_owner.is_dead(one.owner):
            await end(one.sandbox)
            removed.append(f"sandbox {one.tags.get(TRIAL, '')} ({one.sandbox.object_id})")
    for name in await volumes():
        owner = modal_owner.owner_of_volume(name)
        if owner and modal_owner.is_dead(owner) and not await asyncio.to_thread(stays, name):
            await delete_volume(name)
            modal_notes.forget(name)
            removed.append(f"volume {name}")
    return removed


def describe(error: BaseException) -> Any:
    """An error of the client in a line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
