"""nano: a small decoder-only transformer in NumPy, with its training step and its file format.

A model is a folder in the Hugging Face style: ``config.json``, ``model.safetensors`` and ``tokenizer.json``.
The architecture: token and learned position embeddings, then blocks of causal self-attention and a ReLU
feed-forward layer, each behind an RMSNorm and added to the residual stream, a last RMSNorm, and a linear head.

    model = load("base_model")
    generate(model, ["12+34="])                                   # ["46"]
    loss, gradients = loss_and_gradients(model, tokens, weights)  # next-token cross-entropy
    Adam(model).step(gradients, learning_rate=1e-3)
    save(model, "final_model")

Folders may come from anywhere: ``load`` checks everything it reads and raises InvalidModel for what is not a model.
"""

import json
import os
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE = "config.json", "model.safetensors", "tokenizer.json"
MODEL_TYPE, ARCHITECTURES = "nano", ["NanoForCausalLM"]
PAD, END = "<pad>", "<end>"

# Bounds on what is read from a folder: a file that only claims to be huge must cost neither memory nor time.
MAX_WEIGHTS_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 2**20
MAX_JSON_BYTES = 2**20
MAX_DIMENSION = {
    "hidden_size": 2048,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "intermediate_size": 8192,
    "head_dim": 2048,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
}
READ_TYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}

NORM_EPSILON = 1e-5
GENERATE_BATCH = 512


class InvalidModel(Exception):
    """A folder is not a usable nano model; the message is one line: which file, and what is wrong with it."""


@dataclass(frozen=True)
class Config:
    """The dimensions of a model, under their Hugging Face names. All are counts."""

    hidden_size: int = 48
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    intermediate_size: int = 128
    head_dim: int = 12
    vocab_size: int = 14
    max_position_embeddings: int = 16

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight; matrices are [outputs, inputs], as in a torch Linear."""
        width, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, width),
            "model.embed_positions.weight": (self.max_position_embeddings, width),
        }
        for layer in range(self.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            shapes[prefix + "input_layernorm.weight"] = (width,)
            shapes[prefix + "self_attn.qkv_proj.weight"] = (3 * width, width)
            shapes[prefix + "self_attn.o_proj.weight"] = (width, width)
            shapes[prefix + "post_attention_layernorm.weight"] = (width,)
            shapes[prefix + "mlp.up_proj.weight"] = (inner, width)
            shapes[prefix + "mlp.down_proj.weight"] = (width, inner)
        return shapes | {"model.norm.weight": (width,), "lm_head.weight": (self.vocab_size, width)}


@dataclass(frozen=True)
class Tokenizer:
    """One token a character, plus PAD and END. ``vocabulary`` maps a token's text to its id."""

    vocabulary: dict[str, int]

    @property
    def pad(self) -> int:
        return self.vocabulary[PAD]

    @property
    def end(self) -> int:
        return self.vocabulary[END]

    def encode(self, text: str) -> list[int]:
        """The ids of the characters of ``text``; InvalidModel when one has no token."""
        try:
            return [self.vocabulary[character] for character in text]
        except KeyError as missing:
            raise InvalidModel(f"{TOKENIZER_FILE}: no token for the character {missing}") from None

    def decode(self, ids: list[int]) -> str:
        """The text up to the first END; ids without a token become U+FFFD."""
        texts = {number: text for text, number in self.vocabulary.items()}
        if self.end in ids:
            ids = ids[: ids.index(self.end)]
        return "".join(texts.get(number, "\ufffd") for number in ids)


@dataclass
class Model:
    """A model in memory: ``weights`` are float32 arrays with the names and shapes of ``config.shapes()``."""

    config: Config
    tokenizer: Tokenizer
    weights: dict[str, np.ndarray]

    def layer(self, number: int) -> dict[str, np.ndarray]:
        """The weights of one block under their short names (``self_attn.o_proj.weight``, ...)."""
        prefix = f"model.layers.{number}."
        return {name.removeprefix(prefix): w for name, w in self.weights.items() if name.startswith(prefix)}


