"""Conversations with an LLM that calls functions, through either form of the OpenAI API.

Both classes do the same: hold what was said, ask for the next answer, take the outputs of the calls in it. Requests
that fail for reasons that pass (429, 5xx, timeouts, answers that make no sense) are tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ptb_runner.config import JudgeApi, JudgesConfig
from ptb_runner.judge.tools import VERDICT, Tool

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from tenacity import RetryCallState

log = logging.getLogger(__name__)

LONGEST_WAIT_SEC = 120.0
DROPPED = '{"dropped": "to make room; ask again if it matters"}'
SEED = "call_0"  # of the call that we make in the judge's name


@dataclass(frozen=True)
class Call:
    """A function that the LLM calls, with arguments as it wrote them."""

    id: str
    name: str
    arguments: str


@dataclass
class Usage:
    """Tokens, as the API counts them: `input` includes `cached`, `output` includes `reasoning`."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def add(self, other: Usage) -> None:
        """Count another answer's, too."""
        self.input += other.input
        self.cached += other.cached
        self.output += other.output
        self.reasoning += other.reasoning


@dataclass(frozen=True)
class Reply:
    """One answer of the LLM."""

    text: str
    calls: list[Call]
    usage: Usage


class _Senseless(Exception):
    """An answer that is none, by a server that says all is well."""


@dataclass
class _Asked:
    """Who is asked what, whichever API is used: an LLM, with instructions, tools and the form of its verdict."""

    client: AsyncOpenAI
    judges: JudgesConfig
    model: str
    effort: str | None
    instructions: str
    tools: list[Tool]
    verdict: dict[str, Any]


@dataclass
class Responses(_Asked):
    """A conversation through the Responses API. Nothing is stored there: thoughts go back and forth, encrypted."""

    items: list[dict[str, Any]] = field(default_factory=list)
    encrypted: bool = True

    def say(self, text: str) -> None:
        """Add a message of ours."""
        self.items.append({"role": "user", "content": text})

    def seed(self, name: str, arguments: str) -> Call:
        """Add a call in the LLM's name, to be answered."""
        own = {"type": "function_call", "call_id": SEED, "name": name, "arguments": arguments}
        self.items.append(own)
        return Call(SEED, name, arguments)

    def answer(self, call: Call, output: str) -> None:
        """Add what a call gave."""
        self.items.append({"type": "function_call_output", "call_id": call.id, "output": output})

    def forget(self) -> None:
        """Drop the older half of what calls gave."""
        _forget(self.items, "output")

    async def ask(self, *, for_verdict: bool) -> Reply:
        """The next answer; with `for_verdict` it has to be the verdict."""
        import openai

        try:
            return await _tried(self.judges, lambda: self._ask(for_verdict))
        except openai.BadRequestError as error:
            if not self.encrypted or "encrypted" not in str(error).lower():
                raise
            self.encrypted = False  # an LLM that does not think has no thoughts to encrypt
            return await _tried(self.judges, lambda: self._ask(for_verdict))

    async def _ask(self, for_verdict: bool) -> Reply:
        functions = [
            {"type": "function", **_function(tool.name, tool.description, tool.parameters, strict=False)}
            for tool in self.tools
        ]
        functions.append({"type": "function", **_verdict_function(self.verdict)})
        request: dict[str, Any] = {
            "model": self.model,
            "instructions": self.instructions,
            "input": self.items,
            "tools": functions,
            "tool_choice": {"type": "function", "name": VERDICT} if for_verdict else "auto",
            "store": False,
        }
        if self.effort:
            request["reasoning"] = {"effort": self.effort}
        if self.encrypted:
            request["include"] = ["reasoning.encrypted_content"]
        response = await self.client.responses.create(**request)
        return self._taken(response.model_dump(mode="json", exclude_none=True))

    def _taken(self, response: dict[str, Any]) -> Reply:
        """The answer, after it was added to the conversation."""
        output = response.get("output")
        if not isinstance(output, list):
            raise _Senseless(str(response.get("error") or "an answer without output")[:300])
        if not output and response.get("status") in ("failed", "incomplete"):
            raise _Senseless(str(response.get("error") or response.get("incomplete_details"))[:300])
        for item in output:
            if item["type"] != "reasoning" or item.get("encrypted_content"):
                self.items.append({name: value for name, value in item.items() if name not in ("id", "status")})
        calls = [
            Call(one["call_id"], one["name"], one["arguments"]) for one in output if one["type"] == "function_call"
        ]
        parts = [part for one in output if one["type"] == "message" for part in one.get("content", [])]
        return Reply("\n".join(part.get("text", "") for part in parts), calls, usage_of(response))


def usage_of(response: dict[str, Any]) -> Usage:
    """What a response of the Responses API says that it took."""
    spent = response.get("usage") or {}
    return Usage(
        spent.get("input_tokens", 0),
        (spent.get("input_tokens_details") or {}).get("cached_tokens", 0),
        spent.get("output_tokens", 0),
        (spent.get("output_tokens_details") or {}).get("reasoning_tokens", 0),
    )


