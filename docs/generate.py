"""Write docs/options.md from the schema: `uv run python docs/generate.py`. A test keeps the two equal."""

from __future__ import annotations

from pathlib import Path

from ptb_runner import menu
from ptb_runner.config import judge_options, options
from ptb_runner.paths import CONF

PAGE = Path(__file__).parent / "options.md"


def page() -> str:
    """The page: every group with its choices, every option with type, default and meaning."""
    folders = [str(CONF)]
    lines = [
        "# Every group and option",
        "",
        "Generated from the schema by `docs/generate.py`.",
    ]
    for group in menu.groups(folders):
        lines += ["", f"## {group}: {menu.GROUP_HELP.get(group, '')}", "", "| choice | |", "|---|---|"]
        lines += [f"| `{group}={name}` | {menu.line(group, name, folders)} |" for name in menu.choices(group, folders)]
        lines += _table(f"{group}.")
    lines += ["", "## without a group", *_table("")]
    return "\n".join(lines) + "\n"


def _table(prefix: str) -> list[str]:
    of_judges = judge_options("NAME") if prefix == "judge." else ()
    chosen = [
        item
        for item in (*options(), *of_judges)
        if (item.key.startswith(prefix) if prefix else item.key.partition(".")[0] not in menu.GROUP_HELP)
    ]
    if not chosen:
        return []
    rows = [
        f"| `{item.key}` | {item.allowed.replace('|', chr(92) + '|')} | `{_default(item.default)}` | {item.help} |"
        for item in chosen
    ]
    return ["", "| option | takes | default | |", "|---|---|---|---|", *rows]


def _default(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(getattr(value, "name", value))


if __name__ == "__main__":
    PAGE.write_text(page())
