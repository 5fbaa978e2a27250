"""Other readings of Apple's pages, each as a stand-in, and the probes that must tell it.

``VARIATIONS`` maps a name to the variation and to what probes find: the label of a reading by the
probe's name, or "unavailable" where the variation leaves nothing to tell apart. Every other probe
must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from tests import oracle
from tests.mpsgraph.stand_ins import (
    GATES,
    ORDER,
    Options,
    RefusedError,
    Tensors,
    Variation,
    outputs,
)
from zstate import pyobjc
from zstate.mpsgraph.decisions import PROBES

Expected = dict[str, str]
NOTHING = "unavailable"
STEP = "processing step t"
VARIATIONS: dict[str, tuple[Variation, Expected]] = {}


def every(decision: str, label: str, cells: str = "RNN LSTM GRU") -> Expected:
    """The same finding for every cell that has the decision."""
    names = {probe.name for probe in PROBES}
    wanted = [f"{cell}: {decision}" for cell in cells.split()]
    return {name: label for name in wanted if name in names}


def add(name: str, variation: Variation, *expected: Expected) -> None:
    VARIATIONS[name] = variation, {k: v for each in expected for k, v in each.items()}


def case(
    name: str, part: str, *expected: Expected
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function is what a variation of this name has for one of its parts."""

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        add(name, Variation(**{part: function}), *expected)
        return function

    return made


def blocks(tensor: Tensor, count: int, axis: int) -> list[Tensor]:
    return list(torch.chunk(tensor, count, dim=axis))


def reordered(tensor: Tensor, order: str, wanted: str, axis: int) -> Tensor:
    """Blocks in one order of the gates, brought into another; two directions keep their halves."""
    parts = blocks(tensor, len(order), axis)
    return torch.cat([parts[order.index(gate)] for gate in wanted], dim=axis)


def each_half(options: Options, tensor: Tensor, axis: int, change: Callable[..., Tensor]) -> Tensor:
    halves = blocks(tensor, 2, axis) if options["bidirectional"] else [tensor]
    return torch.cat([change(half) for half in halves], dim=axis)


def changed(values: Tensors, names: Iterable[str], change: Callable[[Tensor], Tensor]) -> Tensors:
    return {n: change(v) if n in names else v for n, v in values.items()}


# --- activations


def hard_sigmoid(slope: float, at_kink: bool = False) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        y = slope * x + 0.5
        inside = (y >= 0) & (y <= 1) if at_kink else (y > 0) & (y < 1)
        return torch.where(inside, y, y.detach().clamp(0, 1))

    return apply


for text, slope in {"x/6": 1 / 6, "0.25x": 0.25, "0.5x": 0.5}.items():
    add(
        f"hard sigmoid {text}",
        Variation(activations={oracle.HARD_SIGMOID: hard_sigmoid(slope)}),
        every("hard sigmoid", f"clamp({text} + 0.5, 0, 1)"),
    )
add(
    "hard sigmoid's kinks",
    Variation(activations={oracle.HARD_SIGMOID: hard_sigmoid(0.2, True)}),
    {"RNN: hard sigmoid at its kinks": "its slope"},
)
for text, share in {"1": 1.0, "1/2": 0.5}.items():

    def relu(x: Tensor, share: float = share) -> Tensor:
        return torch.where(x > 0, x, torch.where(x == 0, share * x, torch.zeros_like(x)))

    add(
        f"relu at 0 is {text}",
        Variation(activations={oracle.RELU: relu}),
        {"RNN: relu at 0": text},
    )

# --- zState


