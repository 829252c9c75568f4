"""The verbs: `ptb VERB ...` works on the folder of a sweep or a cell, or on this machine.

Their docstrings are their help.
"""

from __future__ import annotations

from collections.abc import Callable

from ptb_runner.verbs.control import resume, stop
from ptb_runner.verbs.judging import regrade, rejudge, review
from ptb_runner.verbs.looking import logs, status, trace
from ptb_runner.verbs.machine import cache, clean, doctor
from ptb_runner.verbs.results import collect, compare, export, report

VERBS: dict[str, Callable[[list[str]], int]] = {
    "status": status,
    "logs": logs,
    "trace": trace,
    "stop": stop,
    "resume": resume,
    "collect": collect,
    "compare": compare,
    "report": report,
    "export": export,
    "rejudge": rejudge,
    "regrade": regrade,
    "review": review,
    "doctor": doctor,
    "clean": clean,
    "cache": cache,
}
