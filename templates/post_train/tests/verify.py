"""The verifier of a post-training task: checks the final_model that was handed over and has it scored.

Runs in a sandbox of its own, with the settings in verifier.json beside it:

    benchmark        its name, for messages
    handoff          the folder with final_model/ and collect.json, as the collect hook left them
    logs             where to write
    evaluate         the evaluator's command, as a list; it gets --model-path, --limit, --json-output-file and more, and
                     in PTB_LOG_DIR a folder for logs of its own
    tries            what is tried in turn until one scores: a list of further arguments for the evaluator, or
                     {"count": 4, "args": [...], "timeout_sec": 3600}, so many tries with a time limit of their own
    try_timeout_sec  the time limit of a try that names none
    metric           the field of the evaluator's JSON that is the reward, a number from 0 to 1
    limit            how many samples to score, -1: all
    identity         fields of config.json and the value each must have; a list: any of these; null: not checked

It writes to LOGS: verdict.json and diagnostics.json (the weights, the GPUs, what was ended), always; metrics.json and
reward.txt, only for a scored model; and what the evaluator printed, evaluation_<k>.log and evaluation_<k>.stderr.log.
Exit codes: 0 scored, 1 not.

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
MAX_HEADER_BYTES = 100_000_000  # of a safetensors file, as in the library
MAX_METRICS_BYTES = 4 * 2**20
MAX_MODEL_ENTRIES = 200_000
MAX_REASON = 500

EXIT_INVALID_MODEL = 3  # of an evaluator that can tell a bad model from its own trouble
KILL_SECONDS = 20
NVIDIA_SMI_SECONDS = 30
MAX_LISTED = 100
PR_SET_CHILD_SUBREAPER = 36

WEIGHTS_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
ELEMENT_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
}
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
NOT_WEIGHTS = {"training_args.bin", "optimizer.bin", "scheduler.bin", "adapter_model.bin", "adapter_model.safetensors"}


class Unscored(Exception):
    """There is no score: the outcome in one word, and the reason in one line."""

    def __init__(self, outcome: str, reason: str | None) -> None:
        super().__init__(outcome, reason)
        self.outcome, self.reason = outcome, reason


@dataclass(frozen=True)
class Try:
    """One run of the evaluator: its further arguments, and its time limit in seconds."""

    args: list[str]
    timeout_sec: float


def ladder(rungs: list[Any], timeout_sec: float) -> list[Try]:
    """All tries in their order; ``timeout_sec`` is for those that name none."""
    tries = []
    for rung in rungs:
        one = rung if isinstance(rung, dict) else {"args": rung}
        step = Try(list(one.get("args", [])), float(one.get("timeout_sec") or timeout_sec))
        tries += [step] * int(one.get("count", 1))
    return tries


@dataclass(frozen=True)
class Settings:
    benchmark: str
    handoff: Path
    logs: Path
    evaluate: list[str]
    tries: list[Try]
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
        values["tries"] = ladder(values["tries"], values["try_timeout_sec"])
        return cls(**values)


@dataclass
class Verdict:
    """What verdict.json says. The reward is a number if and only if the outcome is "scored"."""

    outcome: str = "eval_failed"
    reason: str | None = None
    reward: float | None = None
    metrics: dict | None = None
    tries: list[dict] = field(default_factory=list)


@dataclass
class Diagnostics:
    """What diagnostics.json says: for people, who want to know why; nothing is decided by it."""

    weights: dict[str, Any] | None = None
    gpus: list[str] = field(default_factory=list)  # at the start, and after each failed try
    ended: list[dict[str, Any]] = field(default_factory=list)  # processes that held a GPU after a failed try


DIAGNOSTICS = Diagnostics()


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


def say(text: str) -> None:
    """Print a line; a reader that went away must change neither the verdict nor the exit code."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115


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
    """ValueError unless the model's folder holds weights that can be read, with every tensor that an index names."""
    indexes = [model / name for name in WEIGHTS_INDEXES if (model / name).is_file()]
    if indexes:
        shards = shards_of(indexes[0], model)
    else:
        files = [path for path in model.iterdir() if path.suffix in (".safetensors", ".bin")]
        shards = {path: None for path in sorted(files) if path.name not in NOT_WEIGHTS}
    if not shards:
        adapter = (model / "adapter_config.json").is_file()
        only = "; an adapter alone does not do: merge it into the model" if adapter else ""
        raise ValueError(f"no weights (model.safetensors){only}")
    tensors = 0
    for path, named in shards.items():
        if path.suffix != ".safetensors":
            continue  # a pickle: only the evaluator may load it
        found = read_tensors(path)
        if missing := sorted((named or set()) - found):
            raise ValueError(f"{path.name} lacks {missing[0]}, which the index names")
        tensors += len(found)
    size = sum(path.stat().st_size for path in shards)
    DIAGNOSTICS.weights = {"files": len(shards), "bytes": size, "tensors": tensors}


def shards_of(index: Path, model: Path) -> dict[Path, set[str] | None]:
    """The files that an index names, each with the names of its tensors. ValueError when one is missing."""
    weights = read_object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise ValueError(f"{index.name} names no weights")
    shards: dict[Path, set[str] | None] = {}
    for tensor, shard in sorted(weights.items(), key=str):
        path = model / str(shard)
        if "/" in str(shard) or not path.is_file():
            raise ValueError(f"{shard}, named by {index.name}, is missing")
        names = shards.setdefault(path, set())
        if names is not None:
            names.add(tensor)
    return shards


