"""Promise 14: a typo is told with its file or as the command line's, with its key and what is allowed; no traceback."""

from pathlib import Path

import pytest

from ptb_runner import menu
from ptb_runner.config import GROUPS
from ptb_runner.paths import CONF

CHOICES = {group: menu.choices(group, [str(CONF)]) for group in (*GROUPS, "experiment")}
# A key with a typo in each group, and the key that was meant.
KEYS = {
    "benchmark": ("agent_huors", "benchmark.agent_hours"),
    "model": ("hub_idd", "model.hub_id"),
    "agent": ("timeout_hour", "agent.timeout_hours"),
    "backend": ("keep_modell", "backend.keep_model"),
    "launcher": ("kimd", "launcher.kind"),
}
# What a user's own file of each group must hold besides the typo.
FILES = {
    "benchmark": "kind: harbor\nid: mine\nlayers: [hello]\n",
    "model": "id: mine\n",
    "agent": "id: mine\nname: nop\n",
    "backend": "defaults: [bubblewrap_schema]\n",
    "launcher": "defaults: [inline_schema]\n",
}


def check(ran, *said: str) -> None:
    assert ran.code == 2
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) <= 2
    for words in said:
        assert words in ran.err
    assert [entry for entry in Path.cwd().iterdir() if entry.name != "mine"] == []


@pytest.mark.parametrize("group", CHOICES)
def test_a_choice_that_is_none(ptb, group):
    mistyped = CHOICES[group][0][:-1] + "_"
    check(ptb(f"{group}={mistyped}"), f"{group}={mistyped}", str(CONF), ", ".join(CHOICES[group]))


@pytest.mark.parametrize("group", KEYS)
def test_a_key_on_the_command_line(ptb, group):
    typo, meant = KEYS[group]
    check(ptb(f"{group}.{typo}=1"), "command line", f"{group}.{typo}", f"did you mean {meant}?")
    check(ptb(f"+{group}.{typo}=1"), f"{group}.{typo}", f"did you mean {meant}?")


@pytest.mark.parametrize("group", KEYS)
def test_a_key_in_a_file(ptb, tmp_path, group):
    typo, meant = KEYS[group]
    file = tmp_path / "own" / group / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{FILES[group]}{typo}: 1\n")
    check(
        ptb("--config-dir", tmp_path / "own", f"{group}=mine"), str(file), f"{group}.{typo}", f"did you mean {meant}?"
    )


@pytest.mark.parametrize("text", ["id: [\n", "id: 'a\n", "\tid: a\n", "- a\n"])
def test_a_file_that_is_no_yaml_table(ptb, tmp_path, text):
    file = tmp_path / "own" / "agent" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    ran = ptb("--config-dir", tmp_path / "own", "agent=mine")
    assert ran.code == 2
    assert "mine.yaml" in ran.err
    assert "Traceback" not in ran.err


def test_a_typo_among_the_top_options_and_in_the_middle_of_a_value(ptb):
    check(ptb("concurency=3"), "command line", "concurency", "concurrency?")
    check(ptb("retry={infra_error: 3}"), "retry.infra_error", "retry.infra_errors?")
    check(ptb("benchmark.evaluation.limitt=3"), "benchmark.evaluation.limitt", "benchmark.evaluation.limit?")
    check(ptb("attempts=[1"), "attempts")
