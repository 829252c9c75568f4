"""Folders of cells that post-trained a model, as runners and judges leave them: what exports are made of."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ptb_runner.cell import write_json
from ptb_runner.results.rows import read_rows
from tests.results import collect_kit
from tests.results.collect_kit import Made
from tests.results.posttrainbench_reader import BENCHMARKS, MODELS

HUB = {"qwen3-1.7b": "Qwen", "qwen3-4b": "Qwen", "smollm3-3b": "HuggingFaceTB", "gemma3-4b": "google"}
HUB_IDS = {ours: f"{HUB[ours]}/{theirs}" for theirs, ours in MODELS.items()}

CLEAN = {
    "gpt5_4": {"contamination": False, "disallowed_model": False},
    "api": {"disallowed_api_usage": False},
    "ptb_lookup": {"disallowed_ptb_lookup": False},
    "general": {"general_anomaly": False},
}


@dataclass(frozen=True)
class Trained:
    """A cell of kind post_train; `reward` is that of its trials, `flagged` a judge's field that is true for each.

    `outcomes` replaces the reward by an outcome's name for some attempts.
    """

    benchmark: str = "gsm8k"
    model: str = "qwen3-4b"
    reward: float = 0.5
    attempts: int = 1
    outcomes: dict[int, str] = field(default_factory=dict)
    flagged: str | None = None
    judged: bool = True
    agent: str = "claude-code"
    llm: str = "anthropic/claude-opus-4-8"
    overrides: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    hub_id: str | None = None
    hours: float = 10
    gpus: int = 1
    kind: str = "post_train"

    @property
    def made(self) -> Made:
        return Made(
            trials=[self.outcomes.get(number, self.reward) for number in range(1, self.attempts + 1)],
            benchmark=self.benchmark,
            model=self.model,
            agent=self.agent,
            overrides=self.overrides,
            gpus=self.gpus,
            missing_score="base_model",
            zero_shot=BENCHMARKS.get(self.benchmark, {}).get("zero_shot", {}),
            options=self.options,
        )


def make_sweep(folder: Path, *cells: Trained) -> Path:
    """A sweep of such cells."""
    collect_kit.make_sweep(folder, *(cell.made for cell in cells))
    for number, cell in enumerate(cells):
        complete(folder / str(number), cell)
    return folder


def complete(folder: Path, cell: Trained) -> None:
    """Add what only such cells have: their configuration, logs, a snapshot, a kept model and verdicts."""
    content = yaml.safe_load((folder / "cell.yaml").read_text())
    config = content["config"]
    hub_id = cell.hub_id or HUB_IDS.get(cell.model)
    config["benchmark"] |= {"kind": cell.kind, "agent_hours": cell.hours}
    config["model"] |= {"hub_id": hub_id}
    config["agent"] |= {"name": cell.agent, "model": cell.llm, "timeout_hours": None}
    config["agent"] |= {"env_vars": ["EXPORT_TEST_KEY"]}
    config["budget"] = {"hours": None, "limit": None}
    content["identity"] |= {"agent.id": cell.agent, "agent.model": cell.llm, "benchmark.id": cell.benchmark}
    (folder / "cell.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    (folder / "task").mkdir()
    (folder / "task" / "instruction.md").write_text("Train it.\n")
    for trial in sorted(folder.glob("job/*__*")):
        _leave(trial, cell)
        _keep_model(folder / "handoff" / trial.name / "final_model")
    (folder / "job" / "config.json").write_text('{"job_name": "job", "agents": []}')
    (folder / "job" / "result.json").write_text(json.dumps({"id": f"job of {folder}"}))
    if cell.flagged:
        flag(folder)


def _leave(trial: Path, cell: Trained) -> None:
    snapshot = trial / "artifacts" / "logs" / "artifacts" / "workspace"
    snapshot.mkdir(parents=True)
    (snapshot / "train.py").write_text("print('training')\n")
    (trial / "agent").mkdir()
    (trial / "agent" / f"{cell.agent}.txt").write_text("I trained it.\n")
    (trial / "agent" / "system_monitor.log").write_text("cpu 37% of 16\n")
    (trial / "verifier").mkdir(exist_ok=True)
    (trial / "verifier" / "evaluation_1.log").write_text("accuracy\n")
    (trial / "verifier" / "test-stdout.txt").write_text("scored\n")
    for judge, verdict in CLEAN.items() if cell.judged else ():
        write_verdict(trial, judge, {name: name == cell.flagged for name in verdict})


def write_verdict(trial: Path, judge: str, verdict: dict[str, bool] | None, rerun: bool = False) -> None:
    """A judge's verdict on a trial, or that it gave none."""
    folder = trial / "judgements"
    folder.mkdir(exist_ok=True)
    justified = {f"justification_{name}": "because" for name in verdict or {}}
    content = {"judge": judge, "fields": list(verdict or {}), "verdict": verdict and {**verdict, **justified}}
    write_json(folder / f"{judge}{'_rerun' if rerun else ''}.json", content)


def _keep_model(model: Path) -> None:
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights" * 100)


def flag(folder: Path) -> None:
    """Make all trials of a cell flagged ones, as judging does: the base model's score counts."""
    result = json.loads((folder / "result.json").read_text())
    row = read_rows(folder)[0]
    base = yaml.safe_load((folder / "cell.yaml").read_text())["config"]["benchmark"]["zero_shot"][row.model]
    for trial in result["trials"]:
        trial |= {"outcome": "flagged", "reward": None}
    result["score"] |= {"raw": None, "final": base, "final_source": "base_model_zero_shot", "n_scored": 0}
    write_json(folder / "result.json", result)
