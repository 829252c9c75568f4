"""The report: one file that says what is there, escapes whatever it quotes, and is made from any folder of results."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ptb_runner.results import overview, plots, trial_page
from ptb_runner.results.bundle import pack
from ptb_runner.results.report import HOME, report
from ptb_runner.results.rows import read_rows
from tests.results.collect_kit import Made, make_sweep
from tests.results.report_kit import BENCHMARKS, Story, make_planted_sweep, make_report_sweep, write_cells


def written(folder: Path) -> str:
    return report(folder, folder / "report.html").path.read_text()


def pages(text: str) -> dict[str, str]:
    """The trials' pages by key, unpacked."""
    found = re.findall(r'<script type="text/plain" data-trial="([^"]*)">([^<]*)</script>', text)
    return {html.unescape(key): gzip.decompress(base64.b64decode(packed)).decode() for key, packed in found}


class Tags(HTMLParser):
    """All tags of a page with their attributes, and the texts between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def table(text: str, name: str) -> list[list[str]]:
    """The cells' texts of a table, a list a line."""
    body = re.search(rf'<table id="{name}".*?<tbody>(.*?)</tbody>', text, re.DOTALL)
    assert body
    lines = re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in lines]
    return [[" ".join("".join(Tags(cell).texts).split()) for cell in line] for line in cells]


# --- What it says -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return make_report_sweep(tmp_path_factory.mktemp("report") / "s", agents=2, models=2, benchmarks=2, failing=0.4)


@pytest.fixture(scope="module")
def text(sweep):
    return written(sweep)


def test_the_headline_is_the_coverage_and_each_gap_is_told_below_it(sweep, text):
    rows = read_rows(sweep)
    scored, planned = sum(row.score["n_scored"] for row in rows), sum(row.score["n_expected"] for row in rows)
    assert 0 < scored < planned == 24
    headline = text.partition('id="leaderboard"')[0]
    assert f"<strong>{scored} of {planned}</strong> planned trials scored" in headline
    for outcome in {one["outcome"] for row in rows for one in row.trials} - {"scored", "agent_timeout"}:
        assert f"not scored: {outcome}" in headline
    assert "1 cell is planned" in headline
    assert "the agent had 5 h" in headline


def test_every_trial_is_in_the_table_and_has_a_page(sweep, text):
    rows = read_rows(sweep)
    trials = {overview.key_of(row, one): one for row in rows for one in row.trials}
    lines = {line[0]: line for line in table(text, "all-trials")}
    assert lines.keys() == pages(text).keys() == trials.keys()
    for key, one in trials.items():
        assert one["outcome"] in lines[key][6]
        assert lines[key][5] == ("–" if one["reward"] is None else f"{one['reward']:.4f}")  # noqa: RUF001
        page = pages(text)[key]
        assert one["outcome"] in page
        assert one["error"] is None or one["error"]["message"] in html.unescape(page)


def test_a_place_without_a_score_says_why_and_is_no_number(tmp_path):
    folder = make_sweep(
        tmp_path / "s",
        Made(trials=[0.5]),
        Made(trials=["infra_error"], model="big"),
        Made(trials=[], expected=2, state="planned", benchmark="other"),
    )
    lines = {(line[0], line[1]): line[2:] for line in table(written(folder), "board")}
    assert lines["oracle", "nano"] == ["0.5000 1/1", "planned 0/2"]
    assert lines["oracle", "big"] == ["infra_error 0/1", ""]


def test_errors_are_grouped_and_lead_to_their_trials(tmp_path):
    folder = make_sweep(tmp_path / "s", Made(trials=["infra_error", "infra_error", "no_model"]))
    lines = table(written(folder), "faults")
    assert [line[0] for line in lines] == ["2", "1"]
    assert "EnvironmentStartTimeoutError" in lines[0][3]
    assert lines[0][4] == "0/hello__001 0/hello__002"


def test_the_footer_tells_what_the_cells_were_made_with(text):
    footer = text.partition("<footer")[2]
    assert "versions.harbor" in footer
    assert "0.26.0" in footer


