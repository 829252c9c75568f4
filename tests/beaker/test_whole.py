"""From the command line to scores: a dataset, evaluated in jobs that serve the model and run podman for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.beaker_cells_kit import HERE
from tests.podman import podman_kit
from tests.podman.podman_kit import IMAGE
from tests.run_kit import REWARD_IF_OK, TASK_TOML, agent, make_task

pytestmark = pytest.mark.beaker

FAKE_VLLM = Path(__file__).parents[1] / "fakes" / "vllm_server.py"


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """A dataset by the name of a public one, of two tasks whose sandboxes have a network."""
    names = ("apple", "banana")
    for name in names:
        make_task(tmp_path / name, REWARD_IF_OK, TASK_TOML.replace("no-network", "public"))
    tasks = [{"name": name, "path": name} for name in names]
    rows = [{"name": "terminal-bench", "version": "2.0", "description": "", "tasks": tasks}]
    (tmp_path / "registry.json").write_text(json.dumps(rows))
    return tmp_path / "registry.json"


def test_a_checkpoint_is_evaluated_on_a_dataset_by_one_command(beaker_server, registry, ptb, tmp_path, monkeypatch):
    podman_kit.make_image()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # Harbor's cache of tasks
    checkpoint = ("model=hf", "model.id=org/tiny", "model.revision=abc")
    dataset = ("benchmark=terminal-bench", f"benchmark.registry_path={registry}")
    there = ("backend=beaker", f"backend.image={IMAGE}", f"serve.command=[python,{FAKE_VLLM}]", *agent("Asks"))
    run = tmp_path / "run"
    ran = ptb(*checkpoint, *dataset, *there, *HERE, "launcher.sync_sec=0.5", f"hydra.run.dir={run}")
    assert ran.code == 0, ran.out + ran.err + "".join(one["log"] for one in beaker_server.jobs())
    assert "2/2 planned trials scored" in ran.out
    record = json.loads((run / "0" / "launcher.json").read_text())
    (job,) = beaker_server.jobs(record["job_id"])
    assert (job["exit_code"], record["attempts"][0]["state"]) == (0, "succeeded")
    result = json.loads((run / "0" / "result.json").read_text())
    assert [trial["reward"] for trial in result["trials"]] == [1.0, 1.0]
    assert result["provenance"]["served"]["served_name"] == "tiny"
    assert json.loads((run / "metrics.json").read_text())["mean_reward"] == 1.0
    assert "loading org/tiny" in ptb("logs", run, "--serve").out
    assert "2/2 planned trials scored" in ptb("logs", run).out


def test_a_stopped_cell_is_resumed_by_another_experiment_and_repeats_nothing(beaker_cells):
    podman_kit.make_image()
    command = "printf ok > answer.txt"
    stays = f"while [ ! -e /gate/gate ]; do sleep 0.1; done; {command}"
    waits = agent("Scripted", command=command, by_attempt={2: stays})
    there = (
        "backend=beaker",
        f"backend.image={IMAGE}",
        "serve=none",
        "backend.run_args=[-v,/weka/oe-adapt-default:/gate]",
    )
    beaker_cells.server.mend()  # jobs run their own commands
    ran = beaker_cells.submit("benchmark=hello", *there, *waits, "attempts=2", "concurrency=1", "launcher.sync_sec=0.5")
    assert ran.code == 0, ran.err
    place = beaker_cells.server.folder / beaker_cells.record(0)["results"].lstrip("/") / "cell"
    first = place / "job" / "hello__001" / "result.json"
    beaker_cells.server.wait_for(lambda _: first.exists() and "agent" in (place / "status.json").read_text(), 120)
    assert beaker_cells.ptb("stop", beaker_cells.sweep).code == 0
    here = beaker_cells.sweep / "0" / "job" / "hello__001" / "result.json"
    assert (beaker_cells.state(), here.read_bytes()) == ("cancelled", first.read_bytes())
    beaker_cells.open_gate()
    assert beaker_cells.ptb("resume", beaker_cells.sweep).code == 0
    beaker_cells.server.wait_for(lambda _: beaker_cells.jobs()[-1]["finalized"], 120)
    collected = beaker_cells.ptb("collect", beaker_cells.sweep)
    assert "2/2 planned trials scored" in collected.out, beaker_cells.jobs()[-1]["log"]
    assert here.read_bytes() == first.read_bytes()
    assert [one["name"][-3:] for one in beaker_cells.experiments()] == ["0-1", "0-2"]
