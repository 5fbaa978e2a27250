"""Possible readings of Apple's pages: the three cells in plain NumPy, with switches.

A reading is a dict from switch to value; :func:`zstate_reading` has zstate's decisions. Nothing of
zstate's own computations is used: a probe compares a framework with these numbers. Gradients are
complex-step derivatives of the forward pass (exact to rounding), so that no reading needs a
backward pass of its own.

Letters: T time, N batch, I input features, H hidden units, G gates, D directions. Any tensor may
have a further axis in front, along which its entries are moved one by one; axes are therefore
counted from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from ..operations import OPERATIONS
from ..types import Array
from .calling import Call
from .reading_steps import ORDERS, STEPS, Meaning, Reading, View, saved_reading, turned

_STEP = 1e-30

_DEFAULTS = {
    "single_gate_rnn": {"activation": 1},
    "lstm": {
        "input_gate_activation": 3,
        "forget_gate_activation": 3,
        "cell_gate_activation": 2,
        "output_gate_activation": 3,
        "activation": 2,
    },
    "gru": {
        "update_gate_activation": 3,
        "reset_gate_activation": 3,
        "output_gate_activation": 2,
    },
}


def zstate_reading(cell: str) -> dict[str, Any]:
    """zstate's value of every switch."""
    order, other = ORDERS[cell]
    kind = "inner" if cell == "single_gate_rnn" else "activated"
    return {
        "hard_sigmoid": (0.2, 0.5),
        "relu_kink": 0.0,
        "hard_sigmoid_kink": 0.0,
        "unknown_activation": None,
        "order": order,
        "other_order": other,
        "zstate": (kind, order),
        "other_zstate": (kind, other),
        "reset_after_zstate": "o",
        "initial": "as named",
        "blend": "z keeps",
        "flipped_blend": "z renews",
        "reset_after": "after",
        "secondary_bias": "inside",
        "lone_secondary_bias": "nowhere",
        "peephole_cell": "old",
        "peephole_order": other,
        "peephole_both": "by direction",
        "peephole_flat": "by direction",
        "mask_place": "before R",
        "mask_matrix": "N",
        "mask_used": True,
        "mask_time_reverse": "input",
        "mask_time_both": "input",
        "reverse_outputs": "processing",
        "reverse_gradients": (False, False),  # what lies in the other order: dY, dx
        "both_outputs": (False, False),  # reverse half first; in processing order
        "both_initial": False,  # reverse half first
        "both_weights": "by direction",
        "both_zstate": "by direction",
        "plain_outputs": ("state",),
        "cell_outputs": ("state", "cell"),
        "training_outputs": OPERATIONS[cell].result._fields,
        "gradient_order": OPERATIONS[f"{cell}_gradients"].result._fields,
        "gradient_slots": "passed",
        "state_gradient": "last",
        "both_last": "own last step",
        "cell_gradient": "last",
        "every_cell_gradient": "every",
        "transposed": (),
    }


class Answer(NamedTuple):
    """Results in the order in which a framework gives them; None matches anything."""

    forward: tuple[Array | None, ...]
    gradients: tuple[Array | None, ...]


class _Forward(NamedTuple):
    """The forward results of all steps, and the states after the last processed one."""

    state: Array  # [T,N,DH]
    cell: Array  # [T,N,DH]
    training_state: Array  # [T,N,DGH]
    last_state: Array  # [N,DH]
    last_cell: Array  # [N,DH]


def answer(call: Call, reading: Reading) -> Answer:
    """What a framework with this reading gives for a call."""
    of = Meaning(call.cell, {**_DEFAULTS[call.cell], **call.options}, reading)
    tensors = {name: array.astype(np.float64) for name, array in call.tensors.items()}
    found = _forward(of, tensors)
    unknown = saved_reading(of) is None
    there = tuple(
        None if unknown and name == "training_state" else getattr(found, name)
        for name in outputs(call, reading)
    )
    if "source_gradient" not in call.incoming:
        return Answer(there, ())
    incoming = {name: array.astype(np.float64) for name, array in call.incoming.items()}

    def loss(moved: Mapping[str, Array]) -> Any:
        return _loss(of, _forward(of, moved), incoming)

    back: list[Array | None] = []
    for name in reading["gradient_order"]:
        if name in tensors:
            gradient = _derivative(loss, tensors, name)
            if name == "source" and of.option("reverse") and reading["reverse_gradients"][1]:
                gradient = _flipped(gradient)
            back.append(gradient)
        elif reading["gradient_slots"] == "listed":
            back.append(None)
    return Answer(there, tuple(back))


