"""Sequences of different lengths in one padded batch; the lengths are an array, maybe a tracer.

As in zstate.torch: every result is zero past a sequence's end, and the reverse direction begins at
that end. Sequences are turned round by index, so that both directions run forwards through them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ..descriptors import AnyDescriptor
from ..errors import DTypeError, ShapeError, refusal
from ..operations import Operation

Value = Any
Run = Callable[[dict[str, Value], AnyDescriptor], dict[str, Value]]


def check_lengths(operation: Operation, lengths: Any, steps: int, batch: int) -> Value:
    """The lengths as an array [N]; those that can be looked at now lie in [0, T]."""
    lengths = jnp.asarray(lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise DTypeError(refusal(operation.name, "lengths", "whole numbers", lengths.dtype.name))
    if lengths.shape != (batch,):
        shape = f"[{','.join(map(str, lengths.shape))}]"
        raise ShapeError(refusal(operation.name, "lengths", f"[N] = [{batch}]", shape))
    if not isinstance(lengths, jax.core.Tracer) and batch:
        least, most = int(lengths.min()), int(lengths.max())
        if least < 0 or most > steps:
            outside = least if least < 0 else most
            raise ShapeError(
                refusal(operation.name, "lengths", f"numbers from 0 to T = {steps}", str(outside))
            )
    return jnp.clip(lengths, 0, steps)


def run_with_lengths(
    run: Run, given: dict[str, Value], descriptor: AnyDescriptor, lengths: Value
) -> dict[str, Value]:
    """The results of a forward operation by name, from ``run`` on whole sequences."""
    source = given["source"]
    steps = jnp.arange(source.shape[0])[:, None]  # [T,1]
    inside = steps < lengths  # [T,N]
    turned = jnp.where(inside, lengths - 1 - steps, steps)  # [T,N]: where each step comes from
    # What stands past the end may be anything: as zeros it adds nothing to any gradient.
    given = {**given, "source": jnp.where(inside[..., None], source, 0)}

    def one_direction(index: int, backwards: bool, turns_back: bool) -> dict[str, Value]:
        own = _direction(given, index) if descriptor.bidirectional else dict(given)
        if backwards:
            own["source"] = _turn(own["source"], turned)
            if "mask" in own and own["mask"].ndim == 3 and own["mask"].shape[0] > 1:
                own["mask"] = _turn(own["mask"], turned)
        results = run(own, replace(descriptor, reverse=False, bidirectional=False))
        kept = {name: jnp.where(inside[..., None], value, 0) for name, value in results.items()}
        return {n: _turn(v, turned) for n, v in kept.items()} if turns_back else kept

    if not descriptor.bidirectional:
        return one_direction(0, descriptor.reverse, False)
    there, back = one_direction(0, False, False), one_direction(1, True, True)
    return {name: jnp.concatenate([there[name], back[name]], -1) for name in there}


def last_states(states: Value, lengths: Value, directions: int = 1) -> Value:
    """The states after each sequence's last step, [N,D·H], from those of all steps [T,N,D·H].

    The second of two directions ends at the first step. A sequence without steps gives zeros.
    """
    places = jnp.maximum(lengths - 1, 0)[None, :, None]  # [1,N,1]
    ends = jnp.take_along_axis(states, places, 0)[0]  # [N,D·H]
    ends = jnp.where((lengths > 0)[:, None], ends, 0)
    if directions == 1:
        return ends
    half = states.shape[-1] // 2
    return jnp.concatenate([ends[:, :half], states[0, :, half:]], -1)


def _turn(steps: Value, places: Value) -> Value:
    shape = (places.shape[0], places.shape[1], steps.shape[-1])
    return jnp.take_along_axis(jnp.broadcast_to(steps, shape), places[..., None], 0)


def _direction(given: dict[str, Value], index: int) -> dict[str, Value]:
    """One of two directions' inputs."""
    side_by_side = {"init_state", "init_cell", "mask"}
    if "input_weight" not in given:
        side_by_side.add("source")
    own = {}
    for name, value in given.items():
        if name in side_by_side:
            both = value.shape[-1] > 1 if value.ndim else False  # else a mask of one value
            own[name] = jnp.split(value, 2, -1)[index] if both else value
        elif name == "source":
            own[name] = value
        else:
            own[name] = (
                value.reshape(2, -1, *value.shape[1:])[index] if name in _ROWS else value[index]
            )
    return own


_ROWS = frozenset({"input_weight", "bias", "secondary_bias"})
