"""What tests of served models share: a registry run against one that dies once, and what Terminus 2 is answered."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.run_kit import REWARD_IF_OK, TASK_TOML, Cell, agent, make_registry

_TYPED = {"keystrokes": "printf ok > answer.txt\n", "duration": 0.3}
_DONE = {"analysis": "-", "plan": "-", "commands": [], "task_complete": True}
FAKE = Path(__file__).parent / "fakes" / "vllm_server.py"
# A model server's rules by which Terminus 2 types one command, and is done when it has seen that.
TERMINUS_WRITES_OK: list[dict[str, Any]] = [
    {"match": "ok > answer.txt", "say": json.dumps(_DONE)},
    {"say": json.dumps(_DONE | {"task_complete": False, "commands": [_TYPED]})},
]
NAMES = ("apple", "banana", "cherry")


def check_served_dataset(ptb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: tuple[str, ...]) -> None:
    """Two attempts at three tasks: each agent asks the server twice, from its sandbox."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # Harbor's cache of tasks
    starts = tmp_path / "starts"
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"loading": 0.5, "die_at": 6, "deaths": 1, "starts": str(starts)}))
    registry = make_registry(tmp_path / "shelf", NAMES, REWARD_IF_OK, TASK_TOML.replace("no-network", "public"))
    chosen = ("benchmark=dataset", "benchmark.dataset=fruit@1.0", f"benchmark.registry_path={registry}", "attempts=2")
    served = ("serve=vllm", f"serve.command=[{sys.executable},{FAKE}]", "model=hf", "model.id=org/tiny")
    work = agent("Asks", questions=2)
    ran = ptb(*chosen, *served, *backend, *work, "concurrency=2", "serve.health_sec=1", "hydra.run.dir=one")
    assert ran.code == 0, ran.out + ran.err
    cell = Cell(Path("one").resolve())
    assert starts.read_text() == ".."
    assert list(cell.folder.glob("superseded/*"))
    rewards = {trial["name"]: trial["reward"] for trial in cell.result["trials"]}
    assert rewards == {f"{name}__00{number}": 1 for name in NAMES for number in (1, 2)}
    assert ptb("collect", "one").code == 0
    metrics = json.loads(Path("one/metrics.json").read_text())
    assert (metrics["mean_reward"], metrics["pass_at_k"]) == (1, {"1": 1.0, "2": 1.0})
    assert metrics["server_gpu_hours"] > 0
    assert "GPU-hours of the model server" in Path("one/stats.txt").read_text()
    before = cell.mtimes()
    assert ptb("resume", "one").code == 0
    assert (cell.mtimes(), starts.read_text()) == (before, "..")
