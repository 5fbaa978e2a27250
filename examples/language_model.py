"""A character language model with zstate: embedding, LSTM, projection, loss, gradients, Adam.

``python examples/language_model.py FOLDER`` also writes the trained model to FOLDER: its weights,
and the same graph in Swift, which is language_model.swift beside this file.
"""

import sys
from pathlib import Path

import numpy as np

import zstate as zs

T, N, E, H, V = 32, 8, 16, 64, 27

# [1] The graph and its feeds.
g = zs.Graph()
tokens = g.placeholder(shape=(T, N), dtype="int32", name="tokens")
targets = g.placeholder(shape=(T, N), dtype="int32", name="targets")

# [2] The parameters.
rng = np.random.default_rng(0)


def parameter(shape: tuple[int, ...], scale: float, name: str) -> zs.Tensor:
    return g.variable(rng.uniform(-scale, scale, shape).astype(np.float32), name=name)


table = parameter((V, E), 1, "table")
W = parameter((4 * H, E), 0.125, "W")
R = parameter((4 * H, H), 0.125, "R")
b = parameter((4 * H,), 0, "b")
P = parameter((H, V), 0.125, "P")
parameters = [table, W, R, b, P]

# [3] The model. `gradients` turns the layer's `training` on where it needs it.
x = g.gather(table, tokens, name="x")
(h,) = g.lstm(x, recurrent_weight=R, input_weight=W, bias=b, name="encoder")
rows = g.reshape(h, (T * N, H), name="rows")
logits = g.matrix_multiplication(rows, P, name="logits")

# [4] The loss.
flat = g.reshape(targets, (T * N,))
labels = g.one_hot(flat, V, name="labels")
loss = g.soft_max_cross_entropy(logits, labels, axis=-1, reduction="mean", name="loss")

# [5] Its gradients.
gradients = g.gradients(of=loss, with_respect_to=parameters)

# [6] Adam: one step per parameter. `assign` stores the new values.
beta1, beta2 = 0.9, 0.99
power1, power2 = g.variable(1.0, name="power1"), g.variable(1.0, name="power2")
next1, next2 = power1 * beta1, power2 * beta2
operations = [g.assign(power1, next1), g.assign(power2, next2)]
for p in parameters:
    m = g.variable(0.0, shape=p.shape, name=f"{p.name}_momentum")
    v = g.variable(0.0, shape=p.shape, name=f"{p.name}_velocity")
    updated = g.adam(
        learning_rate=0.01,
        beta1=beta1,
        beta2=beta2,
        epsilon=1e-8,
        beta1_power=next1,
        beta2_power=next2,
        values=p,
        momentum=m,
        velocity=v,
        gradient=gradients[p],
        name=f"{p.name}_updated",
    )
    for variable, value in zip([p, m, v], updated, strict=True):
        operations.append(g.assign(variable, value))

# [7] Compile once, run many times.
program = g.compile(
    feeds={tokens: (tokens.shape, "int32"), targets: (targets.shape, "int32")},
    targets=[loss],
    operations=operations,
)

text = "the quick brown fox jumps over the lazy dog and runs away from the hound " * 20
ids = np.array([" abcdefghijklmnopqrstuvwxyz".index(c) for c in text], np.int32)
streams = ids[: len(ids) // N * N].reshape(N, -1).T  # [time,N]
first = last = 0.0
for step in range(120):
    start = step % (len(streams) // T - 1) * T
    batch = streams[start : start + T + 1]
    loss_now = float(program.run([batch[:-1].copy(), batch[1:].copy()])[0])
    first, last = (loss_now if step == 0 else first), loss_now
print(f"loss {first:.3f} -> {last:.3f} nats per character")
assert last < first / 2

# [8] The graph in Swift, and the file of weights that it reads.
if len(sys.argv) == 2:
    folder = Path(sys.argv[1])
    g.save(folder / "language_model.safetensors")
    text = g.to_swift("LanguageModel", weights="language_model.safetensors")
    (folder / "language_model.swift").write_text(text, encoding="utf-8")
