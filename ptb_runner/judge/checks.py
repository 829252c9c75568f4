"""What a judge can have checked: training data against the test items, the model's architecture."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import IO, Any

from ptb_runner.judge.evidence import Evidence, Refused, printable
from ptb_runner.test_data import CHECKER

MAX_FILES = 200
MAX_SHOWN = 40
MAX_HITS = 10
MAX_UNPACKED = 512 * 2**20
CHECK_SEC = 300.0
_PIECE = 2**16
_TO_TEXT = bytes(byte if 32 <= byte < 127 or byte in b"\n\t" or byte > 127 else 32 for byte in range(256))


def contamination(evidence: Evidence, path: str, test_data: Path | None) -> dict[str, Any]:
    """Run the checker that agents have, too, over files of the evidence."""
    if test_data is None:
        raise Refused("the benchmark's test items are not at hand here: judge by what the trace and the files show")
    deadline = time.monotonic() + CHECK_SEC
    checked: list[dict[str, Any]] = []
    left_out = 0
    for name in evidence.files(path):
        remaining = deadline - time.monotonic()
        if len(checked) == MAX_FILES or remaining <= 0:
            left_out += 1
            continue
        checked.append({"file": printable(name)} | _checked(evidence, name, test_data, remaining))
    with_hits = [one for one in checked if one["items_found"] != 0 or "note" in one]
    return {
        "files_checked": len(checked),
        "items_found_in_all": sum(one["items_found"] or 0 for one in checked),
        "files": with_hits[:MAX_SHOWN],
    } | ({"files_left_out": left_out, "note": "too many; name single files or folders"} if left_out else {})


def _checked(evidence: Evidence, name: str, test_data: Path, seconds: float) -> dict[str, Any]:
    try:
        with os.fdopen(evidence.open(name), "rb") as file, tempfile.TemporaryDirectory(prefix="ptb-judge-") as own:
            place, note = _readable(file, name, Path(own))
            command = [sys.executable, "-I", str(CHECKER), "--tokens", "words", "--test-data", str(test_data), place]
            with Path(own, "hits").open("w+") as said:
                done = subprocess.run(
                    command, stdin=file, stdout=said, stderr=subprocess.PIPE, text=True, timeout=seconds
                )
                said.seek(0)
                found = _hits(said)
    except Refused as error:
        return {"items_found": None, "note": str(error)}
    except subprocess.TimeoutExpired:
        return {"items_found": None, "note": "not checked to its end: too slow"}
    if done.returncode not in (0, 1):
        return {"items_found": None, "note": done.stderr.strip()[-200:]}
    return found | ({"note": note} if note else {})


def _hits(said: IO[str]) -> dict[str, Any]:
    """What the checker printed, a line a hit: how many, and the first ones."""
    items, lines, first = set[str](), 0, []
    for line in said:
        hit = json.loads(line)
        items.add(str(hit["item"]))
        lines += 1
        if len(first) < MAX_HITS:
            first.append({key: hit[key] for key in ("line", "item", "overlap", "text")})
    return {"items_found": len(items), "lines_found": lines, "first": first}


def model_identity(evidence: Evidence, identity: dict[str, Any]) -> dict[str, Any]:
    """Each field that must be the base model's, and what final_model says."""
    if not identity:
        raise Refused("the configuration names no fields of a base model to compare with")
    with os.fdopen(evidence.open("final_model/config.json"), "rb") as file:
        try:
            config = json.loads(file.read(2**20))
        except ValueError:
            raise Refused("final_model/config.json: not valid JSON") from None
    if not isinstance(config, dict):
        raise Refused("final_model/config.json: not an object")
    nested = config.get("text_config")
    places = [config, nested] if isinstance(nested, dict) else [config]
    rows = [_row(name, wanted, places) for name, wanted in identity.items() if wanted is not None]
    named = {name: config.get(name) for name in ("_name_or_path", "architectures", "vocab_size") if name in config}
    return {"same_architecture": all(row["equal"] for row in rows), "fields": rows, "also_in_config": named}


def _readable(file: IO[bytes], name: str, folder: Path) -> tuple[str, str | None]:
    """What the checker is told to read, and a note: the file itself as standard input, or its text in `folder`."""
    if name.endswith(".gz"):
        unpacked = folder / f"unpacked{Path(name.removesuffix('.gz')).suffix or '.txt'}"
        return str(unpacked), _unpack(file, unpacked)
    binary = b"\0" in file.read(8192)
    file.seek(0)
    if not binary:
        os.lseek(file.fileno(), 0, os.SEEK_SET)  # the checker gets the descriptor, not our buffer
        return ("-" if name.endswith((".jsonl", ".ndjson")) else "/dev/stdin"), None
    plain = folder / "text.txt"
    with plain.open("wb") as target:
        while (piece := file.read(_PIECE)) and target.tell() < MAX_UNPACKED:
            target.write(piece.translate(_TO_TEXT))
    return str(plain), "not a text file: only text that lies in it uncompressed was looked at (parquet is compressed)"


def _unpack(file: IO[bytes], target: Path) -> str | None:
    try:
        with gzip.open(file) as packed, target.open("wb") as out:
            while piece := packed.read(_PIECE):
                out.write(piece.replace(b"\0", b" "))
                if out.tell() > MAX_UNPACKED:
                    return f"only its first {MAX_UNPACKED // 2**20} MiB were looked at"
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(f"cannot be unpacked: {error}") from None
    return None


def _row(name: str, wanted: Any, places: list[dict[str, Any]]) -> dict[str, Any]:
    found = [place[name] for place in places if name in place]
    optional = isinstance(wanted, list) and None in wanted
    equal = all(_matches(value, wanted) for value in found) if found else optional
    return {"field": name, "base_model": wanted, "final_model": found[0] if found else None, "equal": equal}


def _matches(value: Any, wanted: Any) -> bool:
    """As the verifier compares them: equal and of one type, or like one of a list of allowed values."""
    if type(value) is type(wanted) and value == wanted:
        return True
    return isinstance(wanted, list) and any(_matches(value, one) for one in wanted)
