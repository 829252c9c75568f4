"""What can be wrong with a configuration beyond the types of its options; everything here works offline.

`problems` looks at one composed configuration and returns every fault it finds, a text of one or two
lines each. It creates nothing and imports none of harbor, modal or beaker.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ptb_runner import dataset, hf_cache, keys, menu, serve, test_data
from ptb_runner.agent import clis
from ptb_runner.budget import agent_hours, item_limit
from ptb_runner.config import (
    BACKENDS,
    LAUNCHERS,
    SERVES,
    AgentConfig,
    Auth,
    Config,
    ContentKind,
    JudgeApi,
    JudgeEngine,
    Kind,
    MissingScore,
    Network,
    Option,
    PhaseLimitsConfig,
    RepromptConfig,
    judge_options,
    options,
    task_env_vars,
    typed,
)
from ptb_runner.explain import find, masked, unknown_key
from ptb_runner.judge import judgements, prompts
from ptb_runner.launch import beaker_spec
from ptb_runner.paths import CONF, TEMPLATES

# By its name a value is a secret, unless the name says that it is only about one (auth_policy, key_name).
_SECRET_NAME = re.compile(
    r"(?!.*_(?:id|policy|method|mode|name|var|path|file|url)$)"
    r".*(?:key|token|secret|password|passwd|credential|auth(?!or))",
    re.IGNORECASE,
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def problems(config: DictConfig, conf_dirs: list[str]) -> list[str]:
    """Every fault of `config` that can be found without running anything."""
    known = options(config)
    # What the later ones read, the earlier ones have found to be there.
    found = list(_unset_references(config))
    found = found or [*_unknown_keys(config, known), *_removed(config, known), *_missing(config, conf_dirs)]
    found = found or list(_kinds(config))
    if found:
        return found
    try:
        cell = typed(config)
    except OmegaConfBaseException as error:
        return [f"{error.full_key}: {str(error.msg).splitlines()[0]}"]
    return [
        *_out_of_bounds(config, known),
        *_secrets(config),
        *_ids(cell),
        *_agent(cell),
        *_benchmark(cell),
        *_content(cell),
        *serve.problems(cell),
        *beaker_spec.problems(cell),
        *_judges(config, cell),
    ]


def warnings(cell: Config) -> list[str]:
    """What the user should know, but may well want."""
    found = []
    benchmark = cell.benchmark
    if benchmark.missing_score is MissingScore.base_model and cell.model.id not in benchmark.zero_shot:
        found.append(
            f"benchmark {benchmark.id} has no zero_shot score for model {cell.model.id}: "
            "a trial without a usable model will have no final score"
        )
    own, used = benchmark.agent_hours, agent_hours(cell)
    if own is not None and used != own:
        name = "budget.hours" if cell.agent.timeout_hours is None else "agent.timeout_hours"
        found.append(f"{name}={used:g} differs from the benchmark's {own:g}: not comparable")
    if keys.login_file(cell.agent) and min(cell.attempts, cell.concurrency) > 1:
        found.append(
            "agent.auth=subscription: when a trial renews the login, others that run may be logged out; "
            "concurrency=1 is safe"
        )
    limits = [name for name in ("cpus", "memory_mb", "storage_mb") if getattr(benchmark, name) is not None]
    if limits and cell.backend.kind == "bubblewrap":
        named = ", ".join(f"benchmark.{name}" for name in limits)
        found.append(f"backend=bubblewrap does not enforce {named}")
    if item_limit(cell) != -1:
        found.append(f"only {item_limit(cell)} items are scored: not comparable")
    if test_data.wanted(cell) and not test_data.file(cell.benchmark.id).is_file():
        found.append(
            "test data is not downloaded: the agent gets no check against contamination; "
            f"first: ptb cache test-data benchmark={cell.benchmark.id}"
        )
    found += serve.warnings(cell)
    return found + ([absent] if (absent := hf_cache.missing(cell)) else [])


def _unknown_keys(config: DictConfig, known: Sequence[Option]) -> Iterator[str]:
    """Keys that were forced in with `+`: Hydra lets them through, nothing would read them."""
    keys = {item.key for item in known}
    parents = {key.rpartition(".")[0] for key in keys}
    parents |= {parent.rpartition(".")[0] for parent in parents}
    for key in _leaves(config, keys, parents, ""):
        yield unknown_key(key, "command line or file")


def _leaves(node: DictConfig, keys: set[str], parents: set[str], prefix: str) -> Iterator[str]:
    for name in node:
        key = f"{prefix}{name}"
        if key == "hydra" or key in keys:
            continue
        if key not in parents:
            yield key
        elif not OmegaConf.is_missing(node, name):
            yield from _leaves(node[name], keys, parents, f"{key}.")


def _removed(config: DictConfig, known: Sequence[Option]) -> Iterator[str]:
    """Options that were taken away with `~`: everything that reads them would fail."""
    absent = object()
    for item in known:
        if OmegaConf.select(config, item.key, default=absent, throw_on_missing=False) is absent:
            parent = OmegaConf.select(config, item.key.rpartition(".")[0]) if "." in item.key else config
            if parent is not None and item.key.rpartition(".")[2] not in parent:
                yield f"command line: ~{item.key}: an option cannot be removed\n  leave it out, or give it a value"


def _unset_references(config: DictConfig) -> Iterator[str]:
    """${oc.env:NAME} without a default, of a variable that is not set."""
    for key, value in _strings(OmegaConf.to_container(config, resolve=False), ""):
        for name in re.findall(r"\$\{oc\.env:([A-Za-z_]\w*)\}", value):
            if name not in os.environ:
                yield f"{key.lstrip('.')}: the variable {name} is not set\n  export {name}=... and start again"


def _missing(config: DictConfig, conf_dirs: list[str]) -> Iterator[str]:
    for key in sorted(OmegaConf.missing_keys(config)):
        if key.startswith("hydra."):
            continue
        if key in menu.groups(conf_dirs):
            yield f"{key}: nothing chosen\n  type {key}=CHOICE, one of: {', '.join(menu.choices(key, conf_dirs))}"
            continue
        item = find(key)
        group = key.partition(".")[0]
        choice = OmegaConf.select(config, f"{group}.id", default=None, throw_on_missing=False)
        chosen = menu.file_of(f"{group}/{choice}", conf_dirs)
        where = f" ({chosen} leaves it open)" if chosen else ""
        yield f"{key}: needs a value{where}\n  {item.help if item else ''} Type {key}=VALUE"


def _kinds(config: DictConfig) -> Iterator[str]:
    for group, kinds in (("backend", BACKENDS), ("launcher", LAUNCHERS), ("serve", SERVES)):
        kind = config[group].kind
        if kind not in kinds:
            yield f"{group}.kind={kind}: there is no such {group}\n  choose one with {group}=NAME: {', '.join(kinds)}"


def _out_of_bounds(config: DictConfig, known: Sequence[Option]) -> Iterator[str]:
    for item in known:
        value = OmegaConf.select(config, item.key)
        if item.violated_by(value):
            yield f"{item.key}={value}: {item.key} takes {item.allowed}\n  {item.help}"


def _secrets(config: DictConfig) -> Iterator[str]:
    """Literal secrets would be written to cell.yaml; the message must not repeat them."""
    yield from _secrets_of_jobs(config)
    for root in ("agent.env", "agent.options", "serve.env"):
        if (node := OmegaConf.select(config, root)) is None:
            continue
        raw = OmegaConf.to_container(node, resolve=False)
        for key, value in _strings(raw, root):
            refers = "${oc.env:" in value or value.startswith("{env:")  # the latter is OpenCode's way
            if _SECRET_NAME.match(key.rpartition(".")[2]) and value and not refers:
                name = key.rpartition(".")[2].upper()
                yield (
                    f"{key}: looks like a secret written out, and would be stored\n"
                    f"  export it as a variable and name it: agent.env_vars=[{name}] or '{key}=${{oc.env:{name}}}'"
                )


def _secrets_of_jobs(config: DictConfig) -> Iterator[str]:
    """What a job's environment is given stands in its specification, which others may read."""
    given = OmegaConf.select(config, "launcher.env")
    raw: Any = OmegaConf.to_container(given, resolve=False) if given is not None else {}
    for name, value in raw.items():
        if _SECRET_NAME.search(name) or "${oc.env:" in str(value) or masked(str(value)) != str(value):
            yield (
                f"launcher.env.{name}: would stand in the job's specification, which others may read\n"
                f"  type launcher.beaker_secrets.{name}=SECRET, with the name of a Beaker secret"
            )


