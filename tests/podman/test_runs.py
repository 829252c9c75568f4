"""Whole runs on a real podman."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests import hub_kit
from tests.podman.podman_kit import IMAGE, PODMAN, containers, dockerfile_task, images, podman
from tests.run_kit import REWARD_IF_OK, TASK_TOML, Cell, Running, agent, in_phase, make_task, only_cell, start

pytestmark = [pytest.mark.podman, pytest.mark.usefixtures("image")]

OK = "printf ok > answer.txt"

hub = hub_kit.hub


def test_hello_sixteen_at_eight(ptb):
    before = images()
    ran = ptb("benchmark=hello", "agent=oracle", *PODMAN, "attempts=16", "concurrency=8")
    assert ran.code == 0, ran.out + ran.err
    assert only_cell().outcomes == ["scored"] * 16
    assert images() == before
    assert containers() == []


def test_a_dockerfile_is_built_once_and_kept_and_removed_when_asked(ptb, tmp_path):
    stamp = tmp_path.parent.name
    recipe = f"FROM {IMAGE}\nRUN echo {stamp} > /stamp && date +%s%N > /built\nENV WORD=given\nWORKDIR /work\n"
    toml = TASK_TOML.replace('workdir = "/app"\n', "").replace("/app/answer.txt", "/work/answer.txt")
    check = '[ "$(pwd)" = /work ] && [ $WORD = given ] && [ "$(cat answer.txt)" = "$(cat /built)" ]'
    task = dockerfile_task(tmp_path / "mine", recipe, f"if {check}; then r=1; else r=0; fi; {REWARD}", toml)
    before = images()
    work = agent("Scripted", command="cat /built > answer.txt")
    for _ in range(2):
        ran = ptb("benchmark=task", f"benchmark.path={task}", "backend=podman", *work, "attempts=4")
        assert ran.code == 0, ran.out + ran.err
    (built,) = images() - before
    assert built.startswith("localhost/ptb-built:")
    user = podman().now("run", "-d", "--network", "none", built, "sleep", "99").stdout.strip()
    try:
        podman().now("tag", IMAGE, "localhost/ptb-built:of-somebody-else")
        ptb("clean", "--images", "backend=podman")
        assert {built, "localhost/ptb-built:of-somebody-else"} <= images()
    finally:
        podman().now("untag", "localhost/ptb-built:of-somebody-else", "localhost/ptb-built:of-somebody-else")
        podman().now("rm", "-f", "-t", "0", user)
    ran = ptb("clean", "--images", "backend=podman")
    assert f"removed {built}" in ran.out
    assert built not in images()
    assert IMAGE in images()


REWARD = "echo $r > /logs/verifier/reward.txt"


def test_post_training_with_a_separate_verifier_and_a_hand_off(ptb):
    """The model is the one it began with: training is the same everywhere, and slow with Debian's own NumPy."""
    ran = ptb("benchmark=addition", "model=nano", *agent("Honest"), *PODMAN)
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    assert cell.trial()["reward"] == pytest.approx(0.027, abs=0.01)
    model = next((cell.folder / "handoff").glob("*/final_model"))
    given = cell.folder / "task" / "environment" / "base_model" / "model.safetensors"
    assert (model / "model.safetensors").read_bytes() == given.read_bytes()


def test_a_hand_off_survives_a_failed_verification_and_goes_with_a_policy(ptb):
    broken = ("benchmark=addition", "model=nano", *agent("Honest"), *PODMAN, "benchmark.verifier_hours=0.0003")
    ptb(*broken, "benchmark.evaluation.try_timeout_hours=0.0002", "hydra.run.dir=failed")
    assert Cell(Path("failed").resolve()).outcomes == ["eval_failed"]
    assert len(list(Path("failed/handoff").glob("*/final_model"))) == 1
    ran = ptb("benchmark=addition", "model=nano", *agent("Honest"), *PODMAN, "backend.keep_model=never")
    assert ran.code == 0, ran.out + ran.err
    assert list(only_cell().folder.glob("handoff/*")) == []


