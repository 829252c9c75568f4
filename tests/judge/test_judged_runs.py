"""Runs with judges: when they work, what their verdicts do to the score, and what a rerun or a review changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptb_runner.results.rows import read_rows
from tests import run_kit
from tests.conftest import Ran
from tests.fakes.judge_api import JudgeApi, Step, serving
from tests.run_kit import QUICK, agent

FIELDS = {
    "gpt5_4": ("contamination", "disallowed_model"),
    "api": ("disallowed_api_usage",),
    "ptb_lookup": ("disallowed_ptb_lookup",),
    "general": ("general_anomaly",),
}
KEY = "judge-key-canary-5f1b9c"
HONEST = agent("Honest")


def says(judge: str, *yes: str) -> dict[str, Any]:
    """A judge's verdict: true for these fields."""
    verdict = {name: name in yes for name in FIELDS[judge]}
    return {"verdict": verdict | {f"justification_{name}": f"because of {name}" for name in verdict}}


def scripts(**other: list[Step]) -> dict[str, list[Step]]:
    """Every judge finds everything clean, but for these."""
    clean: dict[str, list[Step]] = {judge: [says(judge)] for judge in FIELDS}
    return clean | other


def judges(api: JudgeApi) -> list[str]:
    """Overrides: the four judges, each by an LLM that is called as it is."""
    models = [f"judge.panel.{judge}.model={judge}" for judge in FIELDS]
    return ["judge=v1_1", *models, f"judge.base_url={api.url}", "judge.retry_wait_sec=0", "judge.retries=1"]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def judged(ptb: Callable[..., Ran]) -> Callable[..., tuple[Ran, run_kit.Cell]]:
    """Run a cell with judges that say what the scripts have."""

    def run(api: JudgeApi, *overrides: str) -> tuple[Ran, run_kit.Cell]:
        ran = ptb(*(overrides or (*QUICK, *HONEST)), *judges(api), "hydra.run.dir=cell")
        return ran, run_kit.Cell(Path("cell").resolve())

    return run


def test_a_flag_counts_as_the_base_models_score(judged):
    looks = scripts(gpt5_4=[{"call": "check_model_identity"}, says("gpt5_4", "contamination")])
    spy = (
        'env > env.txt; grep -r "$(echo canary)" /proc/*/environ > procs.txt 2>/dev/null; cp -r base_model final_model'
    )
    with serving(looks) as api:
        ran, cell = judged(api, *agent("Scripted", command=spy), "judge.panel.api.usd_per_mtok={input:2,output:10}")
    assert ran.code == 1
    trial = cell.trial()
    assert (trial["outcome"], trial["reward"]) == ("flagged", None)
    assert trial["error"]["message"] == "gpt5_4.contamination: because of contamination"
    assert trial["judgements"]["gpt5_4"]["verdict"]["contamination"] is True
    assert trial["judgements"]["api"]["cost_usd"] == pytest.approx((1000 * 2 + 50 * 10) / 1e6)
    assert trial["judge_cost_usd"] == trial["judgements"]["api"]["cost_usd"] == cell.status["spent"]["usd"]
    assert trial["metrics"]["accuracy"] is not None  # what the verifier had said is not lost
    score = cell.result["score"]
    assert (score["raw"], score["final"], score["final_source"]) == (None, 0.027, "base_model_zero_shot")
    assert (score["n_scored"], score["n_expected"]) == (0, 1)
    # The model was the given one, and the judge could see it.
    assert api.by("gpt5_4")[1].outputs[1]["same_architecture"] is True
    # The key went to the API, and nowhere else: in no file, and not into the sandbox, whose environment is evidence.
    assert {one.headers["authorization"] for one in api.seen} == {f"Bearer {KEY}"}
    assert not any(KEY in one.read_bytes().decode(errors="replace") for one in files(cell.folder))
    [seen] = cell.folder.glob("job/*/artifacts/logs/artifacts/workspace/env.txt")
    assert "OPENAI" not in seen.read_text()
    kept = json.loads((cell.folder / trial["judgements"]["gpt5_4"]["file"]).read_text())
    assert kept["limits"]["max_turns"] == 150
    assert (kept["model"], kept["effort"], kept["turns"], kept["tool_calls"]) == ("gpt5_4", "xhigh", 2, 1)
    written = cell.folder / "job" / trial["name"] / "judgements" / kept["transcript"]
    transcript = [json.loads(line) for line in written.read_text().splitlines()]
    assert [one["role"] for one in transcript] == ["instructions", "prompt", "tool", "judge", "tool", "judge"]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_judges_work_when_the_trial_has_left_its_slot(judged):
    """The only slot is free while trial 1 is judged: its judges wait here until trial 2 has run."""
    ran_second = threading.Event()

    def waits(body: dict[str, Any]) -> dict[str, Any]:
        second = Path("cell/job/hello__002/result.json")
        for _ in range(400):
            if second.exists():
                ran_second.set()
                break
            threading.Event().wait(0.05)
        return says("gpt5_4")

    with serving(scripts(gpt5_4=[waits])) as api:
        ran, cell = judged(api, *QUICK, *HONEST, "attempts=2", "concurrency=1")
    assert ran.code == 0
    assert ran_second.is_set()
    assert cell.outcomes == ["scored", "scored"]
    assert cell.result["score"]["final"] == 1.0
    assert sorted(cell.trial()["judgements"]) == sorted(FIELDS)
    assert cell.trial()["flags"] == []
    assert cell.trial()["review"] is None


