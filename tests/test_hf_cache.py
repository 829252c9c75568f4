"""The hub's cache: `ptb cache hf` with the real client against a loopback hub, and what sandboxes see of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptb_runner import hf_cache
from ptb_runner.doctor import compose, compose_all
from ptb_runner.hf_cache import Repository
from ptb_runner.sandbox.environment import HF_LAYER
from tests import hub_kit
from tests.hub_kit import MODEL, WEIGHTS

CELL = ("benchmark=gsm8k", "model=qwen3-1.7b")

hub = hub_kit.hub


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "cache" / "huggingface"


def needed(*overrides: str) -> list[Repository]:
    return hf_cache.wanted(compose_all(list(overrides)))


def test_what_cells_need():
    found = needed("benchmark=gsm8k,humaneval,hello,addition", "model=qwen3-1.7b", "budget=full")
    assert found == [
        Repository("model", "Qwen/Qwen3-1.7B-Base"),
        Repository("dataset", "openai/gsm8k"),
        Repository("dataset", "openai/openai_humaneval"),
    ]
    [_, graded] = needed("benchmark=arenahardwriting", "model.revision=abc")
    assert [name.rpartition("/")[2] for name in graded.files] == ["gemini-2.0-flash-001.jsonl", "question.jsonl"]
    assert needed("benchmark=arenahardwriting", "model.revision=abc")[0].revision == "abc"
    assert needed("benchmark=bfcl")[1] == Repository("dataset", "gorilla-llm/Berkeley-Function-Calling-Leaderboard")
    assert needed("benchmark=hello") == []


def test_the_first_time_all_is_downloaded_and_the_second_time_nothing(ptb, hub, home):
    ran = ptb("cache", "hf", *CELL)
    assert ran.code == 0, ran.err
    assert "model Qwen/Qwen3-1.7B-Base: downloaded 300.0 kB" in ran.out
    assert "next: ptb benchmark=gsm8k model=qwen3-1.7b" in ran.out
    snapshot = home / "hub" / "models--Qwen--Qwen3-1.7B-Base" / "snapshots" / hub.commit(MODEL)
    assert (snapshot / "model.safetensors").read_bytes() == WEIGHTS
    assert not (snapshot / "pytorch_model.bin").exists()  # the weights in another format
    sent = hub.sent
    assert sent == sum(map(len, (b"{}", WEIGHTS, b"items", b"about")))
    again = ptb("cache", "hf", *CELL)
    assert "model Qwen/Qwen3-1.7B-Base: is there" in again.out
    assert hub.sent == sent
    hub.repositories[MODEL]["config.json"] = b'{"new": 1}'  # main has moved on
    assert "downloaded 10 bytes" in ptb("cache", "hf", *CELL).out


def test_a_pinned_revision_that_is_there_is_not_asked_for(ptb, hub, home):
    pinned = (*CELL, f"model.revision={hub.commit(MODEL)}")
    assert ptb("cache", "hf", *pinned).code == 0
    hub.asked.clear()
    assert ptb("cache", "hf", *pinned).code == 0
    assert not [line for line in hub.asked if "Qwen" in line]


def test_a_broken_download_is_carried_on_with(hub, home, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 16)  # what is kept of a broken one
    repository = Repository("model", "Qwen/Qwen3-1.7B-Base")
    hub.cut["model.safetensors"] = 200_000  # each connection brings so much
    assert hf_cache.fill(home, repository) == 300_002
    assert hub.sent < 400_000  # the second connection brought the rest only
    assert hf_cache.held(home, repository)


def test_an_interrupted_download_keeps_what_is_finished(hub, home, tmp_path):
    repository = Repository("model", "Qwen/Qwen3-1.7B-Base")
    hub.cut["model.safetensors"] = 0  # it never gets there
    program = (
        "import sys; from pathlib import Path; from ptb_runner.hf_cache import *\n"
        "fill(Path(sys.argv[1]), Repository('model', 'Qwen/Qwen3-1.7B-Base'))"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(home)]) as process:
        while not list(home.glob("hub/*/snapshots/*/config.json")):
            assert process.poll() is None
        process.kill()
    assert not hf_cache.held(home, repository)
    hub.cut.clear()
    assert hf_cache.fill(home, repository) == 300_000
    assert hf_cache.held(home, repository)


def refused(ran, *words: str) -> None:
    assert ran.code == 2
    assert all(word in ran.err for word in words), ran.err
    assert len(ran.err.splitlines()) <= 2


def test_what_cannot_be_downloaded_is_told_in_two_lines(ptb, hub, monkeypatch):
    hub.gated.add(MODEL)
    refused(ptb("cache", "hf", *CELL), "is gated, and needs HF_TOKEN", "Qwen/Qwen3-1.7B-Base")
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    ran = ptb("cache", "hf", *CELL)
    refused(ran, "needs a token that may read it")
    assert "hf_of_somebody_else" not in ran.out + ran.err
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert ptb("cache", "hf", *CELL).code == 0
    refused(ptb("cache", "hf", *CELL, "model.revision=v9"), "at v9: the hub has no such revision", "model.revision")
    refused(ptb("cache", "hf", "benchmark=humaneval"), "data set openai/openai_humaneval: the hub has none")
    refused(ptb("cache", "hf", *CELL, "backend.hf_cache=null"), "there is no cache")
    refused(ptb("cache", "hf", "benchmark=gsm8k", "backend=podman,bubblewrap"), "one backend")
    refused(ptb("cache", "hf", "benchmark=gsm9k"), "gsm8k")
    nothing = ptb("cache", "hf", "benchmark=hello")
    assert "need nothing of the hub" in nothing.out
    assert nothing.code == 0


def test_the_token_is_in_no_file_of_the_cache(ptb, hub, home, monkeypatch):
    hub.gated.add(MODEL)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert ptb("cache", "hf", *CELL).code == 0
    assert not [path for path in home.rglob("*") if path.is_file() and hub.token.encode() in path.read_bytes()]


def test_the_plan_says_what_is_there(ptb, hub):
    plan = (*CELL, "dry_run=true")
    before = ptb(*plan)
    assert "Qwen/Qwen3-1.7B-Base (missing), openai/gsm8k (missing)" in before.out
    assert "first: ptb cache hf benchmark=gsm8k model=qwen3-1.7b" in before.out
    assert ptb("cache", "hf", *CELL).code == 0
    after = ptb(*plan)
    assert "Qwen/Qwen3-1.7B-Base (there), openai/gsm8k (there)" in after.out
    assert "ptb cache hf" not in after.out
    assert "ptb cache hf" in str(hf_cache.missing(compose([*CELL, "backend.hf_cache=elsewhere"])))
    unused = compose([*CELL, "backend.hf_cache=null"])
    assert hf_cache.missing(unused) is None
    assert hf_cache.describe(unused).startswith("not used")


def test_a_half_removed_cache_is_not_taken_for_whole(hub, home):
    repository = Repository("dataset", "openai/gsm8k")
    hf_cache.fill(home, repository)
    assert hf_cache.held(home, repository)
    next((home / "hub" / repository.folder / "blobs").iterdir()).unlink()
    assert not hf_cache.held(home, repository)


# --- In sandboxes -------------------------------------------------------------------------------------

CLIENT = """
import os, sys
from huggingface_hub import hf_hub_download, snapshot_download
folder = snapshot_download("Qwen/Qwen3-1.7B-Base", allow_patterns=["*.json", "*.safetensors"], local_files_only=True)
assert len(open(folder + "/model.safetensors", "rb").read()) == 300_000
try:
    open(folder + "/model.safetensors", "ab")
    sys.exit("the shared cache can be written")