def new_model(config: Config, tokenizer: Tokenizer, seed: int, scale: float = 0.06) -> Model:
    """A model with random weights: normal of standard deviation ``scale``, norms at one."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.shapes().items():
        drawn = random.standard_normal(shape) * scale if len(shape) == 2 else np.ones(shape)
        weights[name] = drawn.astype(np.float32)
    return Model(config, tokenizer, weights)


# ---------------------------------------------------------------------------------------------------------------------
# Forward and backward. Activations are [batch, time, width]; every function returns what its backward needs.


def _linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    # One flat matrix product: NumPy would run a small one per sequence on three dimensions, several times slower.
    return (x.reshape(-1, x.shape[-1]) @ weight.T).reshape(*x.shape[:-1], weight.shape[0])


def _linear_backward(grad: np.ndarray, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    flat = grad.reshape(-1, grad.shape[-1])
    return (flat @ weight).reshape(x.shape), flat.T @ x.reshape(-1, x.shape[-1])


def _norm(x: np.ndarray, gain: np.ndarray) -> tuple[np.ndarray, tuple]:
    inverse = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + NORM_EPSILON)
    unit = x * inverse
    return unit * gain, (unit, inverse)


def _norm_backward(grad: np.ndarray, gain: np.ndarray, tape: tuple) -> tuple[np.ndarray, np.ndarray]:
    unit, inverse = tape
    grad_gain = (grad * unit).reshape(-1, grad.shape[-1]).sum(axis=0)
    grad_unit = grad * gain
    along = np.mean(grad_unit * unit, axis=-1, keepdims=True)
    return inverse * (grad_unit - unit * along), grad_gain


def _softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _split_heads(x: np.ndarray, config: Config) -> np.ndarray:
    """[batch, time, n*width] -> [n, batch, heads, time, head_dim], for n projections side by side."""
    batch, time, total = x.shape
    return x.reshape(batch, time, total // config.hidden_size, config.num_attention_heads, config.head_dim).transpose(
        2, 0, 3, 1, 4
    )


def _join_heads(x: np.ndarray) -> np.ndarray:
    """The reverse of _split_heads."""
    count, batch, heads, time, head_dim = x.shape
    return x.transpose(1, 3, 0, 2, 4).reshape(batch, time, count * heads * head_dim)


def _attention(x: np.ndarray, layer: dict[str, np.ndarray], config: Config) -> tuple[np.ndarray, tuple]:
    query, key, value = _split_heads(_linear(x, layer["self_attn.qkv_proj.weight"]), config)
    time = x.shape[1]
    future = np.triu(np.full((time, time), -1e9, x.dtype), k=1)
    scores = query @ key.swapaxes(-1, -2) * x.dtype.type(config.head_dim**-0.5)
    share = _softmax(scores + future)
    mixed = _join_heads((share @ value)[None])
    return _linear(mixed, layer["self_attn.o_proj.weight"]), (x, query, key, value, share, mixed)


def _attention_backward(
    grad: np.ndarray, layer: dict[str, np.ndarray], config: Config, tape: tuple
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    x, query, key, value, share, mixed = tape
    grad_mixed, grad_output = _linear_backward(grad, mixed, layer["self_attn.o_proj.weight"])
    grad_heads = _split_heads(grad_mixed, config)[0]
    grad_value = share.swapaxes(-1, -2) @ grad_heads
    grad_share = grad_heads @ value.swapaxes(-1, -2)
    along = (grad_share * share).sum(axis=-1, keepdims=True)
    grad_scores = share * (grad_share - along) * x.dtype.type(config.head_dim**-0.5)
    grad_query, grad_key = grad_scores @ key, grad_scores.swapaxes(-1, -2) @ query
    grad_qkv = _join_heads(np.stack([grad_query, grad_key, grad_value]))
    grad_x, grad_weight = _linear_backward(grad_qkv, x, layer["self_attn.qkv_proj.weight"])
    return grad_x, {"self_attn.qkv_proj.weight": grad_weight, "self_attn.o_proj.weight": grad_output}


def _feed_forward(x: np.ndarray, layer: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple]:
    active = np.maximum(_linear(x, layer["mlp.up_proj.weight"]), 0)
    return _linear(active, layer["mlp.down_proj.weight"]), (x, active)


def _feed_forward_backward(
    grad: np.ndarray, layer: dict[str, np.ndarray], tape: tuple
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    x, active = tape
    grad_active, grad_down = _linear_backward(grad, active, layer["mlp.down_proj.weight"])
    grad_x, grad_up = _linear_backward(grad_active * (active > 0), x, layer["mlp.up_proj.weight"])
    return grad_x, {"mlp.up_proj.weight": grad_up, "mlp.down_proj.weight": grad_down}


def _block(x: np.ndarray, layer: dict[str, np.ndarray], config: Config) -> tuple[np.ndarray, tuple]:
    normed, first = _norm(x, layer["input_layernorm.weight"])
    attended, attention = _attention(normed, layer, config)
    x = x + attended
    normed, second = _norm(x, layer["post_attention_layernorm.weight"])
    forwarded, feed_forward = _feed_forward(normed, layer)
    return x + forwarded, (first, attention, second, feed_forward)


def _block_backward(
    grad: np.ndarray, layer: dict[str, np.ndarray], config: Config, tape: tuple
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    first, attention, second, feed_forward = tape
    inner, grads = _feed_forward_backward(grad, layer, feed_forward)
    back, grads["post_attention_layernorm.weight"] = _norm_backward(
        inner, layer["post_attention_layernorm.weight"], second
    )
    grad = grad + back
    inner, more = _attention_backward(grad, layer, config, attention)
    back, more["input_layernorm.weight"] = _norm_backward(inner, layer["input_layernorm.weight"], first)
    return grad + back, grads | more


def _forward(model: Model, tokens: np.ndarray) -> tuple[np.ndarray, tuple]:
    """Scores [batch, time, vocab_size] of the token after each of ``tokens`` [batch, time], and the tape."""
    weights = model.weights
    x = weights["model.embed_tokens.weight"][tokens]
    x = x + weights["model.embed_positions.weight"][: tokens.shape[1]]
    blocks = []
    for number in range(model.config.num_hidden_layers):
        x, tape = _block(x, model.layer(number), model.config)
        blocks.append(tape)
    normed, last = _norm(x, weights["model.norm.weight"])
    return _linear(normed, weights["lm_head.weight"]), (tokens, blocks, normed, last)


def _backward(model: Model, grad_scores: np.ndarray, tape: tuple) -> dict[str, np.ndarray]:
    tokens, blocks, normed, last = tape
    config, weights, grads = model.config, model.weights, {}
    grad, grads["lm_head.weight"] = _linear_backward(grad_scores, normed, weights["lm_head.weight"])
    grad, grads["model.norm.weight"] = _norm_backward(grad, weights["model.norm.weight"], last)
    for number in reversed(range(config.num_hidden_layers)):
        grad, layer_grads = _block_backward(grad, model.layer(number), config, blocks[number])
        grads |= {f"model.layers.{number}.{name}": g for name, g in layer_grads.items()}
    positions = np.zeros_like(weights["model.embed_positions.weight"])
    positions[: tokens.shape[1]] = grad.sum(axis=0)
    grads["model.embed_positions.weight"] = positions
    # A product with one-hot rows adds up the rows of a token; np.add.at does the same far more slowly.
    one_hot = np.equal.outer(np.arange(config.vocab_size), tokens.ravel()).astype(grad.dtype)
    grads["model.embed_tokens.weight"] = one_hot @ grad.reshape(-1, config.hidden_size)
    return grads


# ---------------------------------------------------------------------------------------------------------------------
# Use: generation and training.


def generate(model: Model, prompts: list[str]) -> list[str]:
    """What the model writes after each prompt: greedy, up to END or to the last position.

    Raises InvalidModel when a prompt does not fit the model's tokens or positions.
    """
    encoded = [model.tokenizer.encode(prompt) for prompt in prompts]
    answers = [""] * len(prompts)
    # Prompts of one length go together: no padding, so an answer does not depend on its neighbours.
    for length in sorted({len(ids) for ids in encoded}):
        members = [index for index, ids in enumerate(encoded) if len(ids) == length]
        for start in range(0, len(members), GENERATE_BATCH):
            chosen = members[start : start + GENERATE_BATCH]
            for index, ids in zip(chosen, _continue(model, [encoded[i] for i in chosen]), strict=True):
                answers[index] = model.tokenizer.decode(ids)
    return answers


def _continue(model: Model, prompts: list[list[int]]) -> list[list[int]]:
    length, limit = len(prompts[0]), model.config.max_position_embeddings
    if not 0 < length < limit:
        raise InvalidModel(f"{CONFIG_FILE}: max_position_embeddings {limit} does not fit a prompt of {length} tokens")
    tokens = np.array(prompts)
    done = np.zeros(len(prompts), bool)
    while tokens.shape[1] < limit and not done.all():
        with np.errstate(all="ignore"):  # absurd but finite weights overflow; they are simply wrong answers
            best = _forward(model, tokens)[0][:, -1].argmax(axis=-1)
        done |= best == model.tokenizer.end
        tokens = np.concatenate([tokens, best[:, None]], axis=1)
    return tokens[:, length:].tolist()


def loss_and_gradients(model: Model, tokens: np.ndarray, weights: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
    """Mean cross-entropy in nats of predicting each token from those before it, and its gradient by weight name.

    ``tokens`` is [batch, time] of ids. ``weights`` [batch, time] says how much each token counts as a target (the
    first column never does); the mean is over their sum, which must not be 0.
    """
    scores, tape = _forward(model, tokens[:, :-1])
    targets, share = tokens[:, 1:, None], weights[:, 1:, None] / weights[:, 1:].sum()
    shares = _softmax(scores)
    chosen = np.take_along_axis(shares, targets, axis=-1)
    loss = -float((np.log(np.maximum(chosen, np.finfo(chosen.dtype).tiny)) * share).sum())
    np.put_along_axis(shares, targets, chosen - 1, axis=-1)
    return loss, _backward(model, (shares * share).astype(scores.dtype), tape)


class Adam:
    """Adam with decoupled weight decay, for one model, which it changes in place."""

    def __init__(self, model: Model, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        self.model, self.betas, self.weight_decay, self.steps = model, betas, weight_decay, 0
        self._mean = {name: np.zeros_like(w) for name, w in model.weights.items()}
        self._square = {name: np.zeros_like(w) for name, w in model.weights.items()}

    def step(self, gradients: dict[str, np.ndarray], learning_rate: float) -> None:
        self.steps += 1
        first, second = self.betas
        # Both corrections for the zero start, folded into one factor.
        rate = learning_rate * (1 - second**self.steps) ** 0.5 / (1 - first**self.steps)
        for name, weight in self.model.weights.items():
            gradient, mean, square = gradients[name], self._mean[name], self._square[name]
            mean += (1 - first) * (gradient - mean)
            square += (1 - second) * (gradient * gradient - square)
            if self.weight_decay and weight.ndim == 2:
                weight -= learning_rate * self.weight_decay * weight
            weight -= rate * mean / (np.sqrt(square) + 1e-8)


# ---------------------------------------------------------------------------------------------------------------------
# The folder.


def save(model: Model, folder: str | Path) -> None:
    """Write a model as a folder that ``load`` and Hugging Face's own tools read; existing files are replaced."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": MODEL_TYPE, "architectures": ARCHITECTURES, "torch_dtype": "float32"}
    _write_json(folder / CONFIG_FILE, config | asdict(model.config))
    _write_json(folder / TOKENIZER_FILE, _tokenizer_json(model.tokenizer))
    write_safetensors(folder / WEIGHTS_FILE, model.weights)


