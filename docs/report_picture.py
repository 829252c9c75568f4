"""Draw docs/report.png, the README's picture of a report: `uv run --group browser python docs/report_picture.py`."""

from __future__ import annotations

import importlib
import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ptb_runner.results.report import report  # noqa: E402
from tests.results.report_kit import make_report_sweep  # noqa: E402

SIZE = {"width": 1180, "height": 1400}
COLOURS = 255  # enough for text and plots, and a fraction of the bytes


def main() -> None:
    """Make a sweep up, write its report, and save what a browser shows of it first."""
    playwright: Any = importlib.import_module("playwright.sync_api")
    with tempfile.TemporaryDirectory() as folder, playwright.sync_playwright() as started:
        sweep = make_report_sweep(Path(folder) / "2026-11-20" / "08-00-00", agents=3, models=2, benchmarks=3)
        path = report(sweep, sweep / "report.html").path
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(path.as_uri())
        picture = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    picture.quantize(COLOURS).save(Path(__file__).parent / "report.png", optimize=True)


if __name__ == "__main__":
    main()