def test_resuming_asks_only_the_judges_that_are_missing(ptb, judged):
    with serving(scripts(api=[{"status": 500}])) as api:
        ran, cell = judged(api, *QUICK, *HONEST, "attempts=2")
        assert ran.code == 1
        assert "ptb rejudge cell --only missing" in ran.out
        assert cell.outcomes == ["judge_missing"] * 2
        before = cell.mtimes()
        api.scripts["api"] = scripts()["api"]
        first = len(api.seen)
        shutil.rmtree(cell.folder / "job/hello__002/judgements")  # killed before its judges began
        assert ptb("resume", "cell").code == 0
        again = [one.body["model"] for one in api.seen[first:]]
    assert sorted(again) == sorted(["api", *FIELDS])
    assert cell.mtimes() == before
    assert cell.outcomes == ["scored"] * 2


def test_an_interrupt_while_judging_loses_no_work(ptb, tmp_path):
    with serving(scripts(general=[{"hang": 30, **says("general")}])) as api:
        running = run_kit.start(tmp_path, *QUICK, *HONEST, *judges(api))
        running.wait_for(run_kit.in_phase("judging"))
        running.wait_for(lambda _: len(list(running.cell.folder.glob("job/*/judgements/*.json"))) == 3)
        assert running.end(15) == 130
        cell = running.cell
        assert cell.status["state"] == "cancelled"
        assert cell.outcomes == ["judge_missing"]
        before, seen = cell.mtimes(), len(api.seen)
        api.scripts["general"] = scripts()["general"]
        assert ptb("resume", cell.folder).code == 0
        assert [one.body["model"] for one in api.seen[seen:]] == ["general"]
    assert cell.mtimes() == before
    assert cell.outcomes == ["scored"]


# --- Reruns -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cell that these tests begin with is kept, once the first of them has run it."""
    return tmp_path_factory.mktemp("kept") / "cell"


@pytest.fixture
def saved(kept: Path, ptb: Callable[..., Ran]) -> run_kit.Cell:
    """A cell of two trials that was run without judges, where `ptb` runs."""
    if not kept.exists():
        assert ptb(*QUICK, *HONEST, "attempts=2", "hydra.run.dir=cell").code == 0
        shutil.copytree("cell", kept)
    shutil.copytree(kept, "cell", dirs_exist_ok=True)
    return run_kit.Cell(Path("cell").resolve())


def rejudged(ptb: Callable[..., Ran], api: JudgeApi, *arguments: str) -> Ran:
    return ptb("rejudge", "cell", *arguments, *judges(api))


def test_a_saved_cell_is_judged_for_the_first_time_and_again(ptb, saved):
    before = saved.mtimes()
    assert "ptb rejudge" in ptb("rejudge", "cell").err  # it has no judges
    with serving(scripts()) as api:
        ran = rejudged(ptb, api)
        assert ran.code == 0, ran.err
        assert saved.outcomes == ["scored"] * 2
        assert sorted(path.stem for path in saved.folder.glob("judges/*.md")) == sorted(FIELDS)
        assert len(api.seen) == 8
        api.scripts["api"] = [says("api", "disallowed_api_usage")]
        ran = ptb("rejudge", "cell", "--judges", "api")  # the cell knows its judges by now
        assert ran.code == 1
        assert "hello__001: api: disallowed_api_usage; scored -> flagged" in ran.out
        assert saved.outcomes == ["flagged"] * 2
        names = sorted(path.name for path in (saved.folder / "job/hello__001/judgements").glob("api*.json"))
        assert names == ["api.json", "api_rerun.json"]
        api.scripts["api"] = [{"status": 500}]
        ran = ptb("rejudge", "cell", "--judges", "api")
        assert "hello__001: api: no verdict (Error code: 500" in ran.out
        assert "the earlier verdict stays: disallowed_api_usage\n" in ran.out
        assert saved.outcomes == ["flagged"] * 2  # a rerun without a verdict undoes none
        api.scripts["api"] = scripts()["api"]
        assert ptb("rejudge", "cell", "--judges", "api").code == 0
        assert saved.outcomes == ["scored"] * 2
    assert saved.mtimes() == before
    folder = saved.folder / "job/hello__001/judgements"
    assert verdicts(folder / "superseded", "api_rerun.*.json") == [None, True]
    assert verdicts(folder, "api*.json") == [False, False]