except OSError:
    pass
"""


def test_a_layer_is_a_cache_that_the_client_can_write_to(hub, home, tmp_path):
    """The layer's links and the read-only folders, without a sandbox: the client works in it, and adds to it."""
    hf_cache.fill(home, Repository("model", "Qwen/Qwen3-1.7B-Base"))
    before = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}
    own = tmp_path / "own"
    for _ in range(2):  # a second start of the same sandbox changes nothing
        subprocess.run(["sh", HF_LAYER, home / "hub", own], check=True)
    hub.repositories[MODEL]["config.json"] = b'{"changed": true}'
    sent = hub.sent
    program = """
from huggingface_hub import snapshot_download
folder = snapshot_download("Qwen/Qwen3-1.7B-Base", allow_patterns=["*.json", "*.safetensors"])
print(open(folder + "/config.json").read(), len(open(folder + "/model.safetensors", "rb").read()))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HOME": str(own), "HF_ENDPOINT": hub.url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == '{"changed": true} 300000\n'
    assert hub.sent - sent == len(b'{"changed": true}')  # the weights are a link of the layer
    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before


def test_agent_and_verifier_see_the_cache(ptb, hub, tmp_path):
    """In real sandboxes without a network: the cell's repositories are there for both, and nothing else is."""
    from tests.run_kit import CUSTOM, Cell, make_task

    client = f"PYTHONDONTWRITEBYTECODE=1 {sys.executable} - <<'END'\n{CLIENT}\nEND\n"
    seen = "ls /opt/hf-cache > answer.txt"
    task = make_task(tmp_path / "task", f"{client} [ $? = 0 ] && echo 1 > /logs/verifier/reward.txt")
    hf_cache.fill(hf_cache.home(compose([])) or Path(), Repository("dataset", "openai/gsm8k"))
    assert ptb("cache", "hf", "benchmark=hello", "+model.hub_id=Qwen/Qwen3-1.7B-Base").code == 0
    script = tmp_path / "agent.sh"
    script.write_text(f"set -e\n{client}\n{seen}")
    ran = ptb(
        "benchmark=task",
        f"benchmark.path={task}",
        *CUSTOM,
        "agent.import_path=tests.agents:Scripted",
        f"+agent.options.command='bash {script}'",
        f"backend.read_only_paths=[{tmp_path}]",
        "model.hub_id=Qwen/Qwen3-1.7B-Base",
        "hydra.run.dir=run",
    )
    assert ran.code == 0, ran.out + ran.err
    cell = Cell(Path("run"))
    assert cell.outcomes == ["scored"]
    [answer] = Path("run").glob("job/*/artifacts/**/answer.txt")
    assert answer.read_text() == "models--Qwen--Qwen3-1.7B-Base\n"