def load(folder: str | Path) -> Model:
    """Read a model folder; InvalidModel when it is none, or when a number in it cannot be."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidModel(f"{folder}: not a folder")
    config = _config_from(_read_json(folder / CONFIG_FILE))
    tokenizer = _tokenizer_from(_read_json(folder / TOKENIZER_FILE), config.vocab_size)
    weights = read_safetensors(folder / WEIGHTS_FILE, config.shapes())
    return Model(config, tokenizer, weights)


def _config_from(data: dict) -> Config:
    if data.get("model_type") != MODEL_TYPE:
        raise InvalidModel(f"{CONFIG_FILE}: model_type is {data.get('model_type')!r:.60}, not {MODEL_TYPE!r}")
    sizes = {}
    for field in fields(Config):
        value, most = data.get(field.name), MAX_DIMENSION[field.name]
        if type(value) is not int or not 0 < value <= most:
            raise InvalidModel(f"{CONFIG_FILE}: {field.name} is {value!r:.60}, not a whole number from 1 to {most}")
        sizes[field.name] = value
    config = Config(**sizes)
    if config.num_key_value_heads != config.num_attention_heads:
        raise InvalidModel(f"{CONFIG_FILE}: num_key_value_heads must equal num_attention_heads")
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        raise InvalidModel(f"{CONFIG_FILE}: head_dim times num_attention_heads must be hidden_size")
    return config


def _tokenizer_from(data: dict, vocab_size: int) -> Tokenizer:
    inner = data.get("model")
    vocabulary = inner.get("vocab") if isinstance(inner, dict) and inner.get("type") == "WordLevel" else None
    if not isinstance(vocabulary, dict) or not {PAD, END} <= vocabulary.keys():
        raise InvalidModel(f"{TOKENIZER_FILE}: not a WordLevel tokenizer with {PAD} and {END}")
    ids = list(vocabulary.values())
    if not all(type(number) is int and 0 <= number < vocab_size for number in ids) or len(set(ids)) != len(ids):
        raise InvalidModel(f"{TOKENIZER_FILE}: token ids must be distinct whole numbers below {vocab_size}")
    return Tokenizer(vocabulary)


def _tokenizer_json(tokenizer: Tokenizer) -> dict:
    """The same tokenizer for Hugging Face's ``tokenizers``: words of one character each."""
    added = [
        {"id": tokenizer.vocabulary[text], "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for text in (PAD, END)
    ]
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": tokenizer.vocabulary, "unk_token": PAD},
    }


