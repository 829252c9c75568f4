"""Configuration: what is composed, and what people are told when it is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ptb_runner import menu
from ptb_runner.config import GROUPS, options
from ptb_runner.explain import masked
from ptb_runner.paths import CONF


def test_every_option_says_what_it_is():
    for item in options():
        assert item.help, f"{item.key} has no description"


def test_options_with_a_unit_carry_it_in_their_name():
    for item in options():
        words = item.help.lower()
        for unit, suffix in (("seconds", "_sec"), ("hours", "_hours"), ("mib", "_mb")):
            if f"({unit})" in words:
                assert item.key.endswith(suffix), f"{item.key} is in {unit}"


def test_every_choice_of_conf_has_a_line_for_the_menu():
    folders = [str(CONF)]
    for group in menu.groups(folders):
        for choice in menu.choices(group, folders):
            assert len(menu.line(group, choice, folders)) > 10, f"{group}/{choice}.yaml begins without a comment"


def test_every_choice_composes(ptb):
    for group in GROUPS:
        for choice in menu.choices(group, [str(CONF)]):
            ran = ptb(f"{group}={choice}", "--cfg", "job")
            assert ran.code == 0, ran.err
            assert yaml.safe_load(ran.out)[group]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["agent=orcale"], ["agent=orcale", "conf", "nop, opencode, oracle", "agent=oracle?"]),
        (["bencmark=hello"], ["bencmark", "benchmark?"]),
        (["agent.timeout_hour=1"], ["agent.timeout_hour", "agent.timeout_hours?"]),
        (["atempts=3"], ["atempts", "attempts?"]),
        (["attempts=x"], ["attempts", "a whole number at least 1"]),
        (["attempts=0"], ["attempts=0", "at least 1"]),
        (["agent.timeout_hours=0"], ["agent.timeout_hours", "above 0"]),
        (["agent.timeout_hours=nan"], ["agent.timeout_hours", "above 0"]),
        (["benchmark.kind=training"], ["benchmark.kind", "post_train | harbor"]),
        (["backend.keep_model=sometimes"], ["backend.keep_model", "never | scored | always"]),
        (["backend.scratchdir=/x"], ["backend.scratchdir", "backend.scratch_dir?"]),
        (["+foo=1"], ["foo", "--help"]),
        (["+agent.tiemout_hours=1"], ["agent.tiemout_hours", "agent.timeout_hours?"]),
        (["agent=custom"], ["agent.import_path", "module:Class"]),
        (["agent.import_path=a:B"], ["agent.name", "agent.import_path", "both"]),
        (["agent=custom", "agent.import_path=nothing"], ["agent.import_path=nothing", "module:Class"]),
        (["benchmark=task"], ["benchmark.path", "benchmark.path=DIR"]),
        (["benchmark=task", "benchmark.path=/nowhere"], ["/nowhere", "no such folder"]),
        (["benchmark=task", "benchmark.path=/usr"], ["/usr", "task.toml"]),
        (["model=none"], ["model=none", "nano"]),
        (["benchmark.gpus=1"], ["bubblewrap", "no GPU"]),
        (["benchmark.layers=[nolayer]"], ["nolayer", "templates"]),
        (["benchmark.evaluation.try_timeout_hours=9"], ["try_timeout_hours=9", "verifier_hours"]),
        (["agent.env_vars=[sk-123]"], ["agent.env_vars", "never the key itself"]),
        (["agent.options.api_key=x"], ["agent.options.api_key", "looks like a secret", "agent.env_vars=[API_KEY]"]),
        (["agent.options.x=a;b"], ["agent.options.x", "'agent.options.x=\"a;b\"'"]),
        (["--config-dir", "/nowhere"], ["--config-dir /nowhere", "no such folder"]),
        (["statu"], ["statu", "ptb status"]),
        (["resume"], ["ptb resume", "folder"]),
        (["resume", "/nowhere"], ["/nowhere", "no such folder"]),
        (["--frobnicate"], ["--frobnicate"]),
        (["~attempts"], ["~attempts", "cannot be removed"]),
        (["attempts=99999999999999999999"], ["at most 10000"]),
        (["agent.timeout_hours=inf"], ["agent.timeout_hours", "above 0"]),
        (["benchmark.pass_reward=nan"], ["benchmark.pass_reward"]),
        (["agent.name=claude-code"], ["agent=oracle is oracle", "agent=custom"]),
        (["sweep.file=cells.txt"], ["sweep.file", "-m"]),
        (["benchmark.workdir="], ["benchmark.workdir", "absolute"]),
        (["benchmark.workdir=/tests/.."], ["benchmark.workdir", "absolute"]),
        (["benchmark.evaluation.limit=0"], ["limit=0", "-1 scores all"]),
        (["benchmark.shared=[/etc/passwd]"], ["/etc/passwd", "environment/"]),
        (["benchmark.id="], ["benchmark.id", "is no name"]),
        (["agent.env.PATH=/x"], ["PATH belongs to the sandbox"]),
        (["agent.env.X=${oc.env:NO_SUCH_VARIABLE}"], ["agent.env.X", "NO_SUCH_VARIABLE is not set"]),
        (["hydra.run.dir=/dev/null/x"], ["/dev/null/x", "hydra.run.dir=DIR"]),
        (["agent"], ["agent=CHOICE", "oracle"]),
        (["--dry-run"], ["dry_run=true"]),
        (["--resolve"], ["--resolve"]),
    ],
)
def test_a_mistake_is_told_in_two_lines(ptb, arguments, said):
    ran = ptb(*arguments)
    assert ran.code == 2
    for words in said:
        assert words in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert list(Path.cwd().iterdir()) == []
    if not arguments[0].startswith(("--frob", "--resolve")):  # argparse prints its usage first
        errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
        assert len(ran.err.splitlines()) <= 2 * len(errors)


@pytest.mark.parametrize(
    "mistake",
    [
        "agent.env_vars=[{}",
        "agent.env_vars={}",
        "agent.env_vars={},B",
        "budget.hours={}",
        "agent.{}=1",
        "agent={}",
        "{}",
    ],
)
def test_a_key_that_was_pasted_is_not_repeated(ptb, mistake):
    key = "sk-ant-api03-Zx8Kq2"
    ran = ptb(mistake.format(key))
    assert (ran.code, ran.out) == (2, "")
    assert key[3:] not in ran.err
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    "key",
    ["hf_AbCdEfGh12345678", "AIzaSyA-1234567890", "dckr_pat_a1-b2_c3d4", "9fK2mQ7xWz4LpR8vTn3BcY6d", "0af3" * 8],
)
def test_what_looks_like_a_key_is_masked(key):
    assert masked(f"agent.env_vars={key}: no") == "agent.env_vars=(a key?): no"


@pytest.mark.parametrize("text", ["hf-internal-testing/tiny-2", "sk-learn-models", "ab12" * 10, "a1-b2/C3" * 9])
def test_what_is_no_key_is_told_as_it_is(text):
    assert masked(text) == text


def test_a_mistake_in_a_users_file_names_the_file(ptb, tmp_path):
    folder = tmp_path / "mine" / "benchmark"
    folder.mkdir(parents=True)
    (folder / "sums.yaml").write_text("id: sums\nkind: harbor\nagent_houers: 3\n")
    ran = ptb("--config-dir", tmp_path / "mine", "benchmark=sums")
    assert ran.code == 2
    assert str(folder / "sums.yaml") in ran.err
    assert "benchmark.agent_hours?" in ran.err


def test_a_wrong_type_in_a_users_file_names_the_file(ptb, tmp_path):
    folder = tmp_path / "mine" / "agent"
    folder.mkdir(parents=True)
    (folder / "slow.yaml").write_text("id: slow\nname: oracle\ntimeout_hours: long\n")
    ran = ptb("--config-dir", tmp_path / "mine", "agent=slow")
    assert ran.code == 2
    assert str(folder / "slow.yaml") in ran.err
    assert "agent.timeout_hours takes a number above 0 or null" in ran.err


def test_a_users_own_benchmark_is_in_the_menu_and_composes(ptb, tmp_path):
    folder = tmp_path / "mine" / "benchmark"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# A task of my own.\nid: mine\nkind: harbor\nlayers: [hello]\n")
    ran = ptb("--config-dir", tmp_path / "mine", "--help")
    assert "A task of my own." in ran.out
    ran = ptb("--config-dir", tmp_path / "mine", "benchmark=mine", "--cfg", "job", "-p", "benchmark.id")
    assert ran.out.strip() == "mine"


def test_an_experiment_sets_several_things_and_overrides_win(ptb):
    ran = ptb("experiment=hello_8", "attempts=3", "--cfg", "job")
    job = yaml.safe_load(ran.out)
    assert (job["benchmark"]["id"], job["model"]["id"], job["attempts"]) == ("hello", "none", 3)


@pytest.mark.parametrize("value", ["1.10", "2.0", "1e3", "on", "0x10", "1_000"])
def test_text_options_keep_what_was_typed(ptb, value):
    ran = ptb(f"agent.version={value}", "--cfg", "job", "-p", "agent.version")
    assert ran.out.strip() == value


def test_text_options_keep_what_was_typed_in_a_sweep(ptb):
    ran = ptb("-m", "agent.model=1.9,1.10", "dry_run=true")
    assert ran.code == 0, ran.err
    cells = sorted(Path.cwd().glob("multirun/*/*/*/cell.yaml"))
    assert [yaml.safe_load(path.read_text())["config"]["agent"]["model"] for path in cells] == ["1.9", "1.10"]


def test_a_table_takes_a_new_entry_without_plus_signs(ptb):
    ran = ptb("agent.env.MODE=1.10", "agent.options.max_turns=3", "--cfg", "job", "-p", "agent")
    agent = yaml.safe_load(ran.out)
    assert agent["env"] == {"MODE": "1.10"}
    assert agent["options"] == {"max_turns": 3}


def test_help_lists_groups_choices_options_and_verbs(ptb):
    ran = ptb("--help")
    assert ran.code == 0
    for words in ("benchmark=", "addition", "agent=", "oracle", "attempts=1", "resume", "doctor", "-sc install=bash"):
        assert words in ran.out
    assert "agent.timeout_hours" in ptb("--help", "agent").out


def test_tab_completion_through_the_console_script(tmp_path):
    script = Path(sys.executable).parent / "ptb"
    installed = subprocess.run([script, "-sc", "install=bash"], capture_output=True, text=True, timeout=60)
    assert "complete -o nospace -o default -F hydra_bash_completion ptb" in installed.stdout
    line = "ptb agent=or"
    state = f'COMP_LINE="{line}"; COMP_POINT={len(line)}; COMP_CWORD=1'
    program = f'{installed.stdout}\n{state}; hydra_bash_completion; echo "${{COMPREPLY[@]}}"'
    environment = {"PATH": f"{script.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.strip().endswith("agent=oracle")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--cfg", "job"], ["attempts=x"], ["agent.timeout_hours=0"], ["statu"]]
)
def test_help_and_errors_import_no_heavy_library(arguments, tmp_path):
    program = (
        "import sys; from ptb_runner.cli import main; main(sys.argv[1:]);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'harbor', 'modal', 'beaker', 'litellm'}),"
        " file=sys.stderr, sep=',', end='|end')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.stderr.endswith("|end")
    assert done.stderr.splitlines()[-1] == "|end"


def test_an_option_of_another_choice_is_told_with_that_choice(ptb):
    for typed_, hint in {
        "serve.tp=4": "type serve=vllm with it: GPUs",
        "podman.nested=true": "type backend=podman or backend=beaker with it",
    }.items():
        ran = ptb(typed_)
        assert (ran.code, hint in ran.err, "Config'" in ran.err) == (2, True, False), ran.err