def outputs(call: Call, reading: Reading) -> tuple[str, ...]:
    """The names of the forward results, in their order."""
    training, cells = call.options.get("training"), call.options.get("produce_cell")
    if training and cells:  # on which the published texts agree
        return OPERATIONS[call.cell].result._fields
    kind = "training" if training else "cell" if cells else "plain"
    names: tuple[str, ...] = reading[f"{kind}_outputs"]
    return names


def _derivative(
    loss: Callable[[Mapping[str, Array]], Any], tensors: Mapping[str, Array], name: str
) -> Array:
    """The derivative by every entry of a tensor, from one pass with as many moved copies of it."""
    tensor = tensors[name]
    moves = 1j * _STEP * np.eye(tensor.size).reshape(tensor.size, *tensor.shape)
    slopes = np.imag(loss({**tensors, name: tensor + moves})) / _STEP
    return np.broadcast_to(slopes, tensor.size).reshape(tensor.shape)


def _loss(of: Meaning, found: _Forward, incoming: Mapping[str, Array]) -> Any:
    """What the incoming gradients are the gradients of."""
    outputs, reading = incoming["source_gradient"], of.reading
    if of.option("reverse") and reading["reverse_gradients"][0]:
        outputs = _flipped(outputs)
    total = _total(outputs, found.state)
    last_state, last_cell = found.last_state, found.last_cell
    if of.option("bidirectional") and reading["both_last"] == "last row":
        last_state, last_cell = found.state[..., -1, :, :], found.cell[..., -1, :, :]
    for name, every, last in (
        ("state_gradient", found.state, last_state),
        ("cell_gradient", found.cell, last_cell),
    ):
        if name not in incoming:
            continue
        gradient = incoming[name]
        if gradient.ndim == 3 and gradient.shape[0] == every.shape[-3] != 1:
            if reading["every_cell_gradient"] == "every":
                total = total + _total(gradient, every)
            else:
                total = total + _total(gradient[-1], last)
        elif reading[name] != "ignored":
            seen = last if reading[name] == "last" else every[..., :1, :, :].sum(axis=-3)
            total = total + _total(gradient.reshape(last.shape[-2:]), seen)
    return total


def _total(gradient: Array, values: Array) -> Any:
    """The sum of products over the gradient's axes."""
    return (gradient * values).sum(axis=tuple(range(-gradient.ndim, 0)))


def _flipped(steps: Array) -> Array:
    """[…,T,N,H] in the other order of time."""
    other: Array = steps[..., ::-1, :, :]
    return other


def _forward(of: Meaning, tensors: Mapping[str, Array]) -> _Forward:
    reading = of.reading
    if not of.option("bidirectional"):
        backwards = of.option("reverse")
        found = _scan(of, tensors, 0, backwards)
        if not backwards or reading["reverse_outputs"] == "processing":
            return found
        turned_ones = _Forward._fields[: 1 if reading["reverse_outputs"].startswith("h") else 3]
        return found._replace(**{name: _flipped(getattr(found, name)) for name in turned_ones})
    forth, back = _scan(of, tensors, 0, False), _scan(of, tensors, 1, True)
    reverse_first, in_processing_order = reading["both_outputs"]
    steps = [
        (a, b if in_processing_order else _flipped(b))
        for a, b in zip(forth[:3], back[:3], strict=True)
    ]
    if reverse_first:
        steps = [(b, a) for a, b in steps]
    every = [np.concatenate(pair, axis=-1) for pair in steps]
    if reading["both_zstate"] == "by gate":
        pairs = np.stack([_blocks(of.cell, half) for half in steps[2]], axis=-2)
        every[2] = pairs.reshape(every[2].shape)
    last = [np.concatenate(pair, axis=-1) for pair in zip(forth[3:], back[3:], strict=True)]
    return _Forward(*every, *last)


