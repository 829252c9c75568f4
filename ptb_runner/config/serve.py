"""Who serves the model under test."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from ptb_runner.config.declare import option


@dataclass
class ServeConfig:
    """Who serves the model under test (kind harbor): nobody, or the agent's provider."""

    kind: str = option("none", "Who serves it: none, external or vllm.")


@dataclass
class ServedConfig(ServeConfig):
    """A server that agents are pointed at."""

    served_name: str | None = option(None, "The model's name at the server; null: from the model.")
    max_model_len: int | None = option(None, "Tokens of question and answer; null: what the server says.", least=1)
    ready_timeout_sec: float = option(
        1800.0, "Time until it answers a first completion (seconds).", above=0, result=False
    )
    health_sec: float = option(
        10.0,
        "Seconds between questions whether it is well, and for each answer; three without one: it counts as dead.",
        above=0,
        result=False,
    )


@dataclass
class ExternalServeConfig(ServedConfig):
    """A server that runs already."""

    kind: str = option("external", "Who serves it: none, external or vllm.")
    base_url: str = option(
        MISSING, "Where agents and runner reach it: an OpenAI-compatible URL, usually ending in /v1.", result=False
    )
    api_key_var: str | None = option(
        None, "Name of the host variable with its key; null: it asks for none.", result=False
    )


@dataclass
class VllmServeConfig(ServedConfig):
    """A vLLM server that is started for the cell, and ended with it."""

    kind: str = option("vllm", "Who serves it: none, external or vllm.")
    version: str = option("0.19.1", "Version of vLLM, run through uvx.")
    command: list[str] = option([], "What is run instead of `uvx vllm==VERSION serve`; gets the same arguments.")
    tokenizer_revision: str | None = option(None, "Revision of the tokenizer; null: the model's.")
    tp: int = option(
        1, "GPUs over which a copy of the model is split; with launcher=beaker launcher.gpus.", least=1, result=False
    )
    dp: int = option(1, "Copies of the model, each on GPUs of its own.", least=1, result=False)
    port: int | None = option(
        None,
        "Port it listens at; null: a free one. With launcher=beaker launcher.port.",
        least=1,
        most=65535,
        result=False,
    )
    address: str | None = option(
        None, "Name or address by which sandboxes reach this machine; null: as the backend has it.", result=False
    )
    tool_parser: str | None = option("hermes", "How it reads tool calls; null: it takes no tools.")
    reasoning_parser: str | None = option(None, "How it tells thinking from answers; null: not at all.")
    extra_args: list[str] = option([], "Further arguments of `vllm serve`.")
    env: dict[str, str] = option({}, "Settings for its environment; secrets only as ${oc.env:NAME}.")
    max_restarts: int = option(2, "Times it is started again after it died.", least=0, result=False)


SERVES: dict[str, type[ServeConfig]] = {
    "none": ServeConfig,
    "external": ExternalServeConfig,
    "vllm": VllmServeConfig,
}
