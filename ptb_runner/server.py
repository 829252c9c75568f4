"""A model server while trials use it: started, proven ready and ours, watched, and ended with all its children."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
from asyncio.subprocess import Process
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner import guard, serve
from ptb_runner.config import Config, ExternalServeConfig, VllmServeConfig
from ptb_runner.redact import Redactor

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

POLL_SEC = 0.5
REQUEST_SEC = 120.0  # the first completion of a large model compiles things
UNWELL = 3  # questions without a good answer after which a server counts as dead
_TAIL_LINES, _TAIL_BYTES = 12, 8192


class ServerError(Exception):
    """A model server could not be started, or died."""


class Server:
    """A server that was started, or one that runs elsewhere; `gone` is set when it can be used no more."""

    def __init__(self, config: Config, log_file: Path, redactor: Redactor) -> None:
        self.config, self.log_file, self._redactor = config, log_file, redactor
        self.name = serve.served_name(config)
        self.key = ""
        self.max_model_len: int | None = None
        self.version: str | None = None
        self.gone = asyncio.Event()
        self.reason = ""
        self.well_at = datetime.now(UTC)
        self._port = 0
        self._process: Process | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the runner reaches it."""
        return self.url_for(serve.HERE)

    def url_for(self, address: str) -> str:
        """Where a program reaches it for which this machine has that address."""
        own = self.config.serve
        return own.base_url.rstrip("/") if isinstance(own, ExternalServeConfig) else f"http://{address}:{self._port}/v1"

    def about(self) -> dict[str, Any]:
        """What really ran, for the result's provenance."""
        return {
            "kind": self.config.serve.kind,
            "served_name": self.name,
            "version": self.version,
            "max_model_len": self.max_model_len,
        }

    # --- From its start to its end --------------------------------------------------------------------

    async def start(self) -> None:
        """Start it, if it is ours to start, and wait until it is ready. Raises ServerError, with nothing left."""
        own = serve.settings(self.config)
        assert own is not None
        try:
            await self._begin()
            async with asyncio.timeout(own.ready_timeout_sec):
                await self._until_ready()
                await self._look()
        except TimeoutError:
            await self.end()
            raise ServerError(
                f"the model server was not ready in {own.ready_timeout_sec:g} s (serve.ready_timeout_sec){self._tail()}"
            ) from None
        except BaseException:
            await self.end()
            raise
        self.well_at = datetime.now(UTC)
        self._watcher = asyncio.create_task(self._watch(own.health_sec))

    async def _begin(self) -> None:
        own = self.config.serve
        if isinstance(own, ExternalServeConfig):
            self.key = serve.key_of(own)
            return
        assert isinstance(own, VllmServeConfig)
        if faults := serve.machine_problems(self.config, here=True):
            raise ServerError("; ".join(faults))
        self._port, self.key = own.port or serve.free_port(), f"ptb-{secrets.token_hex(16)}"
        command = serve.command(self.config, self._port)
        log.info("starting the model server: %s", " ".join(command))
        with self.log_file.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", guard.__file__, *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=serve.environment(self.config, self.key),
                start_new_session=True,  # Ctrl-C in a terminal is ours to handle
            )

    async def end(self) -> None:
        """End it with all that it started; one that runs elsewhere stays."""
        if self._watcher:
            self._watcher.cancel()
        self.gone.set()
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            await asyncio.shield(asyncio.wait_for(self._process.wait(), guard.GRACE_SEC + 5))
        except TimeoutError:
            log.error("the model server's guard (process %s) does not end: killed", self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._redactor.overwrite(self.log_file)

    async def _watch(self, every_sec: float) -> None:
        """Set `gone` when its process ends, or when it no longer answers."""
        ended = asyncio.create_task(self._process.wait() if self._process else asyncio.Event().wait())
        unwell = 0
        try:
            while unwell < UNWELL:
                await asyncio.wait([ended], timeout=every_sec)
                if ended.done() and self._process:
                    self.reason = f"the model server died, exit code {self._process.returncode}{self._tail()}"
                    break
                unwell = 0 if await self.is_well() else unwell + 1
            else:
                self.reason = f"the model server at {self.url} did not answer {UNWELL} times{self._tail()}"
        finally:
            ended.cancel()
        log.error("%s", self.reason)
        self.gone.set()

    async def is_well(self) -> bool:
        """Whether it works right now; vLLM's own word for it knows of an engine that is dead."""
        asked = datetime.now(UTC)
        path = "/models" if self._process is None else "/../health"
        own = serve.settings(self.config)
        status, _ = await self._ask("GET", path, self.key, timeout_sec=own.health_sec if own else REQUEST_SEC)
        if status == 200:
            self.well_at = asked
        return status == 200

    async def outlived(self) -> bool:
        """Whether it is well now that the trials are over, which may have met with a failure that nobody saw."""
        for _ in range(UNWELL):
            if self.gone.is_set() or await self.is_well():
                break
            await asyncio.sleep(POLL_SEC)
        else:
            self.reason = f"the model server at {self.url} did not answer when its trials were over{self._tail()}"
            self.gone.set()
        return not self.gone.is_set()

    # --- Questions to it ------------------------------------------------------------------------------

    async def _until_ready(self) -> None:
        """Wait for a completion: it lists its models long before it can use them."""
        while not await self._completes():
            if self._process and self._process.returncode is not None:
                code = self._process.returncode
                raise ServerError(f"the model server ended with exit code {code} before it was ready{self._tail()}")
            await asyncio.sleep(POLL_SEC)

    async def _completes(self) -> bool:
        """Whether it gives a completion of one token, for our key and no other. Raises ServerError if it never will."""
        status, said = await self._complete(self.key)
        if status in (0, 408, 429) or status >= 500:
            return False
        where = f"the server at {self.url}"
        if status == 200 and isinstance(said, dict) and said.get("choices"):
            if self._process and (await self._complete("not-" + self.key))[0] == 200:
                raise ServerError(f"{where} takes any key: it is another's, or one that does not read VLLM_API_KEY")
            return True
        if self._process and status in (401, 403, 404):
            raise ServerError(f"{where} is not the one that was started (HTTP {status}): somebody else has the port")
        raise ServerError(f"{where} gives no completion of {self.name}: HTTP {status}: {_message(said)}")

    async def _complete(self, key: str) -> tuple[int, Any]:
        body = {"model": self.name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        return await self._ask("POST", "/chat/completions", key, body)

    async def _look(self) -> None:
        """Ask it what it is."""
        own = serve.settings(self.config)
        _, listed = await self._ask("GET", "/models", self.key)
        _, version = await self._ask("GET", "/../version", self.key)
        models = listed.get("data") if isinstance(listed, dict) else None
        found = next((one for one in models or [] if isinstance(one, dict) and one.get("id") == self.name), {})
        said = found.get("max_model_len")
        self.max_model_len = own.max_model_len if own and own.max_model_len else said if isinstance(said, int) else None
        self.version = version.get("version") if isinstance(version, dict) else None

    async def _ask(
        self, method: str, path: str, key: str, body: Any = None, timeout_sec: float = REQUEST_SEC
    ) -> tuple[int, Any]:
        """Status and content of an answer; 0 when there was none."""
        import httpx

        url = httpx.URL(self.url + "/").join(path.lstrip("/"))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with self._client(timeout_sec) as client:
                answer = await client.request(method, url, json=body, headers=headers)
        except httpx.HTTPError:
            return 0, None
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, answer.text

    def _client(self, timeout_sec: float) -> httpx.AsyncClient:
        import httpx

        ours = self._process is not None  # no proxy knows it
        return httpx.AsyncClient(timeout=timeout_sec, trust_env=not ours)

    def _tail(self) -> str:
        """What it printed last."""
        if self._process is None or not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - _TAIL_BYTES))
            said = self._redactor.text(file.read().decode(errors="replace"))
        lines = [line for line in said.splitlines() if line.strip()]
        shown = "\n  ".join(line[:300] for line in lines[-_TAIL_LINES:])
        return f"; the last lines of {self.log_file}:\n  {shown}" if shown else f"; {self.log_file} is empty"


def _message(said: Any) -> str:
    """The reason in an error's body."""
    error = said.get("error", said) if isinstance(said, dict) else said
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
