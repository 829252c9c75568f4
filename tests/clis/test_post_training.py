"""Each of the four CLIs post-trains the embedded model through Harbor's own agent class, and the verifier scores it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clis import clis, clis_kit
from tests.clis.clis_kit import NAMES, in_bubblewrap, in_podman, talking_to
from tests.run_kit import only_cell

pytestmark = pytest.mark.agents

RECIPE = Path(__file__).with_name("train_briefly.py").read_text()
ONE_THREAD = "export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1"
SCRIPT = [
    {"think": "First the time that I have.", "shell": "bash timer.sh; ls"},
    {"shell": "python3 evaluate.py --model-path base_model --limit 20 --json-output-file base.json; cat base.json"},
    {
        "think": "It knows nothing yet; I train it.",
        "shell": f"{ONE_THREAD}; cat > train.py <<'EOF'\n{RECIPE}EOF\npython3 train.py",
    },
    {"shell": "python3 evaluate.py --model-path final_model --limit 20 --json-output-file metrics.json; bash timer.sh"},
    {"say": "final_model is trained and evaluated."},
]
ZERO_SHOT = 0.027
SANDBOXES = {"bubblewrap": in_bubblewrap, "podman": in_podman}


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("agent", NAMES)
def test_a_cli_post_trains_a_model_and_is_scored(agent, sandbox, ptb, llm):
    llm.scripts["train"] = SCRIPT
    ran = ptb("benchmark=addition", *talking_to(llm, "train", agent), *SANDBOXES[sandbox]())
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    (trial,) = cell.result["trials"]
    assert trial["outcome"] == "scored"
    assert 2 * ZERO_SHOT < trial["reward"] < 0.9
    assert trial["agent_version"] == clis.PINS["clis"][agent]
    asked = llm.of("train")
    assert trial["tokens"] == {"input": 1000 * len(asked), "cached": 400 * len(asked), "output": 20 * len(asked)}
    assert 0 < trial["durations_sec"]["agent"] < trial["durations_sec"]["total"]
    assert (trial["cost_usd"] or 0) > 0 or agent == "opencode"  # nobody knows the price of an endpoint of one's own
    assert {request.protocol for request in asked} == {clis_kit.PROTOCOLS[agent]}
    assert {request.key for request in asked} == {clis_kit.secret(clis_kit.KEYS[agent])}
    assert_it_read_what_its_tools_said(asked)
    assert_the_trace_reads_well(clis_kit.agent_logs(cell.folder))


def assert_it_read_what_its_tools_said(asked):
    assert sorted({request.step for request in asked}) == [0, 1, 2, 3, 4]
    assert "Addition of two numbers below 100" in asked[0].prompts[-1]
    assert "bash timer.sh" in asked[0].prompts[-1]
    said = json.dumps(asked[-1].body)
    assert "left of 30 min" in said
    assert "saved final_model" in said
    assert "accuracy" in said


def assert_the_trace_reads_well(logs):
    trajectory = json.loads((logs / "trajectory.json").read_text())
    steps = trajectory["steps"]
    assert any("Addition of two numbers" in str(step["message"]) for step in steps if step["source"] == "user")
    calls = [call for step in steps for call in step.get("tool_calls") or [] if call["function_name"] != "write_stdin"]
    asked = [list(call["arguments"].values()) for call in calls]
    assert all(step["shell"] in values for step, values in zip(SCRIPT, asked, strict=False)), asked
    assert len(calls) == len(SCRIPT) - 1
    seen = json.dumps([step.get("observation") for step in steps])
    assert "saved final_model" in seen
    assert "final_model is trained and evaluated." in json.dumps(steps[-1]["message"])
    assert trajectory["final_metrics"]["total_completion_tokens"] >= 100
