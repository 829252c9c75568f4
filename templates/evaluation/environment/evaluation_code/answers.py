"""The answers of the model under test, through the `openai` client."""

# pyright: reportMissingImports=false

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai

from evaluation_code.grader import Messages, in_parallel
from evaluation_code.outcome import one_line
from evaluation_code.serving import Endpoint

NO_ROOM = re.compile(r"maximum context length|max_tokens must be at least 1|context_length_exceeded|input length")
THOUGHTS = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """What the model said, without its thoughts, and why it stopped: stop, truncated, model_length or error."""

    text: str
    stop: str
    error: str | None = None


def ask_all(endpoint: Endpoint, conversations: Sequence[Messages], options: argparse.Namespace) -> list[Answer]:
    """The model's answers, in order."""
    client = openai.OpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        max_retries=options.max_retries,  # with the client's own backoff, for 429, 5xx and lost connections
        timeout=options.request_timeout,
    )

    create: Any = client.chat.completions.create

    def ask(messages: Messages) -> Answer:
        sampling = {} if options.seed is None else {"seed": options.seed}
        try:
            reply = create(model=endpoint.model, messages=messages, max_tokens=options.max_tokens, **sampling)
        except openai.BadRequestError as error:
            if NO_ROOM.search(str(error)):
                return Answer("", "model_length")
            return Answer("", "error", one_line(error))
        except openai.APIError as error:
            return Answer("", "error", one_line(error))
        if not getattr(reply, "choices", None):
            return Answer("", "error", "the server's answer holds no completion")
        choice = reply.choices[0]
        text = THOUGHTS.sub("", choice.message.content or "").strip()
        return Answer(text, "truncated" if choice.finish_reason == "length" else "stop")

    return in_parallel(options.max_connections, conversations, ask)


def counts(answers: Sequence[Answer]) -> dict[str, int]:
    """How many were cut off, and how many had no room at all."""
    stops = Counter(answer.stop for answer in answers)
    return {"truncated": stops["truncated"], "model_length": stops["model_length"]}
