"""Does a program pass its tests? Asked by a process that holds the tests, answered by another that holds the program.

The tests never run where the answer's code runs: they call a stand-in, which sends the arguments over and gets the
result back as a literal. So `sys.exit(0)`, a class whose instances equal everything, or a look at the tests' source
gains an answer nothing. The answer's process has no privileges that can be dropped, little memory and little time.

    python3 -I code_check.py SECONDS < {"prompt": ..., "answer": ..., "test": ..., "entry_point": ...}

Exit codes: 0 passed, 1 not passed (the reason is on stderr), 3 this program's own trouble.
"""

import ast
import asyncio
import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
from typing import Any, NoReturn

PASSED, NOT_PASSED, BROKEN = 0, 1, 3
NOBODY = 65534
CLONE_NEWNET, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 0x40000000, 4, 38
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_MEMORY_BYTES = 4 * 2**30
MAX_FILE_BYTES = 16 * 2**20
MAX_PROCESSES = 64
GRACE_SECONDS = 10.0  # for starting and ending processes on a busy machine


class WrongAnswer(Exception):
    """The answer's code failed, ended, or returned something that is no plain value."""


class Trouble(Exception):
    """The check itself could not be made."""


async def check_in_subprocess(prompt: str, answer: str, test: str, entry_point: str, seconds: float) -> str | None:
    """None when the answer passes, otherwise why it does not. RuntimeError when that cannot be found out."""
    job = {"prompt": prompt, "answer": answer, "test": test, "entry_point": entry_point}
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-I", __file__, str(seconds)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, start_new_session=True
    )
    try:
        given = json.dumps(job).encode()
        _, errors = await asyncio.wait_for(process.communicate(given), seconds + GRACE_SECONDS)
    except asyncio.TimeoutError:  # noqa: UP041  # not yet the same on Python 3.10
        return f"no result after {seconds:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode == PASSED:
        return None
    reason = errors.decode(errors="replace").strip()[-2000:]
    if process.returncode == BROKEN:
        raise RuntimeError(f"the code check failed: {reason}")
    return reason or f"ended with exit code {process.returncode}"


# ---------------------------------------------------------------------------------------------------------------------
# The two ends speak JSON, one object a line.


class Line:
    """One end of the connection between the two processes."""

    def __init__(self, end: socket.socket) -> None:
        self.reader, self.writer = end.makefile("rb"), end.makefile("wb")

    def send(self, **message: Any) -> None:
        try:
            self.writer.write(json.dumps(message).encode() + b"\n")
            self.writer.flush()
        except OSError:
            raise WrongAnswer("the answer's process ended") from None

    def receive(self) -> dict[str, Any]:
        """The next message. WrongAnswer when there is none: the process ended, or ran out of time."""
        try:
            raw = self.reader.readline(MAX_MESSAGE_BYTES)
        except OSError as error:
            raise WrongAnswer(f"the answer's process cannot be reached: {error}") from None
        if not raw.endswith(b"\n"):
            raise WrongAnswer("the answer's process ended")
        try:
            message = json.loads(raw)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise WrongAnswer("the answer's process broke the protocol")
        return message


# ---------------------------------------------------------------------------------------------------------------------
# The process with the tests.


def check(job: dict[str, Any], line: Line) -> None:
    """WrongAnswer, or whatever the tests raise, unless they all pass."""
    line.send(code=job["prompt"] + job["answer"], name=job["entry_point"])
    if (reply := line.receive()) != {"loaded": True}:
        raise WrongAnswer(str(reply.get("error", "the answer cannot be loaded")))

    def candidate(*args: Any, **kwargs: Any) -> Any:
        line.send(args=literal(args), kwargs=literal(kwargs))
        reply = line.receive()
        if "error" in reply:
            raise WrongAnswer(str(reply["error"]))
        try:
            return ast.literal_eval(reply["value"])
        except (KeyError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError):
            raise WrongAnswer("the answer returned something other than a plain value") from None

    # The prompt is the benchmark's own code, which lacks a body: some tests use helpers that it defines.
    names: dict[str, Any] = {"__name__": "tests"}
    exec(compile(job["prompt"] + "\n    pass\n", "<prompt>", "exec"), names)
    names[job["entry_point"]] = candidate
    exec(compile(job["test"], "<tests>", "exec"), names)
    names["check"](candidate)


def literal(value: Any) -> str:
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise Trouble(f"a test passes something that cannot be sent: {text[:200]}")
    return text


# ---------------------------------------------------------------------------------------------------------------------
# The process with the answer.


def answer(line: Line) -> None:
    """Load the code, then answer calls until the other end is gone."""
    job = line.receive()
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(job["code"], "<answer>", "exec"), names)
        function = names[job["name"]]
    except Exception as error:
        return line.send(error=described(error))
    line.send(loaded=True)
    while True:
        call = line.receive()
        try:
            value = function(*ast.literal_eval(call["args"]), **ast.literal_eval(call["kwargs"]))
            reply = {"value": repr(value)}
        except Exception as error:
            reply = {"error": described(error)}
        line.send(**reply)


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def confine(seconds: float) -> None:
    """Limit what this process can do; what the kernel does not allow us to give up stays."""
    libc = ctypes.CDLL(None)
    with contextlib.suppress(OSError, AttributeError):
        libc.unshare(CLONE_NEWNET)  # no network; needs root
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.geteuid() == 0:
        become_nobody()
    whole = int(seconds) + 1
    for kind, most in (
        (resource.RLIMIT_CPU, whole),
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NPROC, MAX_PROCESSES),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def become_nobody() -> None:
    """Give up root for good, unless nobody could then read Python's own library."""
    with contextlib.suppress(OSError):
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        readable = os.access(ast.__file__, os.R_OK, effective_ids=True)
        os.seteuid(0)
        os.setegid(0)
        if readable:
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)


# ---------------------------------------------------------------------------------------------------------------------


def answer_process(end: socket.socket, seconds: float, folder: str) -> NoReturn:
    """What the forked child does; it never returns to the code of the parent."""
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        os.chdir(folder)
        os.umask(0o077)
        confine(seconds)
        answer(Line(end))
    finally:
        os._exit(0)


def too_late(_number: int, _frame: object) -> NoReturn:
    raise WrongAnswer("the tests did not end in time")


def main() -> int:
    # Read only after the fork: the tests never are in the memory of the answer's process.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    ours, theirs = socket.socketpair()
    folder = tempfile.mkdtemp(prefix="answer-")
    os.chmod(folder, 0o777)  # noqa: PTH101  # its process may be another user
    seconds = float(sys.argv[1])
    child = os.fork()
    if child == 0:
        ours.close()
        answer_process(theirs, seconds, folder)
    theirs.close()
    signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        check(json.load(sys.stdin), Line(ours))
    except Trouble as error:
        print(error, file=sys.stderr)
        return BROKEN
    except Exception as error:
        print(described(error), file=sys.stderr)
        return NOT_PASSED
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shutil.rmtree(folder, ignore_errors=True)
    return PASSED


if __name__ == "__main__":
    sys.exit(main())
