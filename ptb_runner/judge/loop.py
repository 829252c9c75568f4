"""One judge at work: it reads the trace first, calls read-only tools, and gives its verdict through a function.

What the evidence says can reach the judge only as a quoted value in the output of a tool, and what the judge says
counts only as the arguments of one function, checked here. There is no other way from the evidence to a verdict.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ptb_runner.config import JudgeConfig, JudgesConfig
from ptb_runner.judge import api
from ptb_runner.judge.api import Usage
from ptb_runner.judge.tools import VERDICT, Toolbox, run
from ptb_runner.paths import TEMPLATES

REMINDER = f"The verdict counts only through the function {VERDICT}. Go on with your work, or call it."
TIME_IS_UP = f"There is no time left to look at more. Call {VERDICT} now, by what you have seen."
MAX_JUSTIFICATION = 20_000


class NoVerdict(Exception):
    """The judge gave none that has the right form."""


@dataclass
class Hearing:
    """What came of a judge's work, kept up to date while it is under way."""

    verdict: dict[str, Any] | None = None
    turns: int = 0
    tool_calls: int = 0
    malformed: int = 0
    usage: Usage = field(default_factory=Usage)
    cut_short: str | None = None
    program: str | None = None  # what was at work, where it was not we


Note = Callable[[dict[str, Any]], None]


def instructions(own: JudgeConfig, *, in_sandbox: bool = False) -> str:
    """What every judge is told before its own prompt; one with a sandbox has other means."""
    import jinja2

    text = (TEMPLATES / "judge" / "instructions.md.j2").read_text()
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)
    return environment.from_string(text).render(fields=own.fields, in_sandbox=in_sandbox)


async def hear(
    own: JudgeConfig, judges: JudgesConfig, prompt: str, toolbox: Toolbox, hearing: Hearing, note: Note
) -> None:
    """Let a judge work until it has given its verdict, which is then in `hearing`.

    Each step is told to `note`. Raises NoVerdict, or what the API's client raises.
    """
    tools = toolbox.tools()
    model, effort = judges.model or own.model, judges.effort or own.effort
    told = instructions(own)
    note({"role": "instructions", "text": told})
    note({"role": "prompt", "text": prompt})
    async with api.client(judges) as client:
        talk = api.APIS[judges.api](client, judges, model, effort, told, tools, verdict_schema(own))
        talk.say(prompt)
        first = talk.seed("read_file", json.dumps({"path": "trace.txt"}))
        await _answer(talk, first, toolbox, note)
        while hearing.verdict is None:
            hearing.cut_short = cut_short(own, hearing)
            reply = await talk.ask(for_verdict=hearing.cut_short is not None)
            hearing.turns += 1
            hearing.usage.add(reply.usage)
            calls = [vars(call) for call in reply.calls]
            note({"role": "judge", "text": reply.text, "calls": calls, "tokens": vars(reply.usage)})
            await _take(own, talk, reply, toolbox, hearing, note)
            if hearing.malformed > judges.malformed_tries:
                raise NoVerdict(f"gave no verdict in the right form, though asked {hearing.malformed} times")
            if reply.usage.input > own.max_context_tokens:
                talk.forget()


async def _take(
    own: JudgeConfig,
    talk: api.Responses | api.Chat,
    reply: api.Reply,
    toolbox: Toolbox,
    hearing: Hearing,
    note: Note,
) -> None:
    """Do what an answer asks for."""
    for call in reply.calls:
        if call.name == VERDICT:
            try:
                hearing.verdict = checked(own, call.arguments)
                return
            except ValueError as error:
                hearing.malformed += 1
                talk.answer(call, json.dumps({"error": str(error)}))
                note({"role": "tool", "name": VERDICT, "output": f"refused: {error}"})
        elif hearing.cut_short:
            talk.answer(call, json.dumps({"error": TIME_IS_UP}))
        else:
            hearing.tool_calls += 1
            await _answer(talk, call, toolbox, note)
    if not reply.calls or (hearing.cut_short and all(call.name != VERDICT for call in reply.calls)):
        hearing.malformed += 1
        talk.say(TIME_IS_UP if hearing.cut_short else REMINDER)


async def _answer(talk: api.Responses | api.Chat, call: api.Call, toolbox: Toolbox, note: Note) -> None:
    output = await asyncio.to_thread(run, toolbox.tools(), call.name, call.arguments)
    talk.answer(call, output)
    note({"role": "tool", "name": call.name, "arguments": call.arguments, "output": output})


def cut_short(own: JudgeConfig, hearing: Hearing) -> str | None:
    """Why the judge must give its verdict now; None while it may go on."""
    if hearing.turns >= own.max_turns - 1:
        return "max_turns"
    return "max_tokens" if hearing.usage.input + hearing.usage.output >= own.max_tokens else None


# --- The verdict --------------------------------------------------------------------------------------


def verdict_schema(own: JudgeConfig) -> dict[str, Any]:
    """The form of a verdict: a reason and a boolean for each field."""
    properties: dict[str, Any] = {}
    for name, meaning in own.fields.items():
        why = "Why, in a few sentences, naming files and steps of the trace."
        properties[f"justification_{name}"] = {"type": "string", "description": why}
        properties[name] = {"type": "boolean", "description": f"true if {meaning}"}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def checked(own: JudgeConfig, arguments: str) -> dict[str, Any]:
    """The verdict in a call's arguments. Raises ValueError with what is wrong with it."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        raise ValueError("the arguments are not valid JSON") from None
    wanted = verdict_schema(own)["required"]
    if not isinstance(given, dict) or sorted(given) != sorted(wanted):
        raise ValueError(f"it takes exactly: {', '.join(wanted)}")
    for name in own.fields:
        if type(given[name]) is not bool:
            raise ValueError(f"{name} must be true or false")
        why = given[f"justification_{name}"]
        if not isinstance(why, str) or not why.strip() or len(why) > MAX_JUSTIFICATION:
            raise ValueError(
                f"justification_{name} must be a text, not empty, of at most {MAX_JUSTIFICATION} characters"
            )
    return {name: given[name] for field in own.fields for name in (field, f"justification_{field}")}
