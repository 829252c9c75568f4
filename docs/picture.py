"""Draw docs/run.svg, the README's picture: what the default command prints. `uv run python docs/picture.py`."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = "uv run python -m ptb_runner"


def main() -> None:
    """Run the default command in an empty folder and save its output as a picture."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "ptb_runner"], cwd=folder, capture_output=True, text=True, check=True
        )
    console = Console(record=True, width=104, file=io.StringIO())
    console.print(Text(f"$ {COMMAND}", style="bold"))
    console.print(Text(done.stdout.rstrip()))
    svg = console.export_svg(title="ptb_runner")
    # No font from the network: whatever the reader has that is monospaced.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "monospace")
    (Path(__file__).parent / "run.svg").write_text(svg)


if __name__ == "__main__":
    main()
