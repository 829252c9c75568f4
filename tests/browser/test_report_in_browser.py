"""The report in a real browser: nothing is fetched, nothing planted runs, and everybody can use it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from ptb_runner.results.overview import key_of
from ptb_runner.results.rows import read_rows

pytestmark = pytest.mark.browser

PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
TRIALS = "#all-trials tbody tr:visible"


def column(page: Any, number: int) -> list[str]:
    """The texts of a column of the trials that are shown."""
    return [" ".join(text.split()) for text in page.locator(f"{TRIALS} > :nth-child({number})").all_inner_texts()]


def trials(path: Path) -> dict[str, dict[str, Any]]:
    return {key_of(row, one): one for row in read_rows(path.parent) for one in row.trials}


# --- Nothing goes out, nothing planted runs -----------------------------------------------------------


def test_no_request_is_made_and_none_could_be(opened, sweep_report):
    page = opened(sweep_report)
    page.locator("#all-trials a").first.click()
    page.wait_for_selector("article h1")
    assert page.requests == [sweep_report.as_uri()]
    assert page.complaints == []
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in text for text in page.complaints)


def test_planted_html_never_runs(opened, planted_report):
    page = opened(planted_report)
    keys = [link.get_attribute("href") for link in page.locator("#all-trials tbody th a").all()]
    assert len(keys) == 3
    for hash in keys:
        page.evaluate("(hash) => { location.hash = hash; }", hash)
        page.wait_for_function("(hash) => document.title.startsWith(decodeURIComponent(hash.slice(7)))", arg=hash)
        assert "planted()" in page.inner_text("article"), "the text itself is shown"
    assert page.evaluate("window.ran") is None
    assert page.requests == [planted_report.as_uri()]
    assert page.complaints == []


# --- Finding one's way --------------------------------------------------------------------------------


def test_a_trial_opens_by_its_link_and_the_way_back_leads_to_where_one_was(opened, sweep_report):
    page = opened(sweep_report, "#trials?outcome=scored")
    second = page.locator(f"{TRIALS} a").nth(1)
    key = second.inner_text()
    second.click()
    page.wait_for_selector("article h1")
    assert page.inner_text("article h1") == key
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert page.title().startswith(key)
    assert page.locator("#overview").is_hidden()
    page.get_by_role("link", name="All trials").click()
    page.wait_for_selector("#overview", state="visible")
    assert page.evaluate("document.activeElement.textContent") == key
    assert set(column(page, 7)) == {"■ scored"}


def test_the_next_trial_is_the_next_in_the_table_as_it_is_shown(opened, sweep_report):
    page = opened(sweep_report, "#trials?outcome=scored&all-trials=5.asc")
    keys = column(page, 1)
    page.locator(f"{TRIALS} a").first.click()
    for key in keys[1:]:
        page.get_by_role("link", name="Next").click()
        page.wait_for_function("(key) => document.querySelector('article h1')?.textContent === key", arg=key)
    assert page.get_by_role("link", name="Next").count() == 0


def test_a_trials_page_holds_its_record_and_its_trace(opened, sweep_report):
    for key, one in trials(sweep_report).items():
        page = opened(sweep_report, f"#trial/{key}")
        page.wait_for_selector("article h1")
        text = page.inner_text("article")
        assert one["outcome"] in text
        assert one["error"] is None or one["error"]["message"] in text
        assert text.count("$ python train.py") == 11
        assert "step 10: loss" in text
        page.close()
        if one["outcome"] == "infra_error":
            break


def test_a_link_to_no_trial_says_so(opened, sweep_report):
    page = opened(sweep_report, "#trial/99/gone__001")
    page.wait_for_selector("article h1")
    assert page.inner_text("article h1") == "No trial 99/gone__001"
    assert page.get_by_role("link", name="All trials").is_visible()


def test_a_mark_in_a_plot_leads_to_its_trial(opened, sweep_report):
    page = opened(sweep_report)
    mark = page.locator("#attempts .plot a").first
    mark.click()
    page.wait_for_selector("article h1")
    assert mark.get_attribute("href") == f"#trial/{page.inner_text('article h1')}"


# --- Sorting and filtering ----------------------------------------------------------------------------


def test_tables_sort_by_keyboard_and_what_is_not_known_comes_last(opened, sweep_report):
    page = opened(sweep_report)
    head = page.locator("#all-trials thead th", has_text="Reward")
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    known = sorted((one["reward"] for one in trials(sweep_report).values() if one["reward"] is not None), reverse=True)
    unknown = ["–"] * (len(trials(sweep_report)) - len(known))  # noqa: RUF001
    assert column(page, 6) == [f"{reward:.4f}" for reward in known] + unknown
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, 6) == [f"{reward:.4f}" for reward in reversed(known)] + unknown
    assert page.locator("#all-trials th[aria-sort]").count() == 1


def test_a_view_is_its_address(opened, sweep_report):
    page = opened(sweep_report)
    outcomes = {one["outcome"] for one in trials(sweep_report).values()}
    assert "no_model" in outcomes
    page.select_option("[name=outcome]", "no_model")
    page.locator("#all-trials thead").get_by_role("button", name="Agent time").click()
    shown = column(page, 1)
    count = sum(one["outcome"] == "no_model" for one in trials(sweep_report).values())
    assert len(shown) == count
    assert page.inner_text("#count").startswith(f"{count} of ")
    assert "outcome=no_model" in page.url
    again = opened(sweep_report, "#" + page.url.partition("#")[2])
    assert column(again, 1) == shown
    assert again.input_value("[name=outcome]") == "no_model"
    again.get_by_role("button", name="Show all").click()
    assert len(column(again, 1)) == len(trials(sweep_report))


def test_search_finds_words_in_any_column(opened, sweep_report):
    page = opened(sweep_report)
    page.fill("[name=q]", "codex scored gsm8k")
    assert column(page, 1)
    assert set(column(page, 2)) == {"codex"}
    assert set(column(page, 4)) == {"gsm8k"}
    page.fill("[name=q]", "nothing-has-this")
    assert column(page, 1) == []


def test_a_caveats_link_shows_the_trials_that_it_is_about(opened, sweep_report):
    page = opened(sweep_report)
    link = page.locator(".caveats a[href*=outcome]").first
    outcome = (link.get_attribute("href") or "").partition("outcome=")[2]
    link.click()
    assert set(column(page, 7)) == {f"■ {outcome}"}


# --- For everybody ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_axe_finds_nothing_to_complain_about(opened, sweep_report, scheme, size):
    """The whole of axe-core, the contrast of each text among it."""
    axe = importlib.import_module("axe_playwright_python.sync_playwright").Axe()
    page = opened(sweep_report, color_scheme=scheme, **(PHONE if size == "phone" else {}))
    for details in page.locator("details").all():
        details.evaluate("(element) => { element.open = true; }")
    for section in page.locator(
        "#overview > section"
    ).all():  # what is out of sight is laid out only when it comes near
        section.evaluate("(element) => { element.style.contentVisibility = 'visible'; }")
    known = trials(sweep_report)
    key = max(known, key=lambda key: len(known[key]["judgements"]))
    for place in ("", f"#trial/{key}"):
        page.evaluate("(hash) => { location.hash = hash; }", place)
        page.wait_for_selector("article h1" if place else "#overview", state="visible")
        found = axe.run(page).response["violations"]
        assert not found, json.dumps([(one["id"], one["nodes"][0]["html"][:200]) for one in found], indent=1)


def test_dark_is_dark_also_in_the_plots(opened, sweep_report):
    seen = {}
    for scheme in ("light", "dark"):
        page = opened(sweep_report, color_scheme=scheme)
        colour = "(element) => getComputedStyle(element).fill"
        seen[scheme] = (
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
            page.locator("#scores .plot text").first.evaluate(colour),
        )
    assert seen["light"] == ("rgb(255, 255, 255)", "rgb(89, 99, 110)")
    assert seen["dark"] == ("rgb(15, 19, 24)", "rgb(154, 165, 177)")


def test_a_phone_never_scrolls_sideways(opened, sweep_report):
    page = opened(sweep_report, **PHONE)
    key = next(iter(trials(sweep_report)))
    for place in ("", f"#trial/{key}"):
        page.evaluate("(hash) => { location.hash = hash; }", place)
        page.wait_for_selector("article h1" if place else "#overview", state="visible")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_first_tab_stop_skips_to_the_content(opened, sweep_report):
    page = opened(sweep_report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.get_by_role("link", name="Skip to the content").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'content'")


def test_without_javascript_everything_but_the_trials_pages_is_there(opened, sweep_report):
    page = opened(sweep_report, java_script_enabled=False)
    assert len(column(page, 1)) == len(trials(sweep_report))
    assert page.locator("#scores .plot").first.is_visible()
    assert page.locator("#filters").is_hidden()
    note = page.get_by_text("need JavaScript")
    note.scroll_into_view_if_needed()
    assert note.is_visible()
