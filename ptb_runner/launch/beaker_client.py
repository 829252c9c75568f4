"""Beaker's own client, with an end to every wait and errors that say what to do.

By itself the client asks an address that does not answer again and again, without end; takes production for meant
where BEAKER_CONFIG names a file that is not there; and looks for newer versions of itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner.config import BeakerLauncherConfig
from ptb_runner.explain import UsageError
from ptb_runner.launch import beaker_spec

if TYPE_CHECKING:
    from beaker import Beaker, BeakerWorkload, BeakerWorkspace

_TRIES, _WAIT_SEC = 3, 2.0
_LOG_IN = "type `beaker configure`, or set BEAKER_TOKEN to the token that Beaker shows for your account"


class Silent(UsageError):
    """Beaker did not answer: what was asked may have been done, or not."""


def problem() -> str | None:
    """Why Beaker cannot be asked from here at all; None when there is a client with a token."""
    if importlib.util.find_spec("beaker") is None:
        return "launcher=beaker: Beaker's client is not installed\n  pip install 'ptb-runner[beaker]'"
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before the client is imported: it tells of connections that end
    named = os.environ.get("BEAKER_CONFIG")
    if named and not Path(named).is_file():
        return f"BEAKER_CONFIG={named}: no such file\n  name Beaker's configuration file, or unset it"
    if not _file() and not os.environ.get("BEAKER_TOKEN"):
        return f"launcher=beaker: there is no token for Beaker\n  {_LOG_IN}"
    try:
        _config()
    except Exception as error:
        said = "it has no user_token" if isinstance(error, AttributeError | TypeError) else _said(error)
        return f"{_file() or 'BEAKER_TOKEN'}: not usable for Beaker: {said}\n  {_LOG_IN}"
    return None


def _file() -> Path | None:
    from beaker.config import Config

    return Config.find_config()


def _config() -> Any:
    from beaker.config import Config

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fields that only newer clients know
        return Config.from_env()


@dataclass(frozen=True)
class Account:
    """Beaker as one user sees it, in one workspace."""

    client: Beaker
    workspace_name: str
    answer_sec: float

    def ask[T](self, question: Callable[[Beaker], T], patience_sec: float | None = None) -> T:
        """What Beaker answers to a question, which is asked in a thread of its own so that the wait has an end.

        Raises Silent, or UsageError when the token is refused; what else the client raises goes through.
        """
        limit = patience_sec or self.answer_sec
        answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                answers.put((question(self.client), None))
            except BaseException as error:
                answers.put((None, error))

        threading.Thread(target=work, daemon=True).start()
        try:
            answer, error = answers.get(timeout=limit)
        except queue.Empty:
            raise Silent(f"{self._address} does not answer within {limit:g} s\n  {self._whence}") from None
        if error is not None:
            raise self.worded(error) from error
        return answer  # type: ignore[return-value]

    def insist[T](self, question: Callable[[Beaker], T], patience_sec: float | None = None) -> T:
        """The same for what the client asks once only: again when there is no answer. It must bear to be done twice."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(Silent):
                return self.ask(question, patience_sec)
            time.sleep(_WAIT_SEC)
        return self.ask(question, patience_sec)

    @property
    def _address(self) -> str:
        return f"Beaker at {self.client.config.rpc_address}"

    @property
    def _whence(self) -> str:
        return f"can this machine reach it? its address is in {_file() or 'no file: it is the default'}"

    def worded(self, error: BaseException) -> BaseException:
        """The error to raise for one of the client's."""
        import grpc
        from beaker import exceptions as known
        from requests.exceptions import RequestException

        code = error.code() if isinstance(error, grpc.Call) else None
        if code is grpc.StatusCode.UNAUTHENTICATED or (
            isinstance(error, known.BeakerError) and str(error).startswith("[code=401]")
        ):
            whose = "BEAKER_TOKEN" if "BEAKER_TOKEN" in os.environ else _file()  # the variable wins over the file
            return UsageError(f"{self._address} refuses the token of {whose}\n  {_LOG_IN}")
        if isinstance(error, known.BeakerPermissionsError):
            return UsageError(f"{self._address} does not allow it: {_said(error)}\n  ask for access, or choose another")
        if isinstance(error, grpc.RpcError | RequestException | known.BeakerServerError):
            return Silent(f"{self._address} failed: {_said(error)}\n  {self._whence}")
        for_callers = (known.BeakerNotFoundError, known.BeakerNameConflictError, known.BeakerDatasetWriteError)
        if isinstance(error, known.BeakerError) and not isinstance(error, for_callers):
            return UsageError(f"{self._address} refuses: {_said(error)}\n  `dry_run=true` shows what is submitted")
        return error

    @cached_property
    def user(self) -> str:
        """The name of the token's user."""
        return self.ask(lambda beaker: beaker.user_name)

    @cached_property
    def workspace(self) -> BeakerWorkspace:
        """The workspace. Raises UsageError when there is none of that name."""
        from beaker.exceptions import BeakerNotFoundError

        try:
            return self.ask(lambda beaker: beaker.workspace.get(self.workspace_name))
        except BeakerNotFoundError:
            raise UsageError(
                f"launcher.workspace={self.workspace_name}: Beaker has no such workspace\n"
                "  type launcher.workspace=ORG/NAME, or set BEAKER_WORKSPACE"
            ) from None

    def workload(self, experiment: str) -> BeakerWorkload | None:
        """An experiment by its id, or by its name as USER/NAME; None: there is none."""
        from beaker.exceptions import BeakerNotFoundError

        with contextlib.suppress(BeakerNotFoundError):
            return self.ask(lambda beaker: beaker.workload.get(experiment))
        return None


def connect(launcher: BeakerLauncherConfig, workspace: str | None = None) -> Account:
    """The account that the client's configuration names; nothing is asked yet.

    Raises UsageError when there is none.
    """
    if fault := problem():
        raise UsageError(fault)
    from beaker import Beaker

    logging.getLogger("beaker").setLevel(logging.ERROR)  # it tells of every try
    client = Beaker(_config(), check_for_upgrades=False)
    return Account(client, workspace or beaker_spec.workspace(launcher), launcher.answer_sec)


def _said(error: BaseException) -> str:
    details = getattr(error, "details", None)
    text = str((details() if callable(details) else None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__