@case(
    "zState before the activations",
    "forward",
    {
        "LSTM: zState": "pre-activations, order i f z o",
        "LSTM: zState, forgetGateLast": "pre-activations, order i z f o",
        "GRU: zState": "pre-activations, order z r o",
        "GRU: zState, resetGateFirst": "pre-activations, order r z o",
        "GRU: zState, resetAfter": NOTHING,
    },
)
def pre_activations(cell: str, options: Options, found: oracle.Forward) -> oracle.Forward:
    """The activated gates turned back into what they were made from."""
    if cell == "rnn":
        return found
    fields = {
        "lstm": {"i": "input_gate", "f": "forget_gate", "z": "cell_gate", "o": "output_gate"},
        "gru": {"z": "update_gate", "r": "reset_gate", "o": "output_gate"},
    }[cell]
    back = {oracle.SIGMOID: torch.logit, oracle.TANH: torch.atanh}

    def turn(half: Tensor) -> Tensor:
        order = oracle.gate_order(cell, options)
        gates = zip(order, blocks(half, len(order), -1), strict=True)
        kinds = [(gate, options[f"{fields[name]}_activation"]) for name, gate in gates]
        return torch.cat([back.get(kind, torch.clone)(gate) for gate, kind in kinds], dim=-1)

    return found._replace(training_state=each_half(options, found.training_state, -1, turn))


@case("zState is the state", "forward", {"RNN: zState": "the activated gate"})
def state_as_zstate(cell: str, options: Options, found: oracle.Forward) -> oracle.Forward:
    return found._replace(training_state=found.state) if cell == "rnn" else found


def saved_in(orders: dict[str, str], flagged: bool) -> Callable[..., oracle.Forward]:
    """zState in an order of its own, with the option for another order or without it."""

    def change(cell: str, options: Options, found: oracle.Forward) -> oracle.Forward:
        flag = options.get("forget_gate_last") or options.get("reset_gate_first")
        if cell == "rnn" or bool(flag) != flagged:
            return found
        order = oracle.gate_order(cell, options)
        kept = each_half(
            options,
            found.training_state,
            -1,
            lambda half: reordered(half, order, orders[cell], -1),
        )
        return found._replace(training_state=kept)

    return change


add(
    "zState in another order",
    Variation(forward=saved_in({"lstm": "ozfi", "gru": "orz"}, flagged=False)),
    {
        "LSTM: zState": "activated gates, order o z f i",
        "GRU: zState": "activated gates, order o r z",
    },
)
add(
    "zState always in the default order",
    Variation(forward=saved_in({"lstm": "ifzo", "gru": "zro"}, flagged=True)),
    {
        "LSTM: zState, forgetGateLast": "activated gates, order i f z o",
        "GRU: zState, resetGateFirst": "activated gates, order z r o",
    },
)


def saving(what: str) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """A GRU that saves the recurrent term in o's place with resetAfter."""

    def step(
        options: Options, view: Tensors, t: int, h: Tensor, c: Tensor, trace: oracle.Trace
    ) -> tuple[Tensor, Tensor, Tensor]:
        new, c, saved = oracle.gru_step(options, view, t, h, c, trace)
        if not options["reset_after"]:
            return new, c, saved
        order = oracle.gate_order("gru", options)
        gates = dict(zip(order, blocks(saved, 3, 1), strict=True))
        Ro = blocks(view["R"], 3, 0)[order.index("o")]
        term = (h * view["m"][t]) @ Ro.T + view["b2"]
        gates["o"] = term * gates["r"] if what == "after" else term
        return new, c, torch.cat([gates[name] for name in order], dim=1)

    return step


for when in ("before", "after"):
    add(
        f"zState with the term {when} the reset",
        Variation(steps={"gru": saving(when)}),
        {"GRU: zState, resetAfter": f"the recurrent term {when} the reset"},
    )

# --- gate orders


def weights_in(orders: dict[str, str]) -> Callable[..., Tensors]:
    """W, R, b and p read in another order than the default one."""

    def change(cell: str, options: Options, tensors: Tensors) -> Tensors:
        flag = options.get("forget_gate_last") or options.get("reset_gate_first")
        if cell == "rnn" or flag:
            return tensors
        wanted = oracle.gate_order(cell, options)

        def turn(tensor: Tensor, axis: int) -> Tensor:
            return reordered(tensor, orders[cell], wanted, axis)

        made = dict(tensors)
        for name in {"input_weight", "bias", "peephole", "recurrent_weight"} & tensors.keys():
            stacked = name == "recurrent_weight" or (name == "peephole" and tensors[name].ndim == 2)
            if options["bidirectional"] and stacked:
                made[name] = turn(tensors[name], 1)
            else:
                made[name] = each_half(options, tensors[name], 0, lambda half: turn(half, 0))
        return made

    return change


