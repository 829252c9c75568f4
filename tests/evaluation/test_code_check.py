"""Running a model's code: it passes when the tests pass, and for no other reason; and it gets away with nothing."""

import asyncio
import os
import time
from pathlib import Path

import evaluation_kit  # noqa: F401  # puts the layer on the path
import psutil
import pytest

from evaluation_code.code_check import check_in_subprocess  # isort: skip  # pyright: ignore[reportMissingImports]

PROMPT = (
    'from typing import List\n\n\ndef helper(x):\n    return x * 2\n\n\ndef f(a: List[int]):\n    """Sum of a."""\n'
)
TEST = """
def check(candidate):
    assert candidate([1, 2]) == 3
    assert candidate([]) == 0
    assert helper(candidate([4])) == 8
    try:
        candidate(None)
        assert False
    except Exception as error:
        assert "TypeError" in str(error)
"""
GOOD = "    return sum(a)\n"


def fault(answer: str, *, prompt: str = PROMPT, test: str = TEST, name: str = "f", seconds: float = 10) -> str | None:
    return asyncio.run(check_in_subprocess(prompt=prompt, answer=answer, test=test, entry_point=name, seconds=seconds))


def test_a_right_answer_passes():
    assert fault(GOOD) is None


def test_a_repeated_signature_passes():
    assert fault("    pass\n\ndef f(a):\n    return sum(a)\n") is None


def test_containers_come_back_as_they_are():
    test = "def check(candidate):\n    assert candidate() == [(1, 'é'), {2: None}, {3, 4}, set(), 1.5, b'x', True]\n"
    answer = "    return [(1, 'é'), {2: None}, {3, 4}, set(), 1.5, b'x', True]\n"
    assert fault(answer, prompt="def f():\n", test=test) is None


EQUAL = "    class Same:\n        __eq__ = lambda *_: True\n        __repr__ = lambda *_: 'Same()'\n    return Same()\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("    return sum(a) + 1\n", "AssertionError"),
        ("    return sum(a\n", "SyntaxError"),
        ("    raise ValueError('mine')\n", "ValueError: mine"),
        ("    import sys\n    sys.exit(0)\n", "process ended"),
        ("    import os\n    os._exit(0)\n", "process ended"),
        ("    return sum(a) + 1\nraise SystemExit(0)\n", "process ended"),
        ("    pass\nimport atexit, os\natexit.register(os._exit, 0)\n", "AssertionError"),
        ("    import os, signal\n    os.kill(os.getppid(), signal.SIGKILL)\n", "9"),
        (EQUAL, "plain value"),
        ("    while True:\n        pass\n", "in time"),
        ("    import time\n    time.sleep(60)\n", "in time"),
        ("    return ' ' * 2**33\n", "MemoryError"),
        ("    print('x' * 2**20)\n    return sum(a) + 1\n", "AssertionError"),
        ("    pass\ndel f\n", "KeyError"),
        ("    return check\n", "NameError"),
        ("    import builtins\n    builtins.assert_ = None\n    return 3\n", "AssertionError"),
    ],
)
def test_everything_else_does_not(answer, reason):
    started = time.monotonic()
    found = fault(answer, seconds=1.5)
    assert found is not None
    assert reason in found
    assert time.monotonic() - started < 10


def test_the_tests_are_not_where_the_answer_can_read_them():
    answer = """
    import gc, os, sys
    seen = [open("/proc/self/cmdline").read()]
    frame = sys._getframe()
    while frame:
        seen += [repr(frame.f_globals.get("names")), repr(frame.f_locals)]
        frame = frame.f_back
    seen += [repr(one) for one in gc.get_objects() if isinstance(one, dict) and "test" in one][:50]
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_blocking(int(name), False)
            seen.append(str(os.read(int(name), 10000)))
        except OSError:
            pass
    return "SEC" + "RET" in "".join(seen)
"""
    test = "def check(candidate):\n    'SECRET'\n    assert candidate([1]) is False\n"
    assert fault(answer, test=test) is None


def test_nothing_it_starts_or_writes_stays(tmp_path):
    pids = tmp_path / "pids"
    tmp_path.chmod(0o777)
    pids.touch()
    pids.chmod(0o666)
    answer = f"""
    import os, subprocess
    child = subprocess.Popen(["sleep", "600"])
    open("here", "w").write("x")
    open({str(pids)!r}, "w").write(f"{{child.pid}} {{os.getcwd()}}")
    return sum(a)
"""
    fault(answer)
    pid, folder = pids.read_text().split()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != "zombie" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == "zombie"
    assert not Path(folder).exists()


def test_keys_are_not_in_its_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    answer = "    import os\n    return str(dict(os.environ))\n"
    assert fault(answer, test="def check(candidate):\n    assert 'canary' not in candidate([1])\n") is None


def test_a_test_that_cannot_be_sent_is_not_the_answers_fault():
    with pytest.raises(RuntimeError, match="cannot be sent"):
        fault(GOOD, test="def check(candidate):\n    candidate(object())\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")
def test_it_is_not_root_where_nobody_can_read_pythons_library():
    from evaluation_code import code_check  # pyright: ignore[reportMissingImports]

    readable = all(os.stat(path).st_mode & 0o005 == 0o005 for path in Path(code_check.ast.__file__).parents)  # noqa: PTH116
    answer = "    import os\n    return os.getuid()\n"
    expected = code_check.NOBODY if readable else 0
    assert fault(answer, test=f"def check(candidate):\n    assert candidate([1]) == {expected}\n") is None
