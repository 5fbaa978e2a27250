"""The decisions: one probe for each that Apple's pages leave open, or state in two ways.

The order matters: a probe may rely on what those before it found. Those that come first are made
so that what is not settled yet makes no difference: equal weights for all gates and directions, one
step, no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import factorial
from typing import Any

import numpy as np

from ..descriptors import Activation
from ..layout import DESCRIPTORS, Layout
from ..operations import OPERATIONS
from ..types import Array
from .calling import Call
from .probes import CELLS, GRU, LSTM, REFUSED, RNN, Probe
from .readings import orders

_SIZES, _ONE_STEP = (4, 5, 3, 3), (1, 8, 4, 4)  # T, N, I, H
_WEIGHTS = "recurrent_weight input_weight bias"
_INPUTS = "input_weight bias init_state init_cell"
_MASK, _PEEPHOLE = f"{_INPUTS} mask", f"{_INPUTS} peephole"
_BACK = "source_gradient"
_NO_ACTIVATION = 9


def _call(
    rng: np.random.Generator,
    *,
    cell: str,
    options: Mapping[str, Any] | None = None,
    sizes: tuple[int, int, int, int] = _SIZES,
    inputs: str = _INPUTS,
    incoming: str = "",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    equal: str = "",  # tensors whose blocks of H rows, or halves, are all the same
    values: Mapping[str, Array] | None = None,
    half: str = "",  # tensors in float16
    full: bool = False,
) -> Call:
    """A call with random tensors of the layout's shapes, or others that are named."""
    chosen: dict[str, Any] = {"training": True, **({"produce_cell": True} if cell == LSTM else {})}
    if cell == RNN:  # whose default has a kink and a flat side
        chosen["activation"] = Activation.TANH
    chosen |= options or {}
    known = {name: value for name, value in chosen.items() if value != _NO_ACTIVATION}
    forward, backward = OPERATIONS[cell], OPERATIONS[f"{cell}_gradients"]
    wanted = ["source", "recurrent_weight", *inputs.split(), *incoming.split()]
    present = [name for name in backward.inputs if name in wanted]
    letters = dict(zip("TNIH", sizes, strict=True))
    layout = Layout(backward, DESCRIPTORS[cell](**known), "float32", letters, frozenset(present))
    tensors = {}
    for name in present:
        shape = (shapes or {}).get(name, layout.shape(name))
        if name in equal.split():
            tensors[name] = _equal(rng, name, shape, sizes[3])
        elif name == "mask":
            tensors[name] = rng.uniform(0.4, 1.6, shape)
        else:
            tensors[name] = rng.normal(size=shape)
    tensors |= values or {}
    arrays = {
        name: array.astype(np.float16 if name in half.split() else np.float32)
        for name, array in tensors.items()
    }
    return Call(
        cell,
        chosen,
        {name: arrays[name] for name in forward.inputs if name in arrays},
        {name: arrays[name] for name in arrays if name not in forward.inputs},
        full,
    )


