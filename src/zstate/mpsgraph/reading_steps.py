"""One step of each cell, as a reading has it (:mod:`.readings`), in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..types import Array

Reading = Mapping[str, Any]

# Option and switch: the default order of the gates, and the order that the option gives.
ORDERS = {"single_gate_rnn": ("z", "z"), "lstm": ("ifzo", "izfo"), "gru": ("zro", "rzo")}
OTHER_ORDER = {"single_gate_rnn": "", "lstm": "forget_gate_last", "gru": "reset_gate_first"}


class Meaning(NamedTuple):
    """A cell as one reading has it."""

    cell: str
    options: Mapping[str, Any]
    reading: Reading

    def option(self, name: str) -> bool:
        """Whether an option is set."""
        return bool(self.options.get(name))

    @property
    def has_other_order(self) -> bool:
        return self.option(OTHER_ORDER[self.cell])


Step: TypeAlias = tuple[Array, Array, Array]  # h, c and what is saved


class View(NamedTuple):
    """What one direction sees."""

    of: Meaning
    projected: Array  # [T,N,GH], the bias included
    R: Array  # [GH,H]
    p: Array  # [1,GH]
    b2: Array | None  # [1,H]
    mask: Array  # [T,N,H]
    order: str
    peephole_order: str


def turned(matrix: Array) -> Array:
    """The transpose of the last two axes."""
    return np.swapaxes(matrix, -1, -2)


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


def _recurrent(view: View, h: Array, m: Array) -> Array:
    """The recurrent term [N,GH] with the mask in its place."""
    place = view.of.reading["mask_place"]
    term: Array = (h * m if place not in ("after R", "output") else h) @ turned(view.R)
    return term * np.tile(m, view.R.shape[-2] // view.R.shape[-1]) if place == "after R" else term


def saved_reading(of: Meaning) -> tuple[str, str] | None:
    """Whether zState holds activated gates, and their order; None if that is not known."""
    if of.option("reset_after") and of.reading["reset_after_zstate"] is None:
        return None
    found: tuple[str, str] | None
    found = of.reading["other_zstate" if of.has_other_order else "zstate"]
    return found


def _saved(of: Meaning, activated: Mapping[str, Array], inner: Mapping[str, Array]) -> Array:
    kind, order = saved_reading(of) or ("activated", "".join(activated))
    values = activated if kind == "activated" else inner
    return np.concatenate(np.broadcast_arrays(*(values[gate] for gate in order)), axis=-1)


def _rnn_step(view: View, x: Array, h: Array, c: Array, m: Array) -> Step:
    _, options, reading = of = view.of
    inner = x + _recurrent(view, h, m)
    new = _activate(options["activation"], inner, reading)
    return new, c, _saved(of, {"z": new}, {"z": inner})


# By reading: the gates that do not look at the old cell.
_BLIND = {
    "z not": "z",
    "o at the new": "o",
    "o at the new, z not": "zo",
}


def _lstm_step(view: View, x: Array, h: Array, c: Array, m: Array) -> Step:
    _, options, reading = of = view.of
    if reading["mask_place"] == "cell too":
        c = c * m
    inner = _by_gate(x + _recurrent(view, h, m), view.order)
    p = _by_gate(view.p, view.peephole_order)
    looks = reading["peephole_cell"]
    for gate in "ifzo":
        if gate not in _BLIND.get(looks, ""):
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
    return new, new_c, _saved(of, gates, inner)


def _gru_step(view: View, x: Array, h: Array, c: Array, m: Array) -> Step:
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
    last = {"unreset": unreset, "s": s}.get(reading["reset_after_zstate"], o)
    gates = {"z": z, "r": r, "o": last if of.option("reset_after") else o}
    return new, c, _saved(of, gates, inner)


STEPS: dict[str, Callable[..., Step]] = {
    "single_gate_rnn": _rnn_step,
    "lstm": _lstm_step,
    "gru": _gru_step,
}
