"""Why an agent's CLI ended in an error: a name of Harbor's for it, and one line in the CLI's own words.

Harbor tells the whole command line and all that was printed, and knows only some of the four CLIs' forms of the same
few errors. Only what a CLI itself calls an error is looked at here, never what its LLM or a command has said.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ptb_runner import clilogs
from ptb_runner.trace import read_lines, read_logs

# Errors that have passed by themselves when the same is tried again.
TRANSIENT = frozenset(
    {
        "ApiRateLimitError",
        "ApiInternalServerError",
        "ApiOverloadedError",
        "ApiConnectionClosedError",
        "ApiResponseStalledError",
        "NetworkConnectionError",
    }
)

SILENT = "LlmSilentError"
"""The LLM behind a CLI has never answered."""

_VAGUE = frozenset({"NonZeroAgentExitCodeError", "ApiError", "UnknownApiError"})
_COMMAND_FAILED = re.compile(r"Command failed \(exit (-?\d+)\): ")
_PRINTED = re.compile(r"^(?:stdout|stderr): (?:None$)?", re.MULTILINE)
_SHOWN = 300

# The first that fits. A limit of use comes with a rate limit's status, too long a prompt with a mistake's.
_NAMES = [
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (
            r"prompt is too long|context (?:window|length)|context_length|maximum (?:number of|context) tokens?"
            r"|input token count",
            "ContextWindowExceededError",
        ),
        (r"quota|usage limit|billing|credit balance|insufficient.{0,20}(?:funds|credit)", "ApiUsageLimitError"),
        (
            r"\b40[13]\b|unauthori[sz]ed|unauthenticated|permission.?denied|(?:invalid|incorrect|bad).{0,20}(?:api.?)?key"
            r"|api.?key.{0,20}invalid|authentication|not logged in",
            "AgentAuthenticationError",
        ),
        (r"\b429\b|rate.?limit|too many requests|resource.?exhausted", "ApiRateLimitError"),
        (
            r"no.such.model|model.{0,60}(?:not (?:be )?found|not exist|not supported|unknown)|unknown model"
            r"|selected model|\b404\b.{0,40}model",
            "ModelNotFoundError",
        ),
        (r"\b(?:503|529)\b|overloaded|unavailable|at capacity", "ApiOverloadedError"),
        (r"\b50[0-4]\b|internal (?:server )?error|server error|high demand", "ApiInternalServerError"),
        (
            r"econn|enotfound|fetch failed|socket|stream (?:disconnected|closed)|connection (?:error|closed|lost|reset"
            r"|refused)|network|terminated",
            "NetworkConnectionError",
        ),
    )
]


def explained(raised: dict[str, Any], trial_dir: Path, *, in_setup: bool = False) -> dict[str, Any]:
    """Harbor's record of an exception, with a name that says more and a message of one line where a CLI has failed.

    In its setup it was not the CLI that failed, but what should have installed it.
    """
    kind, message = str(raised.get("exception_type")), str(raised.get("exception_message") or "")
    failed = _COMMAND_FAILED.match(message)
    if not failed and kind not in _VAGUE:
        return raised
    trace = read_logs(trial_dir)
    told = [turn.text for turn in trace.turns if turn.who == "error" and turn.text.strip()] if trace else []
    if not failed and not told:
        return raised
    printed = [line for part in _PRINTED.split(message)[1:] for line in part.split("\n") if line.strip()]
    words = " ".join((told or printed or ["it printed nothing"])[-1].split())
    words = f"the agent could not be installed in the sandbox: {words}" if failed and in_setup else words
    if kind in _VAGUE and told:
        kind = _name(words, kind)
    ended = f" (exit code {failed[1]})" if failed else ""
    return {**raised, "exception_type": kind, "exception_message": f"{words[:_SHOWN]}{ended}"}


def _name(words: str, otherwise: str) -> str:
    return next((name for pattern, name in _NAMES if pattern.search(words)), otherwise)


def at_the_end(trial_dir: Path) -> str | None:
    """The name of the error that a CLI was trying to get over when it was ended; None when there was none."""
    trace = read_logs(trial_dir)
    last = trace.turns[-1] if trace and trace.turns else None
    return _name(last.text, "ApiError") if last and last.who == "error" else None


def silence(result: dict[str, Any], trial_dir: Path) -> dict[str, Any] | None:
    """The exception that the result of a trial lacks whose CLI has never reached its LLM, and did not say so.

    None when the LLM has answered, as far as the CLI's log and its count of tokens can tell.
    """
    tokens = (result.get("agent_result") or {}).get("n_output_tokens")
    logs = [] if tokens else read_lines(trial_dir)
    if not logs or any(clilogs.answered(*log) for log in logs):
        return None
    when = (result.get("agent_execution") or {}).get("finished_at")
    return {"exception_type": SILENT, "exception_message": silent(*logs[-1]), "occurred_at": when}


def silent(name: str, lines: list[str]) -> str:
    """That an LLM never answered, in one line, with what the CLI's log says last of why."""
    told = [turn.text for turn in clilogs.turns(name, lines) if turn.who == "error" and turn.text.strip()]
    words = " ".join(told[-1].split())[:_SHOWN] if told else "its CLI names no error"
    return f"the agent's LLM never answered: {words}"
