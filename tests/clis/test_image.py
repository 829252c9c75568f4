"""A CLI that the image itself brings, as benchmarks' own images do: it is used, not installed again."""

from __future__ import annotations

import pytest

from tests.clis import clis, clis_kit
from tests.clis.clis_kit import talking_to
from tests.podman import podman_kit
from tests.run_kit import only_cell

pytestmark = pytest.mark.agents

IMAGE = "localhost/ptb-clis:gemini"
RECIPE = """
FROM {base}
COPY lib/node_modules/{node} /usr/local/lib/node_modules/{node}
COPY lib/node_modules/@google /usr/local/lib/node_modules/@google
RUN ln -s ../lib/node_modules/{node}/bin/node /usr/local/bin/node \\
    && ln -s ../lib/node_modules/@google/gemini-cli/bundle/gemini.js /usr/local/bin/gemini
"""


def test_a_cli_of_the_image(ptb, llm):
    node = next(clis.prefix().glob("lib/node_modules/node-linux-*")).name
    clis_kit.build(IMAGE, RECIPE.format(base=podman_kit.make_image(), node=node), clis.prefix())
    llm.scripts["image"] = [{"shell": "printf ok > answer.txt"}, {"say": "It is done."}]
    own = ("backend=podman", f"backend.image={IMAGE}", "backend.network=host")
    ran = ptb("benchmark=hello", *talking_to(llm, "image", "gemini-cli"), *own)
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    assert cell.trial()["agent_version"] == clis.PINS["clis"]["gemini-cli"]
    assert "npm install" not in next(cell.folder.glob("job/*__*/trial.log")).read_text()