def _strings(node: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _strings(value, f"{key}.{name}")
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value, key)
    elif isinstance(node, str):
        yield key, node


def _ids(cell: Config) -> Iterator[str]:
    """Ids name folders, tables and files."""
    for group in ("benchmark", "model", "agent"):
        name = getattr(cell, group).id
        if not name.strip() or not name.isprintable():
            yield f"{group}.id={name!r}: is no name\n  letters, digits, dashes; not empty, on one line"


# What sandboxes set themselves: another value breaks every command in them.
_OWN_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME")


def _agent(cell: Config) -> Iterator[str]:
    agent = cell.agent
    for name in [*agent.env, *agent.env_vars, *task_env_vars(cell), *cell.benchmark.verifier_env_vars]:
        if name in _OWN_VARIABLES:
            yield f"agent.env: {name} belongs to the sandbox\n  leave it out; an agent's own script may set it"
    if (own := _named_by_file(agent.id)) and agent.name and agent.name != own:
        yield (
            f"agent.name={agent.name}: agent={agent.id} is {own}, and results would call it that\n"
            f"  type agent=custom agent.id=NAME agent.name={agent.name}, or choose agent={agent.name} if there is one"
        )
    if agent.name and agent.import_path:
        yield "agent.name and agent.import_path are both set\n  keep one: an agent of Harbor's, or a class of yours"
    if not agent.name and not agent.import_path:
        yield (
            "agent.import_path: needs a value\n"
            "  type agent.import_path=module:Class for a class of yours, or agent.name=NAME for one of Harbor's"
        )
    if agent.auth is Auth.subscription and agent.name not in keys.SUBSCRIPTIONS:
        yield (
            f"agent.auth=subscription: agent={agent.id} has no login of a subscription that can be used\n"
            f"  leave it out, or choose one of: {', '.join(keys.SUBSCRIPTIONS)}"
        )
    if agent.name == "terminus-2" and serve.agent_model(cell) is None:
        yield (
            "agent.model: agent=terminus-2 asks an LLM, and none is named\n"
            "  type agent.model=PROVIDER/NAME, model=api model.id=PROVIDER/NAME, or model=hf serve=vllm"
        )
    yield from _endpoint(agent) if agent.base_url is not None else ()
    if agent.name == "opencode" and "/" not in (serve.agent_model(cell) or "/"):
        yield (
            f"agent.model={agent.model}: opencode needs to know whose it is\n"
            f"  type agent.model=PROVIDER/{agent.model}; hosted_vllm is the provider behind agent.base_url"
        )
    if agent.import_path and not re.fullmatch(r"[\w.]+:\w+", agent.import_path):
        yield f"agent.import_path={agent.import_path}: not of the form module:Class\n  for example my_agents:FastAgent"
    if agent.name not in clis.CLASSES and agent.first_answer_min != AgentConfig().first_answer_min:
        yield (
            f"agent.first_answer_min: nobody can tell when the LLM of agent={agent.id} has answered\n"
            f"  only of {', '.join(clis.CLASSES)}; leave it out"
        )
    yield from _reprompt(cell)
    for option, names in (
        ("agent.env_vars", agent.env_vars),
        ("benchmark.env_vars", cell.benchmark.env_vars),
        ("model.env_vars", cell.model.env_vars),
        ("benchmark.verifier_env_vars", cell.benchmark.verifier_env_vars),
    ):
        for name in names:
            if not _ENV_NAME.fullmatch(name):
                # Not repeated: somebody may have pasted the key itself.
                yield f"{option}: one entry is no variable's name\n  give names such as HF_TOKEN, never the key itself"