add(
    "weights in another order",
    Variation(tensors=weights_in({"lstm": "fizo", "gru": "ozr"})),
    {"LSTM: gate order": "f i z o", "GRU: gate order": "o z r"},
)


def without_flag(name: str) -> Callable[..., Options]:
    return lambda cell, options, _: {n: 0 if n == name else v for n, v in options.items()}


add(
    "forgetGateLast does nothing",
    Variation(options=without_flag("forget_gate_last")),
    {
        "LSTM: gate order, forgetGateLast": "i f z o",
        "LSTM: zState, forgetGateLast": "activated gates, order i f z o",
        "LSTM: peephole, forgetGateLast": "i f z o",
    },
)
add(
    "resetGateFirst does nothing",
    Variation(options=without_flag("reset_gate_first")),
    {
        "GRU: gate order, resetGateFirst": "z r o",
        "GRU: zState, resetGateFirst": "activated gates, order z r o",
    },
)

# --- GRU

KEEPS, RENEWS = "z·h[t-1] + (1-z)·o", "(1-z)·h[t-1] + z·o"


@case("the other flipZ", "options", {"GRU: flipZ = NO": RENEWS, "GRU: flipZ = YES": KEEPS})
def flipped(cell: str, options: Options, _: Any) -> Options:
    return {**options, "flip_z": 1 - options["flip_z"]} if cell == "gru" else options


add(
    "flipZ does nothing",
    Variation(options=without_flag("flip_z")),
    {"GRU: flipZ = YES": KEEPS},
)


def bias_of_o(options: Options, tensors: Tensors) -> Tensors:
    """b2 as a part of o's bias."""
    order = oracle.gate_order("gru", options)
    b2 = blocks(tensors["secondary_bias"], 2 if options["bidirectional"] else 1, 0)
    halves = blocks(tensors["bias"], len(b2), 0)
    made = []
    for half, own in zip(halves, b2, strict=True):
        parts = blocks(half, 3, 0)
        parts[order.index("o")] = parts[order.index("o")] + own
        made += parts
    rest = {n: v for n, v in tensors.items() if n != "secondary_bias"}
    return {**rest, "bias": torch.cat(made)}


@case(
    "b2 outside the reset",
    "tensors",
    {"GRU: secondaryBias": "outside of it: ((h[t-1]·m)Ro^T)·r + b2"},
)
def b2_outside(cell: str, options: Options, tensors: Tensors) -> Tensors:
    if "secondary_bias" not in tensors or not options["reset_after"]:
        return tensors
    return bias_of_o(options, tensors)


@case("b2 nowhere", "tensors", {"GRU: secondaryBias": "nowhere"})
def b2_nowhere(cell: str, options: Options, tensors: Tensors) -> Tensors:
    return {n: v for n, v in tensors.items() if n != "secondary_bias"}


def b2_without_reset(cell: str, options: Options, tensors: Tensors) -> Tensors:
    if "secondary_bias" not in tensors or options["reset_after"]:
        return tensors
    return bias_of_o(options, tensors)


def reset_before(
    options: Options, view: Tensors, t: int, h: Tensor, c: Tensor, trace: oracle.Trace
) -> tuple[Tensor, Tensor, Tensor]:
    plain = {**options, "reset_after": 0}
    place = oracle.gate_order("gru", options).index("o")
    bias = blocks(view["b"], 3, 0)
    bias[place] = bias[place] + (view["b2"] if options["reset_after"] else 0)
    return oracle.gru_step(plain, {**view, "b": torch.cat(bias)}, t, h, c, trace)


