"""Whole runs by the real client and Harbor's real environment against the fake Modal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ptb_runner.backend.modal import make_handoff
from ptb_runner.cell import read_cell
from ptb_runner.sandbox import modal_owner
from tests.fakes.modal_server.handle import ModalServer
from tests.modal_kit import ADDITION, HELLO, MODAL, ON_GPU, delete_volumes, nothing_is_left, start, wait_until
from tests.run_kit import TASK_TOML, Cell, agent, in_phase, make_task, only_cell

pytestmark = [pytest.mark.modal, pytest.mark.usefixtures("modal_server")]

OK = "printf ok > answer.txt"


def ours(server: ModalServer, cell: Cell) -> list[dict[str, Any]]:
    """The sandboxes that a cell had, by their tags."""
    return [one for one in server.sandboxes(None) if one["tags"].get("ptb.cell") == cell.status["cell_id"]]


def test_hello_eight_at_eight(ptb, modal_server):
    before = modal_server.calls("SandboxCreateV2")
    ran = ptb(*HELLO, "agent=oracle", "attempts=8", "concurrency=8")
    assert ran.code == 0, ran.out + ran.err
    assert "8/8 trials passed" in ran.out
    assert modal_server.calls("SandboxCreateV2") == before + 16
    assert nothing_is_left(modal_server)
    made = sorted(one["created"] for one in ours(modal_server, only_cell()))[-16:]
    assert made[15] - made[0] >= 15 / 4 - 1, "no faster than backend.creations_per_sec"


def test_archives_of_transfers_go_with_the_next_command(ptb, modal_server):
    """The tests are uploaded right before they run. A command for each removal would be a fifth of all."""
    check = "ls /tmp/runtime_* || echo 1 > /logs/verifier/reward.txt"
    task = make_task(Path("mine").resolve(), check)
    before = modal_server.calls("TaskExecStart")
    ran = ptb("benchmark=task", f"benchmark.path={task}", *MODAL, *agent("Scripted", command=OK))
    cell = only_cell()
    assert cell.trial()["reward"] == 1, ran.out + ran.err + cell.log
    assert modal_server.calls("TaskExecStart") - before <= 25, "31 with a command for each removal"


def test_a_token_that_is_refused_says_what_to_type(ptb_process):
    ran = ptb_process("clean", "backend=modal", env={"MODAL_TOKEN_SECRET": "as-wrong"})
    assert (ran.code, "leftovers removed" in ran.out) == (2, False)
    assert "refuses the token" in ran.err
    assert "modal token new" in ran.err


def test_sandboxes_are_named_tagged_and_end_by_themselves(ptb, modal_server):
    modal_server.secret("my-keys", EXTRA="1")
    wishes = ("backend.region=[us-east]", "backend.cloud=aws", "backend.secrets=[my-keys]")
    work = agent("Scripted", command=f"[ $EXTRA = 1 ] && {OK}")
    ran = ptb(*HELLO, *work, *wishes, "benchmark.cpus=2", "benchmark.memory_mb=512")
    cell = only_cell()
    assert cell.outcomes == ["scored"], ran.out + cell.log
    found = ours(modal_server, cell)[-2:]
    for one in found:
        assert one["tags"]["ptb.trial"] == "hello__001"
        assert one["tags"]["ptb.run"].endswith(str(cell.folder.relative_to(Path.cwd())).replace("/", "-"))
        assert one["tags"]["ptb.owner"]
        assert one["tags"]["ptb.host"]
        assert 0.2 * 3600 < one["timeout_sec"] < 24 * 3600
        assert (one["regions"], one["cloud"]) == (["us-east"], "aws")
    assert found[0]["name"] != found[1]["name"]


def test_a_model_goes_by_volume_on_gpus_and_is_kept(ptb, modal_server):
    """Also promise 23: H100! is asked for, and what nvidia-smi shows is recorded."""
    modal_server.show_gpus(**{"H100!": "NVIDIA H100 80GB HBM3"})
    ran = ptb(*ADDITION, *ON_GPU)
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    assert cell.trial()["reward"] == pytest.approx(0.027, abs=0.01)
    agents, verifiers = ours(modal_server, cell)[-2:]
    assert (agents["gpu"], verifiers["gpu"]) == ("H100!", "H100!")
    assert (agents["volumes"], verifiers["volumes"]) == ({"/handoff": False}, {"/handoff": True})
    assert cell.result["provenance"]["observed_gpu"] == "NVIDIA H100 80GB HBM3 x1"
    ((name, folder),) = modal_server.volumes().items()
    given = cell.folder / "task" / "environment" / "base_model" / "model.safetensors"
    assert (folder / "final_model" / "model.safetensors").read_bytes() == given.read_bytes()
    assert f"modal volume get {name} final_model" in ran.out
    target = fetch(ran.out)
    assert (target / "final_model" / "model.safetensors").read_bytes() == given.read_bytes()
    # It can be graded again; resuming runs nothing, and no reaping takes what is kept.
    again = ptb("regrade", cell.folder)
    assert "addition__001: scored 0.0270 -> scored 0.0270" in again.out, again.err + cell.log
    assert ours(modal_server, cell)[-1]["volumes"] == {"/handoff": True}
    assert ptb("resume", cell.folder).code == 0
    ptb("clean", "backend=modal")
    assert list(modal_server.volumes()) == [name]
    delete_volumes(modal_server)


def test_a_large_model_goes_past_the_runner(tmp_path, modal_server):
    """Also promise 3: by volume, whatever its size, without a byte of it in the runner's memory or folder."""
    work = agent("Scripted", command="cp -r base_model final_model && truncate -s 2G final_model/extra.bin")
    process, cell = start(tmp_path, "benchmark=addition", "model=nano", *MODAL, *work)
    _, _, usage = os.wait4(process.pid, 0)
    assert cell.outcomes == ["scored"], cell.log
    assert usage.ru_maxrss < 400 * 1024, "KiB"
    ((_, folder),) = modal_server.volumes().items()
    assert (folder / "final_model" / "extra.bin").stat().st_size == 2 << 30
    assert sum(path.stat().st_size for path in cell.folder.rglob("*") if path.is_file()) < 10 << 20
    delete_volumes(modal_server)