def _endpoint(agent: AgentConfig) -> Iterator[str]:
    try:
        url = urlsplit(agent.base_url or "")
        valid = url.scheme in ("http", "https") and bool(url.hostname)
    except ValueError:
        url, valid = urlsplit(""), False
    if not valid:
        yield "agent.base_url: is no http(s) URL\n  for example agent.base_url=http://127.0.0.1:8000/v1"
    elif url.username or url.password or url.query:
        yield "agent.base_url: holds more than an address\n  its key goes into agent.env_vars, by name, as the first"
    if agent.name in ("oracle", "nop"):
        yield f"agent.base_url: agent={agent.id} asks no LLM\n  leave it out"


def _reprompt(cell: Config) -> Iterator[str]:
    least, hours = cell.agent.reprompt.min_remaining_min, agent_hours(cell)
    if least is None:
        yield from _reprompt_without_least(cell.agent.reprompt)
    elif cell.agent.name not in clis.CLASSES:
        yield (
            f"agent.reprompt.min_remaining_min: agent={cell.agent.id} cannot be prompted again\n"
            f"  only {', '.join(clis.CLASSES)} can; leave it out"
        )
    elif hours is None:
        yield (
            "agent.reprompt.min_remaining_min: the agent's time is not known\n"
            "  type budget.hours=HOURS, which all its prompts together then have"
        )
    elif least >= hours * 60:
        yield (
            f"agent.reprompt.min_remaining_min={least:g}: so much is never left of {hours:g} hours\n"
            "  give less, or leave it out"
        )