add(
    "resetAfter resets before",
    Variation(steps={"gru": reset_before}),
    {"GRU: resetAfter": "(h[t-1]·r·m)Ro^T", "GRU: secondaryBias": NOTHING},
)
add(
    "b2 without resetAfter is ignored",
    Variation(accepts=frozenset({"secondary_bias"})),
    {"GRU: secondaryBias without resetAfter": "nothing"},
)
add(
    "b2 without resetAfter is added",
    Variation(accepts=frozenset({"secondary_bias"}), tensors=b2_without_reset),
    {"GRU: secondaryBias without resetAfter": "it is added"},
)

# --- LSTM


@case("initCell is h[-1]", "tensors", {"LSTM: initCell": "no: they are swapped"})
def exchanged(cell: str, options: Options, tensors: Tensors) -> Tensors:
    if cell != "lstm":
        return tensors
    other = {"init_state": "init_cell", "init_cell": "init_state"}
    return {other.get(name, name): value for name, value in tensors.items()}


def on_the_new_cell(cell: str, options: Options, _: Any) -> Options:
    return {**options, "peephole_on_new_cell": 1}


def no_peephole_on_z(step: Any) -> Any:
    def without(options: Options, view: Tensors, *rest: Any) -> Any:
        p = blocks(view["p"], 4, 0)
        place = oracle.gate_order("lstm", options).index("z")
        p[place] = p[place] * 0
        return step(options, {**view, "p": torch.cat(p)}, *rest)

    return without


no_z = {"lstm": no_peephole_on_z(oracle.lstm_step)}
for label, variation in {
    "c[t-1], but o looks at c[t]": Variation(options=on_the_new_cell),
    "c[t-1], from i, f and o only": Variation(steps=no_z),
    "c[t-1] from i and f, c[t] from o": Variation(options=on_the_new_cell, steps=no_z),
}.items():
    add(f"peephole: {label}", variation, {"LSTM: peephole": label})


@case("peephole always i f z o", "tensors", {"LSTM: peephole, forgetGateLast": "i f z o"})
def fixed_peephole(cell: str, options: Options, tensors: Tensors) -> Tensors:
    if "peephole" not in tensors or not options["forget_gate_last"]:
        return tensors
    return changed(tensors, {"peephole"}, lambda p: reordered(p, "ifzo", "izfo", 0))


@case(
    "peephole of the reverse direction first",
    "tensors",
    {"LSTM: peephole of shape [2,4H]": "the reverse direction, then the forward one"},
)
def flipped_peephole(cell: str, options: Options, tensors: Tensors) -> Tensors:
    stacked = "peephole" in tensors and tensors["peephole"].ndim == 2
    return changed(tensors, {"peephole"}, lambda p: p.flip(0)) if stacked else tensors


@case(
    "peephole of eight gates side by side",
    "tensors",
    {"LSTM: peephole of shape [8H]": "the directions of each gate side by side"},
)
def flat_peephole(cell: str, options: Options, tensors: Tensors) -> Tensors:
    if not options["bidirectional"] or "peephole" not in tensors or tensors["peephole"].ndim == 2:
        return tensors

    def turn(p: Tensor) -> Tensor:
        return p.reshape(4, 2, -1).transpose(0, 1).reshape(-1)

    return changed(tensors, {"peephole"}, turn)


# --- what is returned


def training_alone(letters: str, cell: str) -> Callable[[str, Options], str]:
    def chosen(kind: str, options: Options) -> str:
        alone = kind == cell and options["training"] and not options.get("produce_cell")
        return letters if alone else outputs(kind, options)

    return chosen


for letters, label in {"hz": "h, zState", "hc": "h, c", "h": "h"}.items():
    add(
        f"LSTM: training returns {label}",
        Variation(outputs=training_alone(letters, "lstm")),
        {"LSTM: outputs with training": label},
    )


@case("produceCell returns h", "outputs", {"LSTM: produceCell": "h"})
def no_cell(cell: str, options: Options) -> str:
    found = outputs(cell, options)
    return "h" if found == "hc" else found


