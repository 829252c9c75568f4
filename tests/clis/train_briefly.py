"""What the scripted agents write and run: post-trains the nano model for some seconds, in the agent's workspace."""

import numpy as np
from nano import Adam, load, loss_and_gradients, save  # pyright: ignore[reportMissingImports]

model = load("base_model")
lines = open("train.txt").read().split()  # noqa: PTH123, SIM115
length = max(map(len, lines)) + 1
tokens = np.full((len(lines), length), model.tokenizer.pad)
weights = np.zeros((len(lines), length), np.float32)
for row, line in enumerate(lines):
    ids = [*model.tokenizer.encode(line), model.tokenizer.end]
    tokens[row, : len(ids)] = ids
    weights[row, line.index("=") + 1 : len(ids)] = 1
random, optimizer = np.random.default_rng(0), Adam(model, betas=(0.9, 0.98))
loss = 0.0
for step in range(120):
    rows = random.integers(0, len(tokens), 64)
    loss, gradients = loss_and_gradients(model, tokens[rows], weights[rows])
    optimizer.step(gradients, 4e-3 * min(1, step / 20))
save(model, "final_model")
print(f"saved final_model, loss {loss:.3f}")
