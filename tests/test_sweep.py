"""Sweeps in one process: what is expanded, checked, run, resumed, stopped and shown."""

from __future__ import annotations

import io
import json
import pdb
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict, read_write
from rich.console import Console

from ptb_runner import config as configs
from ptb_runner import menu, sweep, watch
from ptb_runner.config import GROUPS, Config
from ptb_runner.expand import expand
from ptb_runner.explain import UsageError
from ptb_runner.paths import CONF
from tests.run_kit import agent, is_alive


def expanded(*arguments: str, zip: list[list[str]] | None = None, file: Path | None = None) -> list[list[str]]:
    return expand(list(arguments), OmegaConf.create({"zip": zip or [], "file": str(file) if file else None}))


def folder_of(ran_out: str) -> Path:
    line = next(line for line in ran_out.splitlines() if line.startswith("results: "))
    return Path(line.removeprefix("results: ")).parent


def states(folder: Path) -> dict[int, tuple[str, str | None]]:
    return {state.number: (state.state, state.outcome) for state in watch.read(folder.resolve())}


def trial_times(folder: Path) -> dict[str, int]:
    """When each trial's result was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.glob("*/job/*/result.json")}


# --- Expanding ----------------------------------------------------------------------------------------


def test_every_combination():
    cells = expanded("benchmark=addition,hello", "agent=oracle,nop", "seed=1,2", "attempts=3")
    assert len(cells) == 8
    assert cells[0] == ["benchmark=addition", "agent=oracle", "seed=1", "attempts=3"]
    assert len({tuple(cell) for cell in cells}) == 8


def test_pairs_instead_of_combinations():
    cells = expanded("benchmark=a,b", "model=x,y", "seed=1,2", zip=[["benchmark", "model"]])
    assert [cell[:2] for cell in cells] == [["benchmark=a", "model=x"]] * 2 + [["benchmark=b", "model=y"]] * 2
    assert [cell[2] for cell in cells] == ["seed=1", "seed=2", "seed=1", "seed=2"]


def test_two_groups_of_pairs():
    keys = [["benchmark", "model"], ["agent", "agent.model"]]
    cells = expanded("benchmark=a,b", "model=x,y", "agent=c,d", "agent.model=m/1,m/2", zip=keys)
    assert len(cells) == 4
    assert ["benchmark=a", "model=x", "agent=d", "agent.model=m/2"] in cells


def test_a_file_of_cells(tmp_path):
    path = tmp_path / "cells.txt"
    path.write_text(
        "# what we want\nbenchmark=hello agent=nop\n\nbenchmark=addition 'agent.env.NOTE=\"a b\"' seed=7 # last\n"
    )
    assert expanded("seed=1", "attempts=2", file=path) == [
        ["seed=1", "attempts=2", "benchmark=hello", "agent=nop"],
        ["seed=7", "attempts=2", "benchmark=addition", '++agent.env.NOTE="a b"'],
    ]


@pytest.mark.parametrize(
    ("arguments", "zip", "said"),
    [
        (["benchmark=a,b", "model=x"], [["benchmark", "model"]], "benchmark has 2, model has 1"),
        (["benchmark=a,b"], [["benchmark", "modle"]], "'modle' is not swept"),
        (["seed=interval(0,1)"], [], "an interval cannot be swept"),
        (["seed=range(3000)", "agent.timeout_hours=range(1,9)"], [], "more than 20000"),
    ],
)
def test_what_does_not_expand_is_told(arguments, zip, said):
    with pytest.raises(UsageError, match=said):
        expanded(*arguments, zip=zip)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "has no cell"), ("benchmark=a,b", "cannot sweep"), ("a=b 'c", "line 1"), ("ok=1\na=b;c", "line 2")],
)
def test_a_bad_file_is_told(tmp_path, text, said):
    path = tmp_path / "cells.txt"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        expanded(file=path)


def test_our_composition_is_hydras_own():
    """Sharing loaded files between cells must not change any cell, over every choice of conf/."""
    from hydra import initialize_config_dir

    configs.register()
    jobs = [[f"{group}={choice}", "seed=3"] for group in GROUPS for choice in menu.choices(group, [str(CONF)])]
    jobs += [["experiment=hello_8", "attempts=2"], ["++agent.env.A=1", "agent.timeout_hours=2"], ["benchmark=task"]]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        master = loader.load_configuration("config", [], RunMode.MULTIRUN)
        with read_write(master), open_dict(master):
            master.hydra.job.config_name = "config"
        for job, ours in zip(jobs, sweep.compose(loader, master, jobs), strict=True):
            theirs = loader.load_sweep_config(master, job)
            with read_write(theirs), open_dict(theirs):
                theirs.pop("hydra")
            assert not isinstance(ours, Exception), (job, ours)
            assert OmegaConf.get_type(ours) is Config
            assert OmegaConf.to_container(ours, resolve=False) == OmegaConf.to_container(theirs, resolve=False), job


# --- Checking -----------------------------------------------------------------------------------------


def test_all_bad_cells_are_told_and_nothing_is_made(ptb):
    ran = ptb("-m", "benchmark=hello,addition", "agent=orcale,nop,oracle", "attempts=1,0")
    assert ran.code == 2
    assert "cells 0, 1, 6, 7: agent=orcale" in ran.err
    assert "cells 3, 5, 9, 11: attempts=0" in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert list(Path.cwd().iterdir()) == []


def test_a_missing_key_stops_the_sweep(ptb, monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    ran = ptb("-m", "benchmark=hello", "agent=oracle,nop", "agent.env_vars=[SOME_KEY]")
    assert ran.code == 2
    assert ran.err.count("SOME_KEY: this variable is needed") == 1
    assert list(Path.cwd().iterdir()) == []


def test_a_task_that_is_not_valid_takes_the_sweep_back(ptb, tmp_path):
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "task.toml.j2").write_text("[agent]\ntimeout_sec = {{ no_such_name }}\n")
    ran = ptb("-m", "benchmark=hello", "agent=oracle", f"benchmark.layers=[hello],[hello,{layer}]")
    assert ran.code == 2
    assert "cell 1" in ran.err
    assert "no_such_name" in ran.err
    assert list(Path.cwd().glob("multirun/*/*")) == []


def test_a_plan_launches_nothing(ptb):
    ran = ptb("-m", "benchmark=hello", "agent=oracle,nop", "seed=1,2", "dry_run=true")
    assert ran.code == 0, ran.err
    assert "4 trials" in ran.out
    (folder,) = Path.cwd().glob("multirun/*/*")
    assert set(states(folder)) == {0, 1, 2, 3}
    assert set(states(folder).values()) == {("planned", None)}
    resumed = ptb("resume", folder)
    assert resumed.code == 0, resumed.out + resumed.err
    assert set(states(folder).values()) == {("finished", "scored")}


# --- Running ------------------------------------------------------------------------------------------


def test_one_folder_one_table_no_surprise(ptb):
    ran = ptb("-m", "benchmark=hello", "agent=oracle,nop", "seed=1,2", "attempts=2")
    assert ran.code == 0, ran.out + ran.err
    folder = folder_of(ran.out)
    content = yaml.safe_load((folder / "sweep.yaml").read_text())
    assert [cell["number"] for cell in content["cells"]] == [0, 1, 2, 3]
    assert content["cells"][3]["overrides"] == ["benchmark=hello", "agent=nop", "seed=2", "attempts=2"]
    assert len({cell["id"] for cell in content["cells"]}) == 4
    assert len((folder / "results.jsonl").read_text().splitlines()) == 8
    assert "8/8 planned trials scored" in ran.out
    assert (folder / "leaderboard.md").exists()
    for number in range(4):
        assert (folder / str(number) / "cell.yaml").exists()
        assert f"│ {number} " in ran.out


def test_the_sweep_is_written_down_before_the_first_cell_starts(ptb, tmp_path):
    seen = tmp_path / "seen"
    ran = ptb("-m", "benchmark=hello", *agent("FailsFirst", counter=str(seen), times=0), "seed=1,2")
    assert ran.code == 0, ran.out + ran.err
    folder = folder_of(ran.out)
    planned = (folder / "sweep.yaml").stat().st_mtime_ns
    assert all(path.stat().st_mtime_ns > planned for path in folder.glob("*/job/config.json"))


def test_cells_overlap_and_the_caps_on_cells_and_trials_hold(ptb):
    slow = agent("Scripted", command="sleep 0.6; printf ok > answer.txt")
    begin = time.monotonic()
    ran = ptb("-m", "benchmark=hello", *slow, "seed=range(6)", "launcher.max_cells=6", "launcher.max_trials=2")
    assert ran.code == 0, ran.out + ran.err
    assert time.monotonic() - begin >= 1.8  # six trials, two at once
    periods = []
    for path in folder_of(ran.out).glob("*/result.json"):
        (trial,) = json.loads(path.read_text())["trials"]
        periods.append((trial["started_at"], trial["finished_at"]))
    at_once = [sum(begin <= moment < end for begin, end in periods) for moment, _ in periods]
    assert max(at_once) == 2


def test_a_failing_cell_hurts_no_other_and_is_told(ptb):
    failing = ["agent=custom", "agent.id=test", "agent.import_path=tests.agents:Scripted"]
    ran = ptb("-m", "benchmark=hello", *failing, "agent.options.command='exit 1','printf ok > answer.txt'", "seed=1,2")
    assert ran.code == 1, ran.out + ran.err
    folder = folder_of(ran.out)
    assert [outcome for _, outcome in states(folder).values()].count("scored") == 2
    assert "the test's own script failed" in ran.out
    assert "next: ptb resume" in ran.out


def test_a_full_disk_in_one_cells_folder_is_that_cells_own(ptb, tmp_path):
    """A file where the job folder has to be: nothing can be written there, as on a full disk."""
    folder = tmp_path / "sweep"
    planned = ptb("-m", "benchmark=hello", "agent=oracle", "seed=1,2", "dry_run=true", f"hydra.sweep.dir={folder}")
    assert planned.code == 0, planned.err
    (folder / "0" / "job").write_text("in the way")
    ran = ptb("resume", folder)
    assert ran.code == 1
    assert states(folder)[0][0] == "failed"
    assert states(folder)[1] == ("finished", "scored")
    assert "cell 0 (hello x none x oracle): failed" in ran.out
    assert "Traceback" not in ran.out + ran.err
    assert "Traceback" in (folder / "0" / "runner.log").read_text()


def test_fail_fast_starts_no_further_cell(ptb):
    bad = agent("Scripted", command="exit 1")
    ran = ptb("-m", "benchmark=hello", *bad, "seed=range(4)", "launcher.max_cells=1", "fail_fast=true")
    assert ran.code == 1
    found = states(folder_of(ran.out))
    assert found[0] == ("finished", "infra_error")
    assert [state for state, _ in found.values()].count("skipped") == 3
    assert "fail_fast: cell 0" in ran.out


def test_a_cap_on_gpu_hours_stops_new_cells(ptb, monkeypatch):
    from ptb_runner import limits

    monkeypatch.setattr(limits, "spent", lambda states, config: (sum(one.finished for one in states) * 1.5, 0.0))
    ran = ptb(
        "-m", "benchmark=hello", "agent=oracle", "seed=range(4)", "launcher.max_cells=1", "limits.max_gpu_hours=2"
    )
    assert ran.code == 1
    found = states(folder_of(ran.out))
    assert [state for state, _ in found.values()] == ["finished", "finished", "skipped", "skipped"]
    assert "limits.max_gpu_hours=2 reached: 3 spent" in ran.out


def test_a_cap_counts_what_is_running():
    from ptb_runner import limits

    config = Config()
    config.benchmark = configs.BenchmarkConfig(id="x", gpus=2)
    config.backend = configs.BackendConfig(usd_per_gpu_hour=3.0)
    half_an_hour_ago = time.time() - 1800
    running = watch.CellState(0, "a", "running", since={"t": half_an_hour_ago}, gpu_hours=1.0, usd=5.0)
    gpu_hours, usd = limits.spent([running], config)
    assert gpu_hours == pytest.approx(2.0, abs=0.01)
    assert usd == pytest.approx(8.0, abs=0.05)


# --- Resuming and widening ----------------------------------------------------------------------------


def test_running_the_same_sweep_again_repeats_nothing(ptb, tmp_path):
    command = ("-m", "benchmark=hello", "agent=oracle,nop", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert ptb(*command).code == 0
    before = trial_times(tmp_path / "sweep")
    assert len(before) == 2
    assert ptb(*command).code == 0
    assert trial_times(tmp_path / "sweep") == before


def test_widening_adds_only_what_is_new(ptb, tmp_path):
    folder = tmp_path / "sweep"
    command = ("-m", "benchmark=hello", f"hydra.sweep.dir={folder}")
    assert ptb(*command, "agent=oracle").code == 0
    before = trial_times(folder)
    assert ptb(*command, "agent=oracle,nop", "attempts=2").code == 0
    after = trial_times(folder)
    assert before.items() <= after.items()
    assert len(after) == 4
    assert [cell["number"] for cell in yaml.safe_load((folder / "sweep.yaml").read_text())["cells"]] == [0, 1]


def test_what_does_not_change_a_result_may_change(ptb, tmp_path):
    folder = tmp_path / "sweep"
    assert ptb("-m", "benchmark=hello", "agent=oracle", "concurrency=1", f"hydra.sweep.dir={folder}").code == 0
    before = trial_times(folder)
    ran = ptb(
        "-m", "benchmark=hello", "agent=oracle", "concurrency=3", "launcher.max_cells=2", f"hydra.sweep.dir={folder}"
    )
    assert ran.code == 0, ran.err
    assert trial_times(folder) == before


def test_a_cell_that_became_another_is_refused_with_the_difference(ptb, tmp_path):
    folder = tmp_path / "sweep"
    mine = tmp_path / "mine" / "benchmark"
    mine.mkdir(parents=True)
    (mine / "h.yaml").write_text("id: h\nkind: harbor\nlayers: [hello]\nagent_hours: 0.1\nverifier_hours: 0.1\n")
    command = (
        "--config-dir",
        mine.parent,
        "-m",
        "benchmark=h",
        "model=none",
        "agent=oracle,nop",
        f"hydra.sweep.dir={folder}",
    )
    assert ptb(*command).code == 0
    before = trial_times(folder)
    (mine / "h.yaml").write_text("id: h\nkind: harbor\nlayers: [hello]\nagent_hours: 0.2\nverifier_hours: 0.1\n")
    ran = ptb(*command)
    assert ran.code == 2
    assert "benchmark.agent_hours: 0.1 -> 0.2" in ran.err
    assert trial_times(folder) == before


def test_retry_does_again_only_the_outcomes_that_are_named(ptb, tmp_path):
    counter = tmp_path / "counter"
    flaky = agent("FailsFirst", counter=str(counter), times=1)
    ran = ptb("-m", "benchmark=hello", *flaky, "seed=1,2", "retry.infra_errors=0", "launcher.max_cells=1")
    assert ran.code == 1, ran.out
    folder = folder_of(ran.out)
    assert {outcome for _, outcome in states(folder).values()} == {"infra_error", "scored"}
    before = trial_times(folder)
    assert ptb("resume", folder).code == 1
    assert trial_times(folder) == before
    ran = ptb("resume", folder, "--retry", "infra_error")
    assert ran.code == 0, ran.out + ran.err
    assert len(set(trial_times(folder).items()) & set(before.items())) == 1
    assert len(list(folder.glob("*/superseded/*"))) == 1


# --- Interrupting -------------------------------------------------------------------------------------


def started(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """A sweep in a process of its own, in tmp_path/sweep, with its sandboxes below tmp_path/scratch."""
    (tmp_path / "scratch").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "ptb_runner", "-m", *arguments, f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    command.append(f"backend.scratch_dir={tmp_path / 'scratch'}")
    return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


QUICK_THEN_SLOW = (
    "agent=custom",
    "agent.id=test",
    "agent.import_path=tests.agents:Scripted",
    "agent.options.command='printf ok > answer.txt','sleep 600'",
)


def first_is_scored_and_second_runs(folder: Path) -> bool:
    if not (folder / "sweep.yaml").exists():
        return False
    found = watch.read(folder)
    return len(found) == 2 and found[0].outcome == "scored" and "agent" in found[1].running.values()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_sweep_ends_cleanly_and_carries_on(tmp_path, ptb, number):
    process = started(tmp_path, "benchmark=hello", *QUICK_THEN_SLOW)
    folder = tmp_path / "sweep"
    wait_until(lambda: first_is_scored_and_second_runs(folder))
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert list((tmp_path / "scratch").glob("ptb-sandboxes-*/*")) == []
    assert states(folder) == {0: ("finished", "scored"), 1: ("cancelled", "cancelled")}
    assert "ptb resume" in out
    assert (folder / "results.csv").exists()


def test_stop_works_from_another_process(tmp_path, ptb):
    process = started(tmp_path, "benchmark=hello", *QUICK_THEN_SLOW)
    folder = tmp_path / "sweep"
    wait_until(lambda: first_is_scored_and_second_runs(folder))
    ran = ptb("stop", folder)
    assert ran.code == 0, ran.out + ran.err
    assert "ptb resume" in ran.out
    assert process.wait(timeout=60) == 130
    assert states(folder)[1] == ("cancelled", "cancelled")
    assert list((tmp_path / "scratch").glob("ptb-sandboxes-*/*")) == []


def test_a_second_runner_on_the_same_sweep_leaves_the_first_alone(tmp_path, ptb):
    process = started(tmp_path, "benchmark=hello", *QUICK_THEN_SLOW)
    folder = tmp_path / "sweep"
    wait_until(lambda: first_is_scored_and_second_runs(folder))
    ptb("resume", folder)
    assert states(folder)[1][0] == "running"
    assert process.poll() is None
    process.terminate()
    process.wait(timeout=60)


# --- Looking ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A sweep of two cells, run once for the tests that only look at it."""
    folder = tmp_path_factory.mktemp("done") / "sweep"
    command = ["-m", "benchmark=hello", "agent=oracle,nop", f"hydra.sweep.dir={folder}"]
    subprocess.run([sys.executable, "-m", "ptb_runner", *command], check=True, capture_output=True, cwd=folder.parent)
    return folder