@case("zState without training", "outputs", every("outputs without training", "h, zState"))
def always_zstate(cell: str, options: Options) -> str:
    found = outputs(cell, options)
    return "hz" if found == "h" else found


# --- masks

PLAIN = dict(oracle.STEPS)


def then(step: Any, before: Any = None, after: Any = None) -> Any:
    """A step with its states changed before it, or its new state after it."""

    def made(
        options: Options, view: Tensors, t: int, h: Tensor, c: Tensor, trace: oracle.Trace
    ) -> Any:
        m = view["m"][t]
        if before:
            h, c, view = before(h, c, m, view)
        new, c, saved = step(options, view, t, h, c, trace)
        return after(new, m) if after else new, c, saved

    return made


def without_mask(view: Tensors) -> Tensors:
    return {**view, "m": torch.ones_like(view["m"])}


def masked_output(step: Any) -> Any:
    return then(step, before=lambda h, c, m, view: (h, c, without_mask(view)), after=torch.mul)


add(
    "mask on the output",
    Variation(steps={name: masked_output(step) for name, step in oracle.STEPS.items()}),
    every("mask", "on h[t], the output"),
)
add(
    "mask on the cell too",
    Variation(
        steps={"lstm": then(oracle.lstm_step, before=lambda h, c, m, view: (h, c * m, view))}
    ),
    {"LSTM: mask": "on h[t-1] before R, and on c[t-1]"},
)
add(
    "mask in the blend too",
    Variation(
        steps={
            "gru": then(
                oracle.gru_step, before=lambda h, c, m, view: (h * m, c, without_mask(view))
            )
        }
    ),
    {"GRU: mask": "on h[t-1] before R, and in the blend"},
)


def mask_after(kind: str) -> Any:
    """The recurrent term is computed first, then masked, and goes in as a part of the input."""

    def step(
        options: Options, view: Tensors, t: int, h: Tensor, c: Tensor, trace: oracle.Trace
    ) -> Any:
        gates = GATES[kind]
        term = (h @ view["R"].T) * view["m"][t].repeat(1, gates)
        x: Any = {t: oracle.input_term(view, t, slice(None)) + term}
        rest = {n: v for n, v in view.items() if n != "W"}
        alone = {**rest, "x": x, "R": torch.zeros_like(view["R"])}
        return PLAIN[kind](options, alone, t, h, c, trace)

    return step


add(
    "mask after R",
    Variation(steps={kind: mask_after(kind) for kind in ("rnn", "lstm")}),
    every("mask", "after R: (h[t-1]R^T)·m", "RNN LSTM"),
)


@case("mask in processing order, reverse", "mask", every("mask, reverse", STEP))
def mask_in_processing_order(cell: str, options: Options, tensors: Tensors) -> Tensors:
    if "mask" not in tensors or not options["reverse"] or options["bidirectional"]:
        return tensors
    return changed(tensors, {"mask"}, lambda m: m.flip(0))


@case("mask in processing order, bidirectional", "mask", every("mask, bidirectional", STEP))
def mask_in_processing_order_both(cell: str, options: Options, tensors: Tensors) -> Tensors:
    if "mask" not in tensors or not options["bidirectional"]:
        return tensors

    def turn(m: Tensor) -> Tensor:
        forth, back = blocks(m, 2, -1)
        return torch.cat([forth, back.flip(0)], dim=-1)

    return changed(tensors, {"mask"}, turn)


@case(
    "small masks are ignored",
    "mask",
    *(every(f"mask of shape {shape}", "it is ignored") for shape in ("[1,N,H]", "[T,1,1]", "[H]")),
)
def only_whole_masks(cell: str, options: Options, tensors: Tensors) -> Tensors:
    steps, mask = len(tensors["source"]), tensors.get("mask")
    if mask is None or mask.ndim == 2:
        return tensors
    if mask.ndim == 3 and len(mask) == steps and mask.shape[2] > 1:
        return tensors
    return {n: v for n, v in tensors.items() if n != "mask"}