def _equal(rng: np.random.Generator, name: str, shape: tuple[int, ...], width: int) -> Array:
    """A tensor of equal blocks of H, whatever order of gates and directions is read from it."""
    if name == "recurrent_weight":
        return np.broadcast_to(
            np.tile(rng.normal(size=(width, width)), (shape[-2] // width, 1)), shape
        )
    if name == "input_weight":
        return np.tile(rng.normal(size=(width, shape[1])), (shape[0] // width, 1))
    return np.tile(rng.normal(size=(*shape[:-1], width)), shape[-1] // width)


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


@dataclass(frozen=True)
class _Family:
    """Makes the probes of one cell."""

    cell: str
    made: list[Probe] = field(default_factory=list)

    def add(
        self,
        decision: str,
        question: str,
        switch: str,
        readings: Mapping[str, Any],
        looks_at: str = "state",
        alternatives: str = "",
        carried: bool = True,
        **call: Any,
    ) -> None:
        make = partial(_call, cell=self.cell, **call)
        self.made.append(
            Probe(
                *(decision, self.cell, question, switch, readings, make),
                *(looks_at, alternatives, carried),
            )
        )


_SLOPES = {
    "clamp(0.2x + 0.5, 0, 1)": (0.2, 0.5),
    "clamp(x/6 + 0.5, 0, 1)": (1 / 6, 0.5),
    "clamp(0.25x + 0.5, 0, 1)": (0.25, 0.5),
    "clamp(0.5x + 0.5, 0, 1)": (0.5, 0.5),
}
_HARD = {"activation": Activation.HARD_SIGMOID}


def _own_of_rnn(add: Callable[..., None]) -> None:
    add(
        "hard sigmoid",
        "Which slope and offset does the hard sigmoid have?",
        "hard_sigmoid",
        _SLOPES,
        options=_HARD,
        sizes=(1, 8, 4, 4),
        inputs="",
        values={"source": np.linspace(-4, 4, 32).reshape(1, 8, 4)},
    )
    add(
        "zState",
        "What does zState hold?",
        "zstate",
        {"the pre-activation": ("inner", "z"), "the activated gate": ("activated", "z")},
        "training_state",
    )


def _gates(
    add: Callable[..., None], cell: str, order: str, other: str, option: str, hard: str
) -> None:
    """Where each gate is, as a rule and with the ``option`` that moves one; and the slope of a gate
    whose activation, ``hard``, is the hard sigmoid."""
    first, *rest = option.split("_")
    apple = first + "".join(word.title() for word in rest)
    orders = factorial(len(order))
    others = f"the {orders - 1} other orders"
    many = f"{others}; pre-activations in any of the {orders}"
    moved = {option: True}
    add(
        *("gate order", "In which order do W, R and b hold the gates?", "order"),
        *(_orders(cell, order), "state", others),
    )
    add(
        *(f"gate order, {apple}", f"In which order does {apple} put them?", "other_order"),
        *(_orders(cell, other), "state", others),
        options=moved,
    )
    add(
        *("hard sigmoid", "Which slope and offset does the hard sigmoid have?", "hard_sigmoid"),
        _SLOPES,
        options={hard: Activation.HARD_SIGMOID},
    )
    add(
        *("zState", "What does zState hold, and in which order?", "zstate"),
        *(_zstates(cell, order), "training_state", many),
    )
    add(
        *(f"zState, {apple}", f"What does zState hold with {apple}?", "other_zstate"),
        *(_zstates(cell, other), "training_state", many),
        options=moved,
    )


def _own_of_lstm(add: Callable[..., None]) -> None:
    add(
        "initCell",
        "Is initCell c[-1], and initState h[-1]? (One page calls both h[-1].)",
        "initial",
        {"yes": "as named", "the other way round": "exchanged"},
        equal=_WEIGHTS,
    )
    _gates(add, LSTM, "ifzo", "izfo", "forget_gate_last", "output_gate_activation")
    add(
        "produceCell",
        "What does produceCell without training return?",
        "cell_outputs",
        {"h, c": ("state", "cell"), "h": ("state",)},
        "shapes",
        options={"training": False},
        sizes=_SIZES,
    )
    add(
        "peephole",
        "Which cell do the peepholes read, and from which gates?",
        "peephole_cell",
        {
            "c[t-1], from i, f, z and o": "old",
            "c[t-1], but o looks at c[t]": "o at the new",
            "c[t-1], from i, f and o only": "z not",
            "c[t-1] from i and f, c[t] from o": "o at the new, z not",
        },
        inputs=_PEEPHOLE,
    )
    add(
        *(
            "peephole, forgetGateLast",
            "In which order does the peephole hold the gates with forgetGateLast?",
        ),
        *("peephole_order", _orders(LSTM, "izfo"), "state", "the 23 other orders"),
        options={"forget_gate_last": True},
        inputs=_PEEPHOLE,
    )


def _own_of_gru(add: Callable[..., None]) -> None:
    keeps, renews = "z·h[t-1] + (1-z)·o", "(1-z)·h[t-1] + z·o"
    add(
        *("flipZ = NO", "How does the GRU blend without flipZ?", "blend"),
        {keeps: "z keeps", renews: "z renews"},
        equal=_WEIGHTS,
    )
    add(
        *(
            "flipZ = YES",
            "How does the GRU blend with flipZ? (Two pages disagree.)",
            "flipped_blend",
        ),
        {renews: "z renews", keeps: "z keeps"},
        options={"flip_z": True},
        equal=_WEIGHTS,
    )
    _gates(add, GRU, "zro", "rzo", "reset_gate_first", "update_gate_activation")
    after = {"reset_after": True}
    add(
        "resetAfter",
        "Where does resetAfter reset?",
        "reset_after",
        {"((h[t-1]·m)Ro^T)·r": "after", "(h[t-1]·r·m)Ro^T": "before"},
        options=after,
    )
    secondary = "input_weight bias init_state secondary_bias"
    add(
        "secondaryBias",
        "Where is secondaryBias added?",
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
        "zState, resetAfter",
        "What does zState hold in place of o with resetAfter?",
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
        "secondaryBias without resetAfter",
        "What does secondaryBias do without resetAfter?",
        "lone_secondary_bias",
        {"refused with an exception": REFUSED, "nothing": "nowhere", "it is added": "outside"},
        inputs=secondary,
        carried=False,
    )


def _outputs(cell: str, add: Callable[..., None]) -> None:
    add(
        *("outputs without training", "What does a call without training return?"),
        *("plain_outputs", {"h": ("state",), "h, zState": ("state", "training_state")}, "shapes"),
        options={"training": False, **({"produce_cell": False} if cell == LSTM else {})},
    )
    names = {"state": "h", "cell": "c", "training_state": "zState"}
    ours = OPERATIONS[cell].result._fields
    every = [ours, ("state", "training_state"), ours[:-1], ("state",)]
    add(
        *("outputs with training", "What does a call with training return?", "training_outputs"),
        {", ".join(names[name] for name in each): each for each in every},
        "shapes",
        options={"produce_cell": False} if cell == LSTM else {},
    )


_PLACES = {
    RNN: {},
    LSTM: {"on h[t-1] before R, and on c[t-1]": "cell too"},
    GRU: {"on h[t-1] before R, and in the blend": "blend too"},
}


def _masks(cell: str, add: Callable[..., None]) -> None:
    add = partial(add, inputs=_MASK)
    add(
        "mask",
        "Where is the mask applied?",
        "mask_place",
        {
            "on h[t-1] before R, nowhere else": "before R",
            "after R: (h[t-1]R^T)·m": "after R",
            "on h[t], the output": "output",
            **_PLACES[cell],
        },
        sizes=_ONE_STEP,
    )
    steps = {"input step t": "input", "processing step t": "processing"}
    add(
        *("mask, reverse", "Which step does mask[t] belong to with reverse?"),
        *("mask_time_reverse", steps),
        options={"reverse": True},
    )
    add(
        *("mask, bidirectional", "Which step does mask[t] belong to in the reverse half?"),
        *("mask_time_both", steps),
        options={"bidirectional": True},
    )
    used = {"it broadcasts": True, "it is ignored": False}
    for shape, numbers in (("[1,N,H]", (1, 5, 3)), ("[T,1,1]", (4, 1, 1)), ("[H]", (3,))):
        add(
            *(f"mask of shape {shape}", f"What does a mask of shape {shape} do?"),
            *("mask_used", used),
            shapes={"mask": numbers},
            carried=False,
        )
    add(
        *("mask of shape [N,H]", "What does a mask of two axes do? (Here N = T.)", "mask_matrix"),
        {"[N,H], for every step": "N", "[T,H], for the whole batch": "T"},
        sizes=(4, 4, 3, 3),
        shapes={"mask": (4, 3)},
    )


_STACKED = {
    "the forward direction, then the reverse one": "by direction",
    "the reverse direction, then the forward one": "reverse first",
}


def _directions(cell: str, add: Callable[..., None]) -> None:
    add(
        "reverse",
        "In which order are the results with reverse?",
        "reverse_outputs",
        {
            "processing order": "processing",
            "h in input order, the others in processing order": "h in input order",
            "input order": "input",
        },
        "forward",
        options={"reverse": True},
    )
    both = {"bidirectional": True}
    initial = "init_state init_cell"
    add(
        "bidirectional",
        "How are the two halves of h laid out?",
        "both_outputs",
        {
            "forward half first, both in input order": (False, False),
            "reverse half first, both in input order": (True, False),
            "forward half first, the reverse one in processing order": (False, True),
            "reverse half first, in processing order": (True, True),
        },
        options=both,
        equal=f"{_WEIGHTS} {initial}",
    )
    add(
        "initial states, bidirectional",
        "Which half of the initial states belongs to the forward direction?",
        "both_initial",
        {"the first": False, "the second": True},
        options=both,
        equal=_WEIGHTS,
    )
    by_gate = (
        {} if cell == RNN else {"the directions of each gate side by side (W and b)": "by gate"}
    )
    add(
        *("weights, bidirectional", "How are the weights of two directions stacked?"),
        *("both_weights", _STACKED | by_gate),
        options=both,
    )
    if cell == RNN:
        return
    add(
        *("zState, bidirectional", "How are the gates of two directions laid out in zState?"),
        "both_zstate",
        {
            "the gates of the first half of h, then those of the second": "by direction",
            "the directions of each gate side by side": "by gate",
        },
        "training_state",
        options=both,
    )


def _peepholes_both_ways(add: Callable[..., None]) -> None:
    by_gate = {"the directions of each gate side by side": "by gate"}
    add = partial(add, inputs=_PEEPHOLE, options={"bidirectional": True})
    add(
        *("peephole of shape [2,4H]", "How are the peepholes of two directions stacked?"),
        *("peephole_both", _STACKED),
    )
    add(
        *("peephole of shape [8H]", "What does a peephole of shape [8H] mean?"),
        *("peephole_flat", _STACKED | by_gate),
        shapes={"peephole": (24,)},
    )


_SLOTS = {
    RNN: {
        "initState before inputWeight": "source recurrent_weight init_state input_weight bias",
        "without initState": "source recurrent_weight input_weight bias",
    },
    LSTM: {
        "peephole last": (
            "source recurrent_weight input_weight bias init_state init_cell peephole"
        ),
        "initCell before initState": (
            "source recurrent_weight input_weight bias peephole init_cell init_state"
        ),
        "without the initial states": "source recurrent_weight input_weight bias peephole",
    },
    GRU: {
        "secondaryBias before initState": (
            "source recurrent_weight input_weight bias secondary_bias init_state"
        ),
        "without initState": "source recurrent_weight input_weight bias secondary_bias",
    },
}


def _gradients(cell: str, add: Callable[..., None]) -> None:
    published = OPERATIONS[f"{cell}_gradients"].result._fields
    every = " ".join(published[2:])
    after = {"reset_after": True} if cell == GRU else {}
    inputs = "input_weight init_state init_cell"
    add = partial(add, looks_at="gradients", inputs=inputs, incoming=_BACK, sizes=(2, 2, 1, 2))
    add(
        *("gradients", "Which gradients are returned, and in which order?", "gradient_order"),
        {"as listed": published, **{label: tuple(s.split()) for label, s in _SLOTS[cell].items()}},
        options=after,
        inputs=every,
    )
    add(
        *("gradients of nil", "Does an input that is nil have a slot among the gradients?"),
        *("gradient_slots", {"no": "passed", "yes": "listed"}),
        options=after,
        inputs="input_weight",
        full=True,
    )
    add(
        "gradients, reverse",
        "In which order are the per-step gradients with reverse?",
        "reverse_gradients",
        {
            "sourceGradient like h, source's gradient like source": (False, False),
            "sourceGradient like h, source's gradient in processing order": (False, True),
            "sourceGradient opposite to h, source's gradient like source": (True, False),
            "sourceGradient opposite to h, source's gradient in processing order": (True, True),
        },
        options={"reverse": True},
    )
    places = {
        "it is added at the last processed step": "last",
        "it is added at the first processed step": "first",
        "it is ignored": "ignored",
    }
    names = {"state_gradient": "stateGradient"} | (
        {"cell_gradient": "cellGradient"} if cell == LSTM else {}
    )
    for name, label in names.items():
        for form, shape in (("[N,H]", (2, 2)), ("[1,N,H]", (1, 2, 2))):
            add(
                *(f"{label} of shape {form}", f"What does a {label} of shape {form} do?"),
                *(name, places),
                incoming=f"{_BACK} {name}",
                shapes={name: shape},
            )
    if cell == LSTM:
        add(
            *("cellGradient of shape [T,N,H]", "What does a cellGradient for every step do?"),
            "every_cell_gradient",
            {"the gradient of every c": "every", "only its last row counts": "last"},
            incoming=f"{_BACK} cell_gradient",
            shapes={"cell_gradient": (2, 2, 2)},
        )
    add(
        *(
            "stateGradient, bidirectional",
            "Where is stateGradient added with two directions?",
            "both_last",
        ),
        {"each half at the last step of its direction": "own", "both halves at T-1": "last row"},
        options={"bidirectional": True},
        incoming=f"{_BACK} state_gradient",
    )


def _kinks(add: Callable[..., None]) -> None:
    add = partial(add, looks_at="gradients", inputs="", incoming=_BACK)
    add(
        "relu at 0",
        "What is the derivative of relu at 0?",
        "relu_kink",
        {"0": 0.0, "1": 1.0, "1/2": 0.5},
        options={"activation": Activation.RELU},
        sizes=(1, 3, 1, 1),
        values={"source": np.array([-1.0, 0.0, 1.0]).reshape(1, 3, 1)},
    )
    kinks = np.array([-3, -2.5, -2, -1, -0.7, 0.3, 1, 2, 2.5, 3])
    add(
        "hard sigmoid at its kinks",
        "What is the derivative of the hard sigmoid where its output is exactly 0 or 1?",
        "hard_sigmoid_kink",
        {"0": 0.0, "its slope": 1.0},
        options=_HARD,
        sizes=(1, 10, 1, 1),
        values={"source": kinks.reshape(1, 10, 1)},
    )


def _limits(add: Callable[..., None]) -> None:
    """What may end the process; nothing follows from it for other probes, so it comes last."""
    add = partial(add, carried=False)
    refused = {"refused with an exception": REFUSED}
    bad = {"recurrent_weight": (3, 12), "input_weight": (3, 12), "init_state": (3, 5)}
    labels = {"recurrent_weight": "R", "input_weight": "W", "init_state": "initState"}
    for name, shape in bad.items():
        add(
            *(
                f"{labels[name]} of a wrong shape",
                f"What happens if {labels[name]} has the wrong shape (transposed)?",
            ),
            *("transposed", {**refused, "it is taken as its transpose": (name,)}),
            inputs="input_weight init_state init_cell",
            shapes={name: shape},
        )
    add(
        *("two float types", "What does a call with float32 and float16 tensors do?"),
        *("two_types", {**refused, "it is computed": True}),
        half="recurrent_weight",
    )
    add(
        *("an activation outside the five", "What does activation number 9 do?"),
        *("unknown_activation", {**refused, "it means none": 0, "it means tanh": 2}),
        options={"activation": _NO_ACTIVATION},
        sizes=_ONE_STEP,
    )
    for letter, sizes in (("T", (0, 2, 2, 2)), ("N", (3, 0, 2, 2))):
        add(
            *(f"{letter} = 0", f"What does a call with {letter} = 0 return?"),
            *("empty", {"empty results, zero gradients": True}, "everything"),
            incoming="source_gradient state_gradient",
            sizes=sizes,
        )


def _probes() -> Iterator[Probe]:
    own = {RNN: _own_of_rnn, LSTM: _own_of_lstm, GRU: _own_of_gru}
    for cell in CELLS:
        family = _Family(cell)
        own[cell](partial(family.add, sizes=_ONE_STEP))
        for group in (_outputs, _directions, _masks):
            group(cell, family.add)
        if cell == LSTM:
            _peepholes_both_ways(family.add)
        _gradients(cell, family.add)
        if cell == RNN:
            _kinks(family.add)
        yield from family.made
    family = _Family(LSTM)
    _limits(family.add)
    yield from family.made


PROBES = tuple(_probes())