def read_tensors(path: Path) -> set[str]:
    """The names of a safetensors file's tensors, from its header alone. ValueError when the file is cut or damaged.

    The format: the header's length in 8 bytes (little endian), the header (JSON), and the data, without a gap.
    """
    with path.open("rb") as file:
        size, length = path.stat().st_size, int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"{path.name} is no safetensors file: the header's length would be {length} bytes")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            end = max((tensor_end(tensor) for tensor in header.values()), default=0)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path.name} has a damaged header: {one_line(str(error))[:80]}") from None
    if size != 8 + length + end:
        word = "more" if size > 8 + length + end else "less"
        raise ValueError(f"{path.name} has {size} bytes, {word} than the {8 + length + end} that its header describes")
    return set(header)


def tensor_end(tensor: dict[str, Any]) -> int:
    """Where a tensor's data ends. ValueError when its shape and its place do not agree."""
    begin, end = tensor["data_offsets"]
    shape, bits = tensor["shape"], ELEMENT_BITS.get(tensor["dtype"])
    if any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
        raise ValueError("a shape or an offset is no number")
    if bits is not None and (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError(f"{end - begin} bytes for a tensor of shape {shape} and type {tensor['dtype']}")
    return end


def check_identity(config: dict, identity: dict[str, object]) -> None:
    """ValueError unless config.json agrees with the base model's; a null among allowed values: may be missing."""
    nested = config.get("text_config")
    places = [config, nested] if isinstance(nested, dict) else [config]
    for name, expected in identity.items():
        if expected is None:
            continue
        found = [place[name] for place in places if name in place]
        if not found and isinstance(expected, list) and None in expected:
            continue  # the base model's own file may leave it to the default
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
    note_gpus()
    for number, step in enumerate(settings.tries, start=1):
        started, note = time.monotonic(), {"args": step.args, "exit_code": None, "error": None}
        verdict.tries.append(note)
        say(f"try {number} of {len(settings.tries)}: {' '.join(step.args) or 'default arguments'}")
        try:
            return run_try(settings, number, note)
        except ValueError as error:
            reason = note["error"] = one_line(str(error))
            say(reason)
        finally:
            note["seconds"] = round(time.monotonic() - started, 3)
        note_gpus()
        end_gpu_processes()
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
        step = settings.tries[number - 1]
        command = [*settings.evaluate, *options, *step.args]
        with (settings.logs / f"evaluation_{number}.log").open("wb") as log, errors.open("wb") as error_log:
            own = {"PTB_LOG_DIR": str(settings.logs / f"evaluation_{number}")}
            code = note["exit_code"] = run_bounded(command, workdir, step.timeout_sec, log, error_log, own)
        if code == EXIT_INVALID_MODEL:
            raise Unscored("invalid_model", last_line(errors) or "the evaluator rejects the model")
        if code != 0:
            ended = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise ValueError(f"the evaluator failed with {ended}: {last_line(errors) or 'it printed no error'}")
        return read_metrics(output, settings.metric)


def run_bounded(command: list[str], workdir: Path, timeout: float, log, error_log, own: dict[str, str]) -> int:
    """Run a command to its end and return its exit code, ValueError at its time limit. No process of it survives."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | own
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
            if parent_of(int(path.parent.name)) == os.getpid():
                yield int(path.parent.name)


def parent_of(pid: int) -> int:
    """OSError when there is no such process."""
    # The program's name, in parentheses, may hold anything; state and parent follow it.
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def nvidia_smi(query: str) -> list[str]:
    """The lines that nvidia-smi answers; none where there is no GPU."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def note_gpus() -> None:
    DIAGNOSTICS.gpus += nvidia_smi("--query-gpu=timestamp,name,memory.used,memory.total,utilization.gpu")[:MAX_LISTED]


def end_gpu_processes() -> None:
    """Kill what still holds a GPU after a failed try, or the next one finds no room; never init, us or our parents."""
    spared, pid = {1}, os.getpid()
    while pid > 1:
        spared.add(pid)
        pid = parent_of(pid)
    deadline, ended = time.monotonic() + KILL_SECONDS, set()
    while found := gpu_processes() - spared - {pid for pid in ended if not Path(f"/proc/{pid}").exists()}:
        for pid in found:
            end_gpu_process(pid, noted=pid in ended)
        ended |= found
        if time.monotonic() > deadline:
            return
        time.sleep(0.2)


def gpu_processes() -> set[int]:
    return {int(line) for line in nvidia_smi("--query-compute-apps=pid") if line.isdecimal()}


def end_gpu_process(pid: int, noted: bool) -> None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        os.kill(pid, signal.SIGKILL)
        error = None
    except OSError as problem:  # nvidia-smi may count in another namespace than ours
        command, error = "", problem.strerror
    if not noted and len(DIAGNOSTICS.ended) < MAX_LISTED:
        DIAGNOSTICS.ended.append({"pid": pid, "command": one_line(command), "error": error})
        say(
            f"ended process {pid}, which held a GPU: {one_line(command)}"
            if error is None
            else f"process {pid}: {error}"
        )


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
    for name in ("reward.txt", "reward.json", "metrics.json", "verdict.json", "diagnostics.json"):
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
        say(traceback.format_exc())
        verdict.outcome, verdict.reason = "eval_failed", one_line(f"{type(error).__name__}: {error}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the verdict is whole before we go
    logs.mkdir(parents=True, exist_ok=True)
    write_json(logs / "diagnostics.json", finite(vars(DIAGNOSTICS)))
    write_json(logs / "verdict.json", vars(verdict) | {"seconds": round(time.monotonic() - started, 3)})
    if verdict.reward is not None:
        write_whole(logs / "reward.txt", repr(verdict.reward))
    say(f"{verdict.outcome}: {verdict.reward if verdict.reason is None else verdict.reason}")
    return 0 if verdict.outcome == "scored" else 1


if __name__ == "__main__":
    sys.exit(main())