@case(
    "mask of two axes is for steps",
    "mask",
    every("mask of shape [N,H]", "[T,H], for the whole batch"),
)
def mask_of_steps(cell: str, options: Options, tensors: Tensors) -> Tensors:
    return changed(tensors, {"mask"}, lambda m: m[:, None] if m.ndim == 2 else m)


# --- directions


def in_input_order(names: Iterable[str]) -> Callable[..., oracle.Forward]:
    def change(cell: str, options: Options, found: oracle.Forward) -> oracle.Forward:
        if not options["reverse"] or options["bidirectional"]:
            return found
        turned = {n: getattr(found, n) for n in names}
        return found._replace(**{n: v.flip(0) for n, v in turned.items() if v is not None})

    return change


add(
    "reverse in input order",
    Variation(forward=in_input_order(("state", "cell", "training_state"))),
    every("reverse", "input order"),
)
add(
    "reverse, h in input order",
    Variation(forward=in_input_order(("state",))),
    every("reverse", "h in input order, the others in processing order"),
)


def halves(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Any:
    def turn(cell: str, options: Options, found: oracle.Forward) -> oracle.Forward:
        if not options["bidirectional"]:
            return found
        names = [n for n in ("state", "cell", "training_state") if getattr(found, n) is not None]
        made = {n: torch.cat(change(*blocks(getattr(found, n), 2, -1)), dim=-1) for n in names}
        return found._replace(**made)

    return turn


for label, change in {
    "reverse half first, both in input order": lambda a, b: (b, a),
    "forward half first, the reverse one in processing order": lambda a, b: (a, b.flip(0)),
    "reverse half first, in processing order": lambda a, b: (b.flip(0), a),
}.items():
    last = every("stateGradient, bidirectional", NOTHING) if label.startswith("forward") else {}
    add(label, Variation(forward=halves(change)), every("bidirectional", label), last)


def swapped(names: set[str]) -> Callable[..., Tensors]:
    def change(cell: str, options: Options, tensors: Tensors) -> Tensors:
        if not options["bidirectional"]:
            return tensors

        def turn(name: str, tensor: Tensor) -> Tensor:
            axis = -1 if name.startswith("init") else 0
            return torch.cat(blocks(tensor, 2, axis)[::-1], dim=axis)

        return {n: turn(n, v) if n in names else v for n, v in tensors.items()}

    return change


@case(
    "weights of two directions side by side",
    "tensors",
    every(
        "weights, bidirectional", "the directions of each gate side by side (W and b)", "LSTM GRU"
    ),
)
def gates_side_by_side(cell: str, options: Options, tensors: Tensors) -> Tensors:
    if not options["bidirectional"] or cell == "rnn":
        return tensors

    def turn(tensor: Tensor) -> Tensor:
        parts = blocks(tensor, 2 * GATES[cell], 0)
        return torch.cat(parts[::2] + parts[1::2])

    return changed(tensors, {"input_weight", "bias"}, turn)


@case(
    "zState of two directions side by side",
    "forward",
    every("zState, bidirectional", "the directions of each gate side by side"),
)
def zstate_side_by_side(cell: str, options: Options, found: oracle.Forward) -> oracle.Forward:
    if not options["bidirectional"] or cell == "rnn":
        return found
    count = GATES[cell]
    parts = blocks(found.training_state, 2 * count, -1)
    pairs = [part for k in range(count) for part in (parts[k], parts[count + k])]
    return found._replace(training_state=torch.cat(pairs, dim=-1))


add(
    "initial states of the reverse direction first",
    Variation(tensors=swapped({"init_state", "init_cell"})),
    every("initial states, bidirectional", "the second"),
)
add(
    "weights of the reverse direction first",
    Variation(tensors=swapped({"input_weight", "recurrent_weight", "bias"})),
    every("weights, bidirectional", "the reverse direction, then the forward one"),
)

# --- gradients


def gradient_order(orders: dict[str, str]) -> Callable[..., Any]:
    def change(cell: str, options: Options, found: dict[str, Any]) -> dict[str, Any]:
        names = orders.get(cell, ORDER[cell]).split()
        return {name: found[name] for name in names if name in found}

    return change


FRONT = "source recurrent_weight input_weight bias"
for orders, findings in (
    (
        {
            "rnn": "source recurrent_weight init_state input_weight bias",
            "lstm": f"{FRONT} init_state init_cell peephole",
            "gru": f"{FRONT} secondary_bias init_state",
        },
        {
            "RNN: gradients": "initState before inputWeight",
            "LSTM: gradients": "peephole last",
            "GRU: gradients": "secondaryBias before initState",
        },
    ),
    (
        {"lstm": f"{FRONT} peephole init_cell init_state"},
        {"LSTM: gradients": "initCell before initState"},
    ),
    (
        {"rnn": FRONT, "lstm": f"{FRONT} peephole", "gru": f"{FRONT} secondary_bias"},
        {
            "RNN: gradients": "without initState",
            "LSTM: gradients": "without the initial states",
            "GRU: gradients": "without initState",
        },
    ),
):
    name = "gradients: " + ", ".join(dict.fromkeys(findings.values()))
    add(name, Variation(gradients=gradient_order(orders)), findings)


@case("a gradient for nil", "gradients", every("gradients of nil", "yes"))
def a_slot_for_all(cell: str, options: Options, found: dict[str, Any]) -> dict[str, Any]:
    return {name: name if name in found else "zeros" for name in ORDER[cell].split()}


def source_in_processing_order(cell: str, options: Options, found: dict[str, Any]) -> Any:
    if not options["reverse"] or "source" not in found:
        return found
    return {**found, "source": ("source", lambda gradient: gradient[::-1])}


def incoming_flipped(cell: str, options: Options, incoming: Tensors) -> Tensors:
    if not options["reverse"]:
        return incoming
    return changed(incoming, {"source_gradient"}, lambda gradient: gradient.flip(0))


for label, made in {
    "sourceGradient like h, source's gradient in processing order": Variation(
        gradients=source_in_processing_order
    ),
    "sourceGradient opposite to h, source's gradient like source": Variation(
        incoming=incoming_flipped
    ),
    "sourceGradient opposite to h, source's gradient in processing order": Variation(
        gradients=source_in_processing_order, incoming=incoming_flipped
    ),
}.items():
    add(label, made, every("gradients, reverse", label))


def state_gradient_first(cell: str, options: Options, incoming: Tensors) -> Tensors:
    rest = {n: v for n, v in incoming.items() if n != "state_gradient"}
    if "state_gradient" in incoming and len(rest["source_gradient"]):
        steps = rest["source_gradient"].clone()
        steps[0] += incoming["state_gradient"].reshape(steps[0].shape)
        rest["source_gradient"] = steps
    return rest


def cell_gradient_first(cell: str, options: Options, incoming: Tensors) -> Tensors:
    steps = incoming["source_gradient"]
    gradient = incoming.get("cell_gradient")
    if gradient is None or gradient.shape == steps.shape:
        return incoming
    whole = torch.zeros_like(steps)
    whole[0] = gradient.reshape(steps[0].shape)
    return {**incoming, "cell_gradient": whole}


@case(
    "cellGradient's last row",
    "incoming",
    {"LSTM: cellGradient of shape [T,N,H]": "only its last row counts"},
)
def last_row_of_cells(cell: str, options: Options, incoming: Tensors) -> Tensors:
    gradient = incoming.get("cell_gradient")
    if gradient is None or gradient.shape != incoming["source_gradient"].shape:
        return incoming
    return {**incoming, "cell_gradient": gradient[-1]}


@case(
    "stateGradient at T-1", "incoming", every("stateGradient, bidirectional", "both halves at T-1")
)
def at_the_end_of_both(cell: str, options: Options, incoming: Tensors) -> Tensors:
    if not options["bidirectional"] or "state_gradient" not in incoming:
        return incoming
    steps = incoming["source_gradient"].clone()
    steps[-1] += incoming["state_gradient"]
    return {"source_gradient": steps}


def dropping(name: str) -> Callable[..., Tensors]:
    def change(cell: str, options: Options, incoming: Tensors) -> Tensors:
        gradient = incoming.get(name)
        if gradient is None or (gradient.ndim == 3 and len(gradient) > 1):
            return incoming
        return {n: v for n, v in incoming.items() if n != name}

    return change


FORMS = ("[N,H]", "[1,N,H]")
FIRST, IGNORED = "it is added at the first processed step", "it is ignored"
for title, variation, label, finding in (
    ("first", Variation(incoming=state_gradient_first), "stateGradient", FIRST),
    ("ignored", Variation(incoming=dropping("state_gradient")), "stateGradient", IGNORED),
    ("first", Variation(incoming=cell_gradient_first), "cellGradient", FIRST),
    ("ignored", Variation(incoming=dropping("cell_gradient")), "cellGradient", IGNORED),
):
    found = [every(f"{label} of shape {form}", finding) for form in FORMS]
    if label == "stateGradient":
        found.append(every("stateGradient, bidirectional", NOTHING))
    add(f"{label} {title}", variation, *found)

# --- limits

for name, label in {
    "recurrent_weight": "R",
    "input_weight": "W",
    "init_state": "initState",
}.items():
    add(
        f"{label} is transposed",
        Variation(accepts=frozenset({name})),
        {f"LSTM: {label} of a wrong shape": "it is taken as its transpose"},
    )
add(
    "two float types are computed",
    Variation(accepts=frozenset({"two types"})),
    {"LSTM: two float types": "it is computed"},
)
for number, label in {0: "it means none", 2: "it means tanh"}.items():

    class Lenient(pyobjc.MPSGraphLSTMDescriptor):  # type: ignore[misc]
        number = number

        def setActivation_(self, value: int) -> None:
            super().setActivation_(self.number if value == 9 else value)

    add(
        f"activation 9: {label}",
        Variation(descriptors={"MPSGraphLSTMDescriptor": Lenient}),
        {"LSTM: an activation outside the five": label},
    )


def nothing_empty(cell: str, options: Options, tensors: Tensors) -> Tensors:
    if not tensors["source"].numel():
        raise RefusedError("an empty source")
    return tensors


NOT_EMPTY = Variation(tensors=nothing_empty)


# What changes the meaning of each other's findings.
APART = {
    frozenset({"weights in another order", "forgetGateLast does nothing"}),
    frozenset({"weights in another order", "resetGateFirst does nothing"}),
    frozenset({"zState in another order", "forgetGateLast does nothing"}),
    frozenset({"zState in another order", "resetGateFirst does nothing"}),
    frozenset({"zState before the activations", "zState with the term before the reset"}),
    frozenset({"zState before the activations", "zState with the term after the reset"}),
    frozenset({"forward half first, the reverse one in processing order", "stateGradient at T-1"}),
    frozenset({"reverse half first, in processing order", "stateGradient at T-1"}),
}


def together() -> list[tuple[tuple[str, ...], Variation, Expected]]:
    """The variations in few stand-ins, each with several that change different things."""
    groups: list[tuple[tuple[str, ...], Variation, Expected]] = []
    for name, (variation, expected) in VARIATIONS.items():
        own = changes(variation)
        for k, (names, made, found) in enumerate(groups):
            clash = own & changes(made) or expected.keys() & found.keys()
            if clash or any(frozenset({name, other}) in APART for other in names):
                continue
            merged = replace(made, **{part: getattr(variation, part) for part in own})
            groups[k] = (*names, name), merged, {**found, **expected}
            break
        else:
            groups.append(((name,), variation, expected))
    return groups


def changes(variation: Variation) -> set[str]:
    """What a variation changes."""
    names = [part.name for part in fields(Variation)]
    return {name for name in names if getattr(variation, name) != getattr(Variation(), name)}
