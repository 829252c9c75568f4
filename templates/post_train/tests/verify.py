"""The verifier of a post-training task: checks the final_model that was handed over and has it scored.

Runs in a sandbox of its own, with the settings in verifier.json beside it:

    benchmark        its name, for messages
    handoff          the folder with final_model/ and collect.json, as the collect hook left them
    logs             where to write
    evaluate         the evaluator's command, as a list; it gets --model-path, --limit, --json-output-file and more
    tries            lists of further arguments for the evaluator, tried in turn until one scores
    try_timeout_sec  the time limit of each try
    metric           the field of the evaluator's JSON that is the reward, a number from 0 to 1
    limit            how many samples to score, -1: all
    identity         fields of config.json and the value each must have; a list: any of these; null: not checked

It writes to LOGS: verdict.json, always; metrics.json and reward.txt, only for a scored model; and what the evaluator
printed, evaluation_<k>.log and evaluation_<k>.stderr.log. Exit codes: 0 scored, 1 not.

Everything in the hand-off may be hostile. It is read here, with bounds; only the evaluator loads it.
"""

import contextlib
import ctypes
import io
import json
import math
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

SETTINGS = Path(__file__).with_name("verifier.json")
DEFAULT_LOGS = Path("/logs/verifier")

MAX_COLLECT_BYTES = 16 * 2**20
MAX_CONFIG_BYTES = 2**20
MAX_INDEX_BYTES = 64 * 2**20
MAX_METRICS_BYTES = 4 * 2**20
MAX_MODEL_ENTRIES = 200_000
MAX_REASON = 500

EXIT_INVALID_MODEL = 3  # of an evaluator that can tell a bad model from its own trouble
KILL_SECONDS = 20
PR_SET_CHILD_SUBREAPER = 36

WEIGHTS_INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
NOT_WEIGHTS = {"training_args.bin", "optimizer.bin", "scheduler.bin", "adapter_model.bin", "adapter_model.safetensors"}


class Unscored(Exception):
    """There is no score: the outcome in one word, and the reason in one line."""

    def __init__(self, outcome: str, reason: str | None) -> None:
        super().__init__(outcome, reason)
        self.outcome, self.reason = outcome, reason


@dataclass(frozen=True)
class Settings:
    benchmark: str
    handoff: Path
    logs: Path
    evaluate: list[str]
    tries: list[list[str]]
    try_timeout_sec: float
    metric: str
    limit: int
    identity: dict[str, object]

    @classmethod
    def read(cls, path: Path) -> "Settings":
        data = json.loads(path.read_text(encoding="utf-8"))
        values: dict[str, Any] = {item.name: data[item.name] for item in fields(cls)}
        for name in ("handoff", "logs"):
            values[name] = Path(values[name])
        return cls(**values)


@dataclass
class Verdict:
    """What verdict.json says. The reward is a number if and only if the outcome is "scored"."""

    outcome: str = "eval_failed"
    reason: str | None = None
    reward: float | None = None
    metrics: dict | None = None
    tries: list[dict] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------------------
# Files.


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes, or ValueError; follows no link, waits on no pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing") from None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        if found.st_size > most:
            raise ValueError(f"{path.name} has {found.st_size} bytes, more than the {most} allowed")
        return file.read(most)


def read_object(path: Path, most: int) -> dict:
    """The JSON object in a file, or ValueError with the reason why there is none."""
    try:
        data = json.loads(read_bounded(path, most))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path.name} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return data


