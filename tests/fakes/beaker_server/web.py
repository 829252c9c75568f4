"""The calls by HTTP: experiments, secrets, the files of datasets; and orders from tests.

| | the name that faults know it by |
|---|---|
| `POST /api/v3/workspaces/WS/experiments?name=` | CreateExperiment |
| `PUT`, `GET`, `DELETE /api/v3/workspaces/WS/secrets/NAME[/value]` | WriteSecret, ReadSecret, DeleteSecret |
| `POST /api/v3/datasets?name=`, `GET`, `PATCH /api/v3/datasets/DS` | CreateDataset, GetDatasetStorage, CommitDataset |
| `PUT /files/datasets/DS/files/PATH` | PutFile |
| `POST /files/uploads`, `PATCH /files/uploads/ID` | BeginUpload, UploadChunk |
| `GET /api/v3/datasets/DS/files/PATH` | GetFile |

A fault's status is a number here, such as 503, or LOST: the connection ends without an answer.

Orders: `POST /fake/X` with X of faults, mend, secret, set, preempt, kill; and `GET /fake/state`.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

import grpc
from beaker import beaker_pb2 as pb2

from tests.fakes.beaker_server.jobs import Job
from tests.fakes.beaker_server.state import TOKEN, Dataset, Refused, State, fail, missing, new_id

_STATUS = {
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.UNAUTHENTICATED: 401,
}


@dataclass
class Request:
    """A request, taken apart."""

    parts: tuple[str, ...]  # what the route's groups matched
    query: dict[str, str]
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"null")


@dataclass
class Answer:
    """What is sent back."""

    content: Any = None  # bytes as they are, anything else as JSON
    status: int = 200
    headers: dict[str, str] | None = None


class Web:
    """The calls; `ROUTES` says which request is which."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._uploads: dict[str, bytearray] = {}

    # --- Experiments and secrets ----------------------------------------------------------------------

    def CreateExperiment(self, request: Request) -> Answer:
        (workspace_id,) = request.parts
        made = self.state.new_experiment(workspace_id, request.query.get("name", ""), request.json)
        return Answer({"id": made.pb.id})

    def WriteSecret(self, request: Request) -> Answer:
        workspace_id, name = request.parts
        self.state.secrets[workspace_id, name] = request.body.decode()
        return Answer({"name": name})

    def ReadSecret(self, request: Request) -> Answer:
        workspace_id, name = request.parts
        value = self.state.secrets.get((workspace_id, name))
        return Answer((missing("secret", name) if value is None else value).encode())

    def DeleteSecret(self, request: Request) -> Answer:
        workspace_id, name = request.parts
        if self.state.secrets.pop((workspace_id, name), None) is None:
            missing("secret", name)
        return Answer()

    # --- Datasets -------------------------------------------------------------------------------------

    def CreateDataset(self, request: Request) -> Answer:
        asked = request.json
        made = self.state.new_dataset(asked["workspace"], request.query.get("name", ""), asked.get("description") or "")
        return self._described(made)

    def GetDatasetStorage(self, request: Request) -> Answer:
        return self._described(self.state.dataset(*request.parts))

    def CommitDataset(self, request: Request) -> Answer:
        dataset = self.state.dataset(*request.parts)
        if request.json.get("commit"):
            dataset.commit()
        return self._described(dataset)

    def _described(self, dataset: Dataset) -> Answer:
        storage = {"id": dataset.pb.id, "token": TOKEN, "tokenExpires": "2999-01-01T00:00:00Z"}
        return Answer({"id": dataset.pb.id, "storage": {**storage, "address": f"{self.state.url}/files"}})

    def PutFile(self, request: Request) -> Answer:
        dataset = self.state.dataset(request.parts[0])
        if dataset.committed:
            fail(grpc.StatusCode.PERMISSION_DENIED, "the dataset is committed")
        path, digest = dataset.file(request.parts[1]), request.headers.get("Digest")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._uploads.pop(digest) if digest else request.body)
        return Answer()

    def BeginUpload(self, request: Request) -> Answer:
        upload_id = new_id("UP")
        self._uploads[upload_id] = bytearray()
        return Answer(headers={"Upload-ID": upload_id})

    def UploadChunk(self, request: Request) -> Answer:
        (upload_id,) = request.parts
        content, offset = self._uploads[upload_id], int(request.headers["Upload-Offset"])
        if offset > len(content):
            fail(grpc.StatusCode.INVALID_ARGUMENT, f"there are only {len(content)} bytes yet")
        content[offset:] = request.body
        if len(content) < int(request.headers["Upload-Length"]):
            return Answer()
        digest = f"SHA256 {hashlib.sha256(content).hexdigest()}"
        self._uploads[digest] = self._uploads.pop(upload_id)
        return Answer(headers={"Digest": digest})

    def GetFile(self, request: Request) -> Answer:
        path = self.state.dataset(request.parts[0]).file(request.parts[1])
        if not path.is_file():
            missing("file", request.parts[1])
        content = path.read_bytes()
        if found := re.match(r"bytes=(\d+)-(\d*)$", request.headers.get("Range", "")):
            begin, end = int(found[1]), int(found[2] or len(content) - 1)
            return Answer(content[begin : end + 1], 206)
        return Answer(content)

    # --- Orders ---------------------------------------------------------------------------------------

    def order_faults(self, request: Request) -> Answer:
        self.state.faults.add(request.json)
        return Answer()

    def order_mend(self, request: Request) -> Answer:
        """As it was at first, but for what the account has."""
        self.state.faults.clear()
        self.state.command = self.state.held = None
        self.state.break_after = self.state.replay = 0
        return Answer()

    def order_secret(self, request: Request) -> Answer:
        asked = request.json
        self.state.secrets[self.state.known("workspace", asked["workspace"]), asked["name"]] = asked["value"]
        return Answer()

    def order_set(self, request: Request) -> Answer:
        for name, value in request.json.items():
            if name not in ("command", "images", "held", "break_after", "replay", "stop_sec"):
                fail(grpc.StatusCode.INVALID_ARGUMENT, f"{name} cannot be set")
            setattr(self.state, name, value)
        return Answer()

    def order_preempt(self, request: Request) -> Answer:
        job = self.state.job(request.json)
        if job.pb.status.status != pb2.STATUS_RUNNING:
            fail(grpc.StatusCode.INVALID_ARGUMENT, f"job {request.json} does not run")
        job.cancel(pb2.CANCELATION_CODE_SYSTEM_PREEMPTION, "preempted by a job of higher priority")
        return Answer()

    def order_kill(self, request: Request) -> Answer:
        """A preemption without a warning."""
        job = self.state.job(request.json)
        job.cancel(pb2.CANCELATION_CODE_SYSTEM_PREEMPTION, "its node went down", warn=False)
        return Answer()

    def order_state(self, request: Request) -> Answer:
        return Answer(describe(self.state))


