"""The turns in the logs that agents' CLIs print: what there is to see while an agent runs, or of one that was killed.

Each of the four prints a JSON object a line, in a form of its own, with plain lines in between. What is not known
here is left out, never an error: a new version of a CLI may print more.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from ptb_runner.turns import Call, Turn


def turns(name: str, lines: Iterable[str]) -> list[Turn]:
    """The turns in the log called `name`; a log of another program is one turn, its text."""
    reader = READERS.get(name)
    lines = list(lines)
    if reader is None:
        text = "\n".join(lines).strip("\n")
        return [Turn("agent", text)] if text else []
    log = _Log()
    for event in _events(lines):
        if isinstance(event, dict):
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # not as we know it
                reader(log, event)
        else:
            log.plain(event)
    return log.turns


def answered(name: str, lines: Iterable[str]) -> bool:
    """Whether the LLM has answered at all, as the log called `name` has it; True where we cannot tell."""
    is_answer = ANSWERS.get(name)
    if is_answer is None:
        return True
    kinds = set()
    for event in _events(list(lines)):
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            if isinstance(event, dict) and is_answer(event):
                return True
            kinds |= {event["type"]} if isinstance(event, dict) else set()
    # OpenCode tells of a call when it is over, and its first may take hours.
    return "step_start" in kinds and "step_finish" not in kinds


def _events(lines: list[str]) -> Iterator[dict[str, Any] | str]:
    """Each line's object, or the line itself where it is none."""
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            yield event
        elif line.strip() and not (number == len(lines) and line.startswith("{")):  # which is still being written
            yield line


_GEMINI_RETRIES = re.compile(r"Attempt \d+ failed")
_STACK = re.compile(r"\s+(?:at |[\w.]+: )|\}")


class _Log:
    """The turns so far; readers add to them."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._calls: dict[str, Call] = {}
        self._message: str | None = None

    def add(self, who: str, text: str = "", **more: Any) -> Turn:
        self.turns.append(Turn(who, text, **more))
        self._message = None
        return self.turns[-1]

    def plain(self, line: str) -> None:
        """A line that is no event: warnings, and a crash's last words."""
        if _GEMINI_RETRIES.match(line):
            self.retries(line)
        elif _STACK.match(line) and self.turns and self.turns[-1].who == "error":
            pass  # where in the CLI it was
        elif self.turns and self.turns[-1].who == "system":
            self.turns[-1].text += f"\n{line}"
        else:
            self.add("system", line)

    def retries(self, text: str) -> None:
        """An error after which the CLI tries again; of many in a row the last one is told."""
        if self.turns and self.turns[-1].who == "error":
            self.turns.pop()
        self.add("error", text)

    def of(self, message: str, at: str | None, thread: str = "") -> Turn:
        """The agent's turn with this id: several events may make one message."""
        if message and message == self._message:
            return self.turns[-1]
        turn = self.add("agent", at=at, thread=thread)
        self._message = message
        return turn

    def known(self, call_id: str) -> Call | None:
        """The call with this id, if it was begun before."""
        return self._calls.get(call_id)

    def call(self, turn: Turn, call: Call) -> Call:
        """Add a call to a turn."""
        turn.calls.append(call)
        self._calls[call.id] = call
        return call

    def result(self, call_id: str, output: str, failed: bool) -> None:
        """What a call gave back."""
        if call := self._calls.get(call_id):
            call.output, call.failed = output, failed


