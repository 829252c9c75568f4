"""A vLLM server around an evaluation: started, waited for, and ended with all its children.

Our own, since a server that inspect-ai starts binds all interfaces, is waited for without limit, and starts twice.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from evaluation_code.outcome import EvaluationError, InvalidModel, one_line

SERVED_NAME = "final_model"
FAMILIES = ("qwen3", "smollm", "gemma3")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TERMINATE_SECONDS, KILL_SECONDS = 15.0, 20.0
PROBE_SECONDS = 60.0  # one first completion: it may compile kernels
NOT_YET = {408, 425, 429}  # of the 4xx answers, those that waiting can change
LOG_TAIL_BYTES = 256 * 1024

# What vLLM, transformers and safetensors say of a model that no machine can serve. Everything else, such as a GPU
# without room, is not the model's fault, and may go well at the next try.
MODEL_FAULTS = re.compile(
    r"are not supported for now"
    r"|Model architectures? .* (?:is|are) not supported"
    r"|does not recognize this architecture|Unrecognized (?:configuration class|model)"
    r"|validation errors? for ModelConfig"
    r"|SafetensorError|InvalidHeaderDeserialization|HeaderTooLarge|MetadataIncompleteBuffer"
    r"|weights were not initialized from checkpoint"
    r"|no module or parameter named"
    r"|Attempted to load weight .* into parameter|size mismatch for|assert param(?:_data)?\.(?:size|shape)"
    r"|Can't load tokenizer|Couldn't instantiate the backend tokenizer|does not appear to have a file named"
    r"|Cannot find any model weights"
)


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server: its URL up to /v1, the model's name there, and its key."""

    base_url: str
    model: str
    api_key: str = "none"


@dataclass(frozen=True)
class ServerOptions:
    """How to serve a model folder. Times in seconds."""

    model_path: str
    templates: Path
    log: Path
    gpu_memory_utilization: float
    max_model_len: int | None
    tool_parser: str | None
    startup_timeout: float


def family(model_path: str) -> str | None:
    """The model's family, by its config.json, else by its name; None when it is none of FAMILIES."""
    try:
        config = json.loads(Path(model_path, "config.json").read_text(encoding="utf-8"))
        described = f"{config.get('model_type')} {config.get('architectures')}"
    except (OSError, ValueError, AttributeError):
        described = Path(model_path).name
    plain = re.sub(r"[^a-z0-9]", "", described.lower())
    return next((name for name in FAMILIES if name in plain), None)


def chat_template(model_path: str, templates: Path, tools: bool) -> Path | None:
    """The family's chat template; None: the tokenizer's own. EvaluationError when a family's template is not there."""
    name = family(model_path)
    if name is None:
        return None
    path = templates / f"{name}{'_tools' if tools and name == 'gemma3' else ''}.jinja"
    if not path.is_file():
        raise EvaluationError(f"the chat template {path} is missing")
    return path.absolute()


def command(options: ServerOptions, port: int) -> list[str]:
    """The server's command line: `vllm serve`, or its module where the script is not on PATH."""
    program = shutil.which("vllm")
    start = [program, "serve"] if program else [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    arguments = [*start, options.model_path, "--served-model-name", SERVED_NAME]
    arguments += ["--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--gpu-memory-utilization", str(options.gpu_memory_utilization)]
    if template := chat_template(options.model_path, options.templates, options.tool_parser is not None):
        arguments += ["--chat-template", str(template)]
    if options.max_model_len is not None:
        arguments += ["--max-model-len", str(options.max_model_len)]
    if options.tool_parser is not None:
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", options.tool_parser]
    return arguments


@contextlib.contextmanager
def serve(options: ServerOptions) -> Iterator[Endpoint]:
    """A server that has answered once. InvalidModel or EvaluationError when it does not come up."""
    port = free_port()
    line = command(options, port)
    adopt_orphans()
    others = set(descendants(os.getpid()))
    with options.log.open("wb") as log:
        process = start(line, log)
        try:
            endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", SERVED_NAME)
            wait_until_served(endpoint, options.startup_timeout, process, options.log)
            yield endpoint
            if process.poll() is not None:
                raise EvaluationError(f"the server ended during the evaluation: {log_end(options.log)}")
        finally:
            end(process, others)


def start(line: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a process that heads its own group and dies with us, even by SIGKILL."""
    libc = ctypes.CDLL(None)
    return subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )


def keep_loopback_off_proxies() -> None:
    """An http_proxy variable would send what is meant for our server away: to us, nothing would ever answer."""
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_served(
    endpoint: Endpoint, timeout: float, process: "subprocess.Popen[bytes] | None" = None, log: Path | None = None
) -> None:
    """Return once the model has completed one token: /v1/models and /health answer before that is possible."""
    deadline, problem = time.monotonic() + timeout, "it gave no answer"
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise death(process.returncode, log)
        try:
            first_completion(endpoint, min(PROBE_SECONDS, deadline - time.monotonic()))
        except (OSError, ValueError) as error:  # not ready: refused, 503, too slow, no JSON
            problem = one_line(error)
        else:
            # Somebody else's server could answer on our port after ours failed to bind it.
            if process is None or process.poll() is None:
                return
        time.sleep(0.25)
    raise EvaluationError(f"the server did not serve the model in {timeout:g} s: {problem}")


def first_completion(endpoint: Endpoint, timeout: float) -> None:
    """Complete one token. OSError or ValueError while waiting may help, EvaluationError when it cannot."""
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {endpoint.api_key}"}
    url = endpoint.base_url.rstrip("/") + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=max(timeout, 0.1)) as response:
            answer: Any = json.load(response)
    except urllib.error.HTTPError as error:
        said = f"HTTP {error.code}: {one_line(error.read(2000).decode(errors='replace'))}"
        if 400 <= error.code < 500 and error.code not in NOT_YET:
            raise EvaluationError(f"the server refuses to complete a token: {said}") from None
        raise OSError(said) from None
    if not isinstance(answer, dict) or not answer.get("choices"):
        raise ValueError("its answer holds no completion")


def death(code: int, log: Path | None) -> Exception:
    """The error for a server that ended while starting: the model's fault only where the log says so."""
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    found = None if code < 0 else log and MODEL_FAULTS.search(tail(log))
    if found:
        line = next(line for line in reversed(tail(log).splitlines()) if MODEL_FAULTS.search(line))  # pyright: ignore[reportArgumentType]
        return InvalidModel(f"the model cannot be served: {one_line(line)}")
    return EvaluationError(f"the server ended with {how} while starting: {log_end(log)}")


def tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")


def log_end(log: Path | None) -> str:
    """The last line of the server's log that names an error, or simply the last."""
    lines = [line for line in tail(log).splitlines() if line.strip()] if log else []
    errors = [line for line in lines if "Error" in line]
    return one_line((errors or lines or ["its log is empty"])[-1])


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that `end` finds what left the process group."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end(process: "subprocess.Popen[bytes]", others: set[int]) -> None:
    """End the server, asking first, and all below us but `others`: a worker left behind would keep the GPU."""
    signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(TERMINATE_SECONDS)
    signal_group(process, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + KILL_SECONDS
    while (left := set(descendants(os.getpid())) - others) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def signal_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def descendants(pid: int) -> Iterator[int]:
    """All processes below a process, by /proc."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The program's name, in parentheses, may hold anything; state and parent follow it.
            parent = int(path.read_bytes().rpartition(b")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            waiting.append(child)
            yield child
