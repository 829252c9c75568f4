"""Take secrets out of text that leaves this machine: by value, by the name of their key, and by their form.

A run's files hold none to begin with (see redact.py), as far as the runner knew them. What it did not know, a key that
an agent made up or found, say, still looks like one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from ptb_runner.redact import Redactor

GONE = "[redacted]"

# Names of variables whose values are secret; `n_input_tokens`, `eos_token` and the like are not.
_NAME = (
    r"[A-Za-z0-9_.-]*(?:api[_-]?key|access[_-]?key|private[_-]?key|secret(?:[_-]?key)?|passw(?:or)?d|credentials?"
    r"|(?:auth|oauth|access|refresh|session|bearer|api|hf|github|gh|hub)[_-]?token|authorization)"
)
_VARIABLE = re.compile(rf"(?i:{_NAME})|[A-Z0-9_]*(?:_TOKEN|_KEY|_PAT|_DSN)|TOKEN")
_NAMED = re.compile(
    rf"""(?P<before>(?<![A-Za-z0-9_])(?:(?i:{_NAME})|[A-Z0-9_]*_TOKEN)
            (?:\\?["'])?\s*[:=]\s*(?:\\?["'])?(?:(?i:bearer|basic)\ +)?)
        (?P<value>[^\s"'\\,;<>()\[\]{{}}$*|][^\s"'\\,;<>()\[\]{{}}]{{7,}}+(?![\[(]))""",
    re.VERBOSE,
)
_FORMS = re.compile(
    r"\bsk-[A-Za-z0-9_-]{20,}|\bhf_[A-Za-z0-9]{30,}|\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{22,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bAIza[A-Za-z0-9_-]{35}"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
# Enough of each form that a file without any of these need not be searched by expressions.
_HINT = re.compile(rb"(?i)key|secret|passw|credential|token|authorization|sk-|hf_|gh[pousr]_|akia|xox|aiza|eyj")


class Scrubber:
    """Knows the secrets of an environment: the variables in `names`, and those that are called like secrets."""

    def __init__(self, names: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> None:
        secret = {*names} | {name for name in environment if _VARIABLE.fullmatch(name)}
        self._values = Redactor({name: environment[name] for name in sorted(secret) if name in environment})

    def scrubbed(self, content: bytes) -> bytes:
        """The content without secrets; of binary content only values are found, and their places filled."""
        if b"\0" in content:
            return self._values.filled(content)
        text = content.decode(errors="surrogateescape")
        text = self._values.text(text)
        if _HINT.search(content):
            text = _FORMS.sub(GONE, text)
            text = _NAMED.sub(_without_value, text)
        return text.encode(errors="surrogateescape")


def _without_value(found: re.Match[str]) -> str:
    """A number is a count, and what was taken out already says by which name."""
    value = found["value"]
    keep = value.isdecimal() or value.lower() in ("required", "undefined", "anonymous")
    return found[0] if keep else found["before"] + GONE