def test_single_settings_change_the_judges_that_a_cell_has(ptb, saved):
    with serving(scripts()) as api:
        assert rejudged(ptb, api).code == 0
        seen = len(api.seen)
        ran = ptb("rejudge", "cell", "--judges", "api", "judge.effort=low", "judge.panel.api.model=another")
        assert ran.code == 0, ran.err  # asked where the cell's judges are asked
        asked = {(one.body["model"], one.body["reasoning"]["effort"]) for one in api.seen[seen:]}
        assert asked == {("another", "low")}
        typos = {"judge.efort=low": "did you mean judge.effort?", "judge.panel.api.modl=x": "no option"}
        values = {"judge.retries=many": "judge.retries: takes", "judge.retries=-1": "judge.retries: takes"}
        for wrong, hint in {**typos, **values, "judge.engine=[": "judge.engine"}.items():
            ran = ptb("rejudge", "cell", wrong)
            assert (ran.code, hint in ran.err) == (2, True), ran.err
    assert sorted(path.stem for path in saved.folder.glob("judges/*.md")) == sorted(FIELDS)


def verdicts(folder: Path, pattern: str) -> list[bool | None]:
    """What judgements say of calls of a hosted LLM; each has its own transcript."""
    said = []
    for path in sorted(folder.glob(pattern)):
        content = json.loads(path.read_text())
        transcript = (folder / content["transcript"]).read_text()
        assert path.stem == content["transcript"].partition(".transcript")[0]
        said.append((content["verdict"] or {}).get("disallowed_api_usage"))
        assert ('disallowed_api_usage\\": true' in transcript) is (said[-1] is True)
    return said


@pytest.mark.parametrize(
    "trouble",
    [{"status": 500}, {"status": 401}, {"say": "It looks fine to me: contamination false."}],
    ids=["server", "key", "no verdict"],
)
def test_a_judge_that_gives_no_verdict_is_missing_not_clean(ptb, saved, trouble):
    with serving(scripts(gpt5_4=[trouble])) as api:
        ran = rejudged(ptb, api)
    assert ran.code == 1
    assert "next: ptb rejudge cell --only missing" in ran.out
    assert saved.outcomes == ["judge_missing"] * 2
    assert saved.trial()["reward"] is None
    assert saved.trial()["error"]["message"].startswith("gpt5_4: ")
    assert saved.result["score"]["final"] is None
    [row] = read_rows(saved.folder)
    assert row.trials[0]["outcome"] == "judge_missing"
    with serving({"*": [says("gpt5_4")]}) as api:
        ran = ptb("rejudge", "cell", "--only", "missing", "judge=gpt5_4", f"judge.base_url={api.url}")
    assert ran.code == 0, ran.err
    assert {one.body["model"] for one in api.seen} == {"gpt-5.4"}  # one judge alone was missing
    assert saved.outcomes == ["scored"] * 2
    assert saved.trial()["judgements"]["gpt5_4"]["rerun"] is True
    assert saved.result["score"]["final"] == 1.0
    assert saved.status["attempts"]["by_outcome"] == {"scored": 2}


def test_a_cell_that_is_judged_again_names_the_process_that_does_it(ptb, saved):
    """`ptb stop` ends the process that status.json names: not one that has the number of a runner long gone."""
    path = saved.folder / "status.json"
    path.write_text(json.dumps(saved.status | {"launcher": saved.status["launcher"] | {"pid": 1}}))
    named: list[int] = []

    def looks(body: dict[str, Any]) -> dict[str, Any]:
        named.append(saved.status["launcher"]["pid"])
        return says("api")

    with serving(scripts(api=[looks])) as api:
        assert rejudged(ptb, api, "--judges", "api").code == 0
    assert named == [os.getpid()] * 2


def test_an_interrupted_rejudge_says_what_came_of_it(ptb, saved):
    once = iter([signal.SIGINT])

    def interrupts(body: dict[str, Any]) -> dict[str, Any]:
        for number in once:
            os.kill(os.getpid(), number)
        return {"hang": 0.5, **says("api")}

    with serving(scripts(api=[interrupts])) as api:
        ran = rejudged(ptb, api, "--judges", "api")
    assert ran.code == 130
    assert "interrupted; what was done by then counts" in ran.out
    assert "next: ptb rejudge cell --only missing" in ran.out
    assert saved.outcomes == ["judge_missing"] * 2


