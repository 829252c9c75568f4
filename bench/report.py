"""Seconds and megabytes of a report of 1,000 trials: `uv run --group browser python bench/report.py`.

Writing it is a process of its own, as `ptb report` is, its imports counted. Opening it is done by headless Chromium:
from the start of the navigation until the page has been laid out, its script has run and a frame has been shown. The
seconds of its main thread are what remains of that on a machine that does much else.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.results.report_kit import make_report_sweep  # noqa: E402

OPEN_SEC, TRIAL_SEC, MOST_MB = 2.0, 0.5, 15.0
ONCE_SHOWN = """
() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))
"""
ONE_TRIAL = """
(hash) => new Promise((done) => {
  const begin = performance.now();
  new MutationObserver(() => requestAnimationFrame(() => done(performance.now() - begin)))
    .observe(document.getElementById("trial"), { childList: true });
  location.hash = hash;
})
"""


def written(folder: Path) -> tuple[float, float]:
    """Seconds to write the report, and its megabytes."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "ptb_runner", "report", str(folder)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin, (folder / "report.html").stat().st_size / 1e6


def opened(path: Path, times: int) -> tuple[float, float, float, int]:
    """The median seconds until the report is shown, of its main thread until then, and until a trial's page is shown.

    Last, how many trials the table has.
    """
    playwright: Any = importlib.import_module("playwright.sync_api")
    whole, thread, single, rows = [], [], [], 0
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(times):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            tools = page.context.new_cdp_session(page)
            tools.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.goto(path.as_uri())
            whole.append(page.evaluate(ONCE_SHOWN) / 1000)
            figures = {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}
            thread.append(figures["TaskDuration"])
            last = page.locator("#all-trials tbody a").last.get_attribute("href")
            single.append(page.evaluate(ONE_TRIAL, last) / 1000)
            rows = page.locator("#all-trials tbody tr").count()
            page.close()
        browser.close()
    return statistics.median(whole), statistics.median(thread), statistics.median(single), rows


def main() -> int:
    """Measure, print a table, and return 1 when a figure is over what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--attempts", type=int, default=21, help="of each of 48 cells, the last of which is only planned"
    )
    parser.add_argument("--turns", type=int, default=40, help="of each trace")
    parser.add_argument("--times", type=int, default=5, help="how often it is opened")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ptb-bench-"))
    try:
        make_report_sweep(folder / "s", attempts=chosen.attempts, turns=chosen.turns)
        seconds, size = written(folder / "s")
        whole, thread, single, rows = opened(folder / "s" / "report.html", chosen.times)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{rows} trials, traces of {chosen.turns} turns")
    print(f"{'writing the report':26} {seconds:6.2f} s")
    print(f"{'its size':26} {size:6.2f} MB (at most {MOST_MB:g})")
    print(f"{'opening it':26} {whole:6.2f} s  (at most {OPEN_SEC:g})")
    print(f"{'of it, the main thread':26} {thread:6.2f} s")
    print(f"{'opening a trial':26} {single:6.2f} s  (at most {TRIAL_SEC:g})")
    return int(whole > OPEN_SEC or single > TRIAL_SEC or size > MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