def fetch(out: str) -> Path:
    """Type the command that the run printed."""
    command = next(line for line in out.splitlines() if "modal volume get" in line).partition("to fetch it: ")[2]
    words = command.split()
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(words[-1])


def test_a_model_that_could_not_be_scored_is_kept(ptb, modal_server):
    ptb(*ADDITION, "benchmark.evaluation.tries=[{args:[--no-such-flag]}]", "backend.keep_model=never")
    assert only_cell().outcomes == ["eval_failed"]
    assert [name[:9] for name in modal_server.volumes()] == ["ptb-kept-"]
    delete_volumes(modal_server)


def test_a_cheat_on_modal_gets_its_real_score(ptb, modal_server):
    ran = ptb(*HELLO, *agent("Cheat"))
    assert only_cell().trial()["reward"] == 0, ran.out + ran.err


def test_an_agent_whose_time_is_up_is_ended(ptb, modal_server):
    """What it would have done later does not happen: its processes end when it is given up."""
    late = "(sleep 6; printf late > answer.txt) & "
    toml = TASK_TOML.replace("[agent]\ntimeout_sec = 60", "[agent]\ntimeout_sec = 3")
    toml = toml.replace(
        "[verifier.environment]", '[[verifier.collect]]\ncommand = "sleep 6"\ntimeout_sec = 60\n[verifier.environment]'
    )
    check = 'if [ "$(cat answer.txt)" = ok ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'
    task = make_task(Path("mine").resolve(), check, toml)
    ran = ptb("benchmark=task", f"benchmark.path={task}", *MODAL, *agent("Scripted", command=f"{OK}; {late} sleep 60"))
    cell = only_cell()
    assert cell.outcomes == ["agent_timeout"], ran.out + ran.err + cell.log
    assert cell.trial()["reward"] == 1
    assert nothing_is_left(modal_server)


# --- Interrupts ---------------------------------------------------------------------------------------


def is_in(cell: Cell, phase: str) -> bool:
    return (cell.folder / "status.json").exists() and in_phase(phase)(cell.status)


