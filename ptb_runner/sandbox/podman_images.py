"""Images of podman sandboxes: built or pulled once, however many ask at a time, and never removed unasked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from filelock import FileLock, Timeout

from ptb_runner.cell import content_hash
from ptb_runner.sandbox import scratch
from ptb_runner.sandbox.podman_cli import Podman, PodmanError

REPOSITORY = "localhost/ptb-built"
BUILT = "ptb.built=1"
PULL_WAIT_SEC = 2.0
POLL_SEC = 0.1

# Images that this process has seen; a container that does not start takes its image off again.
_seen: set[str] = set()


def forget(image: str) -> None:
    """Look again before the image is used the next time: somebody may have removed it."""
    _seen.discard(image)


def tag_of(folder: Path) -> str:
    """The name of the image that a folder with a Dockerfile is built into: the same content, the same image."""
    return f"{REPOSITORY}:{content_hash(folder)[:32]}"


async def built(podman: Podman, folder: Path, host_network: bool, force: bool = False) -> str:
    """Build a folder's Dockerfile, unless it was built before, and return the image's name."""
    tag = await asyncio.to_thread(tag_of, folder)
    async with _once(podman, tag, force) as needed:
        if needed:
            network = ["--network", "host"] if host_network else []
            cache = ["--no-cache"] if force else []
            labels = ["--label", BUILT]
            # Docker's format: OCI's has no HEALTHCHECK and no SHELL.
            await podman("build", "--format", "docker", *network, *cache, *labels, "-t", tag, str(folder))
    return tag


async def pulled(podman: Podman, image: str, tries: int = 4) -> str:
    """Pull an image, unless it is here, and return its name."""
    async with _once(podman, image, False) as needed:
        for number in range(1, tries + 1) if needed else ():
            try:
                await podman("pull", "--quiet", image)
                break
            except PodmanError:
                if number == tries:
                    raise
                await asyncio.sleep(PULL_WAIT_SEC * 2 ** (number - 1))
    return image


@contextlib.asynccontextmanager
async def _once(podman: Podman, image: str, force: bool) -> AsyncIterator[bool]:
    """Whether the image must be made here and now; nobody else makes it meanwhile, in no process of this user."""
    if not force and (image in _seen or await podman.succeeds("image", "exists", image)):
        _seen.add(image)
        yield False
        return
    async with _locked(image):
        yield force or not await podman.succeeds("image", "exists", image)
    _seen.add(image)


@contextlib.asynccontextmanager
async def _locked(image: str) -> AsyncIterator[None]:
    name = "".join(char if char.isalnum() else "-" for char in image)[-80:]
    lock = FileLock(scratch.parent() / f"image-{name}.lock", is_singleton=False)
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except Timeout:
            await asyncio.sleep(POLL_SEC)  # not in a thread: a cancelled trial must not wait on
    try:
        yield
    finally:
        lock.release()


def clean(podman: Podman) -> list[str]:
    """Remove the images that were built here and that no container uses; returns their names."""
    ours = ("--filter", f"reference={REPOSITORY}", "--filter", f"label={BUILT}")
    listed = podman.now("images", *ours, "--format", "{{.Repository}}:{{.Tag}}")
    # Without --force podman refuses to remove what a container uses.
    return [name for name in listed.stdout.split() if podman.now("rmi", name).returncode == 0]
