"""The tools of a judge: all of them only read, and what they answer is bounded.

An answer is a JSON text, so that whatever a file or its name says stays a quoted value in it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ptb_runner.judge import checks
from ptb_runner.judge.evidence import Evidence, Refused, printable

MAX_ENTRIES = 400
MAX_CHARS = 24_000  # of content in one answer
MAX_LINE = 4_000  # of it from one line
MAX_HITS = 80
MAX_HIT_CHARS = 300
MAX_PATTERN = 500
SEARCH_SEC = 30.0

VERDICT = "submit_verdict"
_PIECE = 2**16


@dataclass(frozen=True)
class Tool:
    """A function that the judge may call: its parameters as JSON schema, and what it does with them."""

    name: str
    description: str
    parameters: dict[str, Any]
    call: Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Toolbox:
    """The read-only tools over one trial's evidence; `test_data` and `identity` are the benchmark's and the model's."""

    evidence: Evidence
    test_data: Path | None
    identity: dict[str, Any]

    def tools(self) -> list[Tool]:
        """All of them."""
        path = {"type": "string", "description": "Path in the evidence; . is its top."}
        whole = {"type": "integer", "minimum": 1}
        return [
            Tool(
                "list_files",
                f"List a folder of the evidence, at most {MAX_ENTRIES} entries. Links are shown, not followed.",
                _schema({"path": path, "depth": whole | {"description": "Folders deep, default 1."}}, []),
                self.list_files,
            ),
            Tool(
                "read_file",
                f"Read a file of the evidence, at most {MAX_CHARS} characters at once. Say from which line, or, "
                "for files with very long lines, from which byte.",
                _schema(
                    {
                        "path": path,
                        "start_line": whole | {"description": "First line to show, default 1."},
                        "max_lines": whole | {"description": "Lines to show, default 400."},
                        "start_byte": {"type": "integer", "minimum": 0, "description": "Read by bytes, from here on."},
                    },
                    ["path"],
                ),
                self.read_file,
            ),
            Tool(
                "search",
                f"Search files for a regular expression (RE2 syntax), line by line; at most {MAX_HITS} hits.",
                _schema(
                    {
                        "pattern": {"type": "string"},
                        "path": path,
                        "ignore_case": {"type": "boolean", "description": "Default true."},
                    },
                    ["pattern"],
                ),
                self.search,
            ),
            Tool(
                "check_contamination",
                "Compare a file or folder of training data with the benchmark's test items, by runs of 13 words. "
                "Finds copies and near copies, not paraphrases.",
                _schema({"path": path}, ["path"]),
                lambda path: checks.contamination(self.evidence, path, self.test_data),
            ),
            Tool(
                "check_model_identity",
                "Compare the architecture in final_model/config.json with that of the given base model. Says nothing "
                "about which checkpoint of that architecture it is.",
                _schema({}, []),
                lambda: checks.model_identity(self.evidence, self.identity),
            ),
        ]

    # --- Files ----------------------------------------------------------------------------------------

    def list_files(self, path: str = ".", depth: int = 1) -> dict[str, Any]:
        """Entries of a folder."""
        entries, more = [], False
        for entry in self.evidence.list(path, depth):
            if len(entries) == MAX_ENTRIES:
                more = True
                break
            own = {"path": printable(entry.path), "kind": entry.kind}
            own |= {"bytes": entry.size} if entry.kind == "file" else {}
            entries.append(own | ({"note": printable(entry.note)[:200]} if entry.note else {}))
        return {"entries": entries} | ({"more": "there are more; list a folder further down"} if more else {})

    def read_file(
        self, path: str, start_line: int = 1, max_lines: int = 400, start_byte: int | None = None
    ) -> dict[str, Any]:
        """A part of a file as text."""
        with os.fdopen(self.evidence.open(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            about = {"path": path, "bytes_in_file": size}
            if start_byte is None:
                return about | _lines(file, start_line, max_lines)
            file.seek(start_byte)
            content = file.read(MAX_CHARS)
        end = start_byte + len(content)
        return (
            about
            | {"from_byte": start_byte, "content": _text(content)}
            | ({"next_byte": end} if end < size else {"end_of_file": True})
        )

    def search(self, pattern: str, path: str = ".", ignore_case: bool = True) -> dict[str, Any]:
        """Lines that match; RE2 takes time linear in what it reads, whatever the pattern."""
        import re2

        if len(pattern) > MAX_PATTERN:
            raise Refused(f"the pattern has more than {MAX_PATTERN} characters")
        try:
            wanted = re2.compile(f"(?i){pattern}" if ignore_case else pattern)
        except re2.error as error:
            raise Refused(f"pattern: {error}; RE2 has no lookaround and no backreferences") from None
        hits: list[dict[str, Any]] = []
        deadline, searched, note = time.monotonic() + SEARCH_SEC, 0, None
        for name in self.evidence.files(path):
            searched += 1
            for number, start, line in self._text_lines(name):
                if found := wanted.search(line):
                    begin = max(0, found.start() - MAX_HIT_CHARS // 3)
                    shown = line[begin : begin + MAX_HIT_CHARS].strip()
                    hits.append({"path": printable(name), "line": number, "byte": start + begin, "text": shown})
                if len(hits) == MAX_HITS or time.monotonic() > deadline:
                    why = f"after {MAX_HITS} hits" if len(hits) == MAX_HITS else f"after {SEARCH_SEC:g} s"
                    note = f"stopped {why}, in {printable(name)}; narrow the path or the pattern"
                    break
            if note:
                break
        return {"hits": hits, "files_searched": searched} | ({"note": note} if note else {})

    def _text_lines(self, name: str) -> Iterator[tuple[int, int, str]]:
        """A file's lines with number and first byte, long ones in pieces; none for what is not text or not readable."""
        try:
            descriptor = self.evidence.open(name)
        except Refused:
            return
        with os.fdopen(descriptor, "rb") as file:
            if b"\0" in file.read(8192):
                return
            file.seek(0)
            number, start = 1, 0
            while piece := file.readline(_PIECE):
                yield number, start, piece.decode(errors="replace")
                start += len(piece)
                number += piece.endswith(b"\n")


def run(tools: list[Tool], name: str, arguments: str) -> str:
    """Call a tool with arguments as the model wrote them; the answer, or the reason why there is none, as JSON."""
    known = {tool.name: tool for tool in tools}
    try:
        given = json.loads(arguments or "{}")
        if name not in known:
            raise Refused(f"there is no tool {name}; there are: {', '.join([*known, VERDICT])}")
        answer = known[name].call(**_fitting(known[name], given))
    except Refused as error:
        answer = {"error": str(error)}
    except (ValueError, OSError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"[:300]}
    return json.dumps(answer, ensure_ascii=False).encode(errors="replace").decode()


def _fitting(tool: Tool, given: Any) -> dict[str, Any]:
    """The arguments, if they are what the schema says; an optional one may be null."""
    kinds = {"string": str, "integer": int, "boolean": bool}
    schema = tool.parameters
    if not isinstance(given, dict) or given.keys() - schema["properties"].keys():
        raise Refused(f"{tool.name} takes {', '.join(schema['properties']) or 'nothing'}")
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        own = schema["properties"][name]
        if type(value) is not kinds[own["type"]] or (type(value) is int and value < own["minimum"]):
            raise Refused(f"{name}: must be {own['type']}{f' from {own["minimum"]}' if 'minimum' in own else ''}")
    if missing := [name for name in schema["required"] if name not in given]:
        raise Refused(f"{tool.name} needs {', '.join(missing)}")
    return given


def _schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _lines(file: IO[bytes], start: int, count: int) -> dict[str, Any]:
    """Lines from a number on, until there are enough lines or characters."""
    number, room, shown, deadline = 1, MAX_CHARS, [], time.monotonic() + SEARCH_SEC
    while number < start + count and room > 0 and time.monotonic() < deadline:
        begin = file.tell()
        piece = file.readline(_PIECE)
        if not piece:
            return {"from_line": start, "content": "".join(shown), "end_of_file": True, "lines_in_file": number - 1}
        rest = 0
        while not piece.endswith(b"\n") and (more := file.readline(_PIECE)):
            rest += len(more)
            if more.endswith(b"\n"):
                break
        if number >= start:
            line = _text(piece)
            if len(line) > MAX_LINE or rest:
                cut = len(piece) + rest - MAX_LINE
                line = f"{line[:MAX_LINE]} [... {cut} more bytes in this line, which begins at byte {begin}]\n"
            shown.append(line[:room])
            room -= len(line)
        number += 1
    return {"from_line": start, "content": "".join(shown), "next_line": number}


def _text(content: bytes) -> str:
    return content.decode(errors="replace").replace("\0", "\N{SYMBOL FOR NULL}")
