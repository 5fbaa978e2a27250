"""What Apple's pages can be taken to mean: the three cells in plain NumPy, with switches.

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
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..operations import OPERATIONS
from ..types import Array
from .calling import Call

Reading = Mapping[str, Any]

_STEP = 1e-30

# Option and switch: the default order of the gates, and the order that the option gives.
_ORDERS = {"single_gate_rnn": ("z", "z"), "lstm": ("ifzo", "izfo"), "gru": ("zro", "rzo")}
_OTHER_ORDER = {"single_gate_rnn": "", "lstm": "forget_gate_last", "gru": "reset_gate_first"}
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
    order, other = _ORDERS[cell]
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


class _Meaning(NamedTuple):
    """A cell as one reading has it."""

    cell: str
    options: Mapping[str, Any]
    reading: Reading

    def option(self, name: str) -> bool:
        """Whether an option is set."""
        return bool(self.options.get(name))

    @property
    def has_other_order(self) -> bool:
        return self.option(_OTHER_ORDER[self.cell])


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
    of = _Meaning(call.cell, {**_DEFAULTS[call.cell], **call.options}, reading)
    tensors = {name: array.astype(np.float64) for name, array in call.tensors.items()}
    found = _forward(of, tensors)
    unknown = _saved_reading(of) is None
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


def _loss(of: _Meaning, found: _Forward, incoming: Mapping[str, Array]) -> Any:
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
    turned: Array = steps[..., ::-1, :, :]
    return turned


def _forward(of: _Meaning, tensors: Mapping[str, Array]) -> _Forward:
    reading = of.reading
    if not of.option("bidirectional"):
        backwards = of.option("reverse")
        found = _scan(of, tensors, 0, backwards)
        if not backwards or reading["reverse_outputs"] == "processing":
            return found
        if reading["reverse_outputs"] == "h in input order":
            return found._replace(state=_flipped(found.state))
        return found._replace(
            state=_flipped(found.state),
            cell=_flipped(found.cell),
            training_state=_flipped(found.training_state),
        )
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
    gates = len(_ORDERS[cell][0])
    return stacked.reshape(*stacked.shape[:-1], gates, stacked.shape[-1] // gates)


_Step: TypeAlias = tuple[Array, Array, Array]  # h, c and what is saved


class _View(NamedTuple):
    """What one direction sees."""

    of: _Meaning
    projected: Array  # [T,N,GH], the bias included
    R: Array  # [GH,H]
    p: Array  # [1,GH]
    b2: Array | None  # [1,H]
    mask: Array  # [T,N,H]
    order: str
    peephole_order: str


def _scan(of: _Meaning, tensors: Mapping[str, Array], d: int, backwards: bool) -> _Forward:
    """One direction, its results in processing order."""
    view, h, c = _view(of, tensors, d)
    both = of.option("bidirectional")
    mask_time = of.reading["mask_time_both" if both else "mask_time_reverse"]
    states, cells, saved = [], [], []
    times = range(view.projected.shape[-3])
    for number, t in enumerate(reversed(times) if backwards else times):
        m = view.mask[t if mask_time == "input" else number]
        h, c, z = _STEPS[of.cell](view, view.projected[..., t, :, :], h, c, m)
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


def _view(of: _Meaning, given: Mapping[str, Array], d: int) -> tuple[_View, Array, Array]:
    """What direction d sees of the tensors, and its states before the first step."""
    cell, _, reading = of
    tensors = {
        name: given[name].T if name in reading["transposed"] else given[name] for name in given
    }
    both = of.option("bidirectional")
    gates = len(_ORDERS[cell][0])
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
        W = part(_turned(tensors["input_weight"]))  # [I,GH]
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
    view = _View(
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


def _turned(matrix: Array) -> Array:
    """The transpose of the last two axes."""
    return np.swapaxes(matrix, -1, -2)


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


def _activate(kind: int, a: Array, reading: Reading) -> Array:
    """An activation that is analytic along the imaginary axis, for complex steps."""
    if kind not in range(5):
        kind = reading["unknown_activation"]
    if kind == 1:
        at_zero = np.where(a.real == 0, reading["relu_kink"] * a, 0)
        return np.where(a.real > 0, a, at_zero)
    if kind == 2:
        return np.tanh(a)
    if kind == 3:
        return 1 / (1 + np.exp(-a))
    if kind == 4:
        slope, offset = reading["hard_sigmoid"]
        y = slope * a + offset
        low, high = y.real == 0, y.real == 1
        at_kink = np.where(low | high, y.real + reading["hard_sigmoid_kink"] * (y - y.real), 0)
        inside = (y.real > 0) & (y.real < 1)
        return np.where(inside, y, np.where(low | high, at_kink, np.clip(y.real, 0, 1)))
    return a


def _by_gate(stacked: Array, order: str) -> dict[str, Array]:
    width = stacked.shape[-1] // len(order)
    return {gate: stacked[..., k * width : (k + 1) * width] for k, gate in enumerate(order)}


def _recurrent(view: _View, h: Array, m: Array) -> Array:
    """The recurrent term [N,GH] with the mask in its place."""
    place = view.of.reading["mask_place"]
    term: Array = (h * m if place not in ("after R", "output") else h) @ _turned(view.R)
    return term * np.tile(m, view.R.shape[-2] // view.R.shape[-1]) if place == "after R" else term


def _saved_reading(of: _Meaning) -> tuple[str, str] | None:
    """Whether zState holds activated gates, and their order; None if that is not known."""
    if of.option("reset_after") and of.reading["reset_after_zstate"] is None:
        return None
    found: tuple[str, str] | None
    found = of.reading["other_zstate" if of.has_other_order else "zstate"]
    return found


def _saved(of: _Meaning, activated: Mapping[str, Array], inner: Mapping[str, Array]) -> Array:
    kind, order = _saved_reading(of) or ("activated", "".join(activated))
    values = activated if kind == "activated" else inner
    return np.concatenate(np.broadcast_arrays(*(values[gate] for gate in order)), axis=-1)


def _rnn_step(view: _View, x: Array, h: Array, c: Array, m: Array) -> _Step:
    _, options, reading = of = view.of
    inner = x + _recurrent(view, h, m)
    new = _activate(options["activation"], inner, reading)
    if reading["mask_place"] == "output":
        new = new * m
    return new, c, _saved(of, {"z": new}, {"z": inner})


# Gates that do not look at the old cell.
_BLIND = {
    *(("z", "z not"), ("o", "o at the new")),
    *(("z", "o at the new, z not"), ("o", "o at the new, z not")),
}


def _lstm_step(view: _View, x: Array, h: Array, c: Array, m: Array) -> _Step:
    _, options, reading = of = view.of
    if reading["mask_place"] == "cell too":
        c = c * m
    inner = _by_gate(x + _recurrent(view, h, m), view.order)
    p = _by_gate(view.p, view.peephole_order)
    looks = reading["peephole_cell"]
    for gate in "ifzo":
        if (gate, looks) not in _BLIND:
            inner[gate] = inner[gate] + p[gate] * c
    kinds = {"i": "input_gate", "f": "forget_gate", "z": "cell_gate", "o": "output_gate"}

    def gate_of(name: str) -> Array:
        return _activate(options[f"{kinds[name]}_activation"], inner[name], reading)

    gates = {name: gate_of(name) for name in "ifz"}
    new_c = gates["f"] * c + gates["i"] * gates["z"]
    if looks.startswith("o at the new"):
        inner["o"] = inner["o"] + p["o"] * new_c
    gates["o"] = gate_of("o")
    new = gates["o"] * _activate(options["activation"], new_c, reading)
    if reading["mask_place"] == "output":
        new = new * m
    return new, new_c, _saved(of, gates, inner)


def _gru_step(view: _View, x: Array, h: Array, c: Array, m: Array) -> _Step:
    _, options, reading = of = view.of
    if reading["mask_place"] == "blend too":
        h, m = h * m, np.ones_like(m)
    term = _by_gate(_recurrent(view, h, m), view.order)
    inner = _by_gate(x, view.order)
    inner = {name: inner[name] + (term[name] if name in "zr" else 0) for name in "zro"}
    z = _activate(options["update_gate_activation"], inner["z"], reading)
    r = _activate(options["reset_gate_activation"], inner["r"], reading)
    b2 = 0 if view.b2 is None else view.b2
    where = reading["secondary_bias" if of.option("reset_after") else "lone_secondary_bias"]
    if of.option("reset_after") and reading["reset_after"] == "after":
        unreset = term["o"] + (b2 if where == "inside" else 0)
        s = unreset * r + (b2 if where == "outside" else 0)
    else:
        unreset = s = _by_gate(_recurrent(view, h * r, m), view.order)["o"]
        s = s + (0 if where == "nowhere" else b2)
    inner["o"] = inner["o"] + s
    o = _activate(options["output_gate_activation"], inner["o"], reading)
    keeps = reading["flipped_blend" if of.option("flip_z") else "blend"] == "z keeps"
    new = z * h + (1 - z) * o if keeps else (1 - z) * h + z * o
    if reading["mask_place"] == "output":
        new = new * m
    last = {"unreset": unreset, "s": s}.get(reading["reset_after_zstate"], o)
    gates = {"z": z, "r": r, "o": last if of.option("reset_after") else o}
    return new, c, _saved(of, gates, inner)


_STEPS: dict[str, Callable[..., _Step]] = {
    "single_gate_rnn": _rnn_step,
    "lstm": _lstm_step,
    "gru": _gru_step,
}


def orders(cell: str) -> Iterator[str]:
    """Every order of a cell's gates, the default one first."""
    for order in permutations(_ORDERS[cell][0]):
        yield "".join(order)