def describe(state: State) -> dict[str, Any]:
    return {
        "experiments": [
            {"id": one.pb.id, "name": one.pb.name, "workspace": one.pb.workspace_id, "spec": one.spec}
            for one in state.experiments.values()
        ],
        "jobs": [_job(job) for job in state.jobs()],
        "datasets": [
            {"id": one.pb.id, "name": one.pb.name, "folder": str(one.folder), "committed": one.committed}
            for one in state.datasets.values()
        ],
        "groups": [{"name": one.pb.name, "experiments": one.experiments} for one in state.groups.values()],
        "secrets": sorted(name for _, name in state.secrets),
        "calls": dict(state.calls),
    }


def _job(job: Job) -> dict[str, Any]:
    status = job.pb.status
    return {
        "id": job.pb.id,
        "experiment": job.pb.workload_id,
        "status": pb2.WorkloadStatus.Name(status.status).removeprefix("STATUS_").lower(),
        "finalized": job.finalized,
        "canceled": job.canceled,
        "exit_code": status.exit_code if status.HasField("exit_code") else None,
        "message": status.message,
        "written": str(job.folder / "upper"),
        "results": str(job.results.folder),
        "log": b"".join(text for _, text in job.lines).decode(errors="replace"),
    }


# --- As a server --------------------------------------------------------------------------------------

