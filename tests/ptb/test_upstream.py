"""content=upstream, against made-up checkouts of both shapes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ptb_runner.doctor import compose
from ptb_runner.explain import UsageError
from ptb_runner.judge import prompts
from ptb_runner.render import render

# The older program asks for the title, the newer one for the id and the number of GPUs.
OLD = """
import argparse, os
p = argparse.ArgumentParser()
for name in ("--agent", "--model-to-train", "--benchmark", "--num-hours"):
    p.add_argument(name, required=True)
a = p.parse_args()
text = open(f"src/eval/general/{os.environ['POST_TRAIN_BENCH_PROMPT']}.txt").read()
print(text.format(a.model_to_train, a.benchmark, a.num_hours, a.agent, sorted(k for k in os.environ if "KEY" in k)))
"""
NEW = OLD.replace('"--benchmark", ', '"--benchmark-id", "--num-gpus", ').replace("a.benchmark", "a.benchmark_id")
PROMPT = "Train {0} for {1} in {2} h as {3} with {4}.\n"


def tree(folder: Path, shape: str) -> Path:
    judges = "src/judges" if shape == "new" else "src/disallowed_usage_judge"
    files = {
        "src/eval/general/get_prompt.py": NEW if shape == "new" else OLD,
        "src/eval/general/prompt.txt": PROMPT,
        "src/eval/templates/qwen3.jinja": "their template",
        "src/eval/tasks/gsm8k/evaluate.py": "their evaluation",
        "src/eval/tasks/gsm8k/benchmark.txt": "Their Title\n",
        "src/eval/tasks/gsm8k/evaluation_code/score.py": "their code",
        "src/eval/tasks/gsm8k/task_context/hints.md": "their hints",
        "src/eval/tasks/gsm8k/info.json": "{}",
        f"{judges}/get_judge_prompt.py": "import os, sys; print('judge it', sys.argv[1:], 'K' in os.environ)",
        f"{judges}/judge_tools/contamination_check.py": "pass",
    }
    if shape == "new":
        confs = {"data_contamination_judge": "gpt5_4", "api_usage_judge": "api"}
        files |= {f"{judges}/{name}/judge.conf": f'JUDGE_OUTPUT_ID="{own}"\n' for name, own in confs.items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def rendered(task: Path, checkout: Path, *overrides: str) -> Path:
    render(compose(["benchmark=gsm8k", "content=upstream", f"content.path={checkout}", *overrides]), task)
    return task


@pytest.mark.parametrize(("shape", "name"), [("new", "gsm8k"), ("old", "Their Title")])
def test_prompt_and_evaluation_are_theirs(tmp_path, monkeypatch, shape, name):
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    task = rendered(tmp_path / "task", tree(tmp_path / "ptb", shape), "agent=claude-code")
    text = (task / "instruction.md").read_text().strip()
    assert text == f"Train Qwen/Qwen3-1.7B-Base for {name} in 10 h as claude with []."
    for side in ("environment", "tests"):
        assert (task / side / "evaluate.py").read_text() == "their evaluation"
        assert [path.name for path in (task / side / "templates").iterdir()] == ["qwen3.jinja"]
        assert [path.name for path in (task / side / "evaluation_code").iterdir()] == ["score.py"]
        assert (task / side / "hints.md").read_text() == "their hints"
    judges = "src/judges" if shape == "new" else "src/disallowed_usage_judge"
    assert (task / "judge" / judges / "judge_tools/contamination_check.py").is_file()
    assert (task / "judge/src/eval/tasks/gsm8k/info.json").is_file()
    settings = json.loads((task / "tests/verifier.json").read_text())
    assert settings["evaluate"] == ["python3", "-s", "/tests/evaluate.py", "--templates-dir", "/tests/templates"]
    assert (task / "tests/verify.py").is_file()
    assert (task / "environment/Dockerfile").is_file()


def test_harbor_takes_the_task(tmp_path):
    from harbor.lint.models import DEFAULT_RULES
    from harbor.lint.task import lint_task

    task = rendered(tmp_path / "task", tree(tmp_path / "ptb", "new"))
    assert lint_task(task, selected_rules=DEFAULT_RULES) == []


def test_the_scorer_that_agents_do_not_see_is_the_verifiers(tmp_path):
    checkout = tree(tmp_path / "ptb", "new")
    (checkout / "src/eval/tasks/gsm8k/evaluate_final_eval.py").write_text("hardened")
    task = rendered(tmp_path / "task", checkout)
    assert (task / "tests/evaluate.py").read_text() == "hardened"
    assert (task / "environment/evaluate.py").read_text() == "their evaluation"
    assert not list(task.rglob("evaluate_final_eval.py"))


def test_the_prompt_follows_the_budget(tmp_path):
    task = rendered(tmp_path / "task", tree(tmp_path / "ptb", "new"), "budget.hours=3", "agent=codex")
    assert "in 3 h as codex" in (task / "instruction.md").read_text()


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("src/eval/templates", "src/eval/templates"),
        ("src/eval/general/get_prompt.py", "src/eval/general/get_prompt.py"),
        ("src/eval/tasks/gsm8k/evaluate.py", "src/eval/tasks/gsm8k/evaluate.py"),
        ("src/judges", "src/judges or src/disallowed_usage_judge"),
    ],
)
def test_what_is_missing_is_said(tmp_path, ptb, gone, said):
    checkout = tree(tmp_path / "ptb", "new")
    (checkout / gone).rename(tmp_path / "elsewhere")
    ran = ptb("benchmark=gsm8k", "content=upstream", f"content.path={checkout}", "dry_run=true")
    assert ran.code == 2
    assert f"missing: {said}" in ran.err
    assert len(ran.err.splitlines()) == 2


def test_mistakes_are_told(tmp_path, ptb):
    checkout = tree(tmp_path / "ptb", "new")
    for overrides, said in (
        (["benchmark=gsm8k", "content=upstream", "content.path=/nowhere"], "/nowhere: no such folder"),
        (["benchmark=gsm8k", "content=upstream", "content.url=null"], "content.path: needs a value"),
        (["benchmark=hello", "content=upstream", f"content.path={checkout}"], "none of PostTrainBench's"),
    ):
        ran = ptb(*overrides, "dry_run=true")
        assert ran.code == 2
        assert said in ran.err
    (checkout / "src/eval/general/get_prompt.py").write_text("raise SystemExit('no such benchmark')")
    with pytest.raises(UsageError, match="no such benchmark"):
        rendered(tmp_path / "task", checkout)


@pytest.fixture
def repository(tmp_path) -> tuple[str, str]:
    """A git repository of that shape: its address and commit."""
    folder = tree(tmp_path / "repository", "new")
    roles, fields = ("AUTHOR", "COMMITTER"), {"NAME": "a", "EMAIL": "a@b"}
    identity = {f"GIT_{role}_{field}": value for role in roles for field, value in fields.items()}
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run(["git", "-C", folder, *command], check=True, env=os.environ | identity)
    done = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return f"file://{folder}", done.stdout.strip()


def test_a_commit_is_fetched_once_into_the_cache(tmp_path, monkeypatch, repository):
    from ptb_runner import upstream

    monkeypatch.setenv("PTB_CACHE", str(tmp_path / "cache"))
    upstream._fetched.cache_clear()
    url, commit = repository
    chosen = ["benchmark=gsm8k", "content=upstream", f"content.url={url}", f"content.commit={commit}"]
    render(compose(chosen), tmp_path / "task")
    assert (tmp_path / "task/tests/evaluate.py").read_text() == "their evaluation"
    (tmp_path / "repository").rename(tmp_path / "gone")
    upstream._fetched.cache_clear()
    render(compose(chosen), tmp_path / "again")
    assert (tmp_path / "again/instruction.md").read_bytes() == (tmp_path / "task/instruction.md").read_bytes()
    assert [path.name for path in (tmp_path / "cache/upstream").glob("*/*")] == [commit]


@pytest.mark.parametrize(("commit", "said"), [("abc", "not a whole commit"), ("0" * 40, "cannot fetch 000000000000")])
def test_what_cannot_be_fetched_is_told(tmp_path, monkeypatch, repository, commit, said):
    monkeypatch.setenv("PTB_CACHE", str(tmp_path / "cache"))
    url, _ = repository
    config = compose(["benchmark=gsm8k", "content=upstream", f"content.url={url}", f"content.commit={commit}"])
    with pytest.raises(UsageError, match=said):
        render(config, tmp_path / "task")
    assert list((tmp_path / "cache").glob("upstream/*/*")) == []


@pytest.mark.parametrize("shape", ["new", "old"])
def test_judges_are_asked_what_the_checkout_asks_them(tmp_path, monkeypatch, shape):
    monkeypatch.setenv("K", "a key")
    checkout = tree(tmp_path / "ptb", shape)
    task = rendered(tmp_path / "task", checkout)
    overrides = ["benchmark=gsm8k", "content=upstream", f"content.path={checkout}", "agent=codex", "judge=v1_1"]
    prompts.write(compose(overrides), tmp_path, task)
    texts = {path.stem: path.read_text() for path in (tmp_path / "judges").iterdir()}
    assert texts.keys() == {"gpt5_4", "api", "ptb_lookup", "general"}
    assert texts["gpt5_4"].startswith("judge it")
    assert "'--model', 'Qwen/Qwen3-1.7B-Base'" in texts["gpt5_4"]
    assert texts["gpt5_4"].strip().endswith("False")  # their program is given no keys
    assert texts["api"].startswith("judge it") == (shape == "new")
    if shape == "new":
        assert "'--agent', 'codex', '--agent-config', 'gpt-5.5'" in texts["api"]
    assert "PostTrainBench itself" in texts["ptb_lookup"]  # ours, where they have none