def test_the_same_results_give_the_same_bytes_wherever_the_folder_is_read_from(sweep, text, monkeypatch):
    monkeypatch.chdir(sweep.parent)
    assert written(Path("s")) == text


def test_one_cell_has_a_report_too(sweep):
    text = written(sweep / "0")
    assert table(text, "all-trials")[0][0] == f"0/{BENCHMARKS[0]}__001"
    assert Path(sweep / "0" / "report.html").exists()


def test_links_to_files_lead_there(sweep, tmp_path):
    text = report(sweep, tmp_path / "elsewhere.html").path.read_text()
    page = next(iter(pages(text).values()))
    links = re.findall(r'<li><a href="([^"]+)">', page)
    assert any(link.endswith("result.json") for link in links)
    assert all((tmp_path / link).is_file() for link in links)


def test_a_record_that_points_out_of_its_cell_shows_nothing_from_there(tmp_path):
    folder = make_sweep(tmp_path / "s", Made(trials=[1.0]))
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "trial.log").write_text("not yours")
    path = folder / "0" / "result.json"
    content = json.loads(path.read_text())
    content["trials"][0]["trial_dir"] = "../../private"
    path.write_text(json.dumps(content))
    page = pages(written(folder))["0/hello__001"]
    assert "not yours" not in page
    assert "folder is not there" in page


def test_a_bundle_has_the_same_report_but_for_the_links(tmp_path):
    folder = make_sweep(tmp_path / "s", Made(trials=[0.5, "no_model"]))
    pack(folder, tmp_path / "given.tar.gz")
    own, given = written(folder), report(tmp_path / "given.tar.gz", tmp_path / "given.html").path.read_text()
    assert table(given, "all-trials") == table(own, "all-trials")
    assert "given.tar.gz</h1>" in given
    page = pages(given)["0/hello__002"]
    assert "verifier/verdict.json" in page
    assert "<a href" not in page


def test_a_long_trace_keeps_its_beginning_and_more_of_its_end(tmp_path):
    made = Made(trials=[], expected=1, benchmark="gsm8k")
    folder = write_cells(tmp_path / "s", [(made, [Story("scored", 0.5, turns=600)])])
    found = trial_page.excerpt(folder / "0" / "job" / "gsm8k__001", 20_000)
    assert found
    assert 5 < len(found.first) < len(found.last)
    assert len(found.first) + found.n_left_out + len(found.last) == 600
    assert found.first[0].head.startswith("[1] user")
    assert found.last[-1].head.startswith("[600] agent")
    assert sum(len(text) for turn in found.first + found.last for _, text in turn.parts) < 20_000
    assert trial_page.room(1) >= trial_page.room(1000) >= trial_page.room(100_000) > 1000


def test_a_verdict_is_shown_with_its_reasons(tmp_path):
    folder = make_sweep(tmp_path / "s", Made(trials=[1.0]))
    path = folder / "0" / "result.json"
    content = json.loads(path.read_text())
    verdict = {"contamination": True, "justification_contamination": "41 test items, word for word"}
    said = {"effect": "flag", "verdict": verdict, "model": "gpt-5.4", "review": False}
    content["trials"][0]["judgements"] = {"gpt5_4": said, "api": {"verdict": None, "error": {"message": "no answer"}}}
    path.write_text(json.dumps(content))
    text = " ".join(" ".join(Tags(pages(written(folder))["0/hello__001"]).texts).split())
    assert "gpt5_4: objects" in text
    assert "contamination: yes 41 test items, word for word" in text
    assert "api: no verdict" in text
    assert "no answer" in text


# --- What it quotes is data ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = make_planted_sweep(tmp_path_factory.mktemp("planted"))
    return written(folder)


