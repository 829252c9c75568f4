"""Makes the embedded benchmark's data and base model, which are committed; run by hand, from a seed:

    uv run python tests/templates/make_addition.py [TEMPLATE_FOLDER]

The sums come out the same byte for byte everywhere. The base model's last digits depend on the machine's linear
algebra, so a test checks its accuracy instead.
"""

import random
import sys
from pathlib import Path

import numpy as np

TEMPLATE = Path(__file__).resolve().parents[2] / "templates" / "addition"
sys.path.insert(0, str(TEMPLATE / "environment"))

import nano  # noqa: E402  # pyright: ignore[reportMissingImports]

SEED = 20251
BELOW = 100
HELD_OUT = 1000
FILES = {
    "test": "tests/test.txt",
    "validation": "environment/validation.txt",
    "train": "environment/train.txt",
}

# The base model has only seen careless sums: right in form, off by up to CARELESS either way.
CARELESS = 50
PRETRAIN_STEPS = 400
PRETRAIN_BATCH = 128
PRETRAIN_RATE = 4e-3

Pair = tuple[int, int]


def split_pairs(seed: int = SEED) -> dict[str, list[Pair]]:
    """All ordered pairs below BELOW in three parts; a pair and its mirror image are always in the same one."""
    shuffled = random.Random(seed)
    families = [{(a, b), (b, a)} for a in range(BELOW) for b in range(a, BELOW)]
    shuffled.shuffle(families)
    parts: dict[str, list[Pair]] = {"test": [], "validation": [], "train": []}
    for family in families:
        name = next((n for n in ("test", "validation") if len(parts[n]) + len(family) <= HELD_OUT), "train")
        parts[name] += sorted(family)
    for pairs in parts.values():
        shuffled.shuffle(pairs)
    return parts


def sums_text(pairs: list[Pair]) -> str:
    return "".join(f"{a}+{b}={a + b}\n" for a, b in pairs)


def write_data(template: Path) -> None:
    for name, pairs in split_pairs().items():
        path = template / FILES[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sums_text(pairs), encoding="ascii")


def careless_batch(pairs: list[Pair], tokenizer: nano.Tokenizer, draw: random.Random) -> tuple[np.ndarray, np.ndarray]:
    texts = []
    for a, b in draw.choices(pairs, k=PRETRAIN_BATCH):
        texts.append(f"{a}+{b}={max(0, a + b + draw.randint(-CARELESS, CARELESS))}")
    length = max(map(len, texts)) + 1
    tokens = np.full((len(texts), length), tokenizer.pad)
    for row, text in enumerate(texts):
        tokens[row, : len(text) + 1] = [*tokenizer.encode(text), tokenizer.end]
    return tokens, (tokens != tokenizer.pad).astype(np.float32)


def make_base_model(pairs: list[Pair], seed: int = SEED) -> nano.Model:
    """Pretrain a fresh model on careless sums over the training pairs only."""
    characters = [*"0123456789+=", nano.PAD, nano.END]
    tokenizer = nano.Tokenizer({text: number for number, text in enumerate(characters)})
    model, draw = nano.new_model(nano.Config(), tokenizer, seed), random.Random(seed)
    optimizer = nano.Adam(model, betas=(0.9, 0.98))
    for step in range(1, PRETRAIN_STEPS + 1):
        _, gradients = nano.loss_and_gradients(model, *careless_batch(pairs, tokenizer, draw))
        fall = (1 + np.cos(np.pi * step / PRETRAIN_STEPS)) / 2
        optimizer.step(gradients, PRETRAIN_RATE * min(1, step / 50) * fall)
    return model


def main(template: Path) -> None:
    write_data(template)
    nano.save(make_base_model(split_pairs()["train"]), template / "environment" / "base_model")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TEMPLATE)
