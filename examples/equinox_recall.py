"""zstate in equinox: a layer that runs equinox's own recurrent cells, and a model that learns.

    pip install equinox optax
    python examples/equinox_recall.py [--cell gru]

equinox's cells store their weights exactly as zstate expects them. A layer takes one sequence,
as everything in equinox does; under `jax.vmap` the engine gets the whole batch at once.
"""

from __future__ import annotations

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import zstate as zs
import zstate.jax as zj

WORDS, STEPS = 8, 12


class Recurrent(eqx.Module):
    """A cell of equinox over a sequence: x [T,I] and its length -> [T,H]."""

    cell: eqx.nn.LSTMCell | eqx.nn.GRUCell

    def __call__(self, x: jax.Array, length: jax.Array) -> jax.Array:
        cell, one = self.cell, x[:, None]  # [T,1,I]
        more = {"input_weight": cell.weight_ih, "bias": cell.bias, "lengths": length[None]}
        if isinstance(cell, eqx.nn.LSTMCell):
            return zj.lstm(one, cell.weight_hh, **more).state[:, 0]
        gru = zs.GRUDescriptor(reset_gate_first=True, reset_after=True)
        more["secondary_bias"] = cell.bias_n
        return zj.gru(one, cell.weight_hh, **more, descriptor=gru).state[:, 0]


class Recall(eqx.Module):
    """Names the first word of a sentence after reading all of it."""

    embedding: eqx.nn.Embedding
    layer: Recurrent
    out: eqx.nn.Linear

    def __init__(self, kind: str, hidden: int, *, key: jax.Array) -> None:
        cell = {"lstm": eqx.nn.LSTMCell, "gru": eqx.nn.GRUCell}[kind]
        keys = jax.random.split(key, 3)
        self.embedding = eqx.nn.Embedding(WORDS, 16, key=keys[0])
        self.layer = Recurrent(cell(16, hidden, key=keys[1]))
        self.out = eqx.nn.Linear(hidden, WORDS, key=keys[2])

    def __call__(self, words: jax.Array, length: jax.Array) -> jax.Array:
        return self.out(self.layer(jax.vmap(self.embedding)(words), length)[length - 1])


@eqx.filter_value_and_grad
def loss(model: Recall, words: jax.Array, lengths: jax.Array) -> jax.Array:
    logits = jax.vmap(model)(words, lengths)
    return optax.softmax_cross_entropy_with_integer_labels(logits, words[:, 0]).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", choices=("lstm", "gru"), default="lstm")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--hidden", type=int, default=32)
    options = parser.parse_args()

    key, *keys = jax.random.split(jax.random.key(0), options.steps + 2)
    model = Recall(options.cell, options.hidden, key=keys.pop())
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit(donate="all")
    def step(model: Recall, state: optax.OptState, key: jax.Array) -> tuple[Recall, optax.OptState]:
        keys = jax.random.split(key)
        words = jax.random.randint(keys[0], (64, STEPS), 0, WORDS)
        lengths = jax.random.randint(keys[1], (64,), 1, STEPS + 1)
        _, gradients = loss(model, words, lengths)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state

    for each in keys:
        model, state = step(model, state, each)
    words = jax.random.randint(key, (500, STEPS), 0, WORDS)
    answers = jax.vmap(model)(words, jnp.full(500, STEPS)).argmax(1)
    print(f"accuracy {(answers == words[:, 0]).mean():.2f}; by chance {1 / WORDS:.2f}")


if __name__ == "__main__":
    main()
