"""Prompt and evaluation taken from a PostTrainBench checkout, laid over a task of ours (content=upstream).

What is taken, and where it goes in the task:

    src/eval/general/get_prompt.py           run; what it prints is instruction.md
    src/eval/tasks/<id>/evaluate.py          environment/, and tests/ (there evaluate_final_eval.py, if they have one)
    src/eval/tasks/<id>/evaluation_code/     environment/, tests/
    src/eval/tasks/<id>/task_context/*       environment/, tests/
    src/eval/templates/                      environment/, tests/
    the judges' folder, trace parser, info   judge/, at the paths that they have in the checkout

The judges' folder was src/disallowed_usage_judge and is src/judges; get_prompt.py took the benchmark's title and takes
its id. Both forms work.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ptb_runner.budget import agent_hours
from ptb_runner.config import Config, ContentConfig
from ptb_runner.explain import UsageError
from ptb_runner.paths import cache

# Not `-I`: their evaluate.py imports what lies beside it.
EVALUATE = ["python3", "-s", "/tests/evaluate.py", "--templates-dir", "/tests/templates"]

GET_PROMPT = "src/eval/general/get_prompt.py"
TASKS = "src/eval/tasks"
CHAT_TEMPLATES = "src/eval/templates"
JUDGES = ("src/judges", "src/disallowed_usage_judge")
TRACES = "src/trace_parsing"
TOOLS = "judge_tools"
AGENTS = {"claude-code": "claude", "gemini-cli": "gemini"}  # their names, where they differ from Harbor's
PROMPT_SEC = 60
FETCH_SEC = 600


@dataclass(frozen=True)
class Checkout:
    """The parts of a checkout that a benchmark needs; `tree` is its root, `judges` relative to it."""

    tree: Path
    task: Path
    judges: str


def lay(config: Config, task: Path) -> None:
    """Replace prompt and evaluation of a rendered task by those of the checkout.

    Raises UsageError when there is no checkout, or something is missing in it.
    """
    found = look(checkout(config.content), config.benchmark.id)
    (task / "instruction.md").write_text(_prompt(config, found))
    for side in ("environment", "tests"):
        _evaluation(found, task / side)
    final = found.task / "evaluate_final_eval.py"
    if final.is_file():  # the scorer that agents do not see
        shutil.copyfile(final, task / "tests" / "evaluate.py")
    _judges(found, task / "judge")


def look(tree: Path, benchmark: str) -> Checkout:
    """Find a benchmark's parts in a checkout; raises UsageError that lists what is missing."""
    judges = next((name for name in JUDGES if (tree / name).is_dir()), None)
    task = f"{TASKS}/{benchmark}"
    needed = [GET_PROMPT, f"{task}/evaluate.py", CHAT_TEMPLATES]
    missing = [name for name in needed if not (tree / name).exists()]
    if judges is None:
        missing.append(" or ".join(JUDGES))
    elif not (tree / judges / "get_judge_prompt.py").is_file():
        missing.append(f"{judges}/get_judge_prompt.py")
    if missing or judges is None:
        lacks = ", ".join(missing)
        raise UsageError(f"{tree}: no PostTrainBench checkout that fits benchmark {benchmark}\n  missing: {lacks}")
    return Checkout(tree, tree / task, judges)


# --- The checkout -------------------------------------------------------------------------------------


def checkout(content: ContentConfig) -> Path:
    """The checkout's folder: the given one, or one that is fetched into the cache."""
    if content.path:
        return Path(content.path).resolve()
    return _fetched(content.url or "", content.commit or "")