_API, _FILES = "/api/v3", "/files"
ROUTES = [
    ("POST", rf"{_API}/workspaces/([^/]+)/experiments", "CreateExperiment"),
    ("PUT", rf"{_API}/workspaces/([^/]+)/secrets/([^/]+)/value", "WriteSecret"),
    ("GET", rf"{_API}/workspaces/([^/]+)/secrets/([^/]+)/value", "ReadSecret"),
    ("DELETE", rf"{_API}/workspaces/([^/]+)/secrets/([^/]+)", "DeleteSecret"),
    ("POST", rf"{_API}/datasets", "CreateDataset"),
    ("GET", rf"{_API}/datasets/([^/]+)", "GetDatasetStorage"),
    ("PATCH", rf"{_API}/datasets/([^/]+)", "CommitDataset"),
    ("GET", rf"{_API}/datasets/([^/]+)/files/(.+)", "GetFile"),
    ("PUT", rf"{_FILES}/datasets/([^/]+)/files/(.+)", "PutFile"),
    ("POST", rf"{_FILES}/uploads", "BeginUpload"),
    ("PATCH", rf"{_FILES}/uploads/([^/]+)", "UploadChunk"),
    ("POST", r"/fake/(?:faults|mend|secret|set|preempt|kill)", "order"),
    ("GET", r"/fake/state", "order"),
]


def server(state: State) -> ThreadingHTTPServer:
    """An HTTP server on a free port, not yet serving."""
    web = Web(state)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            url = urlparse(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            name, parts = _routed(self.command, unquote(url.path))
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            answer = _answered(web, name, Request(parts, query, self.headers, body))
            if answer is None:
                self.close_connection = True
            else:
                self._send(answer)

        def _send(self, answer: Answer) -> None:
            plain = isinstance(answer.content, bytes)
            content = answer.content if plain else json.dumps(answer.content).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/octet-stream" if plain else "application/json")
            self.send_header("Content-Length", str(len(content)))
            for header, value in (answer.headers or {}).items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _handle

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def _routed(method: str, path: str) -> tuple[str, tuple[str, ...]]:
    for wanted, pattern, name in ROUTES:
        if method == wanted and (found := re.fullmatch(pattern, path)):
            return f"order_{path.rpartition('/')[2]}" if name == "order" else name, found.groups()
    return "", ()


def _answered(web: Web, name: str, request: Request) -> Answer | None:
    """The answer of a call, after its checks; None: there is none."""
    if not name:
        return Answer({"message": "not found"}, 404)
    method: Callable[[Request], Answer] = getattr(web, name)
    if name.startswith("order_"):
        return _done(web.state, method, request)
    web.state.calls[name] += 1
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        return Answer({"message": "invalid authorization token"}, 401)
    fault = web.state.faults.of(name, lambda: request.body.decode(errors="replace"))
    if fault is None:
        return _done(web.state, method, request)
    time.sleep(fault.delay_sec)
    answer = _done(web.state, method, request) if fault.when == "after" or fault.status == "OK" else None
    if fault.status in ("OK", "LOST"):
        return answer if fault.status == "OK" else None
    return Answer({"message": fault.message}, int(fault.status))


def _done(state: State, method: Callable[[Request], Answer], request: Request) -> Answer:
    try:
        with state.lock:
            return method(request)
    except Refused as refused:
        return Answer({"message": refused.message}, _STATUS[refused.status])