def _reprompt_without_least(given: RepromptConfig) -> Iterator[str]:
    for name in ("max", "pause_sec"):
        if getattr(given, name) != getattr(RepromptConfig(), name):
            yield (
                f"agent.reprompt.{name}: does nothing without agent.reprompt.min_remaining_min\n"
                "  type agent.reprompt.min_remaining_min=MINUTES, with which it is prompted again"
            )


def _named_by_file(agent_id: str) -> str | None:
    """Harbor's name of an agent of ours, as its file says."""
    path = menu.file_of(f"agent/{agent_id}", [str(CONF)])
    return (yaml.safe_load(path.read_text()) or {}).get("name") if path else None


# Folders of Harbor's own in every sandbox.
_TAKEN = ("/", "/tests", "/logs", "/solution", "/handoff")


def _benchmark(cell: Config) -> Iterator[str]:
    benchmark = cell.benchmark
    if not benchmark.workdir.startswith("/") or os.path.normpath(benchmark.workdir) in _TAKEN:
        yield f"benchmark.workdir={benchmark.workdir!r}: must be an absolute path, and none of {', '.join(_TAKEN)}"
    for name in benchmark.shared:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            yield f"benchmark.shared: {name!r} is not inside environment/\n  name files relative to it"
    if benchmark.evaluation.limit == 0:
        yield "benchmark.evaluation.limit=0: nothing would be scored\n  -1 scores all"
    given = [f"benchmark.{name}" for name in ("path", "dataset", "layers") if getattr(benchmark, name)]
    if len(given) > 1:
        yield f"{' and '.join(given)} are both set\n  a task is a folder as it is, a dataset's, or rendered from layers"
    if not given:
        asked = (
            "dataset=NAME@VERSION, a Harbor dataset, or benchmark.path=DIR, a folder of tasks"
            if benchmark.id == "dataset"
            else "path=DIR, a Harbor task folder"
        )
        yield f"benchmark.{asked.partition('=')[0]}: needs a value\n  type benchmark.{asked}"
    yield from dataset.problems(benchmark)
    yield from _limits(cell)
    for layer in [*benchmark.layers, *cell.model.layers]:
        if not (TEMPLATES / layer).is_dir():
            yield f"layers: no folder {layer!r} in {TEMPLATES}\n  name a folder of templates/ or an absolute path"
    yield from _post_train(cell) if benchmark.kind is Kind.post_train else ()
    if benchmark.path and dataset.is_folder_of_tasks(Path(benchmark.path)):
        for folder in dataset.folders(Path(benchmark.path)):
            yield from _task_folder(folder)
    elif benchmark.path:
        yield from _task_folder(Path(benchmark.path))
    for name in ("zero_shot", "few_shot", "instruct"):
        for model, score in getattr(benchmark, name).items():
            if not 0 <= score <= 1:
                yield f"benchmark.{name}.{model}={score}: a score is a number from 0 to 1"
    if benchmark.models and cell.model.id not in benchmark.models:
        yield (
            f"model={cell.model.id}: benchmark {benchmark.id} cannot be run with it\n"
            f"  model is one of: {', '.join(benchmark.models)}"
        )


