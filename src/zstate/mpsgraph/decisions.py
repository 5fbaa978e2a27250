"""The decisions: one probe for each that Apple's pages leave open, or state in two ways.

The order matters: a probe may rely on what those before it found. The first ones are made so that
open questions make no difference: equal weights for all gates and directions, one step, no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ..descriptors import Activation
from ..operations import OPERATIONS
from .drawn_calls import (
    BACK,
    MASK,
    NO_ACTIVATION,
    ONE_STEP,
    PEEPHOLE,
    WEIGHTS,
    call_of,
)
from .gate_decisions import HARD, OWN, Add
from .probes import CELLS, GRU, LSTM, REFUSED, RNN, Probe


def _probes_of(cell: str, *groups: Callable[[str, Add], None]) -> Iterator[Probe]:
    """The probes of one cell that these functions add."""
    made: list[Probe] = []

    def add(
        asked: str,  # "decision: question"
        switch: str,
        readings: Mapping[str, Any],
        looks_at: str = "state",
        alternatives: str = "",
        carried: bool = True,
        **call: Any,
    ) -> None:
        decision, question = asked.split(": ", 1)
        make = partial(call_of, cell=cell, **call)
        what = (decision, cell, question, switch, readings, make, looks_at, alternatives, carried)
        made.append(Probe(*what))

    for group in groups:
        group(cell, add)
    return iter(made)


def _outputs(cell: str, add: Add) -> None:
    add(
        "outputs without training: What does a call without training return?",
        "plain_outputs",
        {"h": ("state",), "h, zState": ("state", "training_state")},
        "shapes",
        options={"training": False, **({"produce_cell": False} if cell == LSTM else {})},
    )
    names = {"state": "h", "cell": "c", "training_state": "zState"}
    ours = OPERATIONS[cell].result._fields
    every = [ours, ("state", "training_state"), ours[:-1], ("state",)]
    add(
        "outputs with training: What does a call with training return?",
        "training_outputs",
        {", ".join(names[name] for name in each): each for each in every},
        "shapes",
        options={"produce_cell": False} if cell == LSTM else {},
    )


_PLACES = {
    RNN: {},
    LSTM: {"on h[t-1] before R, and on c[t-1]": "cell too"},
    GRU: {"on h[t-1] before R, and in the blend": "blend too"},
}


def _masks(cell: str, add: Add) -> None:
    add = partial(add, inputs=MASK)
    add(
        "mask: Where is the mask applied?",
        "mask_place",
        {
            "on h[t-1] before R, nowhere else": "before R",
            "after R: (h[t-1]R^T)·m": "after R",
            "on h[t], the output": "output",
            **_PLACES[cell],
        },
        sizes=ONE_STEP,
    )
    steps = {"input step t": "input", "processing step t": "processing"}
    add(
        "mask, reverse: Which step does mask[t] belong to with reverse?",
        "mask_time_reverse",
        steps,
        options={"reverse": True},
    )
    add(
        "mask, bidirectional: Which step does mask[t] belong to in the reverse half?",
        "mask_time_both",
        steps,
        options={"bidirectional": True},
    )
    used = {"it broadcasts": True, "it is ignored": False}
    for shape, numbers in (("[1,N,H]", (1, 5, 3)), ("[T,1,1]", (4, 1, 1)), ("[H]", (3,))):
        add(
            f"mask of shape {shape}: What does a mask of shape {shape} do?",
            "mask_used",
            used,
            shapes={"mask": numbers},
            carried=False,
        )
    add(
        "mask of shape [N,H]: What does a mask of two axes do? (Here N = T.)",
        "mask_matrix",
        {"[N,H], for every step": "N", "[T,H], for the whole batch": "T"},
        sizes=(4, 4, 3, 3),
        shapes={"mask": (4, 3)},
    )


_STACKED = {
    "the forward direction, then the reverse one": "by direction",
    "the reverse direction, then the forward one": "reverse first",
}


def _directions(cell: str, add: Add) -> None:
    add(
        "reverse: In which order are the results with reverse?",
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
        "bidirectional: How are the two halves of h laid out?",
        "both_outputs",
        {
            "forward half first, both in input order": (False, False),
            "reverse half first, both in input order": (True, False),
            "forward half first, the reverse one in processing order": (False, True),
            "reverse half first, in processing order": (True, True),
        },
        options=both,
        equal=f"{WEIGHTS} {initial}",
    )
    add(
        "initial states, bidirectional: "
        "Which half of the initial states belongs to the forward direction?",
        "both_initial",
        {"the first": False, "the second": True},
        options=both,
        equal=WEIGHTS,
    )
    by_gate = (
        {} if cell == RNN else {"the directions of each gate side by side (W and b)": "by gate"}
    )
    add(
        "weights, bidirectional: How are the weights of two directions stacked?",
        "both_weights",
        _STACKED | by_gate,
        options=both,
    )
    if cell == RNN:
        return
    add(
        "zState, bidirectional: How are the gates of two directions laid out in zState?",
        "both_zstate",
        {
            "the gates of the first half of h, then those of the second": "by direction",
            "the directions of each gate side by side": "by gate",
        },
        "training_state",
        options=both,
    )


def _peepholes_both_ways(cell: str, add: Add) -> None:
    if cell != LSTM:
        return
    by_gate = {"the directions of each gate side by side": "by gate"}
    add = partial(add, inputs=PEEPHOLE, options={"bidirectional": True})
    add(
        "peephole of shape [2,4H]: How are the peepholes of two directions stacked?",
        "peephole_both",
        _STACKED,
    )
    add(
        "peephole of shape [8H]: What does a peephole of shape [8H] mean?",
        "peephole_flat",
        _STACKED | by_gate,
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


def _gradients(cell: str, add: Add) -> None:
    published = OPERATIONS[f"{cell}_gradients"].result._fields
    every = " ".join(published[2:])
    after = {"reset_after": True} if cell == GRU else {}
    inputs = "input_weight init_state init_cell"
    add = partial(add, looks_at="gradients", inputs=inputs, incoming=BACK, sizes=(2, 2, 1, 2))
    add(
        "gradients: Which gradients are returned, and in which order?",
        "gradient_order",
        {"as listed": published, **{label: tuple(s.split()) for label, s in _SLOTS[cell].items()}},
        options=after,
        inputs=every,
    )
    add(
        "gradients of nil: Does an input that is nil have a slot among the gradients?",
        "gradient_slots",
        {"no": "passed", "yes": "listed"},
        options=after,
        inputs="input_weight",
        full=True,
    )
    add(
        "gradients, reverse: In which order are the per-step gradients with reverse?",
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
                f"{label} of shape {form}: What does a {label} of shape {form} do?",
                name,
                places,
                incoming=f"{BACK} {name}",
                shapes={name: shape},
            )
    if cell == LSTM:
        add(
            "cellGradient of shape [T,N,H]: What does a cellGradient for every step do?",
            "every_cell_gradient",
            {"the gradient of every c": "every", "only its last row counts": "last"},
            incoming=f"{BACK} cell_gradient",
            shapes={"cell_gradient": (2, 2, 2)},
        )
    add(
        "stateGradient, bidirectional: Where is stateGradient added with two directions?",
        "both_last",
        {"each half at the last step of its direction": "own", "both halves at T-1": "last row"},
        options={"bidirectional": True},
        incoming=f"{BACK} state_gradient",
    )


def _kinks(cell: str, add: Add) -> None:
    if cell != RNN:
        return
    add = partial(add, looks_at="gradients", inputs="", incoming=BACK)
    add(
        "relu at 0: What is the derivative of relu at 0?",
        "relu_kink",
        {"0": 0.0, "1": 1.0, "1/2": 0.5},
        options={"activation": Activation.RELU},
        sizes=(1, 3, 1, 1),
        values={"source": np.array([-1.0, 0.0, 1.0]).reshape(1, 3, 1)},
    )
    kinks = np.array([-3, -2.5, -2, -1, -0.7, 0.3, 1, 2, 2.5, 3])
    add(
        "hard sigmoid at its kinks: "
        "What is the derivative of the hard sigmoid where its output is exactly 0 or 1?",
        "hard_sigmoid_kink",
        {"0": 0.0, "its slope": 1.0},
        options=HARD,
        sizes=(1, 10, 1, 1),
        values={"source": kinks.reshape(1, 10, 1)},
    )


def _limits(cell: str, add: Add) -> None:
    """Probes that may end the process. No other probe depends on them, so they come last."""
    add = partial(add, carried=False)
    refused = {"raises an exception": REFUSED}
    bad = {"recurrent_weight": (3, 12), "input_weight": (3, 12), "init_state": (3, 5)}
    labels = {"recurrent_weight": "R", "input_weight": "W", "init_state": "initState"}
    for name, shape in bad.items():
        add(
            f"{labels[name]} of a wrong shape: "
            f"What happens if {labels[name]} has the wrong shape (transposed)?",
            "transposed",
            {**refused, "it is taken as its transpose": (name,)},
            inputs="input_weight init_state init_cell",
            shapes={name: shape},
        )
    add(
        "two float types: What does a call with float32 and float16 tensors do?",
        "two_types",
        {**refused, "it is computed": True},
        half="recurrent_weight",
    )
    add(
        "an activation outside the five: What does activation number 9 do?",
        "unknown_activation",
        {**refused, "it means none": 0, "it means tanh": 2},
        options={"activation": NO_ACTIVATION},
        sizes=ONE_STEP,
    )
    for letter, sizes in (("T", (0, 2, 2, 2)), ("N", (3, 0, 2, 2))):
        add(
            f"{letter} = 0: What does a call with {letter} = 0 return?",
            "empty",
            {"empty results, zero gradients": True},
            "everything",
            incoming="source_gradient state_gradient",
            sizes=sizes,
        )


def _own(cell: str, add: Add) -> None:
    OWN[cell](partial(add, sizes=ONE_STEP))


_EVERY = (_own, _outputs, _directions, _masks, _peepholes_both_ways, _gradients, _kinks)
PROBES = (
    *chain.from_iterable(_probes_of(cell, *_EVERY) for cell in CELLS),
    *_probes_of(LSTM, _limits),
)
