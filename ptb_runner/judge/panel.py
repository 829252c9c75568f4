"""The judges of a cell at work on its trials, after each has ended; they hold no sandbox and no GPU.

Whatever a judge runs into becomes the reason in its own file, never an error of the trial or of the runner: a judge
that did not get to a verdict is missing, and its trial has no reward until it is there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ptb_runner import test_data, trace
from ptb_runner.cell import Cell, now, read_json
from ptb_runner.config import JudgeConfig, JudgeEngine, JudgesConfig, PriceConfig
from ptb_runner.judge import codex, judgements, loop, prices, prompts
from ptb_runner.judge.evidence import Evidence
from ptb_runner.judge.loop import Hearing
from ptb_runner.judge.tools import Toolbox
from ptb_runner.redact import Redactor

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
CUT = trace.Cut(text=None, call=None, output=4000)
COLLECTED = "artifacts/logs/artifacts"  # where Harbor puts what the collect hook left


async def judge_trial(
    cell: Cell, name: str, judges: Collection[str], secrets: Redactor, slots: asyncio.Semaphore
) -> list[dict[str, Any]]:
    """Have these judges of the cell's panel judge a trial; each leaves its file. Returns what these hold, in order."""
    trial_dir = cell.job / name
    (trial_dir / judgements.FOLDER).mkdir(exist_ok=True)
    await asyncio.to_thread(_write_trace, trial_dir, secrets)
    return await asyncio.gather(*(_judge(cell, trial_dir, judge, secrets, slots) for judge in judges))


async def _judge(
    cell: Cell, trial_dir: Path, judge: str, secrets: Redactor, slots: asyncio.Semaphore
) -> dict[str, Any]:
    async with slots:
        path = judgements.place(trial_dir, judge)
        own, hearing, started = cell.config.judge.panel[judge], Hearing(), now()
        prompt, error = "", None
        with judgements.transcript(path).open("w") as transcript:

            def note(step: dict[str, Any]) -> None:
                transcript.write(secrets.text(json.dumps({"at": now(), **step}, ensure_ascii=False)) + "\n")
                transcript.flush()

            try:
                prompt = prompts.read(cell.folder, judge)
                await _hear(cell, own, prompt, trial_dir, hearing, note)
            except Exception as raised:
                error = {"type": type(raised).__name__, "message": secrets.text(_one_line(raised))}
                log.warning("%s: judge %s gave no verdict", trial_dir.name, judge, exc_info=raised)
                note({"role": "error", **error})
        price, price_from = await asyncio.to_thread(prices.of, cell.config.judge, own)
        content = _judgement(cell.config.judge, judge, own, hearing, error) | {
            "cost_usd": _cost(price, hearing),
            "prices_from": price_from,
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
            "started_at": started,
            "finished_at": now(),
        }
        content = json.loads(secrets.text(json.dumps(content)))
        judgements.keep(path, judge, content)
        return content


async def _hear(cell: Cell, own: JudgeConfig, prompt: str, trial_dir: Path, hearing: Hearing, note: Any) -> None:
    box = Toolbox(evidence_of(cell, trial_dir), _test_data(cell), cell.config.model.identity)
    judges = cell.config.judge
    engine = codex if judges.engine is JudgeEngine.codex else loop
    await engine.hear(own, judges, prompt, box, hearing, note)


def _judgement(
    judges: JudgesConfig, judge: str, own: JudgeConfig, hearing: Hearing, error: dict[str, Any] | None
) -> dict[str, Any]:
    """The content of a judgement's file."""
    limits = {name: getattr(own, name) for name in ("max_turns", "max_tokens", "max_context_tokens")}
    if judges.engine is JudgeEngine.codex:
        limits["max_hours"] = judges.codex.max_hours
    return {
        "schema_version": SCHEMA_VERSION,
        "judge": judge,
        "fields": list(own.fields),
        "effect": own.effect.name,
        "verdict": hearing.verdict,
        "error": error,
        "engine": judges.engine.name,
        "program": hearing.program,
        "api": judges.api.name,
        "model": judges.model or own.model,
        "effort": judges.effort or own.effort,
        "turns": hearing.turns,
        "tool_calls": hearing.tool_calls,
        "malformed": hearing.malformed,
        "cut_short": hearing.cut_short,
        "tokens": vars(hearing.usage),
        "limits": limits,
    }


def _cost(price: PriceConfig, hearing: Hearing) -> float | None:
    """Dollars; None where the LLM's prices are not known."""
    if price.input is None or price.output is None:
        return None
    used = hearing.usage
    cached = price.input if price.cached is None else price.cached
    usd = (used.input - used.cached) * price.input + used.cached * cached + used.output * price.output
    return round(usd / 1e6, 6)


def _one_line(raised: Exception) -> str:
    return " ".join(str(raised).split())[:500] or type(raised).__name__


# --- The evidence -------------------------------------------------------------------------------------


def _task_of(cell: Cell, trial_dir: Path) -> Path:
    """The task folder of a trial; a dataset's cell has several."""
    if cell.tasks == [cell.task]:
        return cell.task
    path = ((read_json(trial_dir / "config.json") or {}).get("task") or {}).get("path") or ""
    return next((task for task in cell.tasks if task.name == Path(path).name), cell.task)


def evidence_of(cell: Cell, trial_dir: Path) -> Evidence:
    """What a trial left, under the names that judges are told; the verifier's own files are not among it."""
    places = {
        "trace.txt": (trial_dir, f"{judgements.FOLDER}/trace.txt"),
        "instruction.md": (_task_of(cell, trial_dir), "instruction.md"),
        "agent": (trial_dir, "agent"),
        "steps": (trial_dir, "steps"),
        "workspace": (trial_dir, f"{COLLECTED}/workspace"),
        "snapshot.json": (trial_dir, f"{COLLECTED}/snapshot.json"),
        "final_model": (trial_dir, f"{COLLECTED}/final_model_config"),
        "artifacts": (trial_dir, "artifacts"),
    }
    kept = {name: place for name, place in places.items() if (place[0] / place[1]).exists()}
    return Evidence(kept)


def _write_trace(trial_dir: Path, secrets: Redactor) -> None:
    """The trace as readable text, for the judges and for people."""
    found = trace.read(trial_dir)
    text = trace.text(found, CUT) if found else "This agent left no trace that can be read; its logs are in agent/.\n"
    (trial_dir / judgements.FOLDER / "trace.txt").write_text(secrets.text(text), errors="replace")


def _test_data(cell: Cell) -> Path | None:
    """The benchmark's test items: those that the task holds, else the downloaded ones."""
    known = (cell.task / "environment" / test_data.NAME, test_data.file(cell.config.benchmark.id))
    return next((path for path in known if path.is_file()), None)
