"""A scripted LLM server for each test, and made-up keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clis import clis_kit
from tests.fakes.llm_server import Server, serving


@pytest.fixture
def llm() -> Iterator[Server]:
    """A server without scripts: the test sets llm.scripts[name] = [steps]."""
    with serving({}) as server:
        yield server


@pytest.fixture(autouse=True)
def made_up_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in clis_kit.KEYS.values():
        monkeypatch.setenv(name, clis_kit.secret(name))