@pytest.mark.parametrize("phase", ["agent", "verifier"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path, modal_server, phase, number):
    work = agent("Honest") if phase == "verifier" else agent("Scripted", command="sleep 60")
    if phase == "verifier":
        modal_server.fail("TaskExecStart", status="OK", delay_sec=30, times=-1, contains="/tests/verify.py")
    process, cell = start(tmp_path, "benchmark=addition", "model=nano", *MODAL, *work, "attempts=2")
    wait_until(lambda: is_in(cell, phase))
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err + cell.log
    assert nothing_is_left(modal_server), out + err + cell.log
    assert set(cell.outcomes) <= {"cancelled"}


def test_what_a_killed_runner_left_is_reaped_and_no_other(tmp_path, modal_server, ptb):
    import modal

    work = ("benchmark=addition", "model=nano", *MODAL, *agent("Scripted", command="sleep 100"))
    process, cell = start(tmp_path, *work)
    wait_until(lambda: is_in(cell, "agent"))
    told = " ".join(ptb("doctor", "backend=modal").out.split())
    assert "its runner is at work" in told
    assert "1 sandboxes of ours" in told
    assert "0 leftovers" in ptb("clean", "backend=modal").out
    assert len(modal_server.sandboxes()) == len(modal_server.volumes()) == 1
    process.kill()
    process.wait()
    app = modal.App.lookup("ptb-runner")
    tags = {"ptb.owner": "aaaaaaaa.bbbbbbbb.1.1", "ptb.host": "far-away", "ptb.trial": "theirs"}
    image = modal.Image.from_registry("python:3.12-slim")
    other = modal.Sandbox.create("sleep", "infinity", app=app, image=image, tags=tags)
    modal.Volume.objects.create("ptb-aaaaaaaa.bbbbbbbb.1.1-theirs")
    modal.Volume.objects.create("somebodys-own")
    told = " ".join(ptb("doctor", "backend=modal").out.split())
    assert "ptb clean backend=modal removes it" in told
    assert "of a runner on far-away, left alone" in told
    ran = ptb("clean", "backend=modal")
    lines = [line for line in ran.out.splitlines() if line.startswith("removed ")]
    assert [line.split()[1] for line in lines] == ["sandbox", "volume"], ran.out
    assert [one["id"] for one in modal_server.sandboxes()] == [other.object_id]
    assert set(modal_server.volumes()) == {"ptb-aaaaaaaa.bbbbbbbb.1.1-theirs", "somebodys-own"}
    other.terminate()
    delete_volumes(modal_server)


@pytest.mark.parametrize("keep", ["scored", "never"])
@pytest.mark.parametrize("verb", ["clean", "resume"])
def test_killed_between_a_result_and_what_becomes_of_the_model(tmp_path, modal_server, ptb, verb, keep):
    """Who comes next does what the runner would have done."""
    modal_server.fail("VolumeRename", status="UNAVAILABLE", times=-1)
    modal_server.fail("VolumeDelete", status="UNAVAILABLE", times=-1)
    process, cell = start(tmp_path, *ADDITION, f"backend.keep_model={keep}")
    wait_until(lambda: any((cell.folder / "job").glob("*/result.json")) and modal_server.sandboxes() == [])
    wait_until(lambda: modal_server.calls("VolumeRename") + modal_server.calls("VolumeDelete") > 0)
    process.kill()
    process.wait()
    assert len(modal_server.volumes()) == 1
    modal_server.mend()
    before = cell.mtimes()
    ran = ptb("clean", "backend=modal") if verb == "clean" else ptb("resume", cell.folder)
    assert [name[:9] for name in modal_server.volumes()] == (["ptb-kept-"] if keep == "scored" else []), ran.out
    assert cell.mtimes() == before
    assert not list(Path(os.environ["PTB_STATE"]).rglob("*.json"))
    if keep == "scored":
        (kept,) = modal_server.volumes()
        assert f"modal volume get {kept} final_model" in ptb("resume", cell.folder).out


def test_killed_between_a_volume_and_its_trial(modal_server, ptb, monkeypatch):
    ptb(*ADDITION, "backend.keep_model=never", "dry_run=true")
    cell = only_cell()
    dead = f"{modal_owner.owner().rpartition('.')[0]}.1"
    with monkeypatch.context() as patched:
        patched.setattr(modal_owner, "owner", lambda: dead)
        make_handoff(read_cell(cell.folder), "addition__001")
    assert [dead in name for name in modal_server.volumes()] == [True]
    assert ptb("resume", cell.folder).code == 0, cell.log
    assert nothing_is_left(modal_server)


# --- Failures -----------------------------------------------------------------------------------------


def test_a_refused_creation_is_told_in_modals_words(ptb, modal_server):
    modal_server.fail("SandboxCreateV2", status="PERMISSION_DENIED", message="spend limit reached", times=-1)
    ran = ptb(*HELLO, "agent=oracle")
    assert ran.code == 1
    trial = only_cell().trial()
    assert (trial["outcome"], trial["reward"]) == ("infra_error", None)
    assert "spend limit reached" in trial["error"]["message"]
    assert nothing_is_left(modal_server)


@pytest.mark.parametrize("gpus", [(), ON_GPU], ids=["cpu", "gpu"])
def test_a_creation_whose_answer_is_lost_is_not_paid_twice(ptb, modal_server, gpus):
    """More often than the client itself asks again: then we do, by the same name."""
    rpc = "SandboxCreate" if gpus else "SandboxCreateV2"
    modal_server.fail(rpc, when="after", times=5)
    ran = ptb(*ADDITION, *gpus, "backend.keep_model=never")
    cell = only_cell()
    assert cell.outcomes == ["scored"], ran.out + ran.err + cell.log
    assert len(ours(modal_server, cell)) == 2 or all(not one["running"] for one in ours(modal_server, cell))
    names = [one["name"] for one in ours(modal_server, cell)][-2:]
    assert len(set(names)) == 2
    assert nothing_is_left(modal_server)


def test_an_api_that_is_away_for_a_while_costs_only_time(ptb, modal_server):
    modal_server.fail("*", for_sec=8, contains="definition")  # creations; what runs goes by another server
    ran = ptb(*HELLO, "agent=oracle")
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    assert len(list(only_cell().folder.glob("superseded/*"))) == 0


def test_a_sandbox_that_ends_says_why_and_hurts_only_itself(ptb, modal_server):
    ends = {1: "KERNEL_OOM_KILL 137", 2: "TERMINATED 137", 3: "TIMEOUT 124", 4: "FAILURE 1"}
    commands = {number: f"echo {how} > /__modal/end; sleep 60" for number, how in ends.items()}
    ran = ptb(*HELLO, *agent("Scripted", command=OK, by_attempt=commands), "attempts=5", "concurrency=5")
    cell = only_cell()
    assert cell.outcomes == ["infra_error"] * 4 + ["scored"], ran.out + cell.log
    said = [cell.trial(number)["error"]["message"] for number in ends]
    assert "out of memory" in said[0]
    assert "preempted" in said[1]
    assert "lifetime" in said[2]
    assert "exit code 1" in said[3]
    assert all(cell.trial(number)["error"]["phase"] == "agent" for number in ends)
    assert not list(cell.folder.glob("superseded/*")), "the agent had worked: running it again is the user's choice"
    assert nothing_is_left(modal_server)


def test_an_agents_process_that_runs_out_of_memory_is_the_agents_own(ptb, modal_server):
    """Killed inside, while the sandbox lives on: no error of the infrastructure."""
    ran = ptb(*HELLO, *agent("Scripted", command=f"{OK}; bash -c 'kill -9 $$'; true"))
    assert only_cell().outcomes == ["scored"], ran.out


def test_a_stream_that_breaks_once_is_taken_up_again(ptb, modal_server):
    modal_server.fail("TaskExecStdioRead", status="UNAVAILABLE", message="stream broken", times=8, when="after")
    ran = ptb(*HELLO, *agent("Scripted", command=f"{OK}; echo said"), "retry.infra_errors=0")
    cell = only_cell()
    assert cell.outcomes == ["scored"], ran.out + cell.log
    assert next(cell.folder.glob("job/*/agent/scripted.txt")).read_text() == "said\n"


def test_a_stream_that_stays_broken_is_an_error_of_the_infrastructure(ptb, modal_server):
    modal_server.fail("TaskExecStdioRead", status="INTERNAL", message="stream broken", times=-1)
    ran = ptb(*HELLO, *agent("Scripted", command=f"{OK}; echo said"), "retry.infra_errors=0")
    trial = only_cell().trial()
    assert (trial["outcome"], trial["reward"]) == ("infra_error", None), ran.out
    assert "stream broken" in trial["error"]["message"]
    assert nothing_is_left(modal_server)


def test_a_volume_that_is_missing_is_told(ptb, modal_server):
    modal_server.fail("VolumeGetOrCreate", skip=1, status="NOT_FOUND", message="Volume 'x' not found", times=-1)
    ran = ptb(*ADDITION, "retry.infra_errors=0")
    trial = only_cell().trial()
    assert trial["outcome"] == "infra_error", ran.out
    assert "not found" in trial["error"]["message"]
    modal_server.mend()
    assert modal_server.sandboxes() == []
    delete_volumes(modal_server)


def test_a_build_that_fails_is_told(ptb, modal_server):
    task = make_task(Path("mine").resolve(), "echo 1 > /logs/verifier/reward.txt")
    (task / "environment" / "Dockerfile").write_text("FROM debian:12\nRUN echo so it ends >&2; exit 7\n")
    ran = ptb("benchmark=task", f"benchmark.path={task}", *MODAL, *agent("Scripted", command=OK))
    trial = only_cell().trial()
    assert (trial["outcome"], trial["reward"]) == ("infra_error", None), ran.out
    assert "so it ends" in trial["error"]["message"]
