"""Sequences of different lengths in one padded batch; the lengths are an array or a tracer.

As in zstate.torch: every result is zero past a sequence's end, and the reverse direction begins at
that end. Sequences are turned round by index, so that both directions run forwards through them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..cells import Cell
from ..cells.functions import may_grow
from ..descriptors import AnyDescriptor
from ..errors import DTypeError, OptionError, ShapeError, refusal
from ..layout import brackets, describe, direction_part

Value = Any
Run = Callable[[dict[str, Value], AnyDescriptor], dict[str, Value]]


def check_lengths(label: str, lengths: Any, steps: int, batch: int) -> Value:
    """The lengths as an array [N], in [0, T].

    Values that are known now, also inside a jitted function, are checked; those of a tracer are
    not and are clipped. (A check of checkify's would be an effect, which jax.export refuses.)
    """
    known = _are_known(lengths)
    try:
        given = np.asarray(lengths) if known else jnp.asarray(lengths)
    except (TypeError, ValueError):  # lists of unlike sizes, or of things that are no numbers
        raise DTypeError(refusal(label, "lengths", "integers", describe(lengths))) from None
    if given.size and not jnp.issubdtype(given.dtype, jnp.integer):
        raise DTypeError(refusal(label, "lengths", "integers", given.dtype.name))
    if given.shape != (batch,):
        raise ShapeError(refusal(label, "lengths", f"[N] = [{batch}]", brackets(given.shape)))
    if not known:
        return jnp.clip(jnp.asarray(given, int), 0, steps)
    for number in given.tolist():
        if not 0 <= number <= steps:
            expected = f"numbers from 0 to T = {steps}"
            raise ShapeError(refusal(label, "lengths", expected, str(number)))
    return jnp.asarray(given, int)


def _are_known(lengths: Any) -> bool:
    """Whether the values are known while the call is traced: not a tracer's, or another host's."""
    return not any(
        isinstance(each, jax.core.Tracer)
        or (isinstance(each, jax.Array) and not each.is_fully_addressable)
        for each in jax.tree.leaves(lengths)
    )


def run_with_lengths(
    run: Run, cell: Cell, given: dict[str, Value], descriptor: AnyDescriptor, lengths: Value
) -> dict[str, Value]:
    """The results of a forward operation by name, from ``run`` on whole sequences."""
    source = given["source"]
    lengths = lengths[None]  # [1,N]
    steps = jnp.arange(source.shape[0])[:, None]  # [T,1]
    inside = steps < lengths  # [T,N]
    turned = jnp.where(inside, lengths - 1 - steps, steps)  # [T,N]: where each step comes from
    # Values past the end may be anything; as zeros they add nothing to any gradient.
    given = {**given, "source": jnp.where(inside[..., None], source, 0)}
    # Nor may states grow there: every step past the end is a sequence of its own.
    grows = may_grow(descriptor.activations)

    def one_direction(index: int, backwards: bool, turns_back: bool) -> dict[str, Value]:
        own = dict(given)
        if descriptor.bidirectional:
            own = _direction(given, cell, index, descriptor.heads)
        if backwards:
            own["source"] = _turn(own["source"], turned)
            if "resets" in own:  # of the step behind, which the last one has not
                ends = (steps == lengths - 1)[..., None]
                own["resets"] = _turn(jnp.where(ends, 0, own["resets"]), turned)
            if "mask" in own and own["mask"].ndim == 3 and own["mask"].shape[0] > 1:
                own["mask"] = _turn(own["mask"], turned)
        if grows:
            outside = (~inside).astype(source.dtype)[..., None]
            own["resets"] = jnp.maximum(own["resets"], outside) if "resets" in own else outside
        results = run(own, replace(descriptor, reverse=False, bidirectional=False))
        kept = {name: jnp.where(inside[..., None], value, 0) for name, value in results.items()}
        return {n: _turn(v, turned) for n, v in kept.items()} if turns_back else kept

    if not descriptor.bidirectional:
        return one_direction(0, descriptor.reverse, False)
    there, back = one_direction(0, False, False), one_direction(1, True, True)
    return {name: jnp.concatenate([there[name], back[name]], -1) for name in there}


def last_states(states: Value, lengths: Value, directions: int = 1) -> Value:
    """The states after each sequence's last step, [N,D·H], from those of all steps [T,N,D·H].

    The second of two directions ends at the first step. An empty sequence gives zeros.
    """
    shape = getattr(states, "shape", None)
    if directions not in (1, 2):
        raise OptionError(refusal("last_states", "directions", "1 or 2", repr(directions)))
    if shape is None or len(shape) != 3 or shape[2] % directions:
        expected = "[T,N,H]" if directions == 1 else "[T,N,2H]"
        got = describe(states) if shape is None else brackets(shape)
        raise ShapeError(refusal("last_states", "states", expected, got))
    lengths = check_lengths("last_states", lengths, *shape[:2])
    if not states.shape[0]:
        return jnp.zeros(states.shape[1:], states.dtype)
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


def _direction(given: dict[str, Value], cell: Cell, index: int, heads: int) -> dict[str, Value]:
    """One of two directions' inputs."""
    hidden = heads * given["recurrent_weight"].shape[-1]
    own = {"recurrent_weight": given["recurrent_weight"][index]}
    for name, value in given.items():
        if name in own:
            continue
        is_shared = name == "source" and "input_weight" in given
        if is_shared or (name == "mask" and (value.ndim == 0 or value.shape[-1] == 1)):
            own[name] = value
            continue
        axis, shape = direction_part(cell, "gates" if name == "source" else name, hidden)
        if axis is None:
            own[name] = value.reshape(2, *shape)[index]
        else:  # a mask may have fewer axes, all of them last ones
            own[name] = jnp.split(value, 2, -1 if name == "mask" else axis)[index]
    return own
