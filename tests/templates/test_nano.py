"""The model library: gradients, files that other libraries read, and folders that are no models."""

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from template_kit import BASE_MODEL, nano

SMALL = nano.Config(
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    intermediate_size=12,
    head_dim=4,
    max_position_embeddings=8,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BASE_MODEL, tmp_path / "model"))


def tokenizer() -> nano.Tokenizer:
    return nano.load(BASE_MODEL).tokenizer


def test_gradients_agree_with_finite_differences():
    model = nano.new_model(SMALL, tokenizer(), seed=3, scale=0.4)
    model.weights = {name: weight.astype(np.float64) for name, weight in model.weights.items()}
    random = np.random.default_rng(0)
    tokens, weights = random.integers(0, SMALL.vocab_size, (3, 7)), random.random((3, 7))
    _, gradients = nano.loss_and_gradients(model, tokens, weights)
    assert gradients.keys() == model.weights.keys()
    for name, weight in model.weights.items():
        for _ in range(4):
            place = tuple(random.integers(0, size) for size in weight.shape)
            slope = finite_difference(model, weight, place, tokens, weights)
            assert gradients[name][place] == pytest.approx(slope, rel=1e-4, abs=1e-7), name


def finite_difference(model: nano.Model, weight: np.ndarray, place: tuple, tokens, weights, step=1e-5) -> float:
    kept, losses = weight[place], []
    for value in (kept + step, kept - step):
        weight[place] = value
        losses.append(nano.loss_and_gradients(model, tokens, weights)[0])
    weight[place] = kept
    return (losses[0] - losses[1]) / (2 * step)


def test_the_future_and_the_neighbours_do_not_change_an_answer():
    model = nano.load(BASE_MODEL)
    prompts = ["12+34=", "1+2=", "99+98=", "5+67="]
    assert nano.generate(model, prompts) == [nano.generate(model, [prompt])[0] for prompt in prompts]
    tokens = np.array([model.tokenizer.encode("12+34=46")])
    changed = tokens.copy()
    changed[0, 5:] = 0
    before, after = (nano._forward(model, t)[0][0, :5] for t in (tokens, changed))
    assert np.array_equal(before, after)


def test_a_saved_model_is_loaded_the_same(tmp_path):
    model = nano.new_model(SMALL, tokenizer(), seed=1)
    nano.save(model, tmp_path / "m")
    again = nano.load(tmp_path / "m")
    assert (again.config, again.tokenizer) == (model.config, model.tokenizer)
    assert all(np.array_equal(again.weights[name], weight) for name, weight in model.weights.items())


def test_safetensors_library_reads_ours_and_ours_reads_its(folder):
    weights = nano.load(folder).weights
    theirs = safetensors.numpy.load_file(folder / "model.safetensors")
    assert theirs.keys() == weights.keys()
    assert all(np.array_equal(theirs[name], weight) for name, weight in weights.items())
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    assert all(np.array_equal(nano.load(folder).weights[name], weight) for name, weight in weights.items())


def test_half_precision_is_read_as_float32(folder):
    half = {name: weight.astype(np.float16) for name, weight in nano.load(folder).weights.items()}
    safetensors.numpy.save_file(half, folder / "model.safetensors")
    loaded = nano.load(folder).weights
    assert all(loaded[name].dtype == np.float32 and np.array_equal(loaded[name], w) for name, w in half.items())


@given(st.text(alphabet="0123456789+=", min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_tokenizers_library_agrees(text):
    theirs, ours = tokenizers.Tokenizer.from_file(str(BASE_MODEL / "tokenizer.json")), tokenizer()
    assert theirs.encode(text).ids == ours.encode(text)
    assert len(ours.encode(text)) == len(text)
    assert theirs.decode(ours.encode(text)) == text == ours.decode([*ours.encode(text), ours.end, 3])


# What is wrong with a folder: a change to it, and a word of the reason.


def edit_config(**changes: object):
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))

    return change


def replace(name: str, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


def edit_weights(change):
    """Change the header (a dict, in place) and data of the weights' file."""

    def apply(folder: Path) -> None:
        content = (folder / "model.safetensors").read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
        data = change(header, data) or data
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))

    return apply


def entry(**changes: Any):
    return edit_weights(lambda header, data: header["model.norm.weight"].update(changes))


def truncate(name: str, size: int):
    return lambda folder: os.truncate(folder / name, size)


def make_pipe(name: str):
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def value_in_weights(value: float):
    def change(header: dict, data: bytearray) -> None:
        data[400:404] = struct.pack("<f", value)

    return edit_weights(change)


def tokenizer_with(**vocabulary: object):
    content = {"model": {"type": "WordLevel", "vocab": {"<pad>": 12, "<end>": 13} | vocabulary}}
    return replace("tokenizer.json", json.dumps(content).encode())


def rename_tensor(header: dict, data: bytearray) -> None:
    header["odd"] = header.pop("model.norm.weight")


