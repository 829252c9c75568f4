"""A judge that is the Codex CLI, at work in a sandbox of its own over a copy of the evidence.

The sandbox has no network: a port of its loopback leads to the door, and through it to the judge's LLM alone. It holds
no key. The evidence is a copy without links that cannot be written to, and none of it is where codex looks for
instructions. The verdict is what the LLM says last, in the form of the judge's schema, as it came through the door.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptb_runner.config import JudgeApi, JudgeConfig, JudgeEngine, JudgesConfig
from ptb_runner.explain import UsageError
from ptb_runner.judge import checks, codex_program, door
from ptb_runner.judge.api import Reply
from ptb_runner.judge.codex_program import Program
from ptb_runner.judge.evidence import Refused, printable
from ptb_runner.judge.loop import Hearing, Note, NoVerdict, checked, cut_short, instructions, verdict_schema
from ptb_runner.judge.tools import Toolbox
from ptb_runner.paths import TEMPLATES
from ptb_runner.sandbox import bwrap, scratch
from ptb_runner.sandbox.box import Box
from ptb_runner.sandbox.jobs import Command
from ptb_runner.test_data import CHECKER

EVIDENCE, OWN, CODEX, DOOR, WORKDIR = "/evidence", "/opt/judge", "/opt/codex", "/run/door", "/judge"
PORT = 8080
RELAY = TEMPLATES / "judge" / "relay.py"
VERDICT_ANSWERS = 5  # that a judge whose time is up may still ask for, each time it is told
NOT_COPIED = "not_copied.json"

AGAIN = "This is no verdict: {}. Answer once more, with nothing but JSON in the form you were given."
TIME_IS_UP = "There is no time left to look at more. Give the verdict now, by what you have seen: nothing but the JSON."


def wanted(judges: JudgesConfig) -> bool:
    """Whether some judge is to be such a one."""
    return bool(judges.panel) and judges.engine is JudgeEngine.codex


def machine_problems(judges: JudgesConfig) -> list[str]:
    """What such judges need of this machine and do not find, and what to do; empty when none are wanted."""
    if not wanted(judges):
        return []
    found = [f"judge.engine=codex: {problem}" for problem in (*bwrap.problems(), *scratch.problems())]
    if judges.api is not JudgeApi.responses:
        found.append("judge.engine=codex: speaks the Responses API only\n  judge.api=responses")
    try:
        codex_program.find(judges.codex)
    except UsageError as error:
        found.append(f"judge.engine=codex: {error}")
    return found


async def hear(
    own: JudgeConfig, judges: JudgesConfig, prompt: str, toolbox: Toolbox, hearing: Hearing, note: Note
) -> None:
    """Let a judge work until it has given its verdict, which is then in `hearing`.

    Each step is told to `note`. Raises NoVerdict, or what keeps the sandbox from working.
    """
    program = await asyncio.to_thread(codex_program.find, judges.codex)
    hearing.program = f"codex {program.version}"
    told = f"{instructions(own, in_sandbox=True)}\n{prompt}"
    note({"role": "prompt", "text": told})
    session = _Session(own, judges, hearing, note)
    way = door.Door(judges, session.model, session.may_ask, session.asked, session.answered)
    async with _sandbox(program, own, toolbox) as (box, files):
        with way.open(files / "door"):
            question: str | None = told
            while question is not None:
                question = await _ask(session, way, box, files / "own", question)


async def _ask(session: _Session, way: door.Door, box: Box, own: Path, question: str) -> str | None:
    """Have codex answer; what to ask next, None when the verdict is there."""
    hearing, judges = session.hearing, session.judges
    again = session.begin()
    (own / "question.txt").write_text(question)
    arguments = [*(["resume", "--last"] if again else []), *_arguments(session), "-"]
    command = shlex.join(
        ["python3", "-I", f"{OWN}/relay.py", f"{DOOR}/llm", str(PORT), f"{CODEX}/bin/codex", "exec", *arguments]
    )
    path = ":".join([f"{sys.prefix}/bin", f"{CODEX}/codex-path", *bwrap.SYSTEM_PATH])
    variables = {"PATH": path, "HOME": "/root", "TERM": "dumb", "LANG": "C.UTF-8"}
    try:
        code, _, err = await box.run(
            Command(f"{command} < {OWN}/question.txt", WORKDIR, variables), session.seconds_left()
        )
    except TimeoutError:
        hearing.cut_short = hearing.cut_short or "max_hours"
        code, err = 0, ""
    if session.final is None and not hearing.cut_short:
        said = [line for line in err.splitlines() if line.strip()]
        raise NoVerdict(way.trouble or f"codex ended with {code}: {said[-1][:300] if said else 'it said nothing'}")
    try:
        if session.final is None:
            raise ValueError("there is none")
        hearing.verdict = checked(session.own, session.final)
        return None
    except ValueError as error:
        hearing.malformed += 1
        if hearing.malformed > judges.malformed_tries:
            raise NoVerdict(f"gave no verdict in the right form, though asked {hearing.malformed} times") from None
        question = TIME_IS_UP if hearing.cut_short else AGAIN.format(error)
        session.note({"role": "prompt", "text": question})
        return question


@dataclass
class _Session:
    """What is known of a judge's work from what passes through the door."""

    own: JudgeConfig
    judges: JudgesConfig
    hearing: Hearing
    note: Note
    final: str | None = None  # what the LLM said last, when it asked for nothing
    begun: bool = False
    answers_left: int | None = None  # None: as many as the limits allow
    noted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.model = self.judges.model or self.own.model
        self.effort = self.judges.effort or self.own.effort
        self.deadline = asyncio.get_running_loop().time() + self.judges.codex.max_hours * 3600

    def begin(self) -> bool:
        """A question is about to be asked; whether it is not the first."""
        again, self.begun = self.begun, True
        self.final, self.answers_left = None, VERDICT_ANSWERS if self.hearing.cut_short else None
        return again

    def seconds_left(self) -> float:
        """How long codex may work on this question."""
        if self.answers_left is not None:
            return self.judges.timeout_sec * VERDICT_ANSWERS
        return max(1.0, self.deadline - asyncio.get_running_loop().time())

    def may_ask(self) -> bool:
        """Whether the LLM may be asked once more."""
        if self.answers_left is None:
            self.hearing.cut_short = cut_short(self.own, self.hearing)
            return self.hearing.cut_short is None
        self.answers_left -= 1
        return self.answers_left >= 0

    def asked(self, body: dict[str, Any]) -> None:
        """Tell what commands gave since the last answer; codex's own instructions are those of its version."""
        for item in body.get("input") or []:
            call = item.get("call_id")
            if str(item.get("type")).endswith("_output") and call not in self.noted:
                self.noted.add(call)
                self.note({"role": "tool", "call_id": call, "output": item.get("output")})

    def answered(self, reply: Reply, last: str) -> None:
        """Count an answer; `last` is the last of its messages."""
        hearing = self.hearing
        hearing.turns += 1
        hearing.tool_calls += len(reply.calls)
        hearing.usage.add(reply.usage)
        calls = [vars(call) for call in reply.calls]
        self.note({"role": "judge", "text": reply.text, "calls": calls, "tokens": vars(reply.usage)})
        self.final = None if reply.calls else last


