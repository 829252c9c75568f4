"""What a Modal function runs: one cell, on the container's own disk, copied to the results' volume as it goes.

The function may be begun again at any time, after a preemption say: it then carries on with what it had copied.
"""

from __future__ import annotations

import os
from pathlib import Path

from ptb_runner.cell import read_json
from ptb_runner.launch import away
from ptb_runner.launch.copies import Copy
from ptb_runner.redact import Redactor

RESULTS = "/mnt/ptb-results"
"""Where the volume is mounted: <place>/cell.tar as it was submitted, and <place>/cell/ as far as it is."""
CODE = "/mnt/ptb-code"
"""Where the image holds the program."""


def run(app: str, volume: str, place: str, number: int, sync_sec: float, time_sec: float, secrets: list[str]) -> str:
    """The function: run what is missing of the cell at `place` of the volume, and return the state it is in then.

    `app` is the sweep's own, which ends with it.
    `secrets` names the variables whose values must be in no file. Stops the cell, cleanly, after `time_sec`, and when
    the call is cancelled or its container taken away (an exception).
    """
    import modal

    results = modal.Volume.from_name(volume)
    folder, saved = away.WORK / str(number), Path(RESULTS, place)
    clean = Redactor({name: os.environ[name] for name in secrets if name in os.environ})
    away.unpack(saved / "cell.tar", saved / "cell", folder)
    away.bring_states(Path(RESULTS), folder)

    copy = Copy(folder, saved / "cell", clean=clean)

    def save() -> None:
        copy.update()
        results.commit()

    # Sandboxes on Modal are made in the sweep's own app: what a runner that was killed left ends with the app.
    away.run(folder, save, sync_sec, clean, time_sec, {"PTB_MODAL_APP": app})
    return str((read_json(folder / "status.json") or {}).get("state"))
