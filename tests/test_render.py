"""Rendered tasks: Harbor takes them, and prompt, timer and limits say the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from ptb_runner import menu
from ptb_runner.cell import content_hash
from ptb_runner.config import Config, typed
from ptb_runner.explain import UsageError
from ptb_runner.paths import CONF, TEMPLATES
from ptb_runner.render import duration, render
from tests.test_cell import composed

# Those that are rendered; the others are copied from a folder or a registry.
BENCHMARKS = [
    name
    for name in menu.choices("benchmark", [str(CONF)])
    if not re.search(r"^id: (task|dataset)$|^dataset:", (CONF / f"benchmark/{name}.yaml").read_text(), re.MULTILINE)
]


def changed(*overrides: str, **values: Any) -> Config:
    config: DictConfig = composed(*overrides)
    for key, value in values.items():
        OmegaConf.update(config, key.replace("__", "."), value, merge=False)
    return typed(config)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_harbor_takes_every_rendered_task(tmp_path, benchmark):
    from harbor.lint.models import DEFAULT_RULES
    from harbor.lint.task import lint_task
    from harbor.models.task.task import Task

    task = tmp_path / "task"
    render(changed(f"benchmark={benchmark}"), task)
    found = [f"{finding.rule}: {finding.message}" for finding in lint_task(task, selected_rules=DEFAULT_RULES)]
    assert found == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Task(task).instruction.strip()
    assert not list(task.rglob("*.j2"))
    assert not list(task.rglob("__pycache__"))
    assert not re.search(r"\{[{%]|[%}]\}", "".join(path.read_text() for path in task.glob("*.*")))


@pytest.mark.parametrize(("seconds", "said"), [(1800, "30 minutes"), (5400, "1 hour 30 minutes"), (45, "45 seconds")])
def test_the_agents_limit_is_the_same_everywhere(tmp_path, seconds, said):
    hours = seconds / 3600
    for name, config in {
        "own": changed("benchmark=addition", benchmark__agent_hours=hours),
        "other": changed("benchmark=addition", agent__timeout_hours=hours),
    }.items():
        task = tmp_path / name
        render(config, task)
        assert tomllib.loads((task / "task.toml").read_text())["agent"]["timeout_sec"] == seconds
        assert (task / "tools" / "budget_sec").read_text() == f"{seconds}\n"
        assert f"**Time**: {said}." in (task / "instruction.md").read_text()


@pytest.mark.parametrize(
    ("hours", "said"),
    [(10, "10 hours"), (1, "1 hour"), (0.5, "30 minutes"), (1.25, "1 hour 15 minutes"), (1 / 3600, "1 second")],
)
def test_durations_in_words(hours, said):
    assert duration(hours) == said


def test_the_seed_reaches_the_sandbox_and_the_settings_the_verifier(tmp_path):
    import json

    render(changed("benchmark=addition", seed=7, benchmark__evaluation__limit=9), tmp_path / "task")
    assert tomllib.loads((tmp_path / "task/task.toml").read_text())["environment"]["env"]["PTB_SEED"] == "7"
    settings = json.loads((tmp_path / "task/tests/verifier.json").read_text())
    assert (settings["limit"], settings["tries"]) == (9, [[]])
    assert settings["identity"]


def test_text_with_quotes_stays_text(tmp_path):
    title = 'sums "so to say" \\ and\ttabs'
    render(changed("benchmark=addition", benchmark__title=title), tmp_path / "task")
    assert tomllib.loads((tmp_path / "task/task.toml").read_text())["task"]["description"].endswith(title)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_neither_umask_nor_place_changes_the_content(tmp_path, benchmark):
    import shutil

    hashes = set()
    before = os.umask(0o022)
    try:
        for number, mask in enumerate((0o022, 0o077, 0o000)):
            os.umask(mask)
            render(changed(f"benchmark={benchmark}"), tmp_path / str(number) / "task")
            hashes.add(content_hash(tmp_path / str(number) / "task"))
    finally:
        os.umask(before)
    assert len(hashes) == 1
    shutil.copytree(tmp_path / "0", tmp_path / "copy")
    assert content_hash(tmp_path / "copy" / "task") in hashes


def layer(folder: Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def test_a_layer_of_ones_own_lies_over_the_others(tmp_path):
    own = layer(tmp_path / "own", instruction_dot_md_dot_j2="Train {{ model_title }}.", extra__file="x")
    render(changed("benchmark=addition", benchmark__layers=["post_train", "addition", own]), tmp_path / "task")
    assert (tmp_path / "task/instruction.md").read_text() == "Train nano."
    assert (tmp_path / "task/extra/file").read_text() == "x"
    assert (tmp_path / "task/tests/verify.py").read_bytes() == (TEMPLATES / "post_train/tests/verify.py").read_bytes()


@pytest.mark.parametrize(
    ("text", "said"),
    [("{{ agent_hour }}", "'agent_hour' is undefined"), ("{% if %}", "Expected"), ("{{ benchmark.no }}", "no")],
)
def test_a_template_that_asks_for_what_is_not_there_is_told_with_its_path(tmp_path, text, said):
    own = layer(tmp_path / "own", instruction_dot_md_dot_j2=text)
    with pytest.raises(UsageError, match=re.escape(said)) as error:
        render(changed("benchmark=hello", benchmark__layers=["hello", own]), tmp_path / "task")
    assert f"{own}/instruction.md.j2" in str(error.value)


def test_a_missing_shared_file_is_told_with_those_there_are(tmp_path):
    config = changed("benchmark=addition", benchmark__shared=["evaluate.py", "nanno.py"])
    with pytest.raises(UsageError, match=r"no file 'nanno\.py'") as error:
        render(config, tmp_path / "task")
    assert "nano.py" in str(error.value)


def test_a_failed_render_leaves_nothing(ptb, tmp_path):
    own = layer(tmp_path / "own", instruction_dot_md_dot_j2="{{ nothing }}")
    ran = ptb("benchmark=hello", f"benchmark.layers=[hello,{own}]")
    assert ran.code == 2
    assert "'nothing' is undefined" in ran.err
    assert "Traceback" not in ran.err
    assert list(Path.cwd().glob("outputs/*/*")) == []


def test_scripts_of_templates_pass_shellcheck():
    scripts = [path for path in TEMPLATES.rglob("*.sh") if path.is_file()]
    assert scripts
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_copied_task_keeps_what_it_has(tmp_path):
    folder = tmp_path / "mine"
    render(changed("benchmark=hello"), folder)
    (folder / "tests" / "link").symlink_to("test.sh")
    (folder / ".git").mkdir()
    render(changed("benchmark=task", benchmark__path=str(folder)), tmp_path / "task")
    assert (tmp_path / "task/tests/link").readlink() == Path("test.sh")
    assert not (tmp_path / "task/.git").exists()
