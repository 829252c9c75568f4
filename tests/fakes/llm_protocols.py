"""The four protocols in which agent CLIs talk to their LLM: what a request says, and how a step of a script answers it.

Each protocol is one `Protocol`: it finds the conversation and the tools in a request's body, and makes the body (or the
events of a stream) of an answer and of an error.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

type Json = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """How far a conversation is: the user's prompts, and the tool calls since the last of them."""

    prompts: list[str]
    calls: int


@dataclass(frozen=True)
class Answer:
    """What the model says: some thinking, and a text or a tool call."""

    model: str
    thinking: str
    text: str
    call: tuple[str, Json] | None
    usage: tuple[int, int, int]  # input with what was cached, output, cached


@dataclass(frozen=True)
class Protocol:
    name: str
    path: re.Pattern[str]
    conversation: Callable[[Json], Conversation]
    tools: Callable[[Json], set[str]]
    whole: Callable[[Answer], Json]
    events: Callable[[Answer], list[Json]]
    error: Callable[[int, str, str], Json]
    wait: Callable[[Json], tuple[str, Json] | None] = lambda body: None  # the call that waits for a command under way
    named_events: bool = False
    end: str = ""


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:24]


def count(turns: list[tuple[str, str | int]]) -> Conversation:
    """From ("user", text) and ("calls", number) in order."""
    prompts, calls = [], 0
    for kind, value in turns:
        if kind == "user":
            prompts.append(str(value))
            calls = 0
        else:
            calls += int(value)
    return Conversation(prompts, calls)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content or [])


# --- Anthropic Messages (claude-code) -----------------------------------------------------------------


def _anthropic_conversation(body: Json) -> Conversation:
    turns: list[tuple[str, str | int]] = []
    for message in body.get("messages", []):
        content = message["content"]
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        kinds = [part.get("type") for part in parts]
        if message["role"] == "assistant":
            turns.append(("calls", kinds.count("tool_use")))
        elif message["role"] == "user" and "tool_result" not in kinds:
            said = [part["text"] for part in parts if part.get("type") == "text"]
            said = [text for text in said if not text.lstrip().startswith("<system-reminder>")]
            turns += [("user", said[-1])] if said else []
    return count(turns)


def _anthropic_blocks(answer: Answer) -> list[Json]:
    thinking = [{"type": "thinking", "thinking": answer.thinking, "signature": "c2lnbmVk"}] if answer.thinking else []
    if not answer.call:
        return [*thinking, {"type": "text", "text": answer.text}]
    name, arguments = answer.call
    return [*thinking, {"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": arguments}]


def _anthropic_whole(answer: Answer) -> Json:
    given, made, cached = answer.usage
    usage = {"input_tokens": given - cached, "cache_read_input_tokens": cached, "output_tokens": made}
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": _anthropic_blocks(answer),
        "stop_reason": "tool_use" if answer.call else "end_turn",
        "stop_sequence": None,
        "usage": {**usage, "cache_creation_input_tokens": 0, "service_tier": "standard"},
    }


def _anthropic_events(answer: Answer) -> list[Json]:
    message = _anthropic_whole(answer)
    begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    events: list[Json] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(message["content"]):
        empty, deltas = _anthropic_deltas(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": answer.usage[1]}})
    return [*events, {"type": "message_stop"}]


def _anthropic_deltas(block: Json) -> tuple[Json, list[Json]]:
    if block["type"] == "tool_use":
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    if block["type"] == "thinking":
        signed = {"type": "signature_delta", "signature": block["signature"]}
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": "", "signature": ""}, [thought, signed]
    return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]


ANTHROPIC = Protocol(
    name="anthropic",
    path=re.compile(r"/messages$"),
    conversation=_anthropic_conversation,
    tools=lambda body: {tool.get("name", "") for tool in body.get("tools") or []},
    whole=_anthropic_whole,
    events=_anthropic_events,
    error=lambda status, kind, message: {"type": "error", "error": {"type": kind, "message": message}},
    named_events=True,
)


# --- OpenAI Responses (codex) -------------------------------------------------------------------------

# What codex itself puts before the user's prompt.
_NOT_THE_USER = re.compile(r"\s*(<[a-z_]+|# AGENTS\.md)")