def _blocks(cell: str, stacked: Array) -> Array:
    """[…,GH] as […,G,H]."""
    gates = len(ORDERS[cell][0])
    return stacked.reshape(*stacked.shape[:-1], gates, stacked.shape[-1] // gates)


def _scan(of: Meaning, tensors: Mapping[str, Array], d: int, backwards: bool) -> _Forward:
    """One direction, its results in processing order."""
    view, h, c = _view(of, tensors, d)
    both = of.option("bidirectional")
    mask_time = of.reading["mask_time_both" if both else "mask_time_reverse"]
    states, cells, saved = [], [], []
    times = range(view.projected.shape[-3])
    for number, t in enumerate(reversed(times) if backwards else times):
        m = view.mask[t if mask_time == "input" else number]
        h, c, z = STEPS[of.cell](view, view.projected[..., t, :, :], h, c, m)
        if of.reading["mask_place"] == "output":
            h = h * m
        states.append(h)
        cells.append(c)
        saved.append(z)
    if not states:
        gh, width = view.R.shape[-2:]
        batch = view.projected.shape[-2]
        none = np.zeros((0, batch, width))
        return _Forward(none, none, np.zeros((0, batch, gh)), h, c)

    def stacked(steps: list[Array]) -> Array:
        return np.stack(np.broadcast_arrays(*steps), axis=-3)

    return _Forward(stacked(states), stacked(cells), stacked(saved), h, c)


def _view(of: Meaning, given: Mapping[str, Array], d: int) -> tuple[View, Array, Array]:
    """What direction d sees of the tensors, and its states before the first step."""
    cell, _, reading = of
    tensors = {
        name: given[name].T if name in reading["transposed"] else given[name] for name in given
    }
    both = of.option("bidirectional")
    gates = len(ORDERS[cell][0])
    weights = reading["both_weights"]
    at = 1 - d if weights == "reverse first" else d
    R = tensors["recurrent_weight"]
    R = R[..., at, :, :] if both else R
    width = R.shape[-1]

    def part(whole: Array) -> Array:
        """A direction's part of the last axis, which has all gates of both."""
        if not both:
            return whole
        ahead = whole.shape[:-1]
        if weights == "by gate":
            mine = whole.reshape(*ahead, gates, 2, width)[..., d, :]
        else:
            mine = whole.reshape(*ahead, 2, gates, width)[..., at, :, :]
        return mine.reshape(*ahead, gates * width)

    if "input_weight" in tensors:
        W = part(turned(tensors["input_weight"]))  # [I,GH]
        projected = tensors["source"] @ W[..., None, :, :]
    else:
        projected = part(tensors["source"])
    if "bias" in tensors:
        projected = projected + part(tensors["bias"])[..., None, None, :]
    steps, batch = projected.shape[-3:-1]
    start = width * (1 - d if both and reading["both_initial"] else d)
    columns = slice(start, start + width)
    zeros = np.zeros((batch, width))
    h = tensors["init_state"][..., columns] if "init_state" in tensors else zeros
    c = tensors["init_cell"][..., columns] if "init_cell" in tensors else zeros
    if reading["initial"] == "exchanged":
        h, c = c, h
    order = reading["other_order" if of.has_other_order else "order"]
    b2 = tensors.get("secondary_bias")
    view = View(
        of=of,
        projected=projected,
        R=R,
        p=_peephole(tensors, reading, both, d, gates * width),
        b2=b2[..., None, d * width : (d + 1) * width] if b2 is not None else None,
        mask=_mask(
            tensors, reading, (steps, batch, 2 * width if both else width), d * width, width
        ),
        order=order,
        peephole_order=reading["peephole_order"] if of.has_other_order else order,
    )
    return view, h, c


def _peephole(
    tensors: Mapping[str, Array], reading: Reading, both: bool, d: int, size: int
) -> Array:
    if "peephole" not in tensors:
        return np.zeros((1, size))
    whole = tensors["peephole"]
    if both:
        flat = whole.shape[-1] != size
        ahead = whole.shape[: -1 if flat else -2]
        how = reading["peephole_flat" if flat else "peephole_both"]
        if how == "by gate":
            whole = whole.reshape(*ahead, 4, 2, size // 4)[..., d, :].reshape(*ahead, size)
        else:
            at = 1 - d if how == "reverse first" else d
            whole = whole.reshape(*ahead, 2, size)[..., at, :]
    return whole[..., None, :]


def _mask(
    tensors: Mapping[str, Array],
    reading: Reading,
    shape: tuple[int, int, int],
    start: int,
    width: int,
) -> Array:
    mask = tensors.get("mask", np.ones(()))
    if not reading["mask_used"]:
        mask = np.ones(())
    if mask.ndim == 2 and reading["mask_matrix"] == "T":
        mask = mask[:, None]
    return np.broadcast_to(mask, shape)[:, :, start : start + width]


def orders(cell: str) -> Iterator[str]:
    """Every order of a cell's gates, the default one first."""
    for order in permutations(ORDERS[cell][0]):
        yield "".join(order)