NOT_MODELS = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json: cannot be read"),
    "config not JSON": (replace("config.json", b"{"), "config.json: not valid JSON"),
    "config a list": (replace("config.json", b"[]"), "config.json: not a JSON object"),
    "config binary": (replace("config.json", b"\xff\xfe\x00"), "config.json: not valid JSON"),
    "config deep": (replace("config.json", b"[" * 500_000), "config.json: not valid JSON"),
    "config huge": (truncate("config.json", 2**40), "config.json: 1099511627776 bytes"),
    "config a pipe": (make_pipe("config.json"), "config.json: not a regular file"),
    "other architecture": (edit_config(model_type="qwen3"), "model_type"),
    "width huge": (edit_config(hidden_size=10**12), "hidden_size"),
    "width a truth": (edit_config(hidden_size=True), "hidden_size"),
    "width negative": (edit_config(hidden_size=-48), "hidden_size"),
    "layers without weights": (edit_config(num_hidden_layers=3), "missing"),
    "fewer layers": (edit_config(num_hidden_layers=1), "unexpected"),
    "heads that do not fit": (edit_config(num_attention_heads=5, num_key_value_heads=5), "head_dim"),
    "grouped heads": (edit_config(num_key_value_heads=2), "num_key_value_heads"),
    "wrong shape": (edit_config(intermediate_size=64), "has shape"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: cannot be read"),
    "weights a folder": (
        lambda folder: [(folder / "model.safetensors").unlink(), (folder / "model.safetensors").mkdir()],
        "model.safetensors",
    ),
    "weights a pipe": (make_pipe("model.safetensors"), "not a regular file"),
    "weights empty": (truncate("model.safetensors", 0), "header's length"),
    "weights cut": (truncate("model.safetensors", 100_000), "bytes of data"),
    "weights sparse": (truncate("model.safetensors", 2**42), "more than"),
    "weights with a tail": (edit_weights(lambda header, data: data + b"x"), "bytes of data"),
    "header huge": (replace("model.safetensors", struct.pack("<Q", 2**63) + b"{}" * 50), "header's length"),
    "header not JSON": (replace("model.safetensors", struct.pack("<Q", 8) + b"{{{{{{{{"), "not valid JSON"),
    "header a list": (replace("model.safetensors", struct.pack("<Q", 2) + b"[]"), "not a JSON object"),
    "tensor renamed": (edit_weights(rename_tensor), "missing"),
    "tensor entry a number": (edit_weights(lambda header, data: header.update({"model.norm.weight": 5})), "type"),
    "type unknown": (entry(dtype="I64"), "type"),
    "type a list": (entry(dtype=["F32"]), "type"),
    "shape changed": (entry(shape=[24, 2]), "shape"),
    "offsets overlap": (entry(data_offsets=[0, 192]), "overlap"),
    "offsets negative": (entry(data_offsets=[-192, 0]), "overlap"),
    "offsets beyond": (entry(data_offsets=[10**9, 10**9 + 192]), "overlap or leave a gap"),
    "offsets text": (entry(data_offsets=["0", "192"]), "data_offsets"),
    "offsets too far apart": (entry(data_offsets=[0, 10**15]), "data_offsets"),
    "a NaN": (value_in_weights(float("nan")), "NaN"),
    "an infinity": (value_in_weights(float("inf")), "NaN or infinite"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    "tokenizer without vocabulary": (replace("tokenizer.json", b"{}"), "WordLevel"),
    "tokenizer ids too high": (tokenizer_with(a=14), "below 14"),
    "tokenizer ids twice": (tokenizer_with(a=12), "distinct"),
    "tokenizer ids text": (tokenizer_with(a="1"), "whole numbers"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("change", "reason"), NOT_MODELS.values(), ids=NOT_MODELS.keys())
def test_what_is_no_model_is_refused_with_one_plain_line(folder, change, reason):
    change(folder)
    with pytest.raises(nano.InvalidModel, match=reason) as caught:
        nano.load(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_missing_folder_and_a_file_are_no_models(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(nano.InvalidModel, match="not a folder"):
            nano.load(path)


def test_a_model_that_cannot_read_or_hold_the_prompt_is_invalid(folder):
    tokenizer_with(**{"1": 1, "+": 10, "=": 11})(folder)
    with pytest.raises(nano.InvalidModel, match="no token"):
        nano.generate(nano.load(folder), ["1+2="])
    short = nano.new_model(nano.Config(max_position_embeddings=6), tokenizer(), seed=0)
    with pytest.raises(nano.InvalidModel, match="max_position_embeddings"):
        nano.generate(short, ["12+34="])


@pytest.mark.filterwarnings("error")
def test_absurd_weights_give_wrong_answers_not_errors(folder):
    model = nano.load(folder)
    for weight in model.weights.values():
        weight *= np.float32(1e30)
    assert len(nano.generate(model, ["12+34=", "1+1="])) == 2


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_arbitrary_bytes_as_weights_raise_nothing_else(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(nano.InvalidModel):
        nano.read_safetensors(path, SMALL.shapes())