@functools.cache
def _fetched(url: str, commit: str) -> Path:
    """A commit of a repository, without its history. One that is there is taken as it is: a commit never changes."""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UsageError(f"content.commit={commit}: not a whole commit\n  give all its 40 digits")
    tree = cache() / "upstream" / hashlib.sha256(url.encode()).hexdigest()[:12] / commit
    if tree.is_dir():
        return tree
    partial = tree.with_name(f".{commit}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _git(partial, "init", "--quiet")
        _git(partial, "fetch", "--quiet", "--depth=1", "--end-of-options", url, commit)
        _git(partial, "checkout", "--quiet", "FETCH_HEAD")
        partial.rename(tree)
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UsageError(
            f"content.url={url}: cannot fetch {commit[:12]}: {said[-1] if said else error}\n"
            "  clone it yourself and type content.path=DIR"
        ) from None
    except OSError as error:
        if not tree.is_dir():  # another process may have been faster
            raise UsageError(f"content.url={url}: cannot be kept in {tree.parent}: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return tree


def _git(folder: Path, *arguments: str) -> None:
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_SEC, env=environment)


# --- Its parts ----------------------------------------------------------------------------------------


def _prompt(config: Config, found: Checkout) -> str:
    """What their get_prompt.py says to this agent about this model, benchmark and time."""
    program = found.tree / GET_PROMPT
    hours = agent_hours(config) or 0.0
    agent = config.agent.name or config.agent.id
    arguments = ["--agent", AGENTS.get(agent, agent), "--model-to-train", config.model.hub_id or config.model.id]
    arguments += ["--num-hours", f"{hours:g}"]
    text = program.read_text()
    arguments += ["--benchmark-id", config.benchmark.id] if "--benchmark-id" in text else ["--benchmark", _title(found)]
    arguments += ["--num-gpus", str(config.benchmark.gpus)] if "--num-gpus" in text else []
    try:
        return _printed(found.tree, (sys.executable, str(program), *arguments))
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UsageError(f"{program}: gives no prompt: {said[-1] if said else error}") from None


def _printed(tree: Path, command: tuple[str, ...]) -> str:
    """What a program of the checkout prints; it gets none of the user's keys."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environment |= {"POST_TRAIN_BENCH_PROMPT": "prompt", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=tree, env=environment, check=True, capture_output=True, text=True, timeout=PROMPT_SEC
    )
    if not done.stdout.strip():
        raise subprocess.SubprocessError("it printed nothing")
    return done.stdout


def judge_prompt(config: Config, task: Path, judge: str) -> str | None:
    """What their get_judge_prompt.py asks a judge, from the copy in a task; None when they have no such judge.

    A folder a judge, each with a judge.conf that names its output, is their newer form; the older one has one judge.
    """
    tree = task / "judge"
    judges = next((tree / name for name in JUDGES if (tree / name / "get_judge_prompt.py").is_file()), None)
    if judges is None:
        return None
    model = config.model.hub_id or config.model.id
    arguments = ["--model", model]
    output = re.compile(rf'^JUDGE_OUTPUT_ID="?{re.escape(judge)}"?\s*$', re.MULTILINE)
    own = next((path.parent.name for path in judges.glob("*/judge.conf") if output.search(path.read_text())), None)
    if own:
        agent = config.agent.name or config.agent.id
        arguments += ["--judge", own, "--benchmark-id", config.benchmark.id, "--agent", AGENTS.get(agent, agent)]
        arguments += ["--agent-config", config.agent.model.rpartition("/")[2]] if config.agent.model else []
    elif judge == "gpt5_4" and not list(judges.glob("*/judge.conf")):
        title = tree / TASKS / config.benchmark.id / "benchmark.txt"
        arguments += ["--benchmark", title.read_text().strip() if title.is_file() else config.benchmark.id]
    else:
        return None
    program = judges / "get_judge_prompt.py"
    try:
        return _printed(tree, (sys.executable, str(program.resolve()), *arguments))
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UsageError(f"{program}: gives no prompt for judge {judge}: {said[-1] if said else error}") from None


def _title(found: Checkout) -> str:
    path = found.task / "benchmark.txt"
    return path.read_text().strip() if path.is_file() else found.task.name


def _evaluation(found: Checkout, side: Path) -> None:
    """Their evaluation in one of the sandboxes, instead of ours."""
    for name in ("evaluation_code", "templates", "benchmark.json"):
        _remove(side / name)
    shutil.copyfile(found.task / "evaluate.py", side / "evaluate.py")
    _tree(found.tree / CHAT_TEMPLATES, side / "templates")
    if (found.task / "evaluation_code").is_dir():
        _tree(found.task / "evaluation_code", side / "evaluation_code")
    if (found.task / "task_context").is_dir():
        _tree(found.task / "task_context", side)


def _judges(found: Checkout, target: Path) -> None:
    """Their judges' prompts and tools, where they look for one another."""
    _tree(found.tree / found.judges, target / found.judges)
    if (found.tree / TRACES).is_dir():
        _tree(found.tree / TRACES, target / TRACES)
    for name in ("info.json", "benchmark.txt"):
        if (found.task / name).is_file():
            copy = target / TASKS / found.task.name / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found.task / name, copy)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _tree(source: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".git", "*.pyc")
    shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
