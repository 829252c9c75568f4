"""Who looks at what it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from ptb_runner.config.declare import option


class JudgeEffect(Enum):
    """What a judge's yes does."""

    flag = "flag"
    review = "review"


class JudgeApi(Enum):
    """Which form of the OpenAI API a judge is asked through."""

    responses = "responses"
    chat = "chat"


class JudgeEngine(Enum):
    """What a judge is made of."""

    api = "api"
    codex = "codex"


@dataclass
class PriceConfig:
    """What an LLM costs, in dollars for a million tokens."""

    input: float | None = option(
        None,
        "A million tokens of input; null: OpenAI's list price; of other servers, no cost is told.",
        least=0,
    )
    cached: float | None = option(None, "A million tokens of input that were cached; null: as input.", least=0)
    output: float | None = option(None, "A million tokens of output, thinking included.", least=0)


@dataclass
class JudgeConfig:
    """One judge: an LLM that reads what a trial left and answers questions with yes or no."""

    prompt: str = option(MISSING, "Its prompt: a file in Jinja2, of templates/judge/ or a path.")
    fields: dict[str, str] = option({}, "Its questions: the name of each field of the verdict, and what true means.")
    effect: JudgeEffect = option(
        JudgeEffect.flag, "What a true does: flag takes the trial's reward away, review has a person decide."
    )
    model: str = option(MISSING, "The LLM.")
    effort: str | None = option(None, "How hard it thinks; null: the LLM's own default.")
    max_turns: int = option(150, "Answers of the LLM, after which it must give its verdict.", least=1)
    max_tokens: int = option(20_000_000, "Tokens in all, cached ones too, after which it must.", least=1000)
    max_context_tokens: int = option(250_000, "Tokens of a request, beyond which old files are dropped.", least=1000)
    usd_per_mtok: PriceConfig = option(PriceConfig, "What the LLM costs.")


@dataclass
class CodexConfig:
    """The Codex CLI as a judge (judge.engine=codex)."""

    version: str | None = option(None, "Its version; null: that of conf/pins/pinned.yaml.", result=False)
    path: str | None = option(
        None, "The program, where it is not to come from the cache that `ptb cache codex` fills.", result=False
    )
    max_hours: float = option(
        4.0, "Hours of one judge's work, after which it must give its verdict.", above=0, result=False
    )


@dataclass
class JudgesConfig:
    """The judges of each trial, and how they are asked."""

    id: str = option("none", "Name in the plan.", result=False)
    panel: dict[str, JudgeConfig] = option(
        {}, "The judges by id, each {prompt, fields, effect, model, effort, max_turns ...}.", result=False
    )
    engine: JudgeEngine = option(
        JudgeEngine.api,
        "What a judge is: api, an LLM with read-only tools of ours; codex, the Codex CLI in a sandbox over a copy.",
        result=False,
    )
    codex: CodexConfig = option(CodexConfig, "The Codex CLI as a judge.")
    api: JudgeApi = option(JudgeApi.responses, "The form of the API: responses, or chat (completions).", result=False)
    base_url: str | None = option(None, "An OpenAI-compatible API; null: OPENAI_BASE_URL, else OpenAI's.", result=False)
    api_key_var: str | None = option(
        "OPENAI_API_KEY", "Name of the host variable with its key, which no sandbox gets; null: none.", result=False
    )
    model: str | None = option(None, "An LLM for all judges; null: each one's own.", result=False)
    effort: str | None = option(None, "How hard all judges think; null: each one's own.", result=False)
    concurrency: int = option(4, "Judges of a cell at work at once.", least=1, result=False)
    timeout_sec: float = option(900.0, "Seconds that one answer of the LLM may take.", above=0, result=False)
    retries: int = option(8, "Further tries of a request that failed (429, 5xx, timeouts).", least=0, result=False)
    retry_wait_sec: float = option(
        2.0, "Wait before the first such try, doubled each time (seconds).", least=0, result=False
    )
    malformed_tries: int = option(3, "Verdicts without the right form that are asked for again.", least=0, result=False)