def _limits(cell: Config) -> Iterator[str]:
    """Limits that contradict each other, or the prompt."""
    limits = cell.benchmark.limits
    if cell.benchmark.kind is Kind.post_train and limits != PhaseLimitsConfig():
        yield "benchmark.limits: only for kind harbor\n  a post-training agent is told its limit: budget.hours=N"
    for phase in ("agent", "verifier"):
        if getattr(limits, f"{phase}_sec") and getattr(limits, f"{phase}_multiplier"):
            yield (
                f"benchmark.limits.{phase}_sec and benchmark.limits.{phase}_multiplier are both set\n"
                "  keep one: an exact limit, or a factor on the task's own"
            )
    for name in ("agent.timeout_hours", "budget.hours"):
        group, _, field = name.partition(".")
        for other in ("agent_sec", "agent_multiplier"):
            if getattr(limits, other) and getattr(getattr(cell, group), field):
                yield f"benchmark.limits.{other} and {name} are both set\n  keep one"


def _post_train(cell: Config) -> Iterator[str]:
    benchmark = cell.benchmark
    if cell.model.id == "none":
        yield f"model=none: benchmark {benchmark.id} post-trains a model\n  choose one with model=NAME"
    for name in ("agent_hours", "verifier_hours"):
        if getattr(benchmark, name) is None:
            yield f"benchmark.{name}: needs a value, since benchmark {benchmark.id} is of kind post_train"
    if benchmark.path:
        yield "benchmark.path: only for kind harbor; a post_train benchmark is rendered from benchmark.layers"
    if benchmark.reward:
        yield "benchmark.reward: only for kind harbor; a post_train benchmark's verifier leaves one reward"
    each = benchmark.evaluation.try_timeout_hours
    if benchmark.verifier_hours is not None and each > benchmark.verifier_hours:
        yield (
            f"benchmark.evaluation.try_timeout_hours={each:g}: more than benchmark.verifier_hours="
            f"{benchmark.verifier_hours:g}\n  the verifier would be ended before its first try is over"
        )


