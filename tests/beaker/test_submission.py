"""What is made at Beaker for a sweep: once, by name, with all that jobs need and no secret's value."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ptb_runner.explain import UsageError
from ptb_runner.launch import beaker
from tests.beaker_cells_kit import CELL, HERE
from tests.beaker_kit import config_for

pytestmark = pytest.mark.beaker


def test_an_experiment_a_cell_and_a_group_a_sweep(beaker_cells, beaker_client):
    ran = beaker_cells.submit("seed=1,2")
    assert ran.code == 0, ran.out + ran.err
    names = sorted(one["name"] for one in beaker_cells.experiments())
    token = beaker_cells.record()["token"]
    assert names == [f"ptb-hello-none-oracle-{token}-{number}-1" for number in range(2)]
    group = beaker_client.group.get(beaker_cells.record()["group"])
    assert group.name.endswith(f"-sweep-{token}")
    (members,) = [one["experiments"] for one in beaker_cells.server.state()["groups"] if one["name"] == group.name]
    assert sorted(members) == sorted(one["id"] for one in beaker_cells.experiments())
    assert beaker_cells.state() == beaker_cells.state(1) == "planned"
    assert beaker_cells.record(0)["link"] in ran.out
    done = beaker_cells.ptb("resume", beaker_cells.sweep)
    assert "2/2 planned trials scored" in beaker_cells.ptb("collect", beaker_cells.sweep).out, done.out + done.err


def test_a_single_cell_needs_no_sweep(beaker_cells):
    ran = beaker_cells.ptb(*CELL, *HERE, f"hydra.run.dir={beaker_cells.sweep}")
    assert ran.code == 0, ran.out + ran.err
    assert "coverage" in ran.out or "1/1 planned trials scored" in ran.out
    assert len(beaker_cells.experiments()) == 1
    assert "cell over" in beaker_cells.ptb("logs", beaker_cells.sweep).out


def test_jobs_get_the_program_as_a_wheel_and_the_cell_as_it_is(beaker_cells):
    assert beaker_cells.submit().code == 0
    spec = json.dumps(beaker_cells.experiments()[0]["spec"])
    folders = {name: folder for name, folder in beaker_cells.server.datasets().items() if folder.name in spec}
    code = next(folder for name, folder in folders.items() if name.startswith("ptb-code-"))
    assert {path.name for path in code.iterdir()} == {
        "entry.sh",
        "requirements.txt",
        "ptb_runner-0.1.0-py3-none-any.whl",
    }
    with zipfile.ZipFile(code / "ptb_runner-0.1.0-py3-none-any.whl") as wheel:
        assert "ptb_runner/launch/beaker_spec.py" in wheel.namelist()
    cell = next(folder for name, folder in folders.items() if name.startswith("ptb-cell-"))
    with tarfile.open(cell / "cell.tar") as packed:
        assert {"cell.yaml", "sweep.yaml", "task/task.toml"} <= set(packed.getnames())


def test_what_is_there_is_not_uploaded_again(beaker_cells):
    assert beaker_cells.submit("seed=5").code == 0
    uploads = beaker_cells.server.calls("CreateDataset")
    again = type(beaker_cells)(
        beaker_cells.server, beaker_cells.sweep.with_name("again"), beaker_cells.done, beaker_cells.ptb
    )
    assert again.submit("seed=5").code == 0
    assert beaker_cells.server.calls("CreateDataset") == uploads + 1  # the cell's: its folder has another creation time


def test_an_upload_that_was_broken_off_is_completed(beaker_cells):
    beaker_cells.server.fail("PutFile", status="503", times=-1)
    ran = beaker_cells.submit("launcher.answer_sec=4")
    assert (ran.code, "does not answer within" in ran.err or "failed" in ran.err) == (2, True), ran.out + ran.err
    assert beaker_cells.experiments() == []
    beaker_cells.server.mend()
    assert beaker_cells.ptb("resume", beaker_cells.sweep).code == 0
    assert len(beaker_cells.experiments()) == 1


@pytest.mark.parametrize("fault", [{"status": "LOST", "when": "after"}, {"status": "LOST"}, {"status": "503"}])
def test_a_submission_whose_answer_was_lost_is_not_made_twice(beaker_cells, fault):
    beaker_cells.server.fail("CreateExperiment", **fault)
    ran = beaker_cells.submit()
    assert ran.code == 0, ran.err
    assert len(beaker_cells.experiments()) == 1
    assert beaker_cells.record(0)["job_id"] == beaker_cells.experiments()[0]["id"]


def test_a_runner_killed_while_it_submitted_finds_its_experiment_again(beaker_cells):
    assert beaker_cells.submit().code == 0
    path = beaker_cells.sweep / "0" / "launcher.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"job_id": None, "link": None}))
    beaker_cells.ptb("status", beaker_cells.sweep)
    assert beaker_cells.record(0)["job_id"] == beaker_cells.experiments()[0]["id"]
    beaker_cells.ptb("resume", beaker_cells.sweep)
    assert len(beaker_cells.experiments()) == 1


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (UsageError("no answer"), 2)])
def test_a_submission_that_breaks_off_says_that_jobs_go_on(beaker_cells, monkeypatch, error, code):
    create = beaker._create

    def only_the_first(account, name, spec):
        if name.endswith("-1-1"):
            raise error
        return create(account, name, spec)

    monkeypatch.setattr(beaker, "_create", only_the_first)
    ran = beaker_cells.submit("seed=1,2")
    assert ran.code == code
    assert "jobs that were submitted go on, and others may be missing" in ran.out
    assert f"next: ptb status {beaker_cells.sweep}, ptb stop or ptb resume" in ran.out
    assert len(beaker_cells.experiments()) == 1
    notes = beaker_cells.ptb("status", beaker_cells.sweep).out
    assert "cell 1: not submitted" in notes
    assert notes.count("not mounted here") == 1


def test_a_sweep_that_is_being_submitted_is_not_submitted_by_another(beaker_cells, monkeypatch):
    create, others = beaker._create, []

    def while_another_comes(account, name, spec):
        others.append(subprocess.run(resume, capture_output=True, text=True, timeout=100))
        return create(account, name, spec)

    resume = [sys.executable, "-m", "ptb_runner", "resume", str(beaker_cells.sweep)]
    monkeypatch.setattr(beaker, "_create", while_another_comes)
    assert beaker_cells.submit().code == 0
    (other,) = others
    assert (other.returncode, "another process submits its cells just now" in other.stderr) == (2, True), other
    assert len(beaker_cells.experiments()) == 1


def test_one_cell_that_is_resumed_goes_to_beaker_too(beaker_cells):
    beaker_cells.server.hold("no room")
    assert beaker_cells.submit("seed=1,2").code == 0
    assert beaker_cells.ptb("stop", beaker_cells.sweep / "1").code == 0
    beaker_cells.server.release()
    before = beaker_cells.record(1)["job_id"]
    ran = beaker_cells.ptb("resume", beaker_cells.sweep / "1")
    assert beaker_cells.record(1)["job_id"] != before, ran.out + ran.err
    assert len(beaker_cells.experiments()) == 3


# --- Secrets ------------------------------------------------------------------------------------------


def test_a_secret_that_the_workspace_lacks_stops_everything(beaker_cells):
    ran = beaker_cells.submit("launcher.hf_token_secret=alice_hf")
    assert ran.code == 2
    assert ran.err == (
        "error: cell 0 (benchmark=hello agent=oracle backend=bubblewrap launcher=beaker launcher.workspace=ai2/demo "
        "launcher.hf_token_secret=alice_hf launcher.poll_sec=0.1 launcher.wait=false): "
        "launcher.hf_token_secret=alice_hf: workspace ai2/demo has no such secret\n"
        "  name one that it has, or null for none; launcher.write_secrets=true writes it from the variable HF_TOKEN of "
        "this machine\n"
    )
    assert not beaker_cells.sweep.exists()


def test_a_secret_is_written_only_when_the_user_says_so(beaker_cells, monkeypatch, beaker_client):
    monkeypatch.setenv("HF_TOKEN", "hf-canary-value")
    asked = beaker_cells.submit("launcher.hf_token_secret=bob_hf")
    assert asked.code == 2
    ran = beaker_cells.submit("launcher.hf_token_secret=bob_hf", "launcher.write_secrets=true")
    assert ran.code == 0, ran.err
    secret = beaker_client.secret.get("bob_hf")
    assert beaker_client.secret.read(secret) == "hf-canary-value"
    places = [beaker_cells.sweep, *beaker_cells.server.datasets().values()]
    files = [path for place in places for path in Path(place).rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if b"hf-canary-value" in path.read_bytes()]
    assert "hf-canary-value" not in json.dumps(beaker_cells.experiments()) + ran.out + ran.err


# --- Who does not answer, and who refuses -------------------------------------------------------------


def test_an_address_that_never_answers_is_given_up_in_time(beaker_cells, silent_address, tmp_path, monkeypatch):
    monkeypatch.setenv("BEAKER_CONFIG", str(config_for(tmp_path, silent_address)))
    ran = beaker_cells.submit("launcher.answer_sec=1")
    assert (ran.code, f"Beaker at {silent_address} does not answer within 1 s" in ran.err) == (2, True)
    assert not beaker_cells.sweep.exists()


def test_an_address_where_nobody_is_is_given_up_in_time(beaker_cells, tmp_path, monkeypatch):
    monkeypatch.setenv("BEAKER_CONFIG", str(config_for(tmp_path, "127.0.0.1:9")))
    ran = beaker_cells.submit("launcher.answer_sec=1")
    assert (ran.code, "Beaker at 127.0.0.1:9 does not answer within 1 s" in ran.err) == (2, True)


def test_a_bad_token_is_told_as_that(beaker_cells, monkeypatch):
    monkeypatch.setenv("BEAKER_TOKEN", "no-token-of-anybody")
    ran = beaker_cells.submit()
    assert (ran.code, "refuses the token of BEAKER_TOKEN" in ran.err, "beaker configure" in ran.err) == (2, True, True)
    assert "no-token-of-anybody" not in ran.err


@pytest.mark.parametrize("option", ["cluster=[ai2/missing]", "budget=ai2/missing", "image=beaker://ai2/missing"])
def test_what_beaker_does_not_have_is_told_before_anything_is_made(beaker_cells, option):
    ran = beaker_cells.submit(f"launcher.{option}")
    name = option.partition("=")[0]
    assert (ran.code, f"launcher.{name}=" in ran.err, "Beaker has none of that name" in ran.err) == (2, True, True)
    assert not beaker_cells.sweep.exists()


def test_an_unknown_workspace_is_told(beaker_cells):
    ran = beaker_cells.submit("launcher.workspace=ai2/missing")
    assert (ran.code, "launcher.workspace=ai2/missing: Beaker has no such workspace" in ran.err) == (2, True)


def test_doctor_tells_of_the_account(beaker_cells):
    ran = beaker_cells.ptb("doctor", "launcher=beaker", "launcher.workspace=ai2/demo", "launcher.hf_token_secret=null")
    assert "tester at http" in ran.out
    assert "ai2/demo, 8 GPUs on ai2/saturn" in ran.out
