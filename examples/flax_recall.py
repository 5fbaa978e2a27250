"""zstate in flax: a layer that runs flax's own recurrent cells, and a model that learns to recall.

    pip install flax
    python examples/flax_recall.py [--cell gru]

`Recurrent` replaces `nnx.RNN`. The cell creates its weights as usual, under the same names, so
checkpoints fit both.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import zstate as zs
import zstate.jax as zj

WORDS, STEPS = 8, 12


class Recurrent(nnx.Module):
    """A cell of flax over a whole sequence: x [N,T,I], lengths [N] -> [N,T,H]."""

    def __init__(self, cell: nnx.OptimizedLSTMCell | nnx.GRUCell) -> None:
        self.cell = cell

    def __call__(self, x: jax.Array, lengths: jax.Array | None = None) -> jax.Array:
        W, R = (dense.kernel[...].T for dense in (self.cell.dense_i, self.cell.dense_h))
        x = jnp.swapaxes(x, 0, 1)  # flax puts the batch first, zstate time
        if isinstance(self.cell, nnx.GRUCell):
            gru = zs.GRUDescriptor(reset_gate_first=True, reset_after=True)
            bias = self.cell.dense_i.bias[...]
            states = zj.gru(x, R, input_weight=W, bias=bias, descriptor=gru, lengths=lengths).state
        else:
            bias = self.cell.dense_h.bias[...]
            states = zj.lstm(x, R, input_weight=W, bias=bias, lengths=lengths).state
        return jnp.swapaxes(states, 0, 1)


class Recall(nnx.Module):
    """Names the first word of a sentence after reading all of it."""

    def __init__(self, kind: str, hidden: int, *, rngs: nnx.Rngs) -> None:
        cell = {"lstm": nnx.OptimizedLSTMCell, "gru": nnx.GRUCell}[kind]
        self.embedding = nnx.Embed(WORDS, 16, rngs=rngs)
        self.layer = Recurrent(cell(16, hidden, rngs=rngs))
        self.out = nnx.Linear(hidden, WORDS, rngs=rngs)

    def __call__(self, words: jax.Array, lengths: jax.Array) -> jax.Array:
        states = self.layer(self.embedding(words), lengths)
        return self.out(states[jnp.arange(len(words)), lengths - 1])


@nnx.jit
def step(
    model: Recall, optimizer: nnx.Optimizer[Recall], words: jax.Array, lengths: jax.Array
) -> jax.Array:
    def loss(model: Recall) -> jax.Array:
        logits = model(words, lengths)
        return optax.softmax_cross_entropy_with_integer_labels(logits, words[:, 0]).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", choices=("lstm", "gru"), default="lstm")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--hidden", type=int, default=32)
    options = parser.parse_args()

    rngs = nnx.Rngs(0)
    model = Recall(options.cell, options.hidden, rngs=rngs)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    for _ in range(options.steps):
        words = jax.random.randint(rngs.data(), (64, STEPS), 0, WORDS)
        step(model, optimizer, words, jax.random.randint(rngs.data(), (64,), 1, STEPS + 1))
    words = jax.random.randint(rngs.data(), (500, STEPS), 0, WORDS)
    answers = model(words, jnp.full(500, STEPS)).argmax(1)
    print(f"accuracy {(answers == words[:, 0]).mean():.2f}; by chance {1 / WORDS:.2f}")


if __name__ == "__main__":
    main()
