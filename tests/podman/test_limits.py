"""Limits on CPU and memory, and a network of podman's own: what a machine without our configuration has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.podman.podman_kit import PODMAN
from tests.run_kit import TASK_TOML, agent, make_task, only_cell

pytestmark = [pytest.mark.podman, pytest.mark.usefixtures("image")]

# Without our configuration podman asks for more open files than this machine may give.
LIMITS = "backend.run_args=[--ulimit,'nofile=1024:1024',--ulimit,'nproc=4096:4096']"
OWN = (*PODMAN, "backend.nested=false", LIMITS)
NO_NET_ADMIN = ("setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin")
VLLM = Path(__file__).parents[1] / "fakes" / "vllm_server.py"
SEEN = r"""
cd /sys/fs/cgroup
cat memory/memory.limit_in_bytes memory.max 2> /dev/null
{ cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us 2> /dev/null || cat cpu.max; } | tr '\n' ' '
ls /sys/class/net | tr '\n' ' '
"""


def test_a_tasks_resources_hold_and_its_network_is_its_own(ptb, tmp_path):
    toml = TASK_TOML.replace('"no-network"', '"public"').replace(
        "[environment]", "[environment]\ncpus = 1\nmemory_mb = 96"
    )
    task = make_task(tmp_path / "mine", "echo 1 > /logs/verifier/reward.txt", toml)
    work = agent("Scripted", command=f"({SEEN}) > answer.txt")
    ran = ptb("benchmark=task", f"benchmark.path={task}", *OWN, *work)
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    answer = next(only_cell().folder.glob("job/*/artifacts/app/answer.txt")).read_text()
    memory, quota, period, *devices = answer.split()
    assert (int(memory), int(quota) / int(period)) == (96 << 20, 1.0)
    assert devices == ["eth0", "lo"]


def test_a_container_that_takes_too_much_memory_is_told_and_hurts_no_other(ptb, tmp_path):
    toml = TASK_TOML.replace("[environment]", "[environment]\nmemory_mb = 64")
    task = make_task(tmp_path / "mine", "echo 1 > /logs/verifier/reward.txt", toml)
    eat = "head -c 200M /dev/zero | tail > /dev/null; echo $? > answer.txt"
    ran = ptb("benchmark=task", f"benchmark.path={task}", *OWN, *agent("Scripted", command=eat))
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    answer = next(only_cell().folder.glob("job/*/artifacts/app/answer.txt")).read_text()
    assert int(answer) == 137


def test_it_reaches_a_model_that_this_machine_serves(ptb, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"starts": str(tmp_path / "starts")}))
    toml = TASK_TOML.replace('"no-network"', '"public"')
    task = make_task(tmp_path / "mine", "echo 1 > /logs/verifier/reward.txt", toml)
    served = ("serve=vllm", f"serve.command=[{sys.executable},{VLLM}]", "model=hf", "model.id=org/tiny")
    ran = ptb("benchmark=task", f"benchmark.path={task}", *OWN, *served, *agent("Asks", questions=2))
    assert ran.code == 0, ran.out + ran.err + only_cell().log
    assert only_cell().outcomes == ["scored"]


def test_no_network_where_nobody_may_make_one(tmp_path):
    """Without CAP_NET_ADMIN, as in a Beaker job: a user namespace is needed, in which ids mean the same."""
    devices = "tail -n +3 /proc/net/dev | cut -d: -f1"
    seen = f"({devices}; id -u; touch own; chown 1001 own; stat -c %u own) > final_model/seen.txt"
    command = [*NO_NET_ADMIN, sys.executable, "-m", "ptb_runner", "benchmark=addition", "model=nano", *PODMAN]
    command += [*agent("Scripted", command=f"cp -r base_model final_model && {seen}"), f"hydra.run.dir={tmp_path}/run"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (answer,) = tmp_path.glob("run/handoff/*/final_model/seen.txt")
    assert answer.read_text().split() == ["lo", "0", "1001"]