def test_status_of_a_sweep(ptb, done):
    ran = ptb("status", done)
    assert ran.code == 0
    assert "cells 2/2 finished (2 scored), trials 2/2" in ran.out
    assert ptb("status", done, "--watch").code == 0
    listed = json.loads(ptb("status", done, "--json").out)
    assert [cell["state"] for cell in listed] == ["finished", "finished"]
    assert ptb("status", done / "0").code == 0


def test_logs_of_a_cell_and_of_a_trial(ptb, done):
    assert "hello__001" in ptb("logs", done, "0").out
    assert "trial.log" in ptb("logs", done, "0/hello__001").out
    assert ptb("logs", done).code == 2
    assert "has no cell" in ptb("logs", done, "7").err
    assert "hello__001" in ptb("logs", done, "0/nothing").err


def test_logs_follow_until_the_cell_is_over(tmp_path):
    process = started(tmp_path, "benchmark=hello", *agent("Scripted", command="sleep 1; printf ok > answer.txt"))
    folder = tmp_path / "sweep"
    wait_until(
        lambda: (folder / "0" / "status.json").exists() and "running" in (folder / "0" / "status.json").read_text()
    )
    done = subprocess.run(
        [sys.executable, "-m", "ptb_runner", "logs", folder, "0", "-f"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert process.wait(timeout=20) == 0


def test_a_damaged_cell_is_listed_not_skipped(ptb, done, tmp_path):
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", done, copy], check=True)
    (copy / "1" / "status.json").write_text("{ half")
    (copy / "1" / "result.json").write_text("{ half")
    ran = ptb("status", copy)
    assert ran.code == 0
    assert "unreadable" in ran.out
    collected = ptb("collect", copy)
    assert collected.code == 1
    assert "not collected: cell 1" in collected.out


def test_collecting_twice_gives_the_same_bytes(ptb, done):
    names = ("results.jsonl", "results.csv", "leaderboard.md", "metrics.json")
    assert ptb("collect", done).code == 0
    before = {name: (done / name).read_bytes() for name in names}
    assert ptb("collect", done).code == 0
    assert {name: (done / name).read_bytes() for name in names} == before


def test_the_live_table_stays_usable_with_500_cells():
    def state(number: int) -> watch.CellState:
        running = {f"hello__{number:03d}": "agent"} if number % 2 else {}
        since = dict.fromkeys(running, time.time() - 100)
        return watch.CellState(
            number,
            "hello x none x oracle",
            "running" if running else "planned",
            expected=1,
            running=running,
            since=since,
        )

    out = Console(width=120, record=True, file=io.StringIO())
    out.print(watch.table([state(number) for number in range(500)]))
    lines = out.export_text().splitlines()
    assert len(lines) <= 24
    assert "and 235 more trials" in "\n".join(lines)
    assert "250 running" in lines[-1]


def test_progress_lines_say_what_is_left(capsys):
    states = [
        watch.CellState(0, "a", "finished", "scored", 2, 2, trial_sec=20.0),
        watch.CellState(1, "a", "running", None, 2, 0, running={"t": "agent"}, since={"t": time.time()}),
        watch.CellState(2, "a", "failed", error="broken", expected=2),
    ]
    assert watch.summary(states) == "cells 1/3 finished (1 scored), 1 running, 1 failed, trials 2/6, about 20.0s left"


def test_a_debugger_opens_where_the_runner_fails(ptb, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(pdb, "post_mortem", lambda trace: opened.append(trace))
    folder = tmp_path / "sweep"
    planned = ptb(
        "-m", "benchmark=hello", "agent=oracle", "launcher=debug", "dry_run=true", f"hydra.sweep.dir={folder}"
    )
    assert planned.code == 0, planned.err
    (folder / "0" / "job").write_text("in the way")
    ran = ptb("resume", folder)
    assert ran.code == 1
    assert opened
    assert "Traceback" in ran.err


def test_kill_minus_nine_loses_nothing_and_repeats_nothing(tmp_path, ptb):
    process = started(tmp_path, "benchmark=hello", *QUICK_THEN_SLOW)
    folder = tmp_path / "sweep"
    wait_until(lambda: first_is_scored_and_second_runs(folder))
    before = trial_times(folder)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    wait_until(lambda: not any(is_alive(one) for one in family), 5)
    config = yaml.safe_load((folder / "1" / "cell.yaml").read_text())
    assert config["config"]["agent"]["options"]["command"] == "sleep 600"
    collected = ptb("collect", folder)
    assert collected.code == 1
    assert trial_times(folder) == before
