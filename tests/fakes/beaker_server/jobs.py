"""Jobs, from the queue to their end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beaker import beaker_pb2 as pb2

from tests.fakes.beaker_server.node import COMPILED, Node, first_process
from tests.fakes.beaker_server.state import Experiment, State, new_id, now

_POLL_SEC = 0.02


class Job:
    """One attempt at a task."""

    def __init__(self, state: State, experiment: Experiment, task_id: str, spec: dict[str, Any], ancestor: str = ""):
        self.spec, self.task_id, self.experiment, self._state = spec, task_id, experiment, state
        workspace_id = experiment.pb.workspace_id
        self.pb = pb2.Job(
            id=new_id("JB"), task_id=task_id, workload_id=experiment.pb.id, workspace_id=workspace_id, name=spec["name"]
        )
        if ancestor:
            self.pb.retry_ancestor_id = ancestor
        self.results = state.new_dataset(workspace_id)
        self.pb.assignment_details.result_dataset_id = self.results.pb.id
        self.pb.status.status = pb2.STATUS_SUBMITTED
        self.pb.status.created.CopyFrom(now())
        self.folder = state.folder / "jobs" / self.pb.id
        self.lines: list[tuple[int, bytes]] = []  # time in ns, and text
        self.events: list[tuple[str, str]] = []  # status, and message
        self.process: subprocess.Popen[bytes] | None = None
        self._killed = False  # unshare does not tell that its child was
        self.thread = threading.Thread(target=self._live, daemon=True)

    def start(self) -> None:
        self.thread.start()

    @property
    def finalized(self) -> bool:
        return self.pb.status.HasField("finalized")

    @property
    def canceled(self) -> bool:
        return self.pb.status.HasField("canceled")

    # --- Its life -------------------------------------------------------------------------------------

    def _live(self) -> None:
        status = self.pb.status
        try:
            if self._wait_in_queue():
                self._enter(pb2.STATUS_INITIALIZING, "scheduled")
                self._run()
        except Exception as error:  # a secret that is not there, a command that cannot be started
            status.message = str(error)
            status.failed.CopyFrom(now())
        finally:
            self._end()

    def _wait_in_queue(self) -> bool:
        """Whether its turn came; False: it was cancelled before."""
        self._enter(pb2.STATUS_QUEUED, "created")
        told = None
        while not self.canceled:
            if (reason := self._state.held) is None:
                self.pb.status.ClearField("failed_scheduling_message")
                return True
            if reason != told:
                told = self.pb.status.failed_scheduling_message = reason
                self.events.append(("failed_scheduling", reason))
            time.sleep(_POLL_SEC)
        return False

    def _enter(self, status: Any, field: str) -> None:
        with self._state.lock:
            self.pb.status.status = status
            getattr(self.pb.status, field).CopyFrom(now())
        self.events.append((pb2.WorkloadStatus.Name(status).removeprefix("STATUS_").lower(), ""))

    def _run(self) -> None:
        node = Node(
            self.folder, list(self._binds()), Path(self._state.images.get(self.spec["image"].get("docker"), "/"))
        )
        command = [*(self.spec.get("command") or []), *(self.spec.get("arguments") or [])]
        self.process = node.start(self._state.command or command, self._environment())
        self._enter(pb2.STATUS_RUNNING, "started")
        if self.canceled:
            self._signal(signal.SIGTERM)
        reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        reader.start()
        code = self._wait()
        reader.join(5)
        with self._state.lock:
            self.pb.status.exited.CopyFrom(now())
            self.pb.status.exit_code = 128 + signal.SIGKILL if self._killed else code if code >= 0 else 128 - code

    def _wait(self) -> int:
        """The exit code; ends it when its time is up, and for good when it does not go by itself."""
        assert self.process
        limit = (self.spec.get("timeout") or 0) / 1e9
        began, told = time.monotonic(), None
        while (code := self.process.poll()) is None:
            if limit and time.monotonic() - began > limit:
                self.cancel(pb2.CANCELATION_CODE_TIMEOUT, "the task's time is up")
            if self.canceled:
                told = told or time.monotonic()
                if time.monotonic() - told > self._state.stop_sec:
                    self._signal(signal.SIGKILL)
            time.sleep(_POLL_SEC)
        return code

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        with process.stdout as lines:
            for line in lines:
                last = self.lines[-1][0] if self.lines else 0
                self.lines.append((max(time.time_ns(), last + 1), line))

    def _end(self) -> None:
        status, succeeded = self.pb.status, False
        self._clear()
        self.results.commit()
        with self._state.lock:
            succeeded = status.HasField("exit_code") and status.exit_code == 0
            if self.canceled:
                status.status = pb2.STATUS_CANCELED
            else:
                status.status = pb2.STATUS_SUCCEEDED if succeeded else pb2.STATUS_FAILED
            if self._goes_on(succeeded):
                again = Job(self._state, self.experiment, self.task_id, self.spec, self.pb.id)
                self.experiment.jobs[self.task_id].append(again)
                again.start()
            status.finalized.CopyFrom(now())

    def _goes_on(self, succeeded: bool) -> bool:
        """Whether the task gets another job."""
        if self.canceled:
            context = self.spec.get("context") or {}
            preempted = self.pb.status.canceled_code == pb2.CANCELATION_CODE_SYSTEM_PREEMPTION
            return preempted and bool(context.get("autoResume") or context.get("preemptible"))
        allowed = (self.experiment.spec.get("retry") or {}).get("allowedTaskRetries") or 0
        failures = [one for one in self.experiment.jobs[self.task_id] if not one.canceled]
        return not succeeded and len(failures) <= allowed

    def _clear(self) -> None:
        for name in ("root", "work", "containers"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    # --- What it gets ---------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        given = {one["name"]: self._value(one) for one in self.spec.get("envVars") or []}
        return given | {
            "BEAKER_JOB_ID": self.pb.id,
            "BEAKER_JOB_KIND": "batch",
            "BEAKER_TASK_ID": self.task_id,
            "BEAKER_EXPERIMENT_ID": self.experiment.pb.id,
            "BEAKER_WORKLOAD_ID": self.experiment.pb.id,
            "BEAKER_RESULT_DATASET_ID": self.results.pb.id,
            "BEAKER_NODE_HOSTNAME": "fake-node-1",
            "BEAKER_ASSIGNED_GPU_COUNT": str((self.spec.get("resources") or {}).get("gpuCount") or 0),
        }

    def _value(self, variable: dict[str, str]) -> str:
        return self._secret(variable["secret"]) if variable.get("secret") else variable.get("value", "")

    def _secret(self, name: str) -> str:
        known = self._state.secrets.get((self.experiment.pb.workspace_id, name))
        if known is None:
            raise LookupError(f"secret {name} not found")
        return known

    def _binds(self) -> Iterator[tuple[Path, str, bool]]:
        compiled = self._state.folder / "compiled"
        compiled.mkdir(exist_ok=True)
        yield compiled, COMPILED, False
        for mount in self.spec.get("datasets") or []:
            source, target, inner = mount["source"], mount["mountPath"], mount.get("subPath") or ""
            if dataset_id := source.get("beaker"):
                yield self._state.dataset(dataset_id).folder / inner, target, True
            elif bucket := source.get("weka"):
                folder = self._state.folder / "weka" / bucket / inner
                folder.mkdir(parents=True, exist_ok=True)
                yield folder, target, False
            elif host_path := source.get("hostPath"):
                yield Path(host_path) / inner, target, False
            else:
                raise LookupError(f"the fake mounts no {sorted(source)}")
        if result := self.spec.get("result"):
            yield self.results.folder, result["path"], False

    # --- Its end --------------------------------------------------------------------------------------

    def cancel(self, code: Any, reason: str, *, warn: bool = True) -> None:
        """Have it end: SIGTERM for its first process, and SIGKILL some seconds later; without a warning at once."""
        with self._state.lock:
            if self.finalized or self.canceled:
                return
            self.pb.status.canceled_code = code
            self.pb.status.canceled_for = reason
            self.pb.status.canceled.CopyFrom(now())
        self._signal(signal.SIGTERM if warn else signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.process and (first := first_process(self.process.pid)):
            self._killed = self._killed or number == signal.SIGKILL
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, number)

    # --- Its log --------------------------------------------------------------------------------------

    def stream(self, since_ns: int, tail: int, follow: bool) -> Iterator[pb2.JobLog]:
        """Lines from a time on; breaks and repeats lines as often as the server was told to."""
        sent, position = 0, self._begin(since_ns, tail)
        while True:
            over = self.finalized
            for stamp, text in self.lines[position:]:
                line = pb2.JobLog(message=text)
                line.timestamp.FromNanoseconds(stamp)
                yield line
                position, sent = position + 1, sent + 1
                if self._state.break_after and sent >= self._state.break_after + self._state.replay:
                    raise ConnectionResetError
            if over or not follow:
                return
            time.sleep(_POLL_SEC)

    def _begin(self, since_ns: int, tail: int) -> int:
        position = next((i for i, (stamp, _) in enumerate(self.lines) if stamp >= since_ns), len(self.lines))
        if since_ns:
            position = max(0, position - self._state.replay)
        return max(position, len(self.lines) - tail) if tail else position


def cancel_all(state: State, workload_ids: list[str]) -> None:
    """What a user does who cancels workloads."""
    for workload_id in workload_ids:
        for job in state.experiment(workload_id).latest:
            job.cancel(pb2.CANCELATION_CODE_MANUAL, "canceled by tester")
