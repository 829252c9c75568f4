"""Lays evaluate.py out as a task does, with one benchmark's description, and runs it as a program."""

import functools
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "templates" / "evaluation" / "environment"
CHAT = ROOT / "templates" / "chat" / "environment" / "templates"
EXAMPLES = Path(__file__).with_name("examples")
FAKE_VLLM = ROOT / "tests" / "fakes" / "model_server.py"

sys.dont_write_bytecode = True
sys.path.insert(0, str(LAYER))


@dataclass
class Evaluator:
    """evaluate.py in a folder, for one interpreter."""

    folder: Path
    benchmark: dict[str, Any]
    python: Path = Path(sys.executable)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shutil.copytree(LAYER, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        if CHAT.is_dir():
            shutil.copytree(CHAT, self.folder / "templates")
        (self.folder / "benchmark.json").write_text(json.dumps(self.benchmark))

    def run(self, *arguments: object, timeout: float = 120, **environment: str) -> "Ran":
        """Run it, as the verifier does, in another folder. Stops the test when it hangs."""
        output = self.folder / "metrics.json"
        output.unlink(missing_ok=True)
        command = [self.python, "-I", self.folder / "evaluate.py", "--json-output-file", output, *arguments]
        elsewhere = self.folder.parent / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        settings = {"HF_HUB_OFFLINE": "1", "HOME": str(elsewhere)}
        done = subprocess.run(
            [str(part) for part in command],
            cwd=elsewhere,
            env=os.environ | settings | self.environment | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr, output)


@functools.cache
def program() -> ModuleType:
    """evaluate.py as a module, by its path: there are others of that name."""
    spec = importlib.util.spec_from_file_location("ptb_evaluate", LAYER / "evaluate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_here(folder: Path, benchmark: dict[str, Any], *arguments: object) -> "Ran":
    """Run evaluate.py in this process: faster than Evaluator, and the same but for the process."""
    evaluate = program()
    folder.mkdir(exist_ok=True)
    (folder / "benchmark.json").write_text(json.dumps(benchmark))
    output, out, err = folder / "metrics.json", io.StringIO(), io.StringIO()
    output.unlink(missing_ok=True)
    before = signal.getsignal(signal.SIGTERM)
    with patch.object(evaluate, "HERE", folder), redirect_stdout(out), redirect_stderr(err):
        try:
            code = evaluate.main(["--json-output-file", str(output), *map(str, arguments)])
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            signal.signal(signal.SIGTERM, before)
    return Ran(code, out.getvalue(), err.getvalue(), output)


@dataclass
class Ran:
    """A finished evaluation."""

    code: int
    out: str
    err: str
    output: Path

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of one that scored."""
        assert self.code == 0, self.out + self.err
        return json.loads(self.output.read_text())

    @property
    def reason(self) -> str:
        """The last line of stderr of one that did not."""
        assert self.code != 0, self.out
        assert not self.output.exists()
        return self.err.strip().splitlines()[-1]


def example(name: str) -> dict[str, Any]:
    """The description of a benchmark among the examples."""
    return json.loads((EXAMPLES / f"{name}.json").read_text())


def write_items(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