def _read_bounded(path: Path, most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes; never waits on a pipe or a device."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise InvalidModel(f"{path.name}: not a regular file")
            if found.st_size > most:
                raise InvalidModel(f"{path.name}: {found.st_size} bytes, more than the {most} allowed")
            return file.read(most)
    except OSError as error:
        raise InvalidModel(f"{path.name}: cannot be read ({error.strerror})") from None


def _parse_object(text: bytes, name: str) -> dict:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{name}: not valid JSON ({' '.join(str(error).split()):.100})") from None
    if not isinstance(data, dict):
        raise InvalidModel(f"{name}: not a JSON object")
    return data


def _read_json(path: Path) -> dict:
    return _parse_object(_read_bounded(path, MAX_JSON_BYTES), path.name)


def _write_json(path: Path, data: dict) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


# A safetensors file: the header's length (8 bytes, little-endian), the header (a JSON object that gives each tensor's
# dtype, shape and place in the data, padded with spaces), then the tensors' bytes, one after another without gaps.


def write_safetensors(path: str | Path, tensors: dict[str, np.ndarray]) -> None:
    """Write float32 arrays to one safetensors file."""
    header: dict[str, dict] = {"__metadata__": {"format": "np"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + 4 * tensor.size
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = [len(text).to_bytes(8, "little"), text]
    parts += [tensor.astype("<f4").tobytes() for tensor in tensors.values()]
    Path(path).write_bytes(b"".join(parts))


def read_safetensors(path: str | Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Read exactly the tensors of ``shapes``, as float32; InvalidModel for any other content of the file."""
    path = Path(path)
    content = _read_bounded(path, MAX_WEIGHTS_BYTES)
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, len(content) - 8):
        raise InvalidModel(f"{path.name}: the header's length does not fit the file")
    header = _parse_object(content[8 : 8 + length], path.name)
    header.pop("__metadata__", None)
    if header.keys() != shapes.keys():
        odd = sorted(header.keys() ^ shapes.keys())[0]
        raise InvalidModel(f"{path.name}: tensor {odd!r:.80} is {'missing' if odd in shapes else 'unexpected'}")
    places = {name: _place(path.name, name, header[name], shape) for name, shape in shapes.items()}
    data = memoryview(content)[8 + length :]
    _check_cover(path.name, [span for _, span in places.values()], len(data))
    return {
        name: _tensor(path.name, name, data[start:end], dtype, shapes[name])
        for name, (dtype, (start, end)) in places.items()
    }


def _place(file: str, name: str, entry: object, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, int]]:
    """A tensor's type and span in the data, once its entry in the header proves right."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in READ_TYPES:
        raise InvalidModel(f"{file}: {name} is not of type {' or '.join(READ_TYPES)}")
    if entry.get("shape") != list(shape):
        raise InvalidModel(f"{file}: {name} has shape {entry.get('shape')!r:.60}, config.json means {list(shape)}")
    dtype, span = READ_TYPES[entry["dtype"]], entry.get("data_offsets")
    if not isinstance(span, list) or len(span) != 2 or not all(type(edge) is int for edge in span):
        raise InvalidModel(f"{file}: {name} has no valid data_offsets")
    if span[1] - span[0] != int(np.prod(shape)) * dtype.itemsize:
        raise InvalidModel(f"{file}: {name} has data_offsets that do not fit its shape")
    return dtype, (span[0], span[1])


def _check_cover(file: str, spans: list[tuple[int, int]], size: int) -> None:
    """Together the tensors must be the data: nothing twice, no gaps, nothing before or after."""
    position = 0
    for start, end in sorted(spans):
        if start != position:
            raise InvalidModel(f"{file}: tensors overlap or leave a gap at byte {position} of the data")
        position = end
    if position != size:
        raise InvalidModel(f"{file}: {size} bytes of data, the header describes {position}")


def _tensor(file: str, name: str, data: memoryview, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    values = np.frombuffer(data, dtype).reshape(shape).astype(np.float32)
    if not np.isfinite(values).all():
        raise InvalidModel(f"{file}: {name} holds NaN or infinite values")
    return values
