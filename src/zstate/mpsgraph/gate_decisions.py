"""The decisions on what each cell has of its own: the order of its gates, zState, its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import factorial
from typing import Any

import numpy as np

from ..descriptors import Activation
from .drawn_calls import PEEPHOLE, SIZES, WEIGHTS
from .probes import GRU, LSTM, REFUSED, RNN
from .readings import orders

Add = Callable[..., None]  # adds a probe


def _spaced(order: str) -> str:
    return " ".join(order)


def _first(readings: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """The readings with the one of a value in front."""
    return dict(sorted(readings.items(), key=lambda pair: pair[1] != value))


def _orders(cell: str, default: str) -> dict[str, Any]:
    return _first({_spaced(order): order for order in orders(cell)}, default)


def _zstates(cell: str, default: str) -> dict[str, Any]:
    kinds = {"activated gates": "activated", "pre-activations": "inner"}
    every = {
        f"{label}, order {_spaced(order)}": (kind, order)
        for label, kind in kinds.items()
        for order in orders(cell)
    }
    return _first(every, ("activated", default))


_SLOPES = {
    "clamp(0.2x + 0.5, 0, 1)": (0.2, 0.5),
    "clamp(x/6 + 0.5, 0, 1)": (1 / 6, 0.5),
    "clamp(0.25x + 0.5, 0, 1)": (0.25, 0.5),
    "clamp(0.5x + 0.5, 0, 1)": (0.5, 0.5),
}
HARD = {"activation": Activation.HARD_SIGMOID}


def _own_of_rnn(add: Add) -> None:
    add(
        "hard sigmoid: Which slope and offset does the hard sigmoid have?",
        "hard_sigmoid",
        _SLOPES,
        options=HARD,
        sizes=(1, 8, 4, 4),
        inputs="",
        values={"source": np.linspace(-4, 4, 32).reshape(1, 8, 4)},
    )
    add(
        "zState: What does zState hold?",
        "zstate",
        {"the pre-activation": ("inner", "z"), "the activated gate": ("activated", "z")},
        "training_state",
    )


def _gates(add: Add, cell: str, order: str, other: str, option: str, hard: str) -> None:
    """Where each gate is, as a rule and with the ``option`` that moves one; and the slope of a gate
    whose activation, ``hard``, is the hard sigmoid."""
    first, *rest = option.split("_")
    apple = first + "".join(word.title() for word in rest)
    orders = factorial(len(order))
    others = f"the {orders - 1} other orders"
    many = f"{others}; pre-activations in any of the {orders}"
    moved = {option: True}
    add(
        "gate order: In which order do W, R and b hold the gates?",
        "order",
        _orders(cell, order),
        "state",
        others,
    )
    add(
        f"gate order, {apple}: In which order does {apple} put them?",
        "other_order",
        _orders(cell, other),
        "state",
        others,
        options=moved,
    )
    add(
        "hard sigmoid: Which slope and offset does the hard sigmoid have?",
        "hard_sigmoid",
        _SLOPES,
        options={hard: Activation.HARD_SIGMOID},
    )
    add(
        "zState: What does zState hold, and in which order?",
        "zstate",
        _zstates(cell, order),
        "training_state",
        many,
    )
    add(
        f"zState, {apple}: What does zState hold with {apple}?",
        "other_zstate",
        _zstates(cell, other),
        "training_state",
        many,
        options=moved,
    )


def _own_of_lstm(add: Add) -> None:
    add(
        "initCell: Is initCell c[-1], and initState h[-1]? (One page calls both h[-1].)",
        "initial",
        {"yes": "as named", "no: they are swapped": "exchanged"},
        equal=WEIGHTS,
    )
    _gates(add, LSTM, "ifzo", "izfo", "forget_gate_last", "output_gate_activation")
    add(
        "produceCell: What does produceCell without training return?",
        "cell_outputs",
        {"h, c": ("state", "cell"), "h": ("state",)},
        "shapes",
        options={"training": False},
        sizes=SIZES,
    )
    add(
        "peephole: Which cell do the peepholes read, and from which gates?",
        "peephole_cell",
        {
            "c[t-1], from i, f, z and o": "old",
            "c[t-1], but o looks at c[t]": "o at the new",
            "c[t-1], from i, f and o only": "z not",
            "c[t-1] from i and f, c[t] from o": "o at the new, z not",
        },
        inputs=PEEPHOLE,
    )
    add(
        "peephole, forgetGateLast: "
        "In which order does the peephole hold the gates with forgetGateLast?",
        "peephole_order",
        _orders(LSTM, "izfo"),
        "state",
        "the 23 other orders",
        options={"forget_gate_last": True},
        inputs=PEEPHOLE,
    )


def _own_of_gru(add: Add) -> None:
    keeps, renews = "z·h[t-1] + (1-z)·o", "(1-z)·h[t-1] + z·o"
    add(
        "flipZ = NO: How does the GRU blend without flipZ?",
        "blend",
        {keeps: "z keeps", renews: "z renews"},
        equal=WEIGHTS,
    )
    add(
        "flipZ = YES: How does the GRU blend with flipZ? (Two pages disagree.)",
        "flipped_blend",
        {renews: "z renews", keeps: "z keeps"},
        options={"flip_z": True},
        equal=WEIGHTS,
    )
    _gates(add, GRU, "zro", "rzo", "reset_gate_first", "update_gate_activation")
    after = {"reset_after": True}
    add(
        "resetAfter: Where does resetAfter reset?",
        "reset_after",
        {"((h[t-1]·m)Ro^T)·r": "after", "(h[t-1]·r·m)Ro^T": "before"},
        options=after,
    )
    secondary = "input_weight bias init_state secondary_bias"
    add(
        "secondaryBias: Where is secondaryBias added?",
        "secondary_bias",
        {
            "inside the reset: ((h[t-1]·m)Ro^T + b2)·r": "inside",
            "outside of it: ((h[t-1]·m)Ro^T)·r + b2": "outside",
            "nowhere": "nowhere",
        },
        options=after,
        inputs=secondary,
    )
    add(
        "zState, resetAfter: What does zState hold in place of o with resetAfter?",
        "reset_after_zstate",
        {
            "o, as without it": "o",
            "the recurrent term before the reset": "unreset",
            "the recurrent term after the reset": "s",
        },
        "training_state",
        options=after,
        inputs=secondary,
    )
    add(
        "secondaryBias without resetAfter: What does secondaryBias do without resetAfter?",
        "lone_secondary_bias",
        {"raises an exception": REFUSED, "nothing": "nowhere", "it is added": "outside"},
        inputs=secondary,
        carried=False,
    )


OWN = {RNN: _own_of_rnn, LSTM: _own_of_lstm, GRU: _own_of_gru}