def write_whole(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_json(path: Path, data: dict) -> None:
    write_whole(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON]


# ---------------------------------------------------------------------------------------------------------------------
# Checks before anything is loaded.


def check_collected(handoff: Path) -> None:
    """Unscored unless the collect hook says that it copied a model."""
    try:
        report = read_object(handoff / "collect.json", MAX_COLLECT_BYTES)
    except ValueError as error:
        raise Unscored("infra_error", f"the hand-off is not complete: {error}") from None
    status, note = report.get("final_model"), report.get("error")
    if status == "absent":
        raise Unscored("no_model", str(note) if note else "the agent left no final_model")
    if status == "refused":
        raise Unscored("invalid_model", str(note) if note else "final_model could not be handed over")
    if status != "copied":
        raise Unscored("infra_error", f"final_model could not be collected: {note or f'status {status!r}'}")


def check_model(model: Path, identity: dict[str, object]) -> None:
    """Unscored unless ``model`` is a folder of plain files that looks like a whole model of the right kind."""
    try:
        check_plain(model)
        config = read_object(model / "config.json", MAX_CONFIG_BYTES)
        check_weights(model)
        if not any((model / name).is_file() for name in TOKENIZERS):
            raise ValueError(f"there is no tokenizer ({', '.join(TOKENIZERS)})")
        check_identity(config, identity)
    except ValueError as error:
        raise Unscored("invalid_model", f"final_model: {error}") from None
    except OSError as error:
        raise Unscored("infra_error", f"the hand-off cannot be read: {error}") from None


def check_plain(model: Path) -> None:
    """ValueError unless ``model`` is a real folder with nothing but regular files and folders below."""
    if not stat.S_ISDIR(model.lstat().st_mode if os.path.lexists(model) else 0):
        raise ValueError("not a folder")
    folders, seen = [model], 0
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                seen += 1
                if seen > MAX_MODEL_ENTRIES:
                    raise ValueError(f"more than {MAX_MODEL_ENTRIES} files")
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    kind = "link" if entry.is_symlink() else "special file"
                    raise ValueError(f"{Path(entry.path).relative_to(model)} is a {kind}")


def check_weights(model: Path) -> None:
    """ValueError unless the model's folder holds weights, with every shard that an index names."""
    if (model / WEIGHTS_INDEX).is_file():
        shards = read_object(model / WEIGHTS_INDEX, MAX_INDEX_BYTES).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ValueError(f"{WEIGHTS_INDEX} names no weights")
        for shard in sorted(set(map(str, shards.values()))):
            if "/" in shard or not (model / shard).is_file():
                raise ValueError(f"{shard}, named by {WEIGHTS_INDEX}, is missing")
        return
    files = {path.name for path in model.iterdir() if path.suffix in (".safetensors", ".bin")}
    if not files - NOT_WEIGHTS:
        adapter = (model / "adapter_config.json").is_file()
        only = "; an adapter alone does not do: merge it into the model" if adapter else ""
        raise ValueError(f"no weights (model.safetensors){only}")


def check_identity(config: dict, identity: dict[str, object]) -> None:
    """ValueError unless config.json agrees with the base model's, wherever it names a field."""
    nested = config.get("text_config")
    places = [config, nested] if isinstance(nested, dict) else [config]
    for name, expected in identity.items():
        if expected is None:
            continue
        found = [place[name] for place in places if name in place]
        wrong = [value for value in found if not matches(value, expected)]
        if wrong or not found:
            got = repr(wrong[0])[:80] if wrong else "missing"
            raise ValueError(f"not the given model: {name} in config.json is {got}, expected {expected!r}")


def matches(value: object, expected: object) -> bool:
    """Equal and of the same type (1 is not true), or equal to one of a list of allowed values."""
    if type(value) is type(expected) and value == expected:
        return True
    return isinstance(expected, list) and any(matches(value, one) for one in expected)


# ---------------------------------------------------------------------------------------------------------------------
# The evaluator.


def evaluate(settings: Settings, verdict: Verdict) -> dict:
    """The metrics of the first try that scores; every try is noted in the verdict. Unscored when none does."""
    reason = "no tries are configured"
    for number, arguments in enumerate(settings.tries, start=1):
        started, note = time.monotonic(), {"args": arguments, "exit_code": None, "error": None}
        verdict.tries.append(note)
        print(f"try {number} of {len(settings.tries)}: {' '.join(arguments) or 'default arguments'}", flush=True)
        try:
            return run_try(settings, number, note)
        except ValueError as error:
            reason = note["error"] = one_line(str(error))
            print(reason, flush=True)
        finally:
            note["seconds"] = round(time.monotonic() - started, 3)
    raise Unscored("eval_failed", reason)


def run_try(settings: Settings, number: int, note: dict) -> dict:
    """Run the evaluator once. ValueError when it gives no valid metrics, Unscored when it rejects the model."""
    errors = settings.logs / f"evaluation_{number}.stderr.log"
    # Its own empty folder to run in: nothing that was handed over can be imported from there.
    with tempfile.TemporaryDirectory(prefix="ptb-verify-") as private:
        output, workdir = Path(private, "metrics.json"), Path(private, "cwd")
        workdir.mkdir()
        model, limit = settings.handoff / "final_model", str(settings.limit)
        options = ["--model-path", str(model), "--limit", limit, "--json-output-file", str(output)]
        command = [*settings.evaluate, *options, *settings.tries[number - 1]]
        with (settings.logs / f"evaluation_{number}.log").open("wb") as log, errors.open("wb") as error_log:
            code = note["exit_code"] = run_bounded(command, workdir, settings.try_timeout_sec, log, error_log)
        if code == EXIT_INVALID_MODEL:
            raise Unscored("invalid_model", last_line(errors) or "the evaluator rejects the model")
        if code != 0:
            ended = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise ValueError(f"the evaluator failed with {ended}: {last_line(errors) or 'it printed no error'}")
        return read_metrics(output, settings.metric)


def run_bounded(command: list[str], workdir: Path, timeout: float, log, error_log) -> int:
    """Run a command to its end and return its exit code, ValueError at its time limit. No process of it survives."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.Popen(
        command,
        cwd=workdir,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=error_log,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise ValueError(f"the evaluator did not finish in {timeout:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        end_orphans()


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that end_orphans finds what left the process group."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """Kill all remaining children, and theirs as they come to us: an inference server would keep the GPU."""
    deadline = time.monotonic() + KILL_SECONDS
    while (left := list(children())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def children() -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The program's name, in parentheses, may hold anything; state and parent follow it.
            if int(path.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                yield int(path.parent.name)


def last_line(path: Path) -> str:
    """The last line of a log that is not empty."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65536))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return one_line(lines[-1]) if lines else ""


def read_metrics(path: Path, metric: str) -> dict:
    """The evaluator's metrics, or ValueError unless the metric is a real number from 0 to 1."""
    metrics = read_object(path, MAX_METRICS_BYTES)
    if metric not in metrics:
        raise ValueError(f"{path.name} has no {metric}")
    value = metrics[metric]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{metric} in {path.name} is not a number: {value!r:.80}")
    if not 0 <= value <= 1:  # false for NaN, too
        raise ValueError(f"{metric} in {path.name} is {value!r:.80}, not from 0 to 1")
    return finite(metrics)


def finite(value: Any) -> Any:
    """The same data with null for every number that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------------------------------------------------------------


def verify(settings: Settings, verdict: Verdict) -> None:
    """Fill in the verdict of a scored model; Unscored otherwise."""
    check_collected(settings.handoff)
    check_model(settings.handoff / "final_model", settings.identity)
    metrics = evaluate(settings, verdict)
    reward = float(metrics[settings.metric])
    write_json(settings.logs / "metrics.json", metrics)
    verdict.outcome, verdict.reward, verdict.metrics = "scored", reward, metrics


def clear(logs: Path) -> None:
    """No result may be there before we have one, whoever left it."""
    logs.mkdir(parents=True, exist_ok=True)
    for name in ("reward.txt", "reward.json", "metrics.json", "verdict.json"):
        (logs / name).unlink(missing_ok=True)


def stopped(number: int, _frame: object) -> NoReturn:
    raise Unscored("infra_error", f"the verifier was stopped by {signal.Signals(number).name}")


def main() -> int:
    started, verdict, logs = time.monotonic(), Verdict(), DEFAULT_LOGS
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names in the hand-off need not be text
    signal.signal(signal.SIGTERM, stopped)
    adopt_orphans()
    try:
        settings = Settings.read(SETTINGS)
        logs = settings.logs
        clear(logs)
        verify(settings, verdict)
    except Unscored as unscored:
        verdict.outcome, verdict.reason = unscored.outcome, one_line(unscored.reason or "")
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        verdict.outcome, verdict.reason = "eval_failed", one_line(f"{type(error).__name__}: {error}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the verdict is whole before we go
    logs.mkdir(parents=True, exist_ok=True)
    write_json(logs / "verdict.json", vars(verdict) | {"seconds": round(time.monotonic() - started, 3)})
    if verdict.reward is not None:
        write_whole(logs / "reward.txt", repr(verdict.reward))
    print(f"{verdict.outcome}: {verdict.reward if verdict.reason is None else verdict.reason}")
    return 0 if verdict.outcome == "scored" else 1


if __name__ == "__main__":
    sys.exit(main())
