"""A container of its own for a test, and the base image for all."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from ptb_runner.sandbox.podman_container import Container, Wanted
from tests.podman import podman_kit

type Body = Callable[[Container], Awaitable[None]]


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """What a run of compose tasks sets for Harbor's podman would end with its process, and here ends with the test."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def image() -> str:
    return podman_kit.make_image()


@pytest.fixture
def inside(image, tmp_path) -> Callable[..., None]:
    """inside(body): `await body(container)` in a started container, of which nothing is left afterwards."""

    def go(body: Body, image: str = image, env: dict[str, str] | None = None, **_: Any) -> None:
        async def main() -> None:
            wanted = Wanted(f"ptb-test-{uuid.uuid4().hex[:8]}", image, ["--network", "none"], env or {})
            container = await Container.start(podman_kit.podman(), wanted, tmp_path)
            try:
                await body(container)
            finally:
                await container.stop()
            assert podman_kit.containers(f"name={wanted.name}") == []
            assert list(tmp_path.glob("ptb-sandboxes-*/*")) == []

        asyncio.run(main())

    return go
