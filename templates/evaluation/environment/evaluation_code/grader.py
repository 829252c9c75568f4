"""The model that judges answers: asked through the `openai` client, patiently, and believed only when it is clear."""

# pyright: reportMissingImports=false

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import openai

from evaluation_code import benchmark
from evaluation_code.outcome import EvaluationError, UsageError, one_line

Verdict = TypeVar("Verdict")
Messages = list[dict[str, str]]

TRANSIENT = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError, openai.ConflictError)
NO_PATIENCE_HELPS = {"insufficient_quota", "billing_hard_limit_reached"}


class Malformed(Exception):
    """The grader's reply is no verdict."""


class NoVerdict(Exception):
    """The grader gave no verdict on one answer, after all retries."""


class Grader:
    """Asks for verdicts, from any number of threads. `counts` tells what it took."""

    def __init__(self, settings: benchmark.Grader) -> None:
        key = os.environ.get(settings.api_key_var)
        if not key:
            raise UsageError(f"the grader needs a key in {settings.api_key_var}")
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        # Retries are ours: the client's own would be neither counted nor bounded together with malformed verdicts.
        limits = {"timeout": settings.timeout_sec, "max_retries": 0}
        self._client = openai.OpenAI(api_key=key, base_url=settings.base_url, **limits)

    def ask(self, messages: Messages, parse: Callable[[str], Verdict]) -> Verdict:
        """The verdict that `parse` finds. NoVerdict after all retries; EvaluationError when none would ever come."""
        problem = ""
        for attempt in range(self.settings.retries + 1):
            if attempt:
                self._count("retries")
            try:
                return parse(self._reply(messages))
            except Malformed as error:
                self._count("malformed")
                problem = f"its verdict is malformed: {error}"
            except TRANSIENT as error:
                if getattr(error, "code", None) in NO_PATIENCE_HELPS:
                    raise EvaluationError(f"the grader refuses: {one_line(error)}") from None
                self._count("transient_errors")
                problem = one_line(error)
                if attempt < self.settings.retries:
                    time.sleep(self._pause(attempt, error))
            except openai.APIStatusError as error:  # a wrong key, model or parameter
                raise EvaluationError(f"the grader refuses: {one_line(error)}") from None
        raise NoVerdict(f"the grader gave no verdict in {self.settings.retries + 1} tries: {problem}")

    def _reply(self, messages: Messages) -> str:
        self._count("calls")
        effort = {"reasoning_effort": self.settings.reasoning_effort} if self.settings.reasoning_effort else {}
        # The parameter's new name; servers for older models only know the old one, so it is not sent as max_tokens.
        create: Any = self._client.chat.completions.create
        answer = create(
            model=self.settings.model,
            messages=messages,
            max_completion_tokens=self.settings.max_tokens,
            **effort,
        )
        if not getattr(answer, "choices", None):
            raise Malformed("it holds no completion")
        return answer.choices[0].message.content or ""

    def _pause(self, attempt: int, error: Exception) -> float:
        """Seconds: what the server asks for, else doubling and spread, so that workers do not come back together."""
        asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
        most = self.settings.max_backoff_sec
        if asked.replace(".", "", 1).isdigit():
            return min(float(asked), most)
        return min(self.settings.backoff_sec * 2**attempt, most) * random.uniform(0.5, 1.0)

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1


Job = TypeVar("Job")
Result = TypeVar("Result")


def in_parallel(workers: int, jobs: Sequence[Job], work: Callable[[Job], Result]) -> list[Result]:  # noqa: UP047
    """The results of all jobs, in their order. The first exception stops what has not started, and is raised."""
    pool = ThreadPoolExecutor(max_workers=max(1, min(workers, len(jobs))))
    try:
        futures = [pool.submit(work, job) for job in jobs]
        wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((future.exception() for future in futures if future.done() and future.exception()), None)
        if failed:
            raise failed
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a request under way may take minutes
