"""A trial's trace: what the agent said, called and got back, read from its files and told as text.

Harbor leaves `agent/trajectory.json` when an agent has ended; before that, and for agents that Harbor makes none for,
the logs of the CLI itself are read. All of it comes out of a sandbox: it is data, nothing in it is trusted or followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ptb_runner import clilogs
from ptb_runner.clilogs import command_of, plain_text
from ptb_runner.times import clock
from ptb_runner.turns import Call, Trace, Turn

__all__ = ["Call", "Cut", "Trace", "Turn", "pieces", "read", "read_lines", "read_logs", "text"]

MAX_BYTES = 512 * 1024 * 1024  # of one file; a trace of ten hours has some ten MB
ROUNDS = "rounds"  # where the logs of earlier rounds are, a folder each, when an agent was prompted again


def read(trial_dir: Path) -> Trace | None:
    """The trace of a trial, also of one that still runs; None when there is none yet."""
    trajectory = _json(trial_dir, trial_dir / "agent" / "trajectory.json")
    found = _from_trajectory(trial_dir, trajectory) if isinstance(trajectory, dict) else None
    return found if found and found.turns else read_logs(trial_dir)


def read_logs(trial_dir: Path) -> Trace | None:
    """The trace as the logs of the agent's CLI have it, which grow while it runs."""
    logs = read_lines(trial_dir)
    turns = [turn for name, lines in logs for turn in clilogs.turns(name, lines)]
    summary = _json(trial_dir, trial_dir / "agent" / "acp-summary.json")  # of Harbor's client for agents that speak ACP
    if isinstance(summary, dict) and isinstance(error := summary.get("error"), dict):
        turns.append(Turn("error", plain_text(error.get("message"))))
    source = logs[-1][0] if logs else ""
    return Trace(turns, source, agent=source.removesuffix(".txt")) if turns else None


def read_lines(trial_dir: Path) -> list[tuple[str, list[str]]]:
    """The name and the lines of each round's log; of an agent that is none of the known CLIs, of all its logs."""
    folders = [*sorted(trial_dir.glob(f"agent/{ROUNDS}/*"), key=lambda path: path.name.zfill(9)), trial_dir / "agent"]
    logs = [path for folder in folders for path in sorted(folder.glob("*.txt"))]
    known = [path for path in logs if path.name in clilogs.READERS]
    contents = ((path.name, _content(trial_dir, path)) for path in known or logs)
    return [(name, content.splitlines()) for name, content in contents if content is not None]


def _content(trial_dir: Path, path: Path) -> str | None:
    """The text of a regular file of the trial; None for anything else: an agent may have put a link there."""
    try:
        inside = path.resolve() == trial_dir.resolve() / path.relative_to(trial_dir)
        if not inside or not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return path.read_text(errors="replace")
    except OSError:
        return None


def _json(trial_dir: Path, path: Path) -> Any:
    try:
        return json.loads(_content(trial_dir, path) or "null")
    except (ValueError, RecursionError):
        return None


# --- Harbor's form (ATIF) ---------------------------------------------------------------------------