@dataclass
class Chat(_Asked):
    """A conversation through the Chat Completions API, which most other servers have."""

    messages: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Add a message of ours."""
        self.messages.append({"role": "user", "content": text})

    def seed(self, name: str, arguments: str) -> Call:
        """Add a call in the LLM's name, to be answered."""
        call = {"id": SEED, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        return Call(SEED, name, arguments)

    def answer(self, call: Call, output: str) -> None:
        """Add what a call gave."""
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": output})

    def forget(self) -> None:
        """Drop the older half of what calls gave."""
        _forget([one for one in self.messages if one["role"] == "tool"], "content")

    async def ask(self, *, for_verdict: bool) -> Reply:
        """The next answer; with `for_verdict` it has to be the verdict."""
        return await _tried(self.judges, lambda: self._ask(for_verdict))

    async def _ask(self, for_verdict: bool) -> Reply:
        functions = [_function(tool.name, tool.description, tool.parameters, strict=False) for tool in self.tools]
        functions.append(_verdict_function(self.verdict))
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "system", "content": self.instructions}, *self.messages],
            "tools": [{"type": "function", "function": function} for function in functions],
            "tool_choice": {"type": "function", "function": {"name": VERDICT}} if for_verdict else "auto",
        }
        if self.effort:
            request["reasoning_effort"] = self.effort
        completion = await self.client.chat.completions.create(**request)
        return self._taken(completion.model_dump(mode="json", exclude_none=True))

    def _taken(self, completion: dict[str, Any]) -> Reply:
        """The answer, after it was added to the conversation."""
        choices = completion.get("choices") or []
        if not choices or not isinstance(choices[0].get("message"), dict):
            raise _Senseless(str(completion.get("error") or "an answer without choices")[:300])
        message = choices[0]["message"]
        made = [one for one in message.get("tool_calls") or [] if one.get("type") == "function"]
        text = message.get("content") or ""
        own: dict[str, Any] = {"role": "assistant", "content": text or None}
        self.messages.append(own | ({"tool_calls": made} if made else {"content": text}))
        calls = [Call(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in made]
        spent = completion.get("usage") or {}
        usage = Usage(
            spent.get("prompt_tokens", 0),
            (spent.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            spent.get("completion_tokens", 0),
            (spent.get("completion_tokens_details") or {}).get("reasoning_tokens", 0),
        )
        return Reply(text, calls, usage)


APIS: dict[JudgeApi, type[Responses] | type[Chat]] = {JudgeApi.responses: Responses, JudgeApi.chat: Chat}


def client(judges: JudgesConfig) -> AsyncOpenAI:
    """The client; without `base_url` it asks where OPENAI_BASE_URL says, else OpenAI."""
    import openai

    key = os.environ.get(judges.api_key_var) if judges.api_key_var else None
    return openai.AsyncOpenAI(
        api_key=key or "none", base_url=judges.base_url, timeout=judges.timeout_sec, max_retries=0
    )


def _function(name: str, description: str, parameters: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    return {"name": name, "description": description, "parameters": parameters, "strict": strict}


def _verdict_function(schema: dict[str, Any]) -> dict[str, Any]:
    return _function(VERDICT, "Give the verdict. It ends the work, and nothing else counts.", schema, strict=True)


def _forget(items: list[dict[str, Any]], key: str) -> None:
    given = [item for item in items if key in item and item[key] != DROPPED and item.get("type") != "function_call"]
    for item in given[: (len(given) + 1) // 2]:
        item[key] = DROPPED


# --- Trying again -------------------------------------------------------------------------------------


async def _tried(judges: JudgesConfig, ask: Callable[[], Awaitable[Reply]]) -> Reply:
    """The answer, after as many tries as it takes and the configuration allows."""
    import tenacity

    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_passes),
        stop=tenacity.stop_after_attempt(judges.retries + 1),
        wait=lambda state: _wait(judges, state),
        before_sleep=_note,
        reraise=True,
    ):
        with attempt:
            async with asyncio.timeout(judges.timeout_sec):
                return await ask()
    raise AssertionError("tenacity returns or raises")


def _passes(error: BaseException) -> bool:
    """Whether a later try may fare better."""
    import openai

    if isinstance(error, openai.APIStatusError):
        if error.code == "insufficient_quota":
            return False  # a 429 that no waiting mends
        return error.status_code in (408, 409, 425, 429) or error.status_code >= 500
    known = (openai.APIConnectionError, openai.APIResponseValidationError, TimeoutError, ValueError, KeyError)
    return isinstance(error, (*known, TypeError, AttributeError, _Senseless))


def _wait(judges: JudgesConfig, state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    response = getattr(error, "response", None)
    return wait_before(judges, state.attempt_number, response.headers if response is not None else {})


def wait_before(judges: JudgesConfig, tries: int, headers: Mapping[str, str]) -> float:
    """Seconds until the next try: what the server asks for, else twice as long each time, not in step with others."""
    if judges.retry_wait_sec == 0:
        return 0.0
    try:
        asked = float(headers["retry-after"])
    except (KeyError, ValueError):
        asked = 0.0
    own = judges.retry_wait_sec * 2 ** (tries - 1) * random.uniform(0.75, 1.25)
    return min(max(asked, own), LONGEST_WAIT_SEC)


def _note(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.info("judge: try %d failed, trying again: %s: %s", state.attempt_number, type(error).__name__, error)