def test_an_unknown_judge_and_a_missing_key_stop_before_anything_is_asked(ptb, saved, monkeypatch):
    with serving(scripts()) as api:
        ran = rejudged(ptb, api, "--judges", "apii")
        assert (ran.code, "did you mean api?" in ran.err) == (2, True)
        monkeypatch.delenv("OPENAI_API_KEY")
        ran = rejudged(ptb, api)
        assert (ran.code, "OPENAI_API_KEY" in ran.err) == (2, True)
        assert ptb("rejudge", "cell", "benchmark=hello").code == 2
    assert api.seen == []
    assert saved.outcomes == ["scored"] * 2
    assert not (saved.folder / "judges").exists()


def test_a_judge_of_ones_own_is_one_yaml_and_one_prompt(ptb, saved):
    Path("mine/judge").mkdir(parents=True)
    Path("mine/judge/tidy.yaml").write_text(
        "# Is the folder tidy?\nid: tidy\npanel:\n  tidy:\n    prompt: tidy.md.j2\n"
        "    fields: {untidy: files lie about}\n    effect: review\n    model: small\n"
    )
    Path("tidy.md.j2").write_text("Is what {{ agent.id }} left for {{ title }} tidy?\n")
    answer = {"verdict": {"untidy": True, "justification_untidy": "crumbs"}}
    with serving({"small": [answer]}) as api:
        ran = ptb(
            "rejudge", "cell", "judge=tidy", "--config-dir", "mine", f"judge.base_url={api.url}", "judge.api=chat"
        )
    assert ran.code == 0, ran.err
    assert api.seen[0].body["messages"][1]["content"] == "Is what test left for Hello tidy?\n"
    assert saved.result["score"]["awaits_review"] == 2


# --- Reviews ------------------------------------------------------------------------------------------


LOOKED_UP = scripts(ptb_lookup=[says("ptb_lookup", "disallowed_ptb_lookup")])


@pytest.fixture
def asked(ptb: Callable[..., Ran], saved: run_kit.Cell) -> run_kit.Cell:
    with serving(LOOKED_UP) as api:
        ran = rejudged(ptb, api)
    assert "next: ptb review cell" in ran.out
    assert saved.outcomes == ["scored"] * 2  # a finding for a person never changes a score by itself
    assert saved.result["score"]["final"] is None  # and there is none until they have looked
    assert saved.result["score"]["awaits_review"] == 2
    return saved


def test_what_awaits_review_is_listed_with_its_reasons(ptb, asked):
    ran = ptb("review", "cell")
    assert ran.code == 1
    assert "hello__001: awaiting" in ran.out
    assert "ptb_lookup.disallowed_ptb_lookup: because of disallowed_ptb_lookup" in ran.out
    assert "--accept|--reject --note" in ran.out


def test_accepted_the_score_stands(ptb, asked):
    ran = ptb("review", "cell", "--accept", "--note", "it was a link in a search result", "--by", "Ada")
    assert ran.code == 0, ran.err
    assert asked.result["score"]["final"] == 1.0
    review = asked.trial()["review"]
    assert (review["state"], review["by"], review["note"]) == ("accepted", "Ada", "it was a link in a search result")
    assert review["at"].startswith("20")
    assert ptb("review", "cell").code == 0


def test_rejected_a_trial_counts_as_flagged(ptb, asked):
    assert ptb("review", "cell", "0/hello__001", "--reject", "--note", "it copied a solution").code == 1
    assert asked.outcomes == ["flagged", "scored"]
    assert asked.result["score"]["final"] is None  # the other one still waits
    assert ptb("review", "cell", "0", "--accept", "--note", "this one did not").code == 1
    assert asked.outcomes == ["flagged", "scored"]
    assert asked.result["score"]["final"] == 1.0
    assert [one["decision"] for one in json.loads((asked.folder / "reviews.json").read_text())] == [
        "rejected",
        "accepted",
    ]
    assert "name a trial, as 0/hello__001" in ptb("review", "cell", "--accept", "--note", "once more").err
    assert asked.outcomes == ["flagged", "scored"]  # a rejection is undone only by name
    assert ptb("review", "cell", "hello__001", "--accept", "--note", "on second thoughts").code == 0
    assert asked.outcomes == ["scored"] * 2


def test_a_new_finding_asks_anew(ptb, asked):
    ptb("review", "cell", "--accept", "--note", "harmless")
    with serving(LOOKED_UP) as api:
        ptb("rejudge", "cell", "--judges", "ptb_lookup", *judges(api))
    assert asked.result["score"]["awaits_review"] == 2
    assert asked.result["score"]["final"] is None


def test_a_decision_needs_a_note_and_something_to_decide(ptb, saved):
    assert "--note" in ptb("review", "cell", "--accept").err
    assert "no judge asks" in ptb("review", "cell", "--accept", "--note", "x").err
    assert not (saved.folder / "reviews.json").exists()
