"""A loopback model hub for tests, and the real client in this process bound to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fakes import hub_server

MODEL, DATA = "models/Qwen/Qwen3-1.7B-Base", "datasets/openai/gsm8k"
WEIGHTS = os.urandom(300_000)
FILES = {
    MODEL: {"config.json": b"{}", "model.safetensors": WEIGHTS, "pytorch_model.bin": b"the same once more"},
    DATA: {"main/test.parquet": b"items", "README.md": b"about"},
}


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[hub_server.Hub]:
    """A hub; the client reads its address when it is imported."""
    import huggingface_hub.constants as constants

    monkeypatch.setenv("PTB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nobody's"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub_server.running({name: dict(files) for name, files in FILES.items()}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield server