def test_a_cheat_on_podman_gets_its_real_score(ptb):
    ran = ptb("benchmark=hello", *agent("Cheat"), *PODMAN)
    assert only_cell().trial()["reward"] == 0, ran.out + ran.err


@pytest.mark.parametrize(("network", "reaches"), [("none", "no"), ("public", "yes")])
def test_the_network(ptb, tmp_path, network, reaches):
    probe = "grep -vc lo: /proc/net/dev | { read n; [ $n -gt 2 ] && echo yes || echo no; }"
    mode = "no-network" if network == "none" else "public"
    toml = TASK_TOML.replace('"no-network"', f'"{mode}"')
    test = f'if [ "$(cat answer.txt)" = "$({probe})" ]; then r=1; else r=0; fi; {REWARD}'
    task = make_task(tmp_path / "mine", test, toml)
    ran = ptb("benchmark=task", f"benchmark.path={task}", *PODMAN, *agent("Scripted", command=f"{probe} > answer.txt"))
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    assert cell.trial()["reward"] == 1
    assert next(cell.folder.glob("job/*/artifacts/app/answer.txt")).read_text() == f"{reaches}\n"


def test_a_user_of_its_own(ptb, tmp_path):
    """Also promise 18: what uid 1001 wrote can be read and deleted here."""
    recipe = f"FROM {IMAGE}\nRUN useradd -u 1001 -m worker\nUSER worker\n"
    toml = TASK_TOML.replace("[agent]", '[agent]\nuser = "worker"').replace(
        "[verifier]\n", '[verifier]\nuser = "1001"\n'
    )
    test = f'if [ "$(cat answer.txt)" = ok ] && [ $(id -u) = 1001 ]; then r=1; else r=0; fi; {REWARD}'
    task = dockerfile_task(tmp_path / "mine", recipe, test, toml)
    work = f"[ $(id -un) = worker ] && {OK} && echo mine > /logs/agent/own.txt && chmod 600 /logs/agent/own.txt"
    ran = ptb("benchmark=task", f"benchmark.path={task}", "backend=podman", *agent("Scripted", command=work))
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    assert cell.trial()["reward"] == 1
    own = next(cell.folder.glob("job/*/agent/own.txt"))
    assert own.read_text() == "mine\n"
    own.unlink()


def test_an_agents_time_runs_out(ptb):
    ran = ptb(
        *("benchmark=hello", *PODMAN, "agent.timeout_hours=0.0006"),
        *agent("Sleeper", first=OK),
    )
    cell = only_cell()
    assert cell.outcomes == ["agent_timeout"], ran.out + ran.err + cell.log
    assert cell.trial()["reward"] == 1
    assert containers() == []


