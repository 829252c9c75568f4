"""What the Modal backend knows without asking Modal: credentials, limits, names, plans. No root, no server."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptb_runner.sandbox import gpus, modal_credentials, modal_owner, modal_prices
from ptb_runner.sandbox.modal_pace import Pace
from tests.modal_kit import BY_VARIABLES

TOKEN = '[{name}]\ntoken_id = "ak-1"\ntoken_secret = "as-1"\n'
OAUTH = {"MODAL_OAUTH_REFRESH_TOKEN": "r", "MODAL_OAUTH_CLIENT_ID": "c", "MODAL_OAUTH_CLIENT_SECRET": "s"}


@pytest.mark.parametrize(
    ("file", "variables", "problem"),
    [
        (None, {}, "no MODAL_TOKEN_ID and no MODAL_TOKEN_SECRET"),
        ("", {}, "no MODAL_TOKEN_ID and no MODAL_TOKEN_SECRET"),
        (None, BY_VARIABLES, ""),
        (None, {"MODAL_TOKEN_ID": "ak-1"}, "no MODAL_TOKEN_SECRET"),
        (None, BY_VARIABLES | {"MODAL_TOKEN_SECRET": ""}, "no MODAL_TOKEN_SECRET"),
        (TOKEN.format(name="default"), {}, ""),
        (TOKEN.format(name="work") + "active = true\n", {}, ""),
        (TOKEN.format(name="work"), {"MODAL_PROFILE": "work"}, ""),
        (TOKEN.format(name="work"), {"MODAL_PROFILE": "home"}, "has no profile 'home'"),
        (TOKEN.format(name="a") + TOKEN.format(name="b"), {}, "no profile is active"),
        (TOKEN.format(name="a") + "active = true\n" + TOKEN.format(name="b") + "active = true\n", {}, "several"),
        ("[default\n", {}, "cannot be read"),
        ("token_id = 1\n", {}, "no profile"),
        (None, OAUTH, ""),
        (None, OAUTH | BY_VARIABLES, "both set"),
        (None, {"MODAL_OAUTH_REFRESH_TOKEN": "r"}, "incomplete"),
    ],
)
def test_credentials_are_judged_as_the_client_takes_them(tmp_path, file, variables, problem):
    path = tmp_path / "modal.toml"
    if file is not None:
        path.write_text(file)
    found = modal_credentials.find({"MODAL_CONFIG_PATH": str(path), **variables})
    assert problem in found.problem
    assert bool(found.source) != bool(found.problem)
    assert "as-1" not in f"{found}"
    if problem:
        assert "\n  " in found.problem, "it says how to mend it"


@pytest.fixture
def no_account(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("MODAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none.toml"))


def test_without_credentials_nothing_is_launched(ptb, no_account):
    ran = ptb("benchmark=hello", "agent=oracle", "backend=modal")
    assert ran.code == 2
    assert "modal token new" in ran.err
    assert not list(Path.cwd().glob("outputs/*/*/cell.yaml"))


def test_an_account_that_cannot_be_asked_is_not_called_clean(ptb, no_account):
    ran = ptb("clean", "backend=modal")
    assert ran.code == 2
    assert "modal token new" in ran.err
    assert "leftovers removed" not in ran.out


def test_a_plan_is_made_without_credentials_and_says_so(ptb, no_account):
    ran = ptb("benchmark=gsm8k", "agent=oracle", "backend=modal", "dry_run=true", "attempts=200", "concurrency=150")
    assert "not ready: Modal: no MODAL_TOKEN_ID" in ran.out
    assert "150 sandboxes at once" in ran.out
    assert "150 GPUs at once" in ran.out


def test_another_gpu_than_the_benchmarks_is_told():
    from ptb_runner.backend import modal
    from ptb_runner.doctor import compose

    chosen = ["benchmark=gsm8k", "agent=oracle", "backend=modal"]
    assert modal.warnings(compose(chosen)) == []
    (told,) = modal.warnings(compose([*chosen, "backend.gpu=H200"]))
    assert "none of the benchmark's" in told
    assert any("may refuse" in one for one in modal.warnings(compose([*chosen, "backend.gpu=H1000"])))


# --- Owners -------------------------------------------------------------------------------------------


def test_an_owner_lives_as_long_as_its_process():
    program = "from ptb_runner.sandbox import modal_owner; print(modal_owner.owner(), flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    theirs = process.stdout.readline().strip()
    assert modal_owner.is_here(theirs)
    assert not modal_owner.is_dead(theirs)
    process.kill()
    process.wait()
    assert modal_owner.is_dead(theirs)


def test_of_an_owner_elsewhere_nothing_is_known(monkeypatch):
    mine = modal_owner.owner()
    modal_owner._machine.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    try:
        assert not modal_owner.is_here(mine)
        assert not modal_owner.is_dead(mine)
    finally:
        modal_owner._machine.cache_clear()
    for nonsense in ("", "x", "a.b.c.d", mine + "!"):
        assert not modal_owner.is_dead(nonsense)


@pytest.mark.parametrize("trial", ["gsm8k__001", "a-very-long-benchmark-with-a-long-name__0123", "odd name/é__002"])
def test_names_of_volumes_are_ones_that_modal_takes(trial):
    folder = Path("/somewhere/outputs/2026-11-29/10-00-00")
    name = modal_owner.volume_name(folder, "0123456789ab", trial)
    kept = modal_owner.kept_name(folder, "0123456789ab", trial)
    for one in (name, kept):
        assert len(one) <= 64
        assert all(letter.isascii() and (letter.isalnum() or letter in "-_.") for letter in one)
    assert name.endswith(trial[-3:])
    assert modal_owner.owner_of_volume(name) == modal_owner.owner()
    assert modal_owner.owner_of_volume(kept) is None
    assert modal_owner.owner_of_volume("hf-cache") is None
    assert modal_owner.volume_name(folder / "0", "0123456789ab", trial) != name


# --- Pace, GPUs, prices -------------------------------------------------------------------------------


def test_creations_are_paced():
    """A lower bound only: a slow machine is no fault."""

    async def twenty() -> float:
        one = Pace(per_sec=50)
        begin = time.monotonic()
        await asyncio.gather(*(one.turn() for _ in range(20)))
        return time.monotonic() - begin

    assert asyncio.run(twenty()) >= 19 / 50 - 0.02


@pytest.mark.parametrize(
    ("wanted", "shown", "same"),
    [
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("H100!", "NVIDIA H100 80GB HBM3", True),
        ("H100", "NVIDIA H200", False),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", False),
        ("L4", "NVIDIA L40S", False),
    ],
)
def test_the_name_of_a_gpu_is_recognised(wanted, shown, same):
    assert gpus.matches(wanted, shown) is same


def test_other_gpus_are_told_once_with_how_many_trials(tmp_path):
    for number, shown in enumerate((["NVIDIA H100 80GB HBM3"], ["NVIDIA H200"], ["NVIDIA H200"] * 2, [])):
        (tmp_path / str(number)).mkdir()
        gpus.note(tmp_path / str(number), "agent", shown)
    trials = [tmp_path / str(number) for number in range(4)]
    assert gpus.mismatches(trials[:1], ["H100"], 1) == []
    assert gpus.mismatches(trials, ["H100"], 1) == [
        "ran on NVIDIA H200, the benchmark names H100 (2 of 4 trials)",
        "ran on 2 GPUs, the benchmark names 1 (1 of 4 trials)",
        "which GPU it ran on is not known (1 of 4 trials)",
    ]
    assert gpus.mismatches([tmp_path], ["H100"], 1) == []
    assert "NVIDIA H100 80GB HBM3 x1" in (gpus.summary(trials) or "")


def test_what_a_sandbox_costs():
    assert modal_prices.usd_per_hour("H100!", 1, 16, 131072) == pytest.approx(3.95 + 16 * 0.142 + 128 * 0.024)
    assert modal_prices.usd_per_hour(None, 0, 0, 0) == 0
