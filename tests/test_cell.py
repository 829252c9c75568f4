"""A cell on disk: identity, content hash, cell.yaml, status and lock."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from ptb_runner import cell as cells
from ptb_runner.config import Option, TryConfig, options, register, typed, without_secrets
from ptb_runner.explain import UsageError
from ptb_runner.paths import CONF


def composed(*overrides: str) -> DictConfig:
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", list(overrides))
    with open_dict(config):
        config.pop("hydra", None)
    return config


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text("x = 1\n")
    (folder / "tests" / "test.sh").write_text("true\n")
    return folder


def identity(config: DictConfig, task: Path) -> dict[str, Any]:
    return cells.identity_of(without_secrets(config), task)


# --- Identity -----------------------------------------------------------------------------------------


def another_value(item: Option, now: Any) -> Any:
    """A valid value of an option that is not the one it has."""
    kinds = [kind for kind in (*get_args(item.type), item.type) if kind is not type(None)]
    kind = item.type if get_origin(item.type) in (list, dict) else kinds[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(one for one in kind if one != now)
    if get_args(kind) == (TryConfig,):
        return [TryConfig(count=2)]
    if get_origin(kind) is list:
        return [["--another"]] if get_origin(get_args(kind)[0]) is list else ["another"]
    if get_origin(kind) is dict:
        return {"nano": 0.5} if get_args(kind)[1] is float else {"another": "1"}
    if kind is bool:
        return not now
    return f"{now}2" if kind is str else kind((now or 0) + 1)


BASE = ("benchmark=hello", "agent=custom", "agent.import_path=a:B")
# Another kind of backend or launcher has other options, and is chosen by name; a judge has many of its own.
CHOSEN = ("benchmark.path", "backend.kind", "launcher.kind", "serve.kind", "judge.panel")
CLASSIFIED = [item for item in options(composed(*BASE)) if item.key not in CHOSEN]


def test_other_judges_make_no_other_cell(task):
    assert identity(composed(*BASE, "judge=v1_1"), task) == identity(composed(*BASE), task)


def test_another_backend_is_another_cell_and_another_launcher_is_not(task):
    first = identity(composed(*BASE), task)
    assert identity(composed(*BASE, "backend=podman"), task) != first
    assert identity(composed(*BASE, "launcher=slurm"), task) == first


@pytest.mark.parametrize("item", CLASSIFIED, ids=lambda item: item.key)
def test_exactly_what_can_change_a_score_changes_the_identity(item, task):
    config = composed(*BASE)
    before = identity(config, task)
    value = another_value(item, OmegaConf.select(config, item.key))
    OmegaConf.update(config, item.key, value, merge=False)
    assert OmegaConf.select(config, item.key) == value
    after = identity(config, task)
    assert (cells.cell_id(after) != cells.cell_id(before)) == item.result
    told = cells.differences(before, after)
    assert len(told) == item.result
    assert all(line.startswith(f"{item.key}: ") and " -> " in line for line in told)


# What cannot change a score. A new option belongs here or into the identity: decide.
NOT_RESULT = {
    "benchmark.snapshot.max_file_mb",
    "benchmark.snapshot.max_total_mb",
    "benchmark.pass_reward",
    # Facts about a benchmark: for tables, judges and downloads.
    "benchmark.few_shot",
    "benchmark.instruct",
    "benchmark.weight",
    "benchmark.allowed_data",
    "benchmark.disallowed_data",
    # Where a dataset comes from; its tasks' content is hashed.
    "benchmark.registry_path",
    "benchmark.registry_url",
    "benchmark.test_data.source",
    "benchmark.test_data.name",
    "benchmark.test_data.split",
    "benchmark.test_data.files",
    "benchmark.test_data.question",
    "benchmark.test_data.answer",
    # How an agent's LLM is reached and paid for; which one it is, is in agent.model.
    "agent.auth",
    "agent.base_url",
    # When an agent whose LLM never answered is given up: there is no score either way.
    "agent.first_answer_min",
    "backend.keep_model",
    "backend.scratch_dir",
    "launcher.kind",
    "concurrency",
    "dry_run",
    "retry.infra_errors",
    "retry.wait_sec",
    "progress.interval_sec",
}


def test_every_option_outside_the_identity_is_there_on_purpose():
    found = {item.key for item in options(composed(*BASE)) if not item.result}
    assert found >= NOT_RESULT
    # Others may add sweeps, launchers and limits of the running itself, never what an agent or a verifier sees.
    assert not [key for key in found - NOT_RESULT if key.partition(".")[0] in ("benchmark", "model", "agent")]


def test_equal_cells_have_equal_ids_in_every_process(task):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tests.test_cell import *; from pathlib import Path;"
        "print(cells.cell_id(identity(composed(*BASE, '+agent.options={b: 1, a: 2}'), Path(sys.argv[2]))))"
    )
    import subprocess
    import sys

    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code, root, task], capture_output=True, text=True, env=environment)
    here = cells.cell_id(identity(composed(*BASE, "+agent.options={a: 2, b: 1}"), task))
    assert other.stdout.strip() == here, other.stderr
    assert len(here) == 12


def test_where_a_task_folder_lay_is_not_in_the_identity(task):
    some, other = (composed("benchmark=task", f"benchmark.path={place}/mine") for place in ("/a", "/b/c"))
    assert identity(some, task) == identity(other, task)


def test_a_task_of_other_content_is_another_cell(task):
    config = composed(*BASE)
    before = identity(config, task)
    (task / "tests" / "test.sh").write_text("false\n")
    assert [line.partition(":")[0] for line in cells.differences(before, identity(config, task))] == ["task_sha256"]


def test_differences_name_what_was_added_and_removed():
    assert cells.differences({"a": 1, "b": 2}, {"a": 1, "c": [3]}) == ["b: 2 -> None", "c: None -> [3]"]


# --- Content hash -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda task: (task / "task.toml").write_text("x = 2\n"),
        lambda task: (task / "task.toml").rename(task / "other.toml"),
        lambda task: (task / "tests" / "test.sh").chmod(0o755),
        lambda task: (task / "new").touch(),
        lambda task: (task / "link").symlink_to("task.toml"),
        lambda task: (task / "tests" / "test.sh").rename(task / "test.sh"),
        lambda task: (task / "task.toml").unlink(),
    ],
)
def test_the_content_hash_sees(task, change):
    before = cells.content_hash(task)
    change(task)
    assert cells.content_hash(task) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda task: (task / "task.toml").chmod(0o600),
        lambda task: (task / "task.toml").chmod(0o666),
        lambda task: os.utime(task / "task.toml", (1, 1)),
        lambda task: task.rename(task.with_name("moved")),
    ],
)
def test_the_content_hash_does_not_see(task, change):
    before = cells.content_hash(task)
    change(task)
    assert cells.content_hash(task if task.exists() else task.with_name("moved")) == before


def test_files_cannot_be_put_together_differently_to_the_same_hash(tmp_path):
    for name, files in (("one", {"a": "b", "c": ""}), ("two", {"a": "", "c": "b"}), ("three", {"ab": "", "c": ""})):
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    assert len({cells.content_hash(tmp_path / name) for name in ("one", "two", "three")}) == 3


# --- cell.yaml ----------------------------------------------------------------------------------------


def written(tmp_path: Path, task: Path, *overrides: str) -> tuple[cells.Cell, str]:
    config = composed(*BASE, *overrides)
    plain = without_secrets(config)
    cell = cells.write_cell(tmp_path, typed(config), plain, cells.identity_of(plain, task), list(overrides))
    return cell, (tmp_path / "cell.yaml").read_text()


def test_a_cell_is_read_as_it_was_written(tmp_path, task):
    cell, text = written(tmp_path, task, "attempts=3", "+agent.options={a: 1}")
    assert cells.read_cell(tmp_path) == cell
    assert (cell.config.attempts, cell.config.agent.options) == (3, {"a": 1})
    assert "&id" not in text  # YAML's anchors are not for people
    assert yaml.safe_load(text)["cell_id"] == cell.id == cells.cell_id(cell.identity)
    assert cell.overrides == ["attempts=3", "+agent.options={a: 1}"]


@pytest.mark.parametrize(
    "override",
    [
        "+agent.env.KEY=${oc.env:CANARY}",
        "+agent.env.KEY='Bearer ${oc.env:CANARY}'",
        "+agent.options.api_key=${oc.env:CANARY}",
        "+agent.options={deep: [{api_key: '${oc.env:CANARY}'}]}",
        "+agent.env={KEY: '${oc.env:CANARY}', SAME: '${agent.env.KEY}'}",
        "+agent.env={KEY: '${oc.env:CANARY}', SAME: '${.KEY}'}",
        "+agent.env.KEY='${ oc.env:CANARY}'",
    ],
)
def test_no_secret_is_written_and_every_one_is_read(tmp_path, task, monkeypatch, override):
    monkeypatch.setenv("CANARY", "canary_value_1")
    cell, text = written(tmp_path, task, override)
    assert "canary_value_1" not in text
    assert "CANARY" in text
    assert "canary_value_1" in json.dumps([cell.config.agent.env, cell.config.agent.options])


def test_a_secret_that_is_not_set_is_named(tmp_path, task, monkeypatch):
    monkeypatch.setenv("CANARY", "canary_value_1")
    written(tmp_path, task, "+agent.env.KEY=${oc.env:CANARY}")
    monkeypatch.delenv("CANARY")
    with pytest.raises(UsageError, match="CANARY"):
        cells.read_cell(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "x", "a: [", "cell_id: 1\n", "\x00", "config: {}\ncell_id: a\n"])
def test_a_cell_yaml_that_is_none_is_a_usage_error(tmp_path, text):
    (tmp_path / "cell.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"cell\.yaml"):
        cells.read_cell(tmp_path)


def test_a_cell_yaml_with_an_unknown_option_is_a_usage_error(tmp_path, task):
    _, text = written(tmp_path, task)
    (tmp_path / "cell.yaml").write_text(text.replace("  attempts: 1\n", "  attempts: 1\n  atempts: 2\n"))
    with pytest.raises(UsageError, match="atempts"):
        cells.read_cell(tmp_path)


def test_a_cell_yaml_of_another_version_is_told_with_that_version(tmp_path, task):
    _, text = written(tmp_path, task)
    here = yaml.safe_load(text)["ptb_runner"]
    other = text.replace(f"ptb_runner: {here}", "ptb_runner: 9.9.9").replace("  attempts: 1\n", "  atempts: 1\n", 1)
    (tmp_path / "cell.yaml").write_text(other)
    with pytest.raises(UsageError) as raised:
        cells.read_cell(tmp_path)
    first = f"{tmp_path}/cell.yaml (made by ptb_runner 9.9.9, this is {here}): there is no option 'atempts'"
    assert str(raised.value).splitlines() == [first, "  did you mean attempts?"]
    (tmp_path / "cell.yaml").write_text(text.replace("schema_version: 1", "schema_version: 2"))
    with pytest.raises(UsageError, match=r"cell\.yaml: has format 2, this program reads 1"):
        cells.read_cell(tmp_path)


@pytest.mark.parametrize("text", ["", "x", "[]"])
def test_a_cell_yaml_that_is_no_table_is_told_in_plain_words(tmp_path, text):
    (tmp_path / "cell.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"cell\.yaml: is empty, or no table"):
        cells.read_cell(tmp_path)


# --- status.json and the lock -------------------------------------------------------------------------


def test_a_reader_never_sees_half_a_file(tmp_path):
    path, over, seen = tmp_path / "status.json", threading.Event(), set()

    def read() -> None:
        while not over.is_set():
            if path.exists():
                seen.add(len(json.loads(path.read_text())["x"]))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(400):
        cells.write_json(path, {"x": "y" * (100_000 if number % 2 else 10)})
    over.set()
    reader.join()
    assert seen == {10, 100_000}
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_nothing_that_json_lacks_is_written(tmp_path):
    cells.write_json(tmp_path / "x.json", 1)
    with pytest.raises(ValueError, match="JSON"):
        cells.write_json(tmp_path / "x.json", float("nan"))
    assert cells.read_json(tmp_path / "x.json") == 1


def test_the_status_holds_what_the_contract_says(tmp_path, task):
    cell, _ = written(tmp_path, task)
    cells.write_status(cell, "running", None, {"expected": 1})
    status = json.loads((tmp_path / "status.json").read_text())
    assert set(status) >= {"schema_version", "cell_id", "state", "outcome", "attempts", "launcher", "updated_at"}
    assert status["launcher"]["pid"] == os.getpid()
    assert status["updated_at"].endswith("+00:00")


def _holds(folder: str, held: Any, over: Any) -> None:
    with cells.locked(Path(folder)):
        held.set()
        over.wait(20)


def test_one_runner_at_a_time_and_the_lock_goes_with_its_process(tmp_path, task):
    written(tmp_path, task)
    context = multiprocessing.get_context("fork")
    held, over = context.Event(), context.Event()
    other = context.Process(target=_holds, args=(str(tmp_path), held, over))
    other.start()
    assert held.wait(10)
    assert cells.is_held(tmp_path)
    with pytest.raises(UsageError, match="another runner"), cells.locked(tmp_path):
        pass
    other.kill()
    other.join()
    assert not cells.is_held(tmp_path)
    with cells.locked(tmp_path):
        pass