@pytest.mark.parametrize("phase", ["sandbox", "agent", "verifier"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path, phase, number):
    stay = {one: "sleep 60" if one == phase else "true" for one in ("sandbox", "agent", "verifier")}
    check = f'\n[environment.healthcheck]\ncommand = "{stay["sandbox"]}"\ntimeout_sec = 60\n'
    task = make_task(tmp_path / "mine", f"{stay['verifier']}\necho 1 > /logs/verifier/reward.txt", TASK_TOML + check)
    running = begin(tmp_path, f"benchmark.path={task}", *agent("Scripted", command=f"{OK}; {stay['agent']}"))
    running.wait_for(lambda status: list(status["attempts"]["running"].values()) == [phase] * 2)
    time.sleep(0.7)
    running.process.send_signal(number)
    began = time.monotonic()
    while (left := [*containers(), *running.scratch.glob("ptb-sandboxes-*/*")]) and time.monotonic() - began < 3:
        time.sleep(0.05)
    assert left == []
    assert running.process.wait(10) == 130
    assert running.cell.outcomes == ["cancelled"] * 2


def begin(tmp_path: Path, *arguments: str) -> Running:
    return start(tmp_path, "benchmark=task", *PODMAN, "attempts=2", *arguments)


def test_a_killed_runner_leaves_nothing_for_the_next(tmp_path, ptb):
    gate = tmp_path / "gate"
    gate.touch()
    task = make_task(tmp_path / "mine", REWARD_IF_OK)
    work = agent("Scripted", command=f"{OK}; while [ -e /gate/gate ]; do sleep 0.1; done")
    running = begin(tmp_path, f"benchmark.path={task}", *work, f"backend.run_args=[-v,{tmp_path}:/gate:ro]")
    running.wait_for(in_phase("agent"))
    time.sleep(0.5)
    assert len(containers()) == 2
    running.process.kill()
    gate.unlink()
    ran = ptb("resume", running.cell.folder)
    assert ran.code == 0, ran.out + ran.err
    assert Cell(running.cell.folder).outcomes == ["scored"] * 2
    assert containers() == []
    assert list(running.scratch.glob("ptb-sandboxes-*/*")) == []


def test_a_build_that_fails_is_told_and_hurts_only_itself(ptb, tmp_path):
    task = dockerfile_task(tmp_path / "mine", f"FROM {IMAGE}\nRUN echo so it ends >&2; exit 7\n", REWARD_IF_OK)
    ran = ptb("benchmark=task", f"benchmark.path={task}", *PODMAN, *agent("Scripted", command=OK), "attempts=2")
    assert ran.code == 1
    cell = only_cell()
    assert cell.outcomes == ["infra_error"] * 2
    assert "so it ends" in cell.trial()["error"]["message"]
    assert cell.trial()["reward"] is None
    assert len(list(cell.folder.glob("superseded/*"))) == 2


DIES = """#!/bin/sh
if [ "$1" = run ] && mkdir {flag} 2> /dev/null; then {how}; fi
exec {real} "$@"
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("kill -9 $$", "podman run failed"),
        ("echo write /var/x: no space left on device >&2; exit 125", "no space left"),
    ],
    ids=["killed", "disk full"],
)
def test_a_podman_that_fails_once_costs_one_more_try(ptb, tmp_path, monkeypatch, how, said):
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "podman"
    wrapper.write_text(DIES.format(flag=tmp_path / "flag", how=how, real=shutil.which("podman")))
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    ran = ptb("benchmark=hello", "agent=oracle", *PODMAN, "attempts=3", "concurrency=3")
    assert ran.code == 0, ran.out + ran.err
    (before,) = only_cell().folder.glob("superseded/*")
    assert said in (before / "exception.txt").read_text()
    assert containers() == []


def test_an_image_that_cannot_be_pulled(ptb):
    image = "127.0.0.1:9/nowhere:1"
    ran = ptb("benchmark=hello", "agent=oracle", *PODMAN, f"backend.image={image}", "backend.pull_tries=1")
    assert ran.code == 1
    assert only_cell().outcomes == ["infra_error"]
    assert image in only_cell().trial()["error"]["message"]


def test_an_image_that_no_registry_can_have_is_refused(ptb, tmp_path):
    ran = ptb("benchmark=hello", "agent=oracle", *PODMAN, "backend.image=localhost/nowhere:1")
    assert ran.code == 2
    assert "image localhost/nowhere:1 is not here" in ran.err
    assert not list(tmp_path.rglob("status.json"))


def test_doctor(ptb):
    ran = ptb("doctor", "benchmark=hello", *PODMAN)
    assert ran.code == 0, ran.out
    assert "could be read and" in " ".join(ran.out.split())


def test_a_container_sees_the_hub_cache_and_writes_beside_it(ptb, hub, tmp_path):
    own = ("benchmark=hello", "model.hub_id=Qwen/Qwen3-1.7B-Base")
    assert ptb("cache", "hf", *own, "backend=podman").code == 0
    seen = "cat $HF_HOME/hub/models--Qwen--*/snapshots/*/config.json && touch $HF_HOME/hub/y"
    kept = "! touch /opt/hf-cache/models--Qwen--Qwen3-1.7B-Base/x"
    ran = ptb(*own, *PODMAN, *agent("Scripted", command=f"set -e; {seen}; {kept}; {OK}"))
    assert ran.code == 0, ran.out + ran.err
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name in ("x", "y")]
