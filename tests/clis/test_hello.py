"""Each of the four CLIs runs a whole trial in the bubblewrap sandbox, told by nothing but a scripted LLM."""

from __future__ import annotations

import pytest

from tests.clis import clis, clis_kit
from tests.clis.clis_kit import NAMES, in_bubblewrap, talking_to
from tests.run_kit import only_cell

pytestmark = pytest.mark.agents


@pytest.mark.parametrize("agent", NAMES)
def test_a_cli_does_what_its_llm_says(agent, ptb, llm):
    llm.scripts["hello"] = [{"think": "Two letters.", "shell": "printf ok > answer.txt"}, {"say": "It is done."}]
    ran = ptb("benchmark=hello", *talking_to(llm, "hello", agent), *in_bubblewrap())
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    (trial,) = cell.result["trials"]
    assert (trial["outcome"], trial["reward"]) == ("scored", 1)
    assert trial["agent_version"] == clis.PINS["clis"][agent]
    assert trial["tokens"] == {"input": 2000, "cached": 800, "output": 40}
    asked = llm.of("hello")
    assert [request.step for request in asked] == [0, 1]
    assert {request.protocol for request in asked} == {clis_kit.PROTOCOLS[agent]}
    assert {request.key for request in asked} == {clis_kit.secret(clis_kit.KEYS[agent])}
    assert "Write exactly" in asked[0].prompts[-1]
