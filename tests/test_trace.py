"""Traces: from Harbor's trajectory or a CLI's own log, as text, and by `ptb trace`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptb_runner import clierrors, clilogs, trace
from ptb_runner.trace import EVERYTHING, Call, Cut, Trace, Turn
from tests.run_kit import QUICK, agent, only_cell
from tests.test_sweep import wait_until

LOGS = Path(__file__).parent / "fakes" / "cli_logs"  # real ones, of the same three turns


def make_trial(folder: Path, *logs: str, trajectory: object = None) -> Path:
    (folder / "agent").mkdir(parents=True)
    for name in logs:
        (folder / "agent" / name).write_bytes((LOGS / name).read_bytes())
    if trajectory is not None:
        (folder / "agent" / "trajectory.json").write_text(json.dumps(trajectory))
    return folder


@pytest.mark.parametrize("name", ["claude-code.txt", "codex.txt", "gemini-cli.txt", "opencode.txt"])
def test_each_clis_own_log_is_read(tmp_path, name):
    found = trace.read(make_trial(tmp_path / "t", name))
    assert found is not None
    calls = [call for turn in found.turns for call in turn.calls]
    assert [trace.command_of(call) for call in calls] == [
        "echo hello > out.txt; for i in 1 2 3; do echo line $i; done",
        "ls /nonexistent; exit 3",
    ]
    assert calls[0].output is not None
    assert calls[0].output.split() == ["line", "1", "line", "2", "line", "3"]
    assert "No such file" in (calls[1].output or "")
    assert calls[1].failed is (name != "gemini-cli.txt")  # which says success of a command that failed
    assert (found.turns[-1].who, found.turns[-1].text) == ("agent", "All done.")
    shown = trace.text(found)
    assert "  $ ls /nonexistent; exit 3\n" in shown
    assert "  | line 2\n" in shown


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("claude-code.txt", {"type": "result", "is_error": True, "result": "API Error: 529 Overloaded"}, "529"),
        ("codex.txt", {"type": "turn.failed", "error": {"message": "status 401 Unauthorized"}}, "401"),
        ("gemini-cli.txt", {"type": "result", "status": "error", "error": {"message": "quota is used up"}}, "quota"),
        ("opencode.txt", {"type": "error", "error": {"name": "APIError", "data": {"message": "bad key"}}}, "bad key"),
    ],
)
def test_errors_of_a_cli_are_turns(tmp_path, name, line, words):
    folder = make_trial(tmp_path / "t", name)
    with (folder / "agent" / name).open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.write('{"type": "half a li')
    found = trace.read(folder)
    assert found is not None
    assert found.turns[-1].who == "error"
    assert words in found.turns[-1].text


@pytest.mark.parametrize(
    ("name", "at_line"), [("claude-code.txt", 2), ("codex.txt", 6), ("gemini-cli.txt", 7), ("opencode.txt", 1)]
)
def test_from_which_line_on_the_llm_has_answered(name, at_line):
    lines = (LOGS / name).read_text().splitlines()
    assert [clilogs.answered(name, lines[:number]) for number in (at_line - 1, at_line)] == [False, True]
    assert clilogs.answered(name, ["a warning", "[1]", "{}", '{"type": 3}', *lines])
    assert clilogs.answered(f"my-{name}", [])  # nobody knows


SYNTHETIC = {"id": "m", "model": "<synthetic>", "content": [{"type": "text", "text": "API Error: Connection error."}]}
NO_TOKENS = {"tokens": {"input": 0, "output": 0}}


@pytest.mark.parametrize(
    ("name", "events", "words"),
    [
        ("claude-code.txt", [{"type": "assistant", "message": SYNTHETIC}], "names no error"),
        (
            "claude-code.txt",
            [
                {"type": "system", "subtype": "api_retry", "attempt": n, "max_retries": 10, "error_status": 529}
                for n in (1, 2)
            ],
            "attempt 2 of 10: HTTP 529",
        ),
        ("codex.txt", [{"type": "error", "message": "Reconnecting... waiting for network"}], "waiting for network"),
        ("codex.txt", [{"type": "item.completed", "item": {"type": "error", "message": "Falling back"}}], "Falling"),
        ("gemini-cli.txt", [{"type": "message", "role": "user", "content": "Train it."}], "names no error"),
        ("gemini-cli.txt", ["Attempt 6 failed. Retrying with backoff... TypeError: fetch failed"], "fetch failed"),
        ("opencode.txt", [{"type": "step_start"}, {"type": "step_finish", "part": NO_TOKENS}], "names no error"),
        ("opencode.txt", [{"type": "error", "error": {"data": {"message": "Cannot connect"}}}], "Cannot connect"),
    ],
)
def test_what_a_cli_logs_that_reaches_no_llm_is_no_answer(name, events, words):
    lines = [one if isinstance(one, str) else json.dumps(one) for one in events]
    assert not clilogs.answered(name, lines)
    assert words in clierrors.silent(name, lines)


def test_lines_of_unknown_form_lose_nothing_else(tmp_path):
    folder = make_trial(tmp_path / "t", "claude-code.txt")
    path = folder / "agent" / "claude-code.txt"
    odd = ['{"type": "assistant"}', '{"type": "user", "message": 3}', "[1]", '"x"', "{}", "thread 'main' panicked"]
    path.write_text("\n".join([*odd, path.read_text()]))
    found = trace.read(folder)
    assert found is not None
    assert found.turns[0].who == "system"
    assert "panicked" in found.turns[0].text
    assert found.turns[-1].text == "All done."


TRAJECTORY = {
    "schema_version": "ATIF-v1.7",
    "agent": {"name": "claude-code", "version": "2.1.332", "model_name": "claude-opus-4-8"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Train it.", "timestamp": "2026-11-29T10:00:00Z"},
        {
            "step_id": 2,
            "source": "agent",
            "timestamp": "2026-11-29T10:01:05Z",
            "message": "Two things at once.",
            "reasoning_content": "First the data.",
            "tool_calls": [
                {"tool_call_id": "a", "function_name": "Bash", "arguments": {"command": "nvidia-smi"}},
                {"tool_call_id": "b", "function_name": "Task", "arguments": {"prompt": "look\naround"}},
            ],
            "observation": {
                "results": [
                    {"source_call_id": "b", "content": [{"type": "text", "text": "found"}],
                     "subagent_trajectory_ref": [{"trajectory_id": "helper-1"}]},
                    {"source_call_id": "a", "content": "no GPU"},
                ]
            },
            "metrics": {"prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 7},
        },
    ],
    "final_metrics": {"total_prompt_tokens": 12000, "total_cached_tokens": 4000, "total_completion_tokens": 90,
                      "total_cost_usd": 0.25},
    "subagent_trajectories": [
        {"trajectory_id": "helper-1", "agent": {"name": "x", "version": "1"},
         "steps": [{"step_id": 1, "source": "agent", "message": "I looked."}]},
    ],
}  # fmt: skip


def test_harbors_trajectory_is_preferred_and_complete(tmp_path):
    found = trace.read(make_trial(tmp_path / "t", "claude-code.txt", trajectory=TRAJECTORY))
    assert found is not None
    assert (found.source, found.version, found.cost_usd) == ("trajectory.json", "2.1.332", 0.25)
    assert found.tokens == {"input": 12000, "cached": 4000, "output": 90}
    assert [(turn.who, turn.thread) for turn in found.turns] == [("user", ""), ("agent", ""), ("agent", "helper-1")]
    assert [(call.tool, call.output) for call in found.turns[1].calls] == [("Bash", "no GPU"), ("Task", "found")]
    assert found.turns[1].tokens == {"input": 100, "cached": 40, "output": 7}
    assert trace.text(found) == (
        "claude-code 2.1.332, claude-opus-4-8, 3 turns, 12,000 tokens in (4,000 cached), 90 out, $0.2500\n"
        "\n[1] user +0.0s\n  Train it.\n"
        "\n[2] agent +1:05\n  (thinking) First the data.\n  Two things at once.\n"
        "  $ nvidia-smi\n  | no GPU\n"
        "  Task\n    prompt: look\n      around\n  | found\n"
        "\n[3] agent (helper-1)\n  I looked.\n"
    )


@pytest.mark.parametrize("damaged", [[], {"steps": 3}, {"steps": [{"source": "agent"}, 7]}, "text"])
def test_a_damaged_trajectory_leaves_the_log(tmp_path, damaged):
    found = trace.read(make_trial(tmp_path / "t", "codex.txt", trajectory=damaged))
    assert found is not None
    assert found.source == "codex.txt"


def test_links_out_of_the_trial_are_not_followed(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    folder = make_trial(tmp_path / "t")
    (folder / "agent" / "trajectory.json").symlink_to(secret)
    (folder / "agent" / "codex.txt").symlink_to(secret)
    (folder / "agent" / "rounds").symlink_to(tmp_path)
    assert trace.read(folder) is None
    helper = {**TRAJECTORY, "steps": [{"source": "agent", "message": "x", "observation": {"results": [
        {"content": "y", "subagent_trajectory_ref": [{"trajectory_path": "../../outside.json"}]}]}}]}  # fmt: skip
    (tmp_path / "outside.json").write_text(json.dumps(TRAJECTORY))
    found = trace.read(make_trial(tmp_path / "u", trajectory=helper))
    assert found is not None
    assert len(found.turns) == 1


def test_earlier_rounds_come_first(tmp_path):
    folder = make_trial(tmp_path / "t", "claude-code.txt")
    for number in (2, 1, 10):
        (folder / "agent" / "rounds" / str(number)).mkdir(parents=True)
        line = {"type": "result", "is_error": True, "result": f"round {number}"}
        (folder / "agent" / "rounds" / str(number) / "claude-code.txt").write_text(json.dumps(line) + "\n")
    found = trace.read(folder)
    assert found is not None
    assert [turn.text for turn in found.turns][:3] == ["round 1", "round 2", "round 10"]
    assert found.turns[-1].text == "All done."


def test_long_outputs_keep_both_ends_and_say_what_is_missing():
    output = "\n".join(f"step {number}" for number in range(10_000))
    turn = Turn("agent", calls=[Call("bash", {"command": "train"}, output)])
    shown = trace.text(Trace([turn], "x"), Cut(output=600))
    assert len(shown) < 1200
    assert "step 0\n" in shown
    assert "step 9999" in shown
    assert " lines left out" in shown
    assert "step 5000\n" in trace.text(Trace([turn], "x"), EVERYTHING)


def test_a_trace_cannot_disturb_a_terminal():
    bar = "".join(f"\r{number}%" for number in range(100)) + "\nend\r\n"
    odd = "\x1b[2J\x1b]0;title\x07\x1b]8;;http://x\x1b\\red\x9b31m \u202egnp"
    shown = trace.text(Trace([Turn("agent", odd, calls=[Call("a\x1b[1m", {"b\x07": "c"}, bar)])], "x"))
    assert not [char for char in shown if ord(char) < 32 and char != "\n"]
    assert "\u202e" not in shown
    assert "\x9b" not in shown
    assert "red31m gnp" in shown
    assert "  | 99%\n  | end\n" in shown
    assert "98%" not in shown


def write_log(name: str, upto: int | None = None) -> str:
    """A shell command that writes a CLI's log in the sandbox."""
    lines = (LOGS / name).read_text().splitlines(keepends=True)[:upto]
    return f"printf %s {shlex.quote(''.join(lines))} > /logs/agent/{name}"


