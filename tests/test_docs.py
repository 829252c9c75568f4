"""The documentation says what the program does."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_options_page_is_what_the_schema_says():
    generated = runpy.run_path(str(ROOT / "docs" / "generate.py"))["page"]()
    assert (ROOT / "docs" / "options.md").read_text() == generated, "run: uv run python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_compose(page, ptb):
    """Each `ptb ...` command line with overrides that a page shows is one that the program accepts."""
    command = r"^(?:uv run )?(?:python -m ptb_runner|ptb) ([^#\n]*=[^#\n]*)"
    for line in re.findall(command, page.read_text(), re.MULTILINE):
        words = [word for word in line.split() if "=" in word and not word.startswith("-")]
        if "DIR" in line or "--config-dir" in line:
            continue
        ran = ptb("-m", *words, "dry_run=true") if "-m" in line.split() else ptb(*words, "--cfg", "job")
        planned = "not ready: " in ran.out  # a plan, on a machine without the keys or the GPU
        assert ran.code == 0 or planned, f"{page.name}: {line}: {ran.err}"


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The files that docs/adding.md shows, written where it says."""
    for block in re.findall(r"```(?:yaml|python)\n(.*?)```", (ROOT / "docs" / "adding.md").read_text(), re.DOTALL):
        name, _, rest = block.removeprefix("# ").partition("\n")
        path = tmp_path / "cwd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rest.replace("/data/tasks/mine", str(tmp_path / "task")))
    return tmp_path / "cwd" / "my_conf"


def test_the_example_agent_and_benchmark_run(examples, ptb, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up-and-never-used")
    ran = ptb("--config-dir", examples, "benchmark=sums", "agent=mine")
    assert ran.code == 0, ran.out + ran.err
    assert "coverage 1/1" in ran.out


def test_the_example_agent_that_asks_an_llm_runs_against_a_served_model(examples, ptb):
    from tests.fakes.llm_server import serving

    script = [{"shell": "cp -r base_model final_model"}, {"say": "Done."}]
    with serving({"x": script}) as server:
        given = ["agent.id=asks", "agent.import_path=asks_an_llm:AsksAnLlm", "agent.model=my-model"]
        given += [f"agent.options.llm_url={server.url('x')}/v1"]
        ran = ptb("benchmark=addition", "agent=custom", *given, "benchmark.evaluation.limit=10")
        assert len(server.of("x")) == 2
    assert ran.code == 0, ran.out + ran.err
    (result,) = examples.parent.glob("outputs/*/*/result.json")
    (trial,) = json.loads(result.read_text())["trials"]
    assert (trial["outcome"], trial["tokens"]["output"]) == ("scored", 40)


@pytest.mark.parametrize("name", ["acp:goose", "acp:goose@1.2.3"])
def test_acp_agents_go_by_harbors_shorthand(name, ptb):
    option = "agent.options.authenticate_method_id=goose-api-key"  # which is no secret, though it sounds like one
    ran = ptb("benchmark=hello", "agent=custom", "agent.id=goose", f"agent.name={name}", option, "dry_run=true")
    assert ran.code == 0, ran.out + ran.err
    assert "no such agent" in ptb("benchmark=hello", "agent=custom", "agent.name=goosey", "dry_run=true").out


def test_the_example_task_folder_runs(examples, ptb):
    planned = ptb("benchmark=hello", "dry_run=true", f"hydra.run.dir={examples.parent / 'planned'}")
    assert planned.code == 0, planned.err
    (examples.parent / "planned" / "task").rename(examples.parent.parent / "task")
    ran = ptb("--config-dir", examples, "benchmark=mine")
    assert ran.code == 0, ran.out + ran.err
    assert "1/1 trials passed" in ran.out


def test_the_example_model_composes(examples, ptb):
    ran = ptb(
        "--config-dir", examples, "benchmark=sums", "model=tiny", "--cfg", "job", "-p", "model.identity.hidden_size"
    )
    assert ran.out.strip() == "64", ran.err


def test_the_example_of_an_agent_that_begins_with_one_of_ours_composes(examples, ptb):
    ran = ptb("--config-dir", examples, "agent=codex-max", "--cfg", "job", "-p", "agent.options")
    assert "reasoning_effort: max" in ran.out, ran.err
    assert "web_search: live" in ran.out


def test_the_example_like_posttrainbench_renders(examples, ptb):
    folder = examples.parent / "planned"
    ran = ptb("--config-dir", examples, "benchmark=gsm8k-half", "dry_run=true", f"hydra.run.dir={folder}")
    assert ran.code == 1, ran.err
    assert "**Time**: 5 hours." in (folder / "task/instruction.md").read_text()