def _responses_conversation(body: Json) -> Conversation:
    items = body.get("input", [])
    if isinstance(items, str):
        return Conversation([items], 0)
    turns: list[tuple[str, str | int]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") == "user":
            text = _text(item["content"])
            turns += [] if _NOT_THE_USER.match(text) else [("user", text)]
        elif kind.endswith("_call") and item.get("name") != "write_stdin":
            turns.append(("calls", 1))
    return count(turns)


def _responses_wait(body: Json) -> tuple[str, Json] | None:
    """Codex hands a long command back while it runs: a model then asks for the rest of its output."""
    items = body.get("input")
    last = json.dumps(items[-1].get("output", "")) if isinstance(items, list) and items else ""
    running = re.search(r"Process running with session ID (\d+)", last)
    wait = {"session_id": int(running[1]), "chars": "", "yield_time_ms": 30000} if running else {}
    return ("write_stdin", wait) if running else None


def _responses_tools(body: Json) -> set[str]:
    names = {tool.get("name") or tool.get("type") for tool in body.get("tools") or []}
    items = body.get("input")
    for item in items if isinstance(items, list) else []:
        if item.get("type") == "additional_tools":  # newest models: tools come with the input, by namespace
            names |= {tool["name"] for space in item["tools"] for tool in space.get("tools", [space])}
    return names


def _responses_items(answer: Answer) -> list[Json]:
    summary = [{"type": "summary_text", "text": answer.thinking}]
    items: list[Json] = [{"type": "reasoning", "id": new_id("rs_"), "summary": summary}] if answer.thinking else []
    if not answer.call:
        content = [{"type": "output_text", "text": answer.text, "annotations": []}]
        message = {"type": "message", "id": new_id("msg_"), "role": "assistant", "content": content}
        return [*items, {**message, "status": "completed"}]
    name, arguments = answer.call
    call: Json = {"call_id": new_id("call_"), "name": name, "status": "completed"}
    if name == "exec":  # codex's "code mode": a program instead of arguments
        return [*items, {"type": "custom_tool_call", "id": new_id("ctc_"), **call, "input": arguments["input"]}]
    return [*items, {"type": "function_call", "id": new_id("fc_"), **call, "arguments": json.dumps(arguments)}]


def _responses_whole(answer: Answer) -> Json:
    given, made, cached = answer.usage
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": 1,
        "model": answer.model,
        "status": "completed",
        "output": _responses_items(answer),
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + made,
        },
    }


# Of each kind of item: its field that comes in pieces, and the name of such a piece.
_PIECES = {
    "message": ("content", "response.output_text.delta"),
    "function_call": ("arguments", "response.function_call_arguments.delta"),
    "custom_tool_call": ("input", "response.custom_tool_call_input.delta"),
    "reasoning": ("summary", "response.reasoning_summary_text.delta"),
}


def _responses_events(answer: Answer) -> list[Json]:
    response = _responses_whole(answer)
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(response["output"]):
        field, piece = _PIECES[item["type"]]
        whole = item[field]
        empty = {**item, "status": "in_progress", field: [] if isinstance(whole, list) else ""}
        place = {"output_index": index, "item_id": item["id"]}
        delta = whole[0]["text"] if isinstance(whole, list) else whole
        parts = {"message": {"content_index": 0}, "reasoning": {"summary_index": 0}}.get(item["type"], {})
        events += [
            {"type": "response.output_item.added", "output_index": index, "item": empty},
            {"type": piece, **place, **parts, "delta": delta},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]
    return [*events, {"type": "response.completed", "response": response}]


def _openai_error(status: int, kind: str, message: str) -> Json:
    return {"error": {"message": message, "type": kind, "code": kind, "param": None}}


RESPONSES = Protocol(
    name="responses",
    path=re.compile(r"/responses$"),
    conversation=_responses_conversation,
    tools=_responses_tools,
    whole=_responses_whole,
    events=_responses_events,
    error=_openai_error,
    wait=_responses_wait,
    named_events=True,
)


# --- OpenAI Chat Completions (opencode) ---------------------------------------------------------------


def _chat_conversation(body: Json) -> Conversation:
    turns: list[tuple[str, str | int]] = []
    for message in body.get("messages", []):
        if message["role"] == "user":
            turns.append(("user", _text(message["content"])))
        elif message["role"] == "assistant":
            turns.append(("calls", len(message.get("tool_calls") or [])))
    return count(turns)


def _chat_message(answer: Answer) -> Json:
    thinking = {"reasoning_content": answer.thinking} if answer.thinking else {}
    if not answer.call:
        return {**thinking, "content": answer.text}
    function = {"name": answer.call[0], "arguments": json.dumps(answer.call[1])}
    call = {"index": 0, "id": new_id("call_"), "type": "function", "function": function}
    return {**thinking, "content": None, "tool_calls": [call]}


