"""Post-trains the nano base model on sums: from the workspace, base_model and train.txt make final_model.

The loss counts only the answers. The learning rate rises for a moment, then falls along a half cosine to zero.
Training ends after STEPS, or sooner when every sum of validation.txt is right. PTB_SEED (default 0) sets the order
in which sums are drawn.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

WORKSPACE = Path.cwd()
sys.path.insert(0, str(WORKSPACE))

import nano  # noqa: E402  # pyright: ignore[reportMissingImports]

STEPS = 1000
BATCH = 64
PEAK_LEARNING_RATE = 4e-3
WARMUP_STEPS = 50
CHECK_EVERY = 100


def read_sums(name: str) -> list[tuple[str, str]]:
    """Prompts ("12+34=") and answers ("46") of a data file."""
    lines = (WORKSPACE / name).read_text(encoding="ascii").split()
    return [(line[: line.index("=") + 1], line[line.index("=") + 1 :]) for line in lines]


def encode(sums: list[tuple[str, str]], tokenizer: nano.Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, padded to one length, and a weight of 1 for every token of an answer and its end."""
    length = max(len(prompt) + len(answer) for prompt, answer in sums) + 1
    tokens = np.full((len(sums), length), tokenizer.pad)
    weights = np.zeros((len(sums), length), np.float32)
    for row, (prompt, answer) in enumerate(sums):
        ids = [*tokenizer.encode(prompt + answer), tokenizer.end]
        tokens[row, : len(ids)] = ids
        weights[row, len(prompt) : len(ids)] = 1
    return tokens, weights


def learning_rate(step: int) -> float:
    return PEAK_LEARNING_RATE * min(1, step / WARMUP_STEPS) * (1 + np.cos(np.pi * step / STEPS)) / 2


def share_right(model: nano.Model, sums: list[tuple[str, str]]) -> float:
    answers = nano.generate(model, [prompt for prompt, _ in sums])
    return sum(answer == expected for answer, (_, expected) in zip(answers, sums, strict=True)) / len(sums)


def train(model: nano.Model, seed: int) -> None:
    """Train the model in place."""
    validation = read_sums("validation.txt")
    tokens, weights = encode(read_sums("train.txt"), model.tokenizer)
    random, optimizer, started = np.random.default_rng(seed), nano.Adam(model, betas=(0.9, 0.98)), time.monotonic()
    for step in range(1, STEPS + 1):
        rows = random.integers(0, len(tokens), BATCH)
        loss, gradients = nano.loss_and_gradients(model, tokens[rows], weights[rows])
        optimizer.step(gradients, learning_rate(step))
        if step % CHECK_EVERY == 0:
            right = share_right(model, validation)
            seconds = time.monotonic() - started
            print(f"step {step}/{STEPS}  loss {loss:.4f}  validation {right:.3f}  {seconds:.1f} s")
            if right == 1:
                return


def main() -> None:
    model = nano.load(WORKSPACE / "base_model")
    train(model, int(os.environ.get("PTB_SEED", "0")))
    nano.save(model, WORKSPACE / "final_model")
    print("saved final_model")


if __name__ == "__main__":
    main()
