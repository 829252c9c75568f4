"""Where the files that ship with the program are: beside the package in a wheel, at the top of a checkout."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


CONF = _shipped("conf")
TEMPLATES = _shipped("templates")
