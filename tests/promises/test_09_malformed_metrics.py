"""Promise 9: metrics that are no proper score are `eval_failed` with the reason, never a reward."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "templates"))

from template_kit import Sandbox  # pyright: ignore[reportMissingImports]

MALFORMED = {
    '{"accuracy": NaN}': "accuracy in metrics.json is nan, not from 0 to 1",
    '{"accuracy": Infinity}': "not from 0 to 1",
    '{"accuracy": -Infinity}': "not from 0 to 1",
    '{"accuracy": 1e999}': "not from 0 to 1",
    '{"accuracy": 1.0000001}': "not from 0 to 1",
    '{"accuracy": -0.1}': "not from 0 to 1",
    '{"accuracy": 97}': "not from 0 to 1",
    '{"accuracy": true}': "not a number: True",
    '{"accuracy": "0.9"}': "not a number: '0.9'",
    '{"accuracy": null}': "not a number",
    '{"accuracy": [0.9]}': "not a number",
    '{"accuracy": {"value": 0.9}}': "not a number",
    '{"score": 0.9}': "has no accuracy",
    "[0.9]": "not a JSON object",
    "0.9": "not a JSON object",
    "": "not valid JSON",
    '{"accuracy": 0.9': "not valid JSON",
    "accuracy: 0.9": "not valid JSON",
    "[" * 100_000: "not valid JSON",
    '{"accuracy": 0.9}' + " " * 5_000_000: "bytes, more than",
}


@pytest.mark.parametrize(("content", "reason"), MALFORMED.items(), ids=range(len(MALFORMED)))
def test_malformed_metrics_are_no_reward(tmp_path, content, reason):
    sandbox = Sandbox(tmp_path)
    sandbox.hand_over()
    (sandbox.root / "content").write_text(content)
    sandbox.fake_evaluator(f"output.write_text(pathlib.Path({str(sandbox.root / 'content')!r}).read_text())")
    verdict = sandbox.verify()  # which also checks that there is no reward.txt
    assert (verdict["outcome"], verdict["reward"], verdict["metrics"]) == ("eval_failed", None, None)
    assert reason in verdict["reason"]


def test_metrics_that_are_a_link_are_not_followed(tmp_path):
    sandbox = Sandbox(tmp_path)
    sandbox.hand_over()
    (tmp_path / "planted").write_text('{"accuracy": 1.0}')
    sandbox.fake_evaluator(f"output.symlink_to({str(tmp_path / 'planted')!r})")
    assert sandbox.verify()["outcome"] == "eval_failed"


@pytest.mark.parametrize("accuracy", ["0", "1", "0.0", "0.5", "1.0"])
def test_proper_metrics_are_the_reward_and_odd_side_values_do_no_harm(tmp_path, accuracy):
    sandbox = Sandbox(tmp_path)
    sandbox.hand_over()
    sandbox.fake_evaluator(f"""output.write_text('{{"accuracy": {accuracy}, "stderr": NaN}}')""")
    verdict = sandbox.verify()
    assert (verdict["outcome"], verdict["reward"]) == ("scored", float(accuracy))
    assert verdict["metrics"]["stderr"] is None