def _from_trajectory(trial_dir: Path, data: dict[str, Any]) -> Trace | None:
    try:
        agent, total = data.get("agent") or {}, data.get("final_metrics") or {}
        return Trace(
            list(_steps(trial_dir, data, "", 0)),
            "trajectory.json",
            agent=str(agent.get("name") or ""),
            version=str(agent.get("version") or ""),
            model=str(agent.get("model_name") or ""),
            tokens=_tokens(total, "total_"),
            cost_usd=total.get("total_cost_usd"),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _steps(trial_dir: Path, data: dict[str, Any], thread: str, depth: int) -> Iterator[Turn]:
    """The turns of a trajectory, and after a step that started helpers theirs."""
    embedded = {one.get("trajectory_id"): one for one in data.get("subagent_trajectories") or []}
    for step in data["steps"]:
        calls = [
            Call(call["function_name"], call.get("arguments") or {}, id=call["tool_call_id"])
            for call in step.get("tool_calls") or []
        ]
        turn = Turn(
            step["source"],
            plain_text(step.get("message")),
            step.get("reasoning_content") or "",
            calls,
            step.get("timestamp"),
            _tokens(step.get("metrics") or {}, ""),
            thread,
        )
        results = (step.get("observation") or {}).get("results") or []
        for result in results:
            _return(turn, result)
        yield turn
        for name, helper in _helpers(trial_dir, results, embedded) if depth < 5 else ():
            yield from _steps(trial_dir, helper, name, depth + 1)


def _return(turn: Turn, result: dict[str, Any]) -> None:
    """Put what came back with the call that it belongs to."""
    output = plain_text(result.get("content"))
    call = next((call for call in turn.calls if call.id == result.get("source_call_id")), None)
    if call is None and turn.calls:
        call = next((call for call in turn.calls if call.output is None), None)
    if call is None:
        turn.text = f"{turn.text}\n{output}".strip("\n")
        return
    call.output = output if call.output is None else f"{call.output}\n{output}"
    call.failed |= bool((result.get("extra") or {}).get("error"))


def _helpers(trial_dir: Path, results: list[Any], embedded: dict[Any, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for reference in (one for result in results for one in result.get("subagent_trajectory_ref") or []):
        name, path = reference.get("trajectory_id"), reference.get("trajectory_path")
        found = embedded.get(name) or (_json(trial_dir, trial_dir / "agent" / str(path)) if path else None)
        if isinstance(found, dict):
            yield str(name or path), found


def _tokens(metrics: dict[str, Any], prefix: str) -> dict[str, int]:
    names = {"input": "prompt_tokens", "cached": "cached_tokens", "output": "completion_tokens"}
    found = {name: metrics.get(f"{prefix}{key}") for name, key in names.items()}
    return {name: value for name, value in found.items() if isinstance(value, int)}


# --- As text ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """How much is shown: characters of one text, of one command or argument, and of one output; None: all of it."""

    text: int | None = 8000
    call: int | None = 4000
    output: int | None = 2000


EVERYTHING = Cut(None, None, None)


def text(trace: Trace, cut: Cut | None = None) -> str:
    """The whole trace, turn by turn."""
    parts = [_heading(trace), *(piece for _, piece in pieces(trace, cut or Cut()))]
    return "\n".join(parts) + "\n"


def _heading(trace: Trace) -> str:
    words = [" ".join(filter(None, (trace.agent or trace.source, trace.version))), trace.model]
    words.append(f"{len(trace.turns)} turn{'s' if len(trace.turns) != 1 else ''}")
    if trace.tokens:
        cached = f" ({trace.tokens['cached']:,} cached)" if trace.tokens.get("cached") else ""
        words.append(f"{trace.tokens.get('input', 0):,} tokens in{cached}, {trace.tokens.get('output', 0):,} out")
    if trace.cost_usd is not None:
        words.append(f"${trace.cost_usd:.4f}")
    return printable(", ".join(filter(None, words)))


def pieces(trace: Trace, cut: Cut) -> Iterator[tuple[tuple[int, int, str], str]]:
    """The trace in pieces, each with a key that stays the same while the trace grows."""
    start = next((turn.at for turn in trace.turns if turn.at), None)
    for number, turn in enumerate(trace.turns):
        yield (number, -1, "head"), f"\n[{number + 1}] {_who(turn)}{_since(start, turn.at)}"
        if turn.thinking.strip():
            yield (number, -1, "thinking"), _indented(_cut(turn.thinking, cut.text), "  (thinking) ", "  ")
        if turn.text.strip():
            yield (number, -1, "text"), _indented(_cut(turn.text, cut.text), "  ", "  ")
        for index, call in enumerate(turn.calls):
            yield (number, index, "call"), _call(call, cut)
            if call.output is not None:
                yield (number, index, "output"), _output(call, cut)


def _who(turn: Turn) -> str:
    return printable(f"{turn.who} ({turn.thread})" if turn.thread else turn.who)


def _since(start: str | None, at: str | None) -> str:
    try:
        passed = datetime.fromisoformat(at or "") - datetime.fromisoformat(start or "")
    except (TypeError, ValueError):
        return ""
    return f" +{clock(passed.total_seconds())}"


def _call(call: Call, cut: Cut) -> str:
    if (command := command_of(call)) is not None:
        return _indented(_cut(command, cut.call), "  $ ", "    ")
    lines = [f"  {printable(call.tool)}"]
    for name, value in call.arguments.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        lines.append(_indented(_cut(shown, cut.call), f"    {printable(name)}: ", "      "))
    return "\n".join(lines)


def _output(call: Call, cut: Cut) -> str:
    failed = "  (failed)\n" if call.failed else ""
    return failed + _indented(_cut(call.output or "(no output)", cut.output), "  | ", "  | ")


def _indented(content: str, first: str, rest: str) -> str:
    return first + f"\n{rest}".join(content.split("\n"))


def _cut(content: str, limit: int | None) -> str:
    """The content fit to be shown; of more than `limit` characters its beginning and, longer, its end."""
    content = printable(content).strip("\n")
    if limit is None or len(content) <= limit * 1.2:
        return content
    head, tail = content[: limit // 3], content[-(limit - limit // 3) :]
    left_out = content[len(head) : len(content) - len(tail)]
    return f"{head}\n... {len(left_out):,} characters, {left_out.count(chr(10)) + 1:,} lines left out ...\n{tail}"


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(content: str) -> str:
    """The content without what would change a terminal's state or hide other text."""
    lines = _ESCAPES.sub("", content).split("\n")
    shown = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)  # of a progress bar its last state
    return _CONTROLS.sub("", shown)