def _chat_usage(answer: Answer) -> Json:
    given, made, cached = answer.usage
    usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    return {**usage, "prompt_tokens_details": {"cached_tokens": cached}}


def _chat_whole(answer: Answer) -> Json:
    message = {"role": "assistant", **_chat_message(answer)}
    finish = "tool_calls" if answer.call else "stop"
    return {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": 1,
        "model": answer.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": _chat_usage(answer),
    }


def _chat_events(answer: Answer) -> list[Json]:
    chunk = {"id": new_id("chatcmpl-"), "object": "chat.completion.chunk", "created": 1, "model": answer.model}
    finish = "tool_calls" if answer.call else "stop"
    steps: list[tuple[Json, str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        (_chat_message(answer), None),
        ({}, finish),
    ]
    events = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in steps]
    return [*events, {**chunk, "choices": [], "usage": _chat_usage(answer)}]


CHAT = Protocol(
    name="chat",
    path=re.compile(r"/chat/completions$"),
    conversation=_chat_conversation,
    tools=lambda body: {tool["function"]["name"] for tool in body.get("tools") or []},
    whole=_chat_whole,
    events=_chat_events,
    error=_openai_error,
    end="data: [DONE]\n\n",
)


# --- Gemini (gemini-cli) ------------------------------------------------------------------------------


def _gemini_conversation(body: Json) -> Conversation:
    turns: list[tuple[str, str | int]] = []
    for message in body.get("contents", []):
        parts = message.get("parts", [])
        if message.get("role") == "model":
            turns.append(("calls", sum("functionCall" in part for part in parts)))
        elif not any("functionResponse" in part for part in parts):
            said = [part.get("text") or "" for part in parts]
            own = ("<session_context>", "This is the Gemini CLI")
            text = "".join(one for one in said if not one.lstrip().startswith(own))
            turns += [("user", text)] if text else []
    return count(turns)


def _gemini_whole(answer: Answer) -> Json:
    given, made, cached = answer.usage
    said = {"functionCall": {"name": answer.call[0], "args": answer.call[1]}} if answer.call else {"text": answer.text}
    parts = [*([{"text": answer.thinking, "thought": True}] if answer.thinking else []), said]
    usage = {"promptTokenCount": given, "candidatesTokenCount": made, "totalTokenCount": given + made}
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {**usage, "cachedContentTokenCount": cached},
        "modelVersion": answer.model,
        "responseId": new_id(""),
    }


_GOOGLE_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
_GOOGLE_STATUS |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}


def _gemini_error(status: int, kind: str, message: str) -> Json:
    return {"error": {"code": status, "message": message, "status": _GOOGLE_STATUS.get(status, "UNKNOWN")}}


GEMINI = Protocol(
    name="gemini",
    path=re.compile(r"/models/(?P<model>[^:/]+):(?P<method>streamGenerateContent|generateContent)$"),
    conversation=_gemini_conversation,
    tools=lambda body: {
        one["name"] for tool in body.get("tools") or [] for one in tool.get("functionDeclarations") or []
    },
    whole=_gemini_whole,
    events=lambda answer: [_gemini_whole(answer)],
    error=_gemini_error,
)

PROTOCOLS = (ANTHROPIC, RESPONSES, CHAT, GEMINI)


# --- The CLIs' shell tools ----------------------------------------------------------------------------

_SHELLS: dict[str, Callable[[str], Json]] = {
    "exec_command": lambda command: {"cmd": command, "yield_time_ms": 30000},  # codex
    "shell_command": lambda command: {"command": command},
    "shell": lambda command: {"command": ["bash", "-lc", command]},
    "exec": lambda command: {"input": f"text(await tools.exec_command({{cmd: {json.dumps(command)}}}));"},
    "Bash": lambda command: {"command": command, "description": "run a command", "timeout": 3600000},  # claude-code
    "bash": lambda command: {"command": command, "description": "run a command"},  # opencode
    "run_shell_command": lambda command: {"command": command, "description": "run a command"},  # gemini-cli
}


def shell_call(tools: set[str], command: str) -> tuple[str, Json] | None:
    """A call of whatever shell tool the CLI offers."""
    return next(((name, make(command)) for name, make in _SHELLS.items() if name in tools), None)