def _arguments(session: _Session) -> list[str]:
    """Arguments of `codex exec`: the only LLM there is, nothing read but what it is told, nothing sent elsewhere."""
    milliseconds = int(session.judges.timeout_sec * 1000)
    settings = {
        "model_provider": "judge",
        "model_providers.judge.name": "judge",
        "model_providers.judge.base_url": f"http://127.0.0.1:{PORT}/v1",
        "model_providers.judge.wire_api": "responses",
        "model_providers.judge.request_max_retries": 0,  # the door tries again
        "model_providers.judge.stream_max_retries": min(session.judges.retries, 100),
        "model_providers.judge.stream_idle_timeout_ms": milliseconds,
        "model_auto_compact_token_limit": session.own.max_context_tokens,
        "project_doc_max_bytes": 0,
        "web_search": "disabled",
        "features.multi_agent": False,
        "features.goals": False,
        "features.apps": False,
        "analytics.enabled": False,
        "check_for_update_on_startup": False,
    }
    if session.effort:
        settings["model_reasoning_effort"] = session.effort
    given = [text for name, value in settings.items() for text in ("-c", f"{name}={json.dumps(value)}")]
    return [
        *("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"),  # the sandbox is ours
        *("--ignore-rules", "--output-schema", f"{OWN}/verdict.json", "--model", session.model, *given),
    ]


# --- The sandbox --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _sandbox(program: Program, own: JudgeConfig, toolbox: Toolbox) -> AsyncIterator[tuple[Box, Path]]:
    """A running sandbox, and the folder on the host that what it is given lies in."""
    await asyncio.to_thread(scratch.reap)  # what judges of a runner that was killed left; the backend may be another
    place = await asyncio.to_thread(scratch.create)
    try:
        files = place.path
        await asyncio.to_thread(_lay_out, files, own, toolbox)
        mounts = {files / "evidence": EVIDENCE, files / "own": OWN, files / "door": DOOR, program.folder: CODEX}
        layout = bwrap.Layout(
            files,
            workdir=WORKDIR,
            public_network=False,
            mounts=[bwrap.Mount(path, target) for path, target in mounts.items()],
        )
        box = await Box.start(layout)
        try:
            if box.pid:
                place.record(box.pid)
            yield box, files
        finally:
            await asyncio.shield(box.stop())
    finally:
        await asyncio.shield(asyncio.to_thread(place.remove))


def _lay_out(files: Path, own: JudgeConfig, toolbox: Toolbox) -> None:
    """The copy of the evidence, and what we give a judge ourselves."""
    for name in ("own", "door", "evidence"):
        (files / name).mkdir()
    left = toolbox.evidence.copy_to(files / "evidence")
    told = [{"path": printable(one.path), "kind": one.kind, "note": printable(one.note)} for one in left]
    (files / "evidence" / NOT_COPIED).write_text(json.dumps(told, indent=1))
    given = files / "own"
    (given / "verdict.json").write_text(json.dumps(verdict_schema(own)))
    try:
        identity = checks.model_identity(toolbox.evidence, toolbox.identity)
    except Refused as error:
        identity = {"error": str(error)}
    (given / "model_identity.json").write_text(json.dumps(identity, indent=1))
    shutil.copyfile(RELAY, given / "relay.py")
    shutil.copyfile(CHECKER, given / "contamination_check.py")
    if toolbox.test_data:
        shutil.copyfile(toolbox.test_data, given / "test_data.json")
