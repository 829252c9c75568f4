"""`ptb cache hf backend=modal`: a real function fills a volume of a fake Modal from a loopback hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes import hub_server

pytestmark = [pytest.mark.modal, pytest.mark.timeout(300)]

MODEL, DATA = "models/Qwen/Qwen3-1.7B-Base", "datasets/openai/gsm8k"
FILES = {MODEL: {"config.json": b"{}", "model.safetensors": b"w" * 300_000}, DATA: {"main/test.parquet": b"items"}}
CELL = ("benchmark=gsm8k", "model=qwen3-1.7b", "backend=modal")


@pytest.fixture
def hub(modal_server, tmp_path, monkeypatch) -> Iterator[hub_server.Hub]:
    monkeypatch.setenv("PTB_CACHE", str(tmp_path / "cache"))
    with hub_server.running({name: dict(files) for name, files in FILES.items()}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server


def test_a_function_fills_a_volume_once(ptb, hub, modal_server):
    hub.gated.add(MODEL)
    assert "Qwen/Qwen3-1.7B-Base (missing)" in ptb(*CELL, "dry_run=true").out
    ran = ptb("cache", "hf", *CELL, "backend.hf_cache=hub-test")
    assert ran.code == 0, ran.out + ran.err
    assert "model Qwen/Qwen3-1.7B-Base: downloaded 300.0 kB" in ran.out
    assert "volume hub-test" in ran.out
    snapshots = modal_server.volumes()["hub-test"] / "hub" / "models--Qwen--Qwen3-1.7B-Base" / "snapshots"
    weights = snapshots / hub.commit(MODEL) / "model.safetensors"
    assert weights.read_bytes() == FILES[MODEL]["model.safetensors"]
    assert hub.token.encode() not in b"".join(
        path.read_bytes() for path in modal_server.volumes()["hub-test"].rglob("*") if path.is_file()
    )
    sent = hub.sent
    assert "is there" in ptb("cache", "hf", *CELL, "backend.hf_cache=hub-test").out
    assert hub.sent == sent
    planned = ptb(*CELL, "backend.hf_cache=hub-test", "dry_run=true", "hydra.run.dir=planned")
    assert "Qwen/Qwen3-1.7B-Base (there), openai/gsm8k (there)" in planned.out
    hub.gated.add(DATA)
    del hub.repositories[DATA]
    refused = ptb("cache", "hf", *CELL, "backend.hf_cache=hub-test", "model.revision=v9")
    assert refused.code == 2
    assert "at v9: the hub has no such revision" in refused.err
    assert not [one for one in modal_server.state()["function_calls"] if one["running"]]


def test_a_sandbox_sees_the_volume_and_writes_beside_it(ptb, hub, modal_server):
    from tests.run_kit import CUSTOM

    own = ("benchmark=hello", "backend=modal", "model.hub_id=Qwen/Qwen3-1.7B-Base", "backend.hf_cache=hub-seen")
    assert ptb("cache", "hf", *own).code == 0
    seen = "cat $HF_HOME/hub/models--Qwen--*/snapshots/*/config.json && ! touch /opt/hf-cache/x && touch $HF_HOME/hub/y"
    ran = ptb(
        *own,
        *CUSTOM,
        "agent.import_path=tests.agents:Scripted",
        f"agent.options.command='{seen} && printf ok > answer.txt'",
    )
    assert ran.code == 0, ran.out + ran.err
    volume = modal_server.volumes()["hub-seen"]
    assert not (volume / "x").exists()
    assert not (volume / "hub" / "y").exists()
