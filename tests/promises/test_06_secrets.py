"""Promise 6: no secret in any file of a run, nor on the terminal."""

import json
import os
import sqlite3
import stat
import tempfile
from pathlib import Path

import pytest

from ptb_runner.redact import Redactor
from tests.run_kit import REWARD_IF_OK, TASK_TOML, agent, in_phase, make_task, only_cell, start

CANARIES = {
    "AGENT_KEY": "canary-agent-7c1f",
    "GRADER_KEY": 'canary-grader-"quoted\\"-91aa',
    "BASE_LOGIN": "canary-login-55d0",
    "OPTION_KEY": "canary-option-e3e3",
}


def files_with(folder: Path, value: str) -> list[Path]:
    """Every file that holds the value: as it is, or as JSON writes it."""
    forms = {value.encode(), json.dumps(value)[1:-1].encode()}
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert found
    return [path for path in found if any(form in path.read_bytes() for form in forms)]


def test_canaries_through_a_whole_run(ptb_process, tmp_path):
    """The agent prints, logs and raises all it was given; the verifier prints its key and fails."""
    test = f'echo "grading with $GRADER_KEY"; echo "$GRADER_KEY" > /logs/verifier/notes.txt; {REWARD_IF_OK}; exit 1'
    make_task(tmp_path / "mine", test)
    overrides = [
        *("benchmark=task", "benchmark.path=mine", "benchmark.verifier_env_vars=[GRADER_KEY]", "hydra.run.dir=run"),
        *agent("Leaks", names=["AGENT_KEY", "LOGIN"], option="unset"),
        *("agent.env_vars=[AGENT_KEY]", "agent.env.LOGIN='Basic ${oc.env:BASE_LOGIN}'"),
        "agent.options.option=${oc.env:OPTION_KEY}",
        "retry.infra_errors=0",
    ]
    ran = ptb_process(*overrides, env=CANARIES)
    assert ran.code == 1, ran.err
    again = ptb_process("resume", "run", "--retry", "infra_error", env=CANARIES)
    assert again.code == 1, again.err

    run = tmp_path / "run"
    # All were really there: what an agent prints of them is replaced, by Harbor where a name says `key`, else by us.
    trial = run / "job" / "mine__001"
    assert (trial / "agent" / "trace.txt").read_text() == "[REDACTED] Basic ${BASE_LOGIN} ${OPTION_KEY}\n"
    assert "grading with [REDACTED]" in (trial / "verifier" / "test-stdout.txt").read_text()
    error = json.loads((run / "result.json").read_text())["trials"][0]["error"]["message"]
    assert error.startswith("401 for [REDACTED] Basic ${BASE_LOGIN} ${OPTION_KEY}")
    assert "${OPTION_KEY}" in (run / "runner.log").read_text()
    assert (run / "superseded" / "mine__001.1").is_dir()

    for name, value in CANARIES.items():
        assert files_with(run, value) == [], name
        assert value not in ran.out + ran.err + again.out + again.err


def test_canaries_in_the_middle_of_a_run_and_after_kill_9(tmp_path, ptb, monkeypatch):
    """Harbor writes an agent's arguments to disk when a trial starts: they do not wait there for its end."""
    running = start(
        tmp_path,
        "benchmark=hello",
        *agent("Sleeper", first='echo "$AGENT_KEY" > /logs/agent/trace.txt'),
        "agent.options.command=${oc.env:OPTION_KEY}",
        "agent.env_vars=[AGENT_KEY]",
        **CANARIES,
    )
    running.wait_for(in_phase("agent"))
    try:
        assert files_with(running.cell.folder, CANARIES["OPTION_KEY"]) == []
    finally:
        running.process.kill()
        running.process.communicate()
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPTION_KEY", "canary-another-1234")  # keys are renewed: the cell is still the same
    (tmp_path / "run" / "cell.yaml").write_text(
        (tmp_path / "run" / "cell.yaml").read_text().replace("timeout_hours: null", "timeout_hours: 0.0001")
    )
    assert ptb("resume", running.cell.folder).code == 0
    for value in (*CANARIES.values(), "canary-another-1234"):
        assert files_with(running.cell.folder, value) == []


def test_a_canary_in_what_the_agent_hands_over(ptb, monkeypatch):
    monkeypatch.setenv("AGENT_KEY", CANARIES["AGENT_KEY"])
    leak = 'echo "$AGENT_KEY" | tee notes.txt final_model/notes.txt /handoff/notes.txt /handoff/final_model/notes.txt'
    command = f"cp -r base_model final_model; mkdir -p /handoff/final_model; {leak}"
    few = "benchmark.evaluation.limit=5"
    ran = ptb("benchmark=addition", *agent("Scripted", command=command), "agent.env_vars=[AGENT_KEY]", few)
    assert ran.code == 0, ran.out
    kept = only_cell().folder / "handoff" / "addition__001" / "final_model"
    assert (kept / "notes.txt").read_text() == "${AGENT_KEY}\n"
    weights = Path("templates/addition/environment/base_model/model.safetensors")
    assert (kept / weights.name).read_bytes() == (Path(__file__).parents[2] / weights).read_bytes()
    assert files_with(Path.cwd(), CANARIES["AGENT_KEY"]) == []


def test_short_values_are_no_secrets(ptb, monkeypatch):
    """A flag that came by a variable: to replace every 1 would spoil all files."""
    monkeypatch.setenv("FLAG", "1")
    make_task(Path("mine"), REWARD_IF_OK, TASK_TOML)
    ran = ptb("benchmark=task", "benchmark.path=mine", *agent("Honest"), "agent.env_vars=[FLAG]", "hydra.run.dir=run")
    assert ran.code == 0, ran.out
    assert json.loads(Path("run/result.json").read_text())["score"]["raw"] == 1


