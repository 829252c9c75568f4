"""Agents that are prompted again: one session, one budget, every log kept, totals of all rounds."""

from __future__ import annotations

import json
import re

import pytest

from ptb_runner import trace
from ptb_runner.agent.claude_code import ClaudeCode
from tests.clis.clis_kit import NAMES, in_bubblewrap, talking_to
from tests.run_kit import only_cell

pytestmark = pytest.mark.agents

LOGS = {
    "claude-code": "claude-code.txt",
    "codex": "codex.txt",
    "gemini-cli": "gemini-cli.txt",
    "opencode": "opencode.txt",
}
THREE_ROUNDS = [
    [{"shell": "date +%s >> /logs/agent/rounds.log"}, {"say": "First round done."}],
    [{"shell": "printf ok > answer.txt"}, {"say": "Second round done."}],
    [{"say": "Third round done."}],
]
AGAIN = ("agent.reprompt.min_remaining_min=1", "agent.reprompt.max=2", "agent.reprompt.pause_sec=0", "budget.hours=0.5")


@pytest.mark.parametrize("agent", NAMES)
def test_a_session_is_resumed_and_every_round_is_kept_and_counted(agent, ptb, llm):
    llm.scripts["again"] = THREE_ROUNDS
    ran = ptb("benchmark=hello", *talking_to(llm, "again", agent), *in_bubblewrap(), *AGAIN)
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    (trial,) = cell.result["trials"]
    assert (trial["outcome"], trial["reward"], trial["flags"]) == ("scored", 1, ["reprompted:2"])
    # One session: the last request holds all prompts, each told less time.
    prompts = llm.of("again")[-1].prompts
    assert len(prompts) == 3, prompts
    left = [re.search(r"turn, but (\d+) minutes?.* of your 30 minutes are left", prompt) for prompt in prompts]
    assert [bool(one) for one in left] == [False, True, True]
    # Five answers of 1000 tokens in, 400 of them cached, and 20 out.
    assert trial["tokens"] == {"input": 5000, "cached": 2000, "output": 100}
    folder = cell.folder / trial["trial_dir"]
    for number, words in ((1, "First round"), (2, "Second round")):
        assert words in (folder / "agent" / "rounds" / str(number) / LOGS[agent]).read_text()
    assert "Third round" in (folder / "agent" / LOGS[agent]).read_text()
    found = trace.read(folder)
    assert found is not None
    said = [turn.text for turn in found.turns if turn.who == "agent" and "round done" in turn.text]
    assert said == ["First round done.", "Second round done.", "Third round done."]
    rounds = json.loads((folder / "rounds.json").read_text())
    assert [one["error"] for one in rounds] == [None, None, None]
    assert sum(one["seconds"] for one in rounds) <= trial["durations_sec"]["agent"] + 1


def test_dollars_are_of_all_rounds(ptb, llm):
    llm.scripts["once"] = [{"say": "Done."}]
    llm.scripts["again"] = [[{"say": "Done."}]]
    costs = []
    for script, more in (("once", []), ("again", AGAIN)):
        folder = f"hydra.run.dir={script}"
        ptb("benchmark=hello", *talking_to(llm, script, "claude-code"), *in_bubblewrap(), *more, folder)
        costs.append(json.loads(open(f"{script}/result.json").read())["trials"][0]["cost_usd"])  # noqa: PTH123, SIM115
    assert costs[1] == pytest.approx(3 * costs[0])


@pytest.mark.parametrize("counts_on", [True, False])
def test_dollars_of_versions_that_count_on_and_that_do_not(counts_on, tmp_path):
    for number in (1, 2, 3):
        folder = tmp_path / ("" if number == 3 else f"rounds/{number}")
        folder.mkdir(parents=True, exist_ok=True)
        n = number if counts_on else 1
        usage = {"input_tokens": 100, "output_tokens": 10}
        event = {"type": "result", "total_cost_usd": 0.5 * n, "usage": usage}
        event["modelUsage"] = {"m": {"inputTokens": 100 * n, "outputTokens": 10 * n}}
        (folder / "claude-code.txt").write_text(f"a warning\n{json.dumps(event)}\n")
    agent = ClaudeCode(logs_dir=tmp_path, model_name="anthropic/claude-opus-4-8")
    assert agent._parse_total_cost_from_stream_json() == pytest.approx(1.5)


def test_a_cli_that_breaks_in_a_later_round_keeps_its_work(ptb, llm):
    llm.scripts["breaks"] = [
        [{"shell": "printf ok > answer.txt"}, {"say": "Done."}],
        [{"status": 401, "message": "no more"}],
    ]
    ran = ptb("benchmark=hello", *talking_to(llm, "breaks", "codex"), *in_bubblewrap(), *AGAIN)
    trial = only_cell().trial()
    assert ran.code == 0
    assert (trial["outcome"], trial["reward"]) == ("scored", 1)
    assert trial["flags"] == ["reprompted:1", "reprompt_error:AgentAuthenticationError"]


def test_what_an_agent_is_told_is_what_its_timer_says(ptb, llm):
    """In every round: the limit that Harbor enforces, the prompt and the timer are one budget."""
    asks = [[{"shell": "bash timer.sh"}, {"say": "Done."}], [{"shell": "bash timer.sh"}, {"say": "Done."}]]
    llm.scripts["timer"] = asks
    more = ("agent.reprompt.min_remaining_min=1", "agent.reprompt.max=1", "agent.reprompt.pause_sec=5")
    ptb("benchmark=addition", *talking_to(llm, "timer", "codex"), *in_bubblewrap(), *more, "budget.hours=0.5")
    (config,) = only_cell().folder.glob("job/*__*/config.json")
    assert json.loads(config.read_text())["agent"]["override_timeout_sec"] == 1800
    last = llm.of("timer")[-1]
    told = re.search(r"but (\d+) minutes?.* of your 30 minutes are left", last.prompts[-1])
    said = [int(found) for found in re.findall(r"(\d+) min(?: \d+ s)? left of 30 min", json.dumps(last.body))]
    assert told
    assert len(said) == 2
    assert abs(said[1] - int(told[1])) <= 1
    assert said[1] <= said[0] <= 30