def plain_text(content: Any) -> str:
    """The text of a message's content: text as it is, parts one after another, anything else as JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(plain_text, content)))
    if isinstance(content, dict):
        if isinstance(content.get("text"), str):
            return content["text"]
        if content.get("type") in ("image", "audio"):
            return f"[{content['type']}]"
    return "" if content is None else json.dumps(content, ensure_ascii=False)


def _claude(log: _Log, event: dict[str, Any]) -> None:
    thread, at = event.get("parent_tool_use_id") or "", event.get("timestamp")
    if event["type"] == "result":
        if event.get("is_error"):
            log.add("error", plain_text(event.get("result") or event.get("errors") or event.get("subtype")))
        return
    if event.get("subtype") == "api_retry":
        status = f"HTTP {event['error_status']} " if event.get("error_status") else ""
        log.retries(f"attempt {event['attempt']} of {event['max_retries']}: {status}{event.get('error')}")
        return
    if event["type"] not in ("assistant", "user"):
        return
    content = event["message"]["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for part in parts:
        if part["type"] == "tool_result":
            log.result(part["tool_use_id"], plain_text(part.get("content")), bool(part.get("is_error")))
        elif event["type"] == "user":
            log.add("user", plain_text(part), at=at, thread=thread)
        else:
            _claude_part(log, log.of(event["message"].get("id", ""), at, thread), part)


def _claude_part(log: _Log, turn: Turn, part: dict[str, Any]) -> None:
    if part["type"] == "text":
        turn.text = _joined(turn.text, part["text"])
    elif part["type"] == "thinking":
        turn.thinking = _joined(turn.thinking, part["thinking"])
    elif part["type"] == "tool_use":
        log.call(turn, Call(part["name"], part["input"], id=part["id"]))


def _codex(log: _Log, event: dict[str, Any]) -> None:
    if event["type"] in ("error", "turn.failed"):
        message = plain_text(event.get("message") or (event.get("error") or {}).get("message"))
        if not (log.turns and log.turns[-1].who == "error" and log.turns[-1].text == message):
            log.add("error", message)
        return
    if not event["type"].startswith("item."):
        return
    item = event["item"]
    kind = item["type"]
    if kind in ("agent_message", "reasoning"):
        if event["type"] == "item.completed":
            log.add("agent", **{"text" if kind == "agent_message" else "thinking": item["text"]})
    elif kind == "error":
        log.add("error", plain_text(item.get("message")))
    else:
        _codex_call(log, item)


def _codex_call(log: _Log, item: dict[str, Any]) -> None:
    """A command, a change of files, a search, a list of things to do: told when it begins and when it ends."""
    aside = ("id", "type", "status", "aggregated_output", "exit_code", "result", "error")
    arguments = {key: value for key, value in item.items() if key not in aside}
    known = log.known(item["id"]) or log.call(log.add("agent"), Call(item["type"], arguments, id=item["id"]))
    known.arguments = arguments
    if item.get("status") != "in_progress":
        result = item.get("error") or item.get("result")
        known.output = item.get("aggregated_output") or (plain_text(result) if result else "")
        known.failed = item.get("status") == "failed"


def _gemini(log: _Log, event: dict[str, Any]) -> None:
    at = event.get("timestamp")
    if event["type"] == "message":
        if event["role"] == "user":
            log.add("user", event["content"], at=at)
        else:
            turn = log.of("said", at)
            turn.text += event["content"]
    elif event["type"] == "tool_use":
        log.call(log.add("agent", at=at), Call(event["tool_name"], event["parameters"], id=event["tool_id"]))
    elif event["type"] == "tool_result":
        output = event.get("output") or plain_text((event.get("error") or {}).get("message"))
        log.result(event["tool_id"], output, event.get("status") != "success")
    elif event["type"] == "error" or (event["type"] == "result" and event.get("status") == "error"):
        log.add("error", plain_text(event.get("message") or (event.get("error") or {}).get("message")), at=at)


def _opencode(log: _Log, event: dict[str, Any]) -> None:
    part = event.get("part") or {}
    at = datetime.fromtimestamp(event["timestamp"] / 1000, UTC).isoformat() if event.get("timestamp") else None
    if event["type"] == "user":
        log.add("user", plain_text(event.get("parts")), at=at)
    elif event["type"] == "error":
        error = event.get("error")
        data = error.get("data") if isinstance(error, dict) else None
        log.add("error", plain_text((data or {}).get("message") or error), at=at)
    elif event["type"] in ("text", "reasoning", "tool_use"):
        turn = log.of(part.get("messageID", ""), at)
        if event["type"] == "text":
            turn.text = _joined(turn.text, part["text"])
        elif event["type"] == "reasoning":
            turn.thinking = _joined(turn.thinking, part["text"])
        else:
            _opencode_call(log, turn, part)


def _opencode_call(log: _Log, turn: Turn, part: dict[str, Any]) -> None:
    state = part["state"]
    new = Call(part["tool"], state.get("input") or {}, id=part["callID"])
    call = log.known(new.id) or log.call(turn, new)
    if state.get("status") in ("completed", "error"):
        call.output = plain_text(state.get("output") or state.get("error"))
        call.failed = state["status"] == "error" or bool((state.get("metadata") or {}).get("exit"))


def _joined(before: str, more: str) -> str:
    return f"{before}\n{more}" if before else more


def command_of(call: Call) -> str | None:
    """The shell command of a call, if it is one."""
    command = call.arguments.get("command", call.arguments.get("cmd"))
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        return command[-1] if len(command) == 3 and command[1] in ("-c", "-lc") else shlex.join(command)
    if not isinstance(command, str):
        return None
    with contextlib.suppress(ValueError):
        match shlex.split(command):
            case [shell, "-lc" | "-c", inner] if shell.rpartition("/")[2] in ("bash", "sh", "zsh"):
                return inner
    return command


def _tokens_of(event: dict[str, Any]) -> int:
    """What the LLM gave in a step of OpenCode's that is over: a server that is none gives nothing, again and again."""
    return event["part"]["tokens"]["output"] if event["type"] == "step_finish" else 0


ANSWERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    # Claude Code makes up a message for an error of the API.
    "claude-code.txt": lambda event: event["type"] == "assistant" and event["message"]["model"] != "<synthetic>",
    "codex.txt": lambda event: event["type"].startswith("item.") and event["item"]["type"] != "error",
    "gemini-cli.txt": lambda event: event["type"] == "tool_use" or event["role"] == "assistant",
    "opencode.txt": lambda event: event["type"] in ("text", "reasoning", "tool_use") or _tokens_of(event) > 0,
}
READERS: dict[str, Callable[[_Log, dict[str, Any]], None]] = {
    "claude-code.txt": _claude,
    "codex.txt": _codex,
    "gemini-cli.txt": _gemini,
    "opencode.txt": _opencode,
}
