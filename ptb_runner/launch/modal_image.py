"""What a Modal function of ours is made of: an image with the packages that are installed here, our code, secrets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ptb_runner.launch.modal_cell import CODE
from ptb_runner.launch.shipping import PYTHON, pins

if TYPE_CHECKING:
    import modal


def image(code: Path) -> modal.Image:
    """An image that runs a copy of the program, on the versions of its dependencies that are installed here."""
    import modal

    variables = {"PYTHONPATH": CODE, "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    built = modal.Image.debian_slim(python_version=PYTHON).uv_pip_install(*pins("modal")).env(variables)
    return built.add_local_dir(code, CODE)


def secrets(names: list[str], held: list[str]) -> list[modal.Secret]:
    """Variables of this process, by name (those that are set), and secrets that Modal holds; values are in no file."""
    import modal

    mine = modal.Secret.from_local_environ([name for name in names if name in os.environ])
    return [mine, *(modal.Secret.from_name(name) for name in held)]
