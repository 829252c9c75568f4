"""Promise 25: a task that allows some hosts only is refused where that cannot be enforced, not run with all open."""

from pathlib import Path

import pytest

from tests.run_kit import REWARD_IF_OK, TASK_TOML, agent, make_task

ALLOW = 'network_mode = "allowlist"\nallowed_hosts = ["example.org"]'
NO_NETWORK = 'network_mode = "no-network"'


def toml(where: str) -> str:
    """A task with an allowlist in one of the places where Harbor takes one."""
    if where == "agent":
        return TASK_TOML.replace("[agent]", f"[agent]\n{ALLOW}")
    head, section, tail = TASK_TOML.partition(f"[{where}]\n")
    assert NO_NETWORK in tail
    return head + section + tail.replace(NO_NETWORK, ALLOW, 1)


@pytest.mark.parametrize("where", ["environment", "agent", "verifier", "verifier.environment"])
def test_refused_before_anything_is_launched(ptb, where):
    make_task(Path("mine"), REWARD_IF_OK, toml(where))
    ran = ptb("benchmark=task", "benchmark.path=mine", *agent("Honest"))
    assert ran.code == 2
    assert "allowlist" in ran.err
    assert "Traceback" not in ran.err
    assert [entry.name for entry in Path.cwd().iterdir()] == ["mine"]


def test_refused_in_a_layer_too(ptb):
    make_task(Path("mine").absolute(), REWARD_IF_OK, toml("environment"))
    ran = ptb("benchmark=hello", f"benchmark.layers=[{Path('mine').absolute()}]", *agent("Honest"))
    assert ran.code == 2
    assert "allowlist" in ran.err
    assert list(Path.cwd().glob("outputs/*/*")) == []
