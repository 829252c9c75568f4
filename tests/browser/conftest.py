"""Headless Chromium, and reports of made-up sweeps for it to open."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ptb_runner.results.report import report
from tests.results.report_kit import make_planted_sweep, make_report_sweep

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The machine's own Chromium, driven by Playwright; neither is skipped over when it is missing."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail("no Chromium here: apt-get install chromium")
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ModuleNotFoundError:
        pytest.fail("no playwright here: uv run --group browser pytest -m browser")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def sweep_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 agents x 2 models x 2 benchmarks, three attempts; a third of the trials are not scored."""
    folder = make_report_sweep(
        tmp_path_factory.mktemp("browser") / "s", agents=2, models=2, benchmarks=2, failing=0.5, seed=3
    )
    return report(folder, folder / "report.html").path


@pytest.fixture(scope="session")
def planted_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every text in it is HTML that calls `planted()`."""
    folder = make_planted_sweep(tmp_path_factory.mktemp("planted"))
    return report(folder, folder.parent / "report.html").path


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open a report in a window of its own; `complaints` of the page are what its console and its errors say."""
    contexts = []

    def open_it(path: Path, hash: str = "", **options: Any) -> Any:
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.requests, page.complaints = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda said: page.complaints.append(said.text))
        page.add_init_script("window.planted = () => { window.ran = true; }")
        page.goto(path.as_uri() + hash)
        return page

    yield open_it
    for context in contexts:
        context.close()