def test_ptb_trace(ptb, tmp_path):
    command = f"{write_log('codex.txt')}; printf ok > answer.txt"
    assert ptb(*QUICK, *agent("Scripted", command=command), "attempts=2").code == 0
    cell = only_cell().folder
    ran = ptb("trace", cell)
    assert ran.code == 2
    assert "hello__001, hello__002" in ran.err
    ran = ptb("trace", cell, "hello__002")
    assert ran.code == 0
    assert ran.out.startswith("codex, 4 turns\n")
    assert "  $ ls /nonexistent; exit 3\n" in ran.out
    assert ptb("trace", cell / "job" / "hello__002").out == ran.out
    assert ptb("trace", cell, "hello__002", "-f").out.endswith("All done.\n")
    assert "has no trial 'nothing'" in ptb("trace", cell, "nothing", "-f").err
    (cell / "job" / "hello__001" / "agent" / "codex.txt").unlink()
    (cell / "job" / "hello__001" / "agent" / "scripted.txt").unlink()
    assert "left no trace" in ptb("trace", cell, "hello__001").err


def test_ptb_trace_follows_a_running_trial(tmp_path):
    gate = tmp_path / "gate"
    gate.mkdir()
    wait = f"until [ -e {gate}/open ]; do sleep 0.05; done"
    command = f"{write_log('claude-code.txt', 2)}; {wait}; {write_log('claude-code.txt')}; printf ok > answer.txt"
    secret = {"MY_KEY": "i in 1 2 3"}  # is in the log
    run = [sys.executable, "-m", "ptb_runner", *QUICK, *agent("Scripted", command=command), "hydra.run.dir=cell"]
    env = {**os.environ, **secret}
    more = ["agent.env_vars=[MY_KEY]", "progress.agent_log_sec=0.1", f"backend.read_only_paths=[{gate}]"]
    process = subprocess.Popen([*run, *more], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    cell = tmp_path / "cell"
    log = cell / "job" / "hello__001" / "agent" / "claude-code.txt"
    wait_until(lambda: log.exists() and "toolu_" in log.read_text())
    follower = subprocess.Popen(
        [sys.executable, "-m", "ptb_runner", "trace", cell, "-f"], stdout=subprocess.PIPE, text=True, env=env
    )
    assert follower.stdout is not None
    first = []
    while "$ echo hello" not in "".join(first):
        line = follower.stdout.readline()
        assert line, f"ended early: {first}"
        first.append(line)
    assert process.poll() is None
    assert secret["MY_KEY"] not in log.read_text()
    assert "${MY_KEY}" in "".join(first)
    time.sleep(0.6)  # a second look that finds nothing new
    (gate / "open").touch()
    rest = follower.communicate(timeout=60)[0]
    assert process.wait(timeout=60) == 0
    assert follower.returncode == 0
    assert "$ echo hello" not in rest
    assert rest.endswith("All done.\n")


def test_an_agent_that_could_not_begin_has_a_reason_in_place_of_a_trace(ptb, tmp_path):
    (tmp_path / "agent").mkdir()
    message = "Command failed (exit 100): apt-get install -y ripgrep\nstdout: None\nstderr: E: no such package"
    raised = {"exception_type": "NonZeroAgentExitCodeError", "exception_message": message}
    times = {"started_at": "2026-01-02T03:04:05Z"}
    (tmp_path / "result.json").write_text(json.dumps({"agent_setup": times, "exception_info": raised}))
    ran = ptb("trace", str(tmp_path))
    assert ran.code == 2
    assert "left no trace\n  NonZeroAgentExitCodeError: the agent could not be installed" in ran.err
    assert "E: no such package" in ran.err