def _task_folder(path: Path) -> Iterator[str]:
    expected = "a Harbor task folder holds task.toml, instruction.md, environment/ and tests/"
    if not path.is_dir():
        yield f"benchmark.path={path}: no such folder\n  {expected}"
        return
    if not (path / "task.toml").is_file():
        yield f"benchmark.path={path}: no Harbor task folder, it has no task.toml\n  {expected}"
        return
    try:
        task = tomllib.loads((path / "task.toml").read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        yield f"{path / 'task.toml'}: not readable as TOML: {error}"
        return
    for role in ("agent", "verifier"):
        seconds = task.get(role, {}).get("timeout_sec", 1) if isinstance(task.get(role, {}), dict) else 1
        if isinstance(seconds, int | float) and not 0 < seconds < math.inf:
            yield f"{path / 'task.toml'}: [{role}] timeout_sec = {seconds}: must be a number above 0"
    yield from _task_files(path)


def _task_files(path: Path) -> Iterator[str]:
    try:
        (path / "instruction.md").read_text()
    except FileNotFoundError:
        pass  # a task with steps has one in each
    except (OSError, UnicodeDecodeError) as error:
        yield f"{path / 'instruction.md'}: cannot be read as text: {error}"
    for file in path.rglob("*"):
        if not (file.is_symlink() or file.is_file() or file.is_dir()):
            yield f"{file}: is neither a file nor a folder\n  a task is made of files"


def _content(cell: Config) -> Iterator[str]:
    content = cell.content
    if content.kind is ContentKind.builtin:
        return
    if cell.benchmark.kind is not Kind.post_train:
        yield f"content=upstream: benchmark {cell.benchmark.id} is none of PostTrainBench's\n  type content=builtin"
    if not content.path and not (content.url and content.commit):
        yield "content.path: needs a value\n  type content.path=DIR, or content.url=URL content.commit=COMMIT"
    if content.path and not Path(content.path).is_dir():
        yield f"content.path={content.path}: no such folder\n  it names a PostTrainBench checkout"


def backend_refusals(cell: Config) -> Iterator[str]:
    """Why the chosen backend cannot run the cell; a dry run only tells it."""
    if cell.backend.kind == "bubblewrap" and cell.benchmark.gpus:
        yield (
            f"backend=bubblewrap has no GPU, benchmark.gpus={cell.benchmark.gpus} asks for some\n"
            "  choose a backend with GPUs, or benchmark.gpus=0"
        )
    if cell.agent.name in clis.CLASSES and cell.benchmark.layers and cell.benchmark.network is Network.none:
        yield (
            f"benchmark.network=none: agent={cell.agent.id} could not reach its LLM\n"
            "  type benchmark.network=public; the result will say so"
        )


_FIELD = re.compile(r"[a-z][a-z0-9_]{0,60}")


def _judges(config: DictConfig, cell: Config) -> Iterator[str]:
    for name, own in cell.judge.panel.items():
        key = f"judge.panel.{name}"
        known = {item.key: item for item in judge_options(name)}
        for inner in _leaves(
            config.judge.panel[name], known.keys() | {f"{key}.fields"}, {f"{key}.usd_per_mtok"}, f"{key}."
        ):
            yield f"command line or file: there is no option {inner!r}\n  here: {', '.join(known)}"
        for item in known.values():
            if item.violated_by(value := OmegaConf.select(config, item.key)):
                yield f"{item.key}={value}: takes {item.allowed}\n  {item.help}"
        if not judgements.ID.fullmatch(name) or name.endswith(judgements.RERUN):
            rule = f"letters, digits, dashes, underscores; {judgements.RERUN} is for reruns"
            yield f"{key}: no name for a judge\n  {rule}"
        if not prompts.file_of(own).is_file():
            where = f"a path as seen from here, or a file of {TEMPLATES / 'judge'}"
            yield f"{key}.prompt={own.prompt}: no such file\n  {where}"
        if not own.fields:
            yield f"{key}.fields: needs a value\n  the questions it answers: each field's name, and what true means"
        for field in own.fields:
            if not _FIELD.fullmatch(field) or field.startswith("justification_"):
                yield f"{key}.fields.{field}: no name for a field\n  small letters, digits and underscores"
    if cell.judge.engine is JudgeEngine.codex and cell.judge.panel and cell.launcher.kind in ("modal", "beaker"):
        yield (
            f"judge.engine=codex: codex is not where launcher={cell.launcher.kind} runs judges\n"
            "  leave judges out, and judge afterwards: ptb rejudge DIR judge=NAME judge.engine=codex"
        )
    if cell.judge.engine is JudgeEngine.codex and cell.judge.api is not JudgeApi.responses:
        yield "judge.api=chat: judge.engine=codex speaks the Responses API only\n  leave judge.api out, or judge.engine"
    if cell.judge.api_key_var and not _ENV_NAME.fullmatch(cell.judge.api_key_var):
        # Not repeated: somebody may have pasted the key itself.
        yield "judge.api_key_var: no variable's name\n  give a name such as OPENAI_API_KEY, never the key itself"