def test_html_in_results_stays_text(planted):
    text = planted
    plain = re.sub(r"<script( type=\"text/plain\"[^>]*)?>.*?</script>|<style>.*?</style>", "", text, flags=re.DOTALL)
    for place, part in {"the report": plain, **pages(text)}.items():
        found = Tags(part)
        assert {tag for tag, _ in found.tags} & {"script", "img", "b", "iframe", "link"} == set(), place
        assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")], place
        assert any("planted()" in said for said in found.texts), f"{place}: the text itself is shown"


def test_only_the_reports_own_script_may_run_and_nothing_is_fetched(planted):
    text = planted
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    assert policy[1].startswith("default-src &#39;none&#39;") or policy[1].startswith("default-src 'none'")
    assert "unsafe" not in policy[1]
    for tag, attributes in Tags(text).tags:
        assert "src" not in attributes, tag
        assert not (attributes.get("href") or "").startswith(("http", "//")), tag
        assert "style" not in attributes, f"{tag}: the policy forbids it"


def test_labels_of_plots_are_no_formulas(planted):
    assert "$x^{$" in html.unescape(planted)  # a label that matplotlib would fail on if it were read as TeX


# --- Numbers ------------------------------------------------------------------------------------------


def trial(reward: float | None, stderr: float | None = None) -> dict:
    return {
        "outcome": "scored" if reward is not None else "infra_error",
        "reward": reward,
        "metrics": {"stderr": stderr},
    }


def test_intervals_are_the_textbooks():
    found = overview.interval([trial(0.2), trial(0.4), trial(0.9), trial(None)])
    assert found
    assert (found.low, found.high) == pytest.approx((-0.3957, 1.3957), abs=1e-4)  # 0.5 ± 4.3027 x 0.36056 / sqrt(3)
    assert found.over == "3 trials"
    found = overview.interval([trial(1.0)] * 8 + [trial(0.0)] * 2)
    assert found
    assert (found.low, found.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Wilson's of 8 in 10
    found = overview.interval([trial(0.5, 0.04)])
    assert found
    assert (found.low, found.high, found.over) == (
        pytest.approx(0.4216, abs=1e-4),
        pytest.approx(0.5784, abs=1e-4),
        "test items",
    )
    assert overview.interval([trial(0.5)]) is None
    assert overview.interval([trial(0.5), trial(0.5)]) is None, "two equal rewards are no proof of no spread"
    assert overview.interval([trial(None, 0.1)]) is None


def test_spending_is_the_sum_of_what_is_known(tmp_path):
    folder = make_sweep(tmp_path / "s", Made(trials=[1.0, 0.0], gpus=2), Made(trials=[1.0, None], gpus=1))
    (found,) = overview.spending(read_rows(folder))
    assert found["n_trials"] == 3
    assert found["hours"] == {"environment": 30 / 3600, "agent": 60 / 3600, "verifier": pytest.approx(90 / 3600)}
    assert found["gpu_hours"] == pytest.approx((2 * 120 + 60) / 3600)
    assert found["cost_usd"] == 0.75
    assert found["tokens"]["cached"] is None
    assert found["cost_per_scored"] == 0.25


def test_every_colour_of_the_plots_has_a_light_and_a_dark_value():
    style = (HOME / "report.css").read_text()
    light, _, rest = style.partition("@media (prefers-color-scheme: dark)")
    dark = rest.partition("* {")[0]
    named = {f"s{number}": colour for number, colour in enumerate(plots.SERIES)} | plots.OUTCOMES
    for name, colour in named.items():
        assert f"--{name}: {colour};" in light
        assert f"--{name}: #" in dark


# --- The verb -----------------------------------------------------------------------------------------


def test_the_verb_says_what_it_wrote(tmp_path, ptb):
    folder = make_sweep(tmp_path / "s", Made(trials=[1.0, "no_model"]))
    ran = ptb("report", folder)
    assert ran.code == 0
    assert "1/2 planned trials scored" in ran.out
    assert f"wrote {folder}/report.html" in ran.out
    assert "next: " in ran.out


def test_what_is_no_folder_of_results_is_told(tmp_path, ptb):
    ran = ptb("report", tmp_path)
    assert ran.code == 2
    assert str(tmp_path) in ran.err
