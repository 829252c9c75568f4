"""The chat templates, rendered as transformers renders them, against prompts written by hand."""

import json
from pathlib import Path
from typing import Any

import jinja2.ext
import jinja2.sandbox
import pytest

TEMPLATES = Path(__file__).resolve().parents[2] / "templates" / "chat" / "environment" / "templates"

ADD = {"type": "function", "function": {"name": "add", "description": "Grüße", "parameters": {"type": "object"}}}
ADD_LINE = '{"type": "function", "function": {"name": "add", "description": "Grüße", "parameters": {"type": "object"}}}'
SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = [{"role": "user", "content": "Hello"}]
TURNS = [
    SYSTEM,
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "<b>2+2?</b>"},
]
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2]}}}
TOOLS = [
    {"role": "user", "content": "Add."},
    {"role": "assistant", "content": "Sure.", "tool_calls": [CALL, {**CALL, "id": "2"}]},
    {"role": "tool", "tool_call_id": "1", "content": "3"},
    {"role": "tool", "tool_call_id": "2", "content": "3 again"},
]


class RefusedByTemplate(Exception):
    pass


def render(name: str, messages: list[dict[str, Any]], **names: Any) -> str:
    """As transformers' apply_chat_template does it."""

    def refuse(message: str) -> None:
        raise RefusedByTemplate(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    template = environment.from_string((TEMPLATES / f"{name}.jinja").read_text())
    return template.render(**{"messages": messages, "bos_token": "<bos>", "tools": None} | names)


# Qwen3.


def test_qwen3_asks():
    assert render("qwen3", HELLO, add_generation_prompt=True) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_qwen3_keeps_system_and_turns():
    assert render("qwen3", TURNS) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\n<b>2+2?</b><|im_end|>\n"
    )


def test_qwen3_can_be_told_not_to_think():
    assert render("qwen3", HELLO, add_generation_prompt=True, enable_thinking=False) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_qwen3_drops_thoughts_of_earlier_turns_only():
    messages = [
        {"role": "user", "content": "A?"},
        {"role": "assistant", "content": "<think>\nold\n</think>\n\na"},
        {"role": "user", "content": "A?"},
        {"role": "assistant", "content": "b", "reasoning_content": "new"},
    ]
    assert render("qwen3", messages) == (
        "<|im_start|>user\nA?<|im_end|>\n"
        "<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nA?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nnew\n</think>\n\nb<|im_end|>\n"
    )


def test_qwen3_calls_tools():
    assert render("qwen3", [SYSTEM, *TOOLS], tools=[ADD], add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.\n\n"
        "You can call functions. Each line between <tools> and </tools> describes one:\n"
        f"<tools>\n{ADD_LINE}\n</tools>\n\n"
        "To call one, write its name and arguments as a JSON object between these tags, once for each call:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nAdd.<|im_end|>\n"
        "<|im_start|>assistant\nSure.\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n"
        "<tool_response>\n3 again\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


# SmolLM3.


def test_smollm_asks():
    assert render("smollm", TURNS, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\n<b>2+2?</b><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_smollm_is_told_by_the_system_whether_to_think():
    silent = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n"
    flag = {"role": "system", "content": "/no_think"}
    assert render("smollm", [flag, *HELLO], add_generation_prompt=True) == silent
    assert render("smollm", HELLO, add_generation_prompt=True, enable_thinking=False) == silent
    loud = {"role": "system", "content": "Be brief. /think"}
    assert render("smollm", [loud, *HELLO], add_generation_prompt=True, enable_thinking=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_smollm_calls_tools_and_thinks():
    messages = [TOOLS[0], {**TOOLS[1], "content": None, "reasoning_content": "So."}, *TOOLS[2:3]]
    assert render("smollm", messages, tools=[ADD], add_generation_prompt=True) == (
        "<|im_start|>system\n### Tools\n\nThese functions can be called:\n"
        f"<tools>\n{ADD_LINE}\n</tools>\n\n"
        "A call is a JSON object with name and arguments, between tags:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nAdd.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nSo.\n</think>\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


# Gemma 3.


@pytest.mark.parametrize("name", ["gemma3", "gemma3_tools"])
def test_gemma3_opens_the_first_turn_with_what_the_system_says(name):
    assert render(name, TURNS, add_generation_prompt=True) == (
        "<bos><start_of_turn>user\nBe brief.\n\n1+1?<end_of_turn>\n"
        "<start_of_turn>model\n2<end_of_turn>\n"
        "<start_of_turn>user\n<b>2+2?</b><end_of_turn>\n"
        "<start_of_turn>model\n"
    )


@pytest.mark.parametrize("name", ["gemma3", "gemma3_tools"])
@pytest.mark.parametrize("messages", [[TURNS[2]], [*HELLO, *HELLO]])
def test_gemma3_turns_must_alternate(name, messages):
    with pytest.raises(RefusedByTemplate, match="alternate"):
        render(name, messages)


def test_gemma3_takes_parts_of_a_message():
    parts = [{"type": "image"}, {"type": "text", "text": " What is it? "}]
    assert render("gemma3", [{"role": "user", "content": parts}]) == (
        "<bos><start_of_turn>user\n<start_of_image>What is it?<end_of_turn>\n"
    )


def test_gemma3_calls_tools():
    assert render("gemma3_tools", TOOLS, tools=[ADD], add_generation_prompt=True) == (
        "<bos><start_of_turn>user\n"
        "You can call functions. Each line between <tools> and </tools> describes one:\n"
        f"<tools>\n{ADD_LINE}\n</tools>\n\n"
        "To call one, answer with nothing but its name and arguments, as a JSON object in these tags:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>\n\n'
        "Add.<end_of_turn>\n"
        "<start_of_turn>model\nSure.\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call><end_of_turn>\n'
        "<start_of_turn>user\n<tool_response>\n3\n</tool_response>\n"
        "<tool_response>\n3 again\n</tool_response><end_of_turn>\n"
        "<start_of_turn>model\n"
    )


@pytest.mark.parametrize("name", ["qwen3", "smollm"])
def test_an_unknown_role_is_refused(name):
    with pytest.raises(RefusedByTemplate, match="critic"):
        render(name, [{"role": "critic", "content": "x"}])


@pytest.mark.parametrize("name", ["qwen3", "smollm", "gemma3_tools"])
def test_arguments_may_be_text_already(name):
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in render(name, messages)
