"""Turn what Hydra and OmegaConf raise into one or two lines for the person who typed the command."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from enum import IntEnum

from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from ptb_runner import menu
from ptb_runner.config import BACKENDS, GROUPS, LAUNCHERS, SERVES, Option, judge_options, options

# What keys look like: those in use begin so; others are long, of letters large and small and digits, or 32 hex digits.
_KEY = re.compile(
    r"(?<![\w-])(?:sk[-_]|[rp]k_|a[ks]-|hf_|gsk_|xai-|nvapi-|xox\w-|gh\w_|github_pat_|glpat-|dckr_|AIza|AKIA|eyJ)"
    r"(?=[\w.-]*\d)[\w.-]{8,}"
    r"|\b(?=\d*[A-Za-z])(?=[A-Za-z]*\d)(?=[A-Z\d]*[a-z])(?=[a-z\d]*[A-Z])[A-Za-z\d]{24,}\b"
    r"|\b[\da-f]{32}\b"
)


class Exit(IntEnum):
    """The exit codes."""

    ok = 0
    unscored = 1
    usage = 2
    interrupted = 130


class UsageError(Exception):
    """Something that the user can mend: its text is shown as it is, and the exit code is 2."""


def masked(text: str) -> str:
    """The text without what looks like a key: somebody may have pasted one where its variable's name belongs."""
    return _KEY.sub("(a key?)", text)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like `word`, or None when none is close."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None


def explain(error: Exception, conf_dirs: list[str]) -> str:
    """Say in at most two lines what is wrong, where, what is allowed and what to type."""
    causes = (error.__cause__, error.__context__)
    cause = next((one for one in causes if isinstance(one, OmegaConfBaseException)), error)
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _unknown_choice(str(error.missing_cfg_file), conf_dirs)
    if isinstance(cause, OmegaConfBaseException):
        return _bad_option(cause, _where(error, conf_dirs))
    if isinstance(error, ConfigCompositionException):
        return _unknown_group(str(error), conf_dirs)
    return _first_lines(str(error))


def _first_lines(text: str) -> str:
    return "\n  ".join([line.strip() for line in text.splitlines() if line.strip()][:2]) or "unknown error"


def _unreadable(override: str) -> str:
    key, equals, value = override.lstrip("+").partition("=")
    if not equals:
        return f"command line: cannot read {override!r}\n  an override is key=value; `ptb --help` lists keys and verbs"
    if masked(value) != value:
        return (
            f"command line: cannot read the value of {key!r}\n"
            "  a key is never typed: export it as a variable, and give that one's name"
        )
    inner = value.replace("\\", "\\\\").replace('"', '\\"')
    return f"command line: cannot read the value of {key!r}\n  quote it twice: '{key}=\"{inner}\"'"


def _unknown_choice(missing: str, conf_dirs: list[str]) -> str:
    group, _, choice = missing.rpartition("/")
    if not group:
        return f"no configuration file named {missing!r}\n  leave out --config-name to use the program's own"
    choices = menu.choices(group, conf_dirs)
    guess = nearest(choice, choices)
    hint = f"; did you mean {group}={guess}?" if guess else ""
    allowed = ", ".join(choices) or "nothing: there is no such group"
    where = f"there is no file {missing}.yaml in {' or '.join(conf_dirs)}"
    return f"{group}={choice}: {where}\n  {group} is one of: {allowed}{hint}"


def _unknown_group(text: str, conf_dirs: list[str]) -> str:
    found = re.search(r"Could not (?:override|append|find|delete|add)[^']*'([^']+)'", text)
    if not found:
        return _first_lines(text)
    return unknown_key(found.group(1).split("@")[0], _where_text(text, conf_dirs))


def unknown_key(key: str, where: str) -> str:
    """The message for a key that the schema does not have."""
    known = {item.key: item for item in options()} | dict.fromkeys(GROUPS)
    parent = key.rpartition(".")[0]
    siblings = [name for name in known if name.rpartition(".")[0] == parent] or list(known)
    guess = _same_leaf(key, siblings) or _same_leaf(key, known)
    hint = f"did you mean {guess}?" if guess else f"`ptb --help` lists the options; here: {', '.join(siblings[:12])}"
    return f"{where}: there is no option {key!r}\n  {hint}"


def _same_leaf(key: str, known: Iterable[str]) -> str | None:
    leaves = {name.rpartition(".")[2]: name for name in known}
    guess = nearest(key.rpartition(".")[2], leaves)
    return leaves[guess] if guess else None


def _bad_option(cause: OmegaConfBaseException, where: str) -> str:
    key = str(cause.full_key or cause.key)
    item = find(key)
    if item is None:
        return unknown_key(key, where)
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and (others := _choices_with(key)):
        return f"{where}: {key}: what was chosen has no such option\n  type {' or '.join(others)} with it: {item.help}"
    return f"{where}: {key}: {str(cause.msg).splitlines()[0]}\n  {key} takes {item.allowed}: {item.help}"


def _choices_with(key: str) -> list[str]:
    """The choices of a group that have an option which others of it lack."""
    group, _, name = key.partition(".")
    kinds = {"backend": BACKENDS, "launcher": LAUNCHERS, "serve": SERVES}.get(group, {})
    return [f"{group}={kind}" for kind, cls in kinds.items() if name in cls.__dataclass_fields__]


def find(key: str) -> Option | None:
    """The option behind a full key; an item of a list or table belongs to the option that holds it."""
    known = {item.key: item for item in options()}
    key = re.sub(r"\[\d+\]", "", key)
    if judge := re.match(r"judge\.panel\.([^.]+)\.", key):
        known |= {item.key: item for item in judge_options(judge[1])}
    while key and key not in known:
        key = key.rpartition(".")[0]
    return known.get(key)


def _where(error: Exception, conf_dirs: list[str]) -> str:
    return _where_text(str(error), conf_dirs)


def _where_text(text: str, conf_dirs: list[str]) -> str:
    found = re.match(r"In '([^']+)'", text)
    if found and (path := menu.file_of(found.group(1), conf_dirs)):
        return str(path)
    return "command line"