# --- Odd places ---------------------------------------------------------------------------------------

KEY = CANARIES["AGENT_KEY"]


@pytest.fixture
def secrets() -> Redactor:
    return Redactor({"AGENT_KEY": KEY})


def test_a_database_loses_its_secrets_and_stays_a_database(tmp_path, secrets):
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("create table t (name text, value text)")
        connection.executemany("insert into t values (?, ?)", [("a", f"Bearer {KEY}!"), ("b", "plain")])
    connection.close()
    size = (tmp_path / "x.db").stat().st_size
    secrets.folder(tmp_path)
    assert files_with(tmp_path, KEY) == []
    assert (tmp_path / "x.db").stat().st_size == size
    found = sqlite3.connect(tmp_path / "x.db").execute("select * from t").fetchall()
    assert found == [("a", f"Bearer {'*' * len(KEY)}!"), ("b", "plain")]


def test_a_binary_file_keeps_its_length_and_all_other_bytes(tmp_path, secrets):
    path = tmp_path / "x.bin"
    path.write_bytes(KEY.encode() + b"\xff" * 9000 + b"\0" + KEY.encode() * 2 + b"end")
    secrets.folder(tmp_path)
    filler = b"*" * len(KEY)
    assert path.read_bytes() == filler + b"\xff" * 9000 + b"\0" + filler * 2 + b"end"


def test_secrets_in_names_of_files_and_folders(tmp_path, secrets):
    inner = tmp_path / f"a-{KEY}" / f"{KEY}.d"
    inner.mkdir(parents=True)
    (inner / f"x{KEY}.txt").write_text(KEY)
    (inner / "x${AGENT_KEY}.txt").write_text("was there before")
    (inner / ("y" * 200 + KEY * 3)).write_text("long")
    (tmp_path / f"link-{KEY}").symlink_to("nowhere")
    secrets.folder(tmp_path)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert KEY not in " ".join(found)
    inner = tmp_path / "a-${AGENT_KEY}" / "${AGENT_KEY}.d"
    texts = sorted(path.read_text() for path in inner.iterdir())
    assert texts == ["${AGENT_KEY}", "long", "was there before"]
    assert (tmp_path / "link-${AGENT_KEY}").is_symlink()


def test_secrets_in_where_links_point_and_links_are_not_followed(tmp_path, secrets):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text(KEY)
    trial = tmp_path / "trial"
    trial.mkdir()
    (trial / "one").symlink_to(f"/tmp/{KEY}/x")
    (trial / "folder").symlink_to(outside)
    (trial / "file").symlink_to(outside / "mine.txt")
    secrets.folder(trial)
    assert os.readlink(trial / "one") == "/tmp/${AGENT_KEY}/x"
    assert os.readlink(trial / "folder") == str(outside)
    assert (outside / "mine.txt").read_text() == KEY


def test_files_and_folders_that_nobody_may_read(secrets):
    with tempfile.TemporaryDirectory() as name:  # where another user can go, unlike pytest's own folders
        closed = Path(name) / "closed"
        closed.mkdir()
        for path in (closed / "x.txt", Path(name) / "y.txt"):
            path.write_text(KEY)
            path.chmod(0)
        closed.chmod(0)
        _as_somebody(Path(name), lambda: secrets.folder(Path(name)))
        assert files_with(Path(name), KEY) == []


def _as_somebody(folder: Path, do) -> None:
    """Do it as a user whom modes concern: root reads everything."""
    if os.getuid() != 0:
        do()
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534)
    if not (child := os.fork()):
        os.setuid(65534)
        do()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_the_mode_of_a_file_without_secrets_stays(tmp_path, secrets):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "model.safetensors").chmod(0o444)
    secrets.folder(tmp_path)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o444


def test_odd_places_in_a_whole_run(ptb, monkeypatch):
    monkeypatch.setenv("AGENT_KEY", KEY)
    leak = (
        "cd /logs/agent; printf 'x\\0%s' $AGENT_KEY > x.bin; mkdir $AGENT_KEY; echo $AGENT_KEY > $AGENT_KEY/$AGENT_KEY;"
        "ln -s /$AGENT_KEY link; echo $AGENT_KEY > closed; chmod 000 closed"
    )
    ran = ptb("benchmark=hello", *agent("Scripted", command=leak), "agent.env_vars=[AGENT_KEY]")
    assert ran.code == 0, ran.out
    assert files_with(Path.cwd(), KEY) == []
    paths = list(only_cell().folder.rglob("*"))
    assert [path for path in paths if path.name == "x.bin"]
    assert not [path for path in paths if KEY in str(path) or (path.is_symlink() and KEY in os.readlink(path))]


def test_what_an_agent_prints_in_a_job(ptb, monkeypatch, tmp_path):
    monkeypatch.setenv("AGENT_KEY", CANARIES["AGENT_KEY"])
    folder = tmp_path / "sweep"
    printing = [*agent("Prints", variable="AGENT_KEY"), "agent.env_vars=[AGENT_KEY]", "launcher=submitit_local"]
    ran = ptb("-m", "benchmark=hello", *printing, f"hydra.sweep.dir={folder}")
    assert ran.code == 0, ran.out + ran.err
    logs = "".join(path.read_text() for path in folder.rglob("*_log.*"))
    assert "using ***" in logs
    assert "again ***" in logs
    found = files_with(folder, CANARIES["AGENT_KEY"])
    assert [path for path in found if ".code" not in path.parts] == []  # the copied code holds this very test
