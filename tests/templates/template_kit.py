"""Lays out small fake sandboxes in a test's folder and runs the templates' programs in them, as subprocesses."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
ADDITION, POST_TRAIN = TEMPLATES / "addition", TEMPLATES / "post_train"
ENVIRONMENT = ADDITION / "environment"
BASE_MODEL = ENVIRONMENT / "base_model"
TEST_SUMS = ADDITION / "tests" / "test.txt"
COLLECT = POST_TRAIN / "tools" / "collect.py"

sys.dont_write_bytecode = True  # keeps __pycache__ out of the templates, which are copied as they are
sys.path.insert(0, str(ENVIRONMENT))

import nano  # noqa: E402, F401  # pyright: ignore[reportMissingImports]

IDENTITY = {
    "model_type": "nano",
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "head_dim": 12,
    "rope_theta": None,
}
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def run(*command: object, cwd: Path | None = None, timeout: float = 60, **environment: str):
    """Run a command; a hang fails the test. ``python3`` on its PATH is the interpreter of the tests."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | ONE_THREAD | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@dataclass
class Sandbox:
    """The folders of a trial's two sandboxes, below one root."""

    root: Path
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in (self.workspace, self.handoff, self.artifacts, self.tests):
            folder.mkdir(parents=True)
        for source in (POST_TRAIN / "tests" / "verify.py", ENVIRONMENT / "evaluate.py", ENVIRONMENT / "nano.py"):
            shutil.copy(source, self.tests)
        shutil.copy(TEST_SUMS, self.tests)
        self.settings = {
            "benchmark": "addition",
            "handoff": str(self.handoff),
            "logs": str(self.logs),
            "evaluate": ["python3", "-I", str(self.tests / "evaluate.py")],
            "tries": [[]],
            "try_timeout_sec": 30,
            "metric": "accuracy",
            "limit": 40,
            "identity": IDENTITY,
        } | self.settings

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def handoff(self) -> Path:
        return self.root / "handoff"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def tests(self) -> Path:
        return self.root / "tests"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def model(self) -> Path:
        """The model as the verifier sees it."""
        return self.handoff / "final_model"

    def hand_over(self, model: Path = BASE_MODEL, **report: object) -> Path:
        """Put a model and a good collect.json into the hand-off, without the hook."""
        shutil.copytree(model, self.model)
        self.report(final_model="copied", **report)
        return self.model

    def report(self, **report: object) -> None:
        (self.handoff / "collect.json").write_text(json.dumps({"error": None} | report))

    def collect(self, *options: object, timeout: float = 60):
        """Run the collect hook; its process and the content of collect.json (None when there is none)."""
        folders = ("--workspace", self.workspace, "--handoff", self.handoff, "--artifacts", self.artifacts)
        done = run(sys.executable, "-I", COLLECT, *folders, *options, timeout=timeout)
        return done, read(self.handoff / "collect.json")

    def verify(self, timeout: float = 60, **environment: str) -> dict[str, Any]:
        """Run the verifier; its verdict, once what it left proves consistent with it."""
        (self.tests / "verifier.json").write_text(json.dumps(self.settings))
        done = run(sys.executable, "-I", self.tests / "verify.py", cwd=self.root, timeout=timeout, **environment)
        verdict = read(self.logs / "verdict.json")
        assert verdict is not None, done.stdout + done.stderr
        scored = verdict["outcome"] == "scored"
        assert done.returncode == (0 if scored else 1), done.stdout + done.stderr
        assert (self.logs / "reward.txt").exists() == scored
        assert (self.logs / "metrics.json").exists() == scored
        assert (verdict["reward"] is not None) == scored
        assert scored or verdict["reason"]
        if scored:
            assert float((self.logs / "reward.txt").read_text()) == verdict["reward"]
        return verdict

    def fake_evaluator(self, body: str) -> None:
        """Let the verifier run these lines instead; ``output`` is where the metrics go."""
        script = self.tests / "fake.py"
        head = "import os, sys, time, pathlib, subprocess\narguments = sys.argv[1:]\n"
        script.write_text(head + 'output = pathlib.Path(arguments[arguments.index("--json-output-file") + 1])\n' + body)
        self.settings["evaluate"] = ["python3", str(script)]


def read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def fingerprint(folder: Path) -> dict[str, tuple]:
    """Everything that can be seen of a tree without opening special files: kinds, sizes, times, content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        small = path.is_file() and not path.is_symlink() and info.st_size < 10_000_000
        content = path.read_bytes() if small else os.readlink(path) if path.is_symlink() else None
        found[str(path)] = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ino, content)
    return found
