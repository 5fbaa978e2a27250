"""Cells that nobody has written: random equations of the language, and random calls of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from zstate import cells
from zstate.cells import Cell, MadeCell
from zstate.cells.definition import HIDDEN, Parameter, state
from zstate.cells.functions import FUNCTIONS
from zstate.descriptors import Descriptor
from zstate.operations import Operation, operations_of

# Bounded or slowly growing, so that some steps in a row stay in range.
_BOUNDED = ("tanh", "sigmoid", "hard_sigmoid")
_OTHER = ("relu", "softplus", "log_sigmoid", "abs", "maximum", "minimum", "where", "divide", "sqrt")


@dataclass(frozen=True, eq=True, unsafe_hash=False)
class PlainDescriptor(Descriptor):
    """No options but the common ones."""

    reverse: bool = False
    bidirectional: bool = False
    training: bool = False
    heads: int = 1

    __hash__ = Descriptor.__hash__


def function(name, *args):
    """A function of the table on symbols."""
    return args[-1].book.operation(str(name), *args)


def make(rng: np.random.Generator, smooth: bool = False, means: float = 0.0) -> Cell:
    """A cell of 1 to 4 states, 1 to 5 gates, one or two phases, and up to two parameters.

    ``means``: how often a value is centred or scaled over the units of its row."""
    gates = tuple("abcde"[: rng.integers(1, 6)])
    states = (HIDDEN, *(state(name) for name in ("cell", "third", "fourth")[: rng.integers(0, 4)]))
    own = [Parameter("shift"), Parameter("scale", by_gate=True)]
    own = tuple(each for each in own if rng.random() < 0.4)
    seed = int(rng.integers(2**60))

    def equations(at, *before):
        reduces = _Reduces(np.random.default_rng(seed + 1), means)
        return _equations(np.random.default_rng(seed), at, before, smooth, reduces)

    return Cell("made_up", gates, PlainDescriptor, equations, states=states, own=own)


def make_by_decorator(rng: np.random.Generator, smooth: bool = False) -> MadeCell:
    """Such a cell as users make them: its parameters by gate are one parameter per gate."""
    gates, states = "abcde"[: rng.integers(1, 6)], "hcnm"[: rng.integers(1, 5)]
    own = [name for name in ("shift", *(f"scale_{gate}" for gate in gates)) if rng.random() < 0.4]
    start = {name: float(rng.normal()) for name in states if rng.random() < 0.3}
    seed = int(rng.integers(2**60))

    def made_up(x, R, *values):
        before, given = values[: len(states)], dict(zip(own, values[len(states) :], strict=True))
        scale = {gate: given.get(f"scale_{gate}", 0.25) for gate in gates}
        at = SimpleNamespace(x=x, R=R, own={"scale": scale} | given)
        after = list(_equations(np.random.default_rng(seed), at, before, smooth))
        after[-1] = sum((0.1 * value for value in given.values()), after[-1])  # uses every one
        return tuple(after)

    kind = inspect.Parameter.POSITIONAL_ONLY
    listed = [inspect.Parameter(name, kind) for name in ("x", "R", *states, *own)]
    made_up.__signature__ = inspect.Signature(listed)
    return cells.cell(" ".join(gates), " ".join(states), " ".join(own), initial=start)(made_up)


class _Reduces:
    """Puts means and variances into some values, now and then together with an earlier one."""

    def __init__(self, rng, share=0.0):
        self._rng, self._share, self._earlier = rng, share, []

    def __call__(self, value):
        self._earlier.append(value)
        if not self._rng.random() < self._share:
            return value
        values = [value]
        if self._rng.random() < 0.5:
            values.append(self._earlier[int(self._rng.integers(len(self._earlier)))])
        # Not the whole mean: equal units would cancel.
        centred = value - 0.5 * function("mean", *values)
        kind = int(self._rng.integers(3))
        if kind == 0:
            return centred
        if kind == 1:
            return centred / function("sqrt", function("mean", centred * centred) + 0.5)
        # By less than 1/2 where the variance is small: differences would grow from step to step.
        return 0.5 * centred / function("sqrt", function("variance", *values) + 1)


def _equations(rng, at, before, smooth, reduces=lambda value: value):
    pool = list(before)
    names = list(at.x._values)
    late = set(rng.choice(names, rng.integers(0, len(names)), replace=False))
    for phase in (0, 1):
        found = []
        for gate in names:
            if (gate in late) != (phase == 1):
                continue
            # What R multiplies has no mean: the native engine refuses that.
            inner = reduces if phase == 1 or not late else lambda value: value
            found.append(_gate(rng, at, gate, pool, before, smooth, inner))
        pool += found
    after = []
    for value in before:
        terms = [reduces(_term(rng, pool, smooth)) for _ in range(rng.integers(1, 3))]
        keep = _bounded(rng, pool) * value
        after.append(sum(terms, keep) * 0.5)
    unused = [each for each in pool[len(before) :] if rng.random() < 1]
    after[0] = function("tanh", sum(unused, after[0]))
    return tuple(after)


def _gate(rng, at, gate, pool, before, smooth, reduces):
    """A gate before or behind its activation, with an operand of its own now and then."""
    kind = rng.random()
    operand = before[0] if kind < 0.5 else _bounded(rng, pool) * before[0]
    uses = rng.choice(["both", "both", "both", "x", "R", "apart"])
    if uses == "x":
        value = at.x[gate]
    elif uses == "R":
        value = at.R[gate] @ operand
    elif uses == "apart":
        value = at.x[gate] + (at.R[gate] @ operand) * _bounded(rng, pool)
    else:
        value = at.x[gate] + at.R[gate] @ operand
    if "shift" in at.own and rng.random() < 0.5:
        value = at.own["shift"] + value
    if "scale" in at.own:
        value = value + at.own["scale"][gate] * before[rng.integers(len(before))]
    return function(rng.choice(_BOUNDED[:2] if smooth else _BOUNDED), reduces(value))


def _bounded(rng, pool):
    return function("sigmoid", pool[rng.integers(len(pool))])


def _term(rng, pool, smooth):
    a, b = (pool[k] for k in rng.integers(len(pool), size=2))
    choices = [name for name in _OTHER if FUNCTIONS[name].smooth or not smooth]
    name = rng.choice([*choices, "multiply", "subtract", "exp", "log"])
    if name == "where":
        return function("where", a > b, a * 0.5, -b)
    if name == "sqrt":
        return function("sqrt", a * a + 0.5)
    if name == "log":
        return function("log", a * a + 0.5)
    if name == "exp":
        return function("exp", function("tanh", a))
    if name == "divide":
        return a / (b * b + 1)
    if name in ("maximum", "minimum", "multiply", "subtract"):
        return function(name, a, b)
    return function(name, a)


def shapes_of_call(
    cell: Cell, sizes: tuple[int, int, int, int], directions: int = 1
) -> dict[str, tuple[int, ...]]:
    """Of everything that a call takes, except resets and values per step; sizes: T, N, I, H."""
    (T, N, I, H), D, G = sizes, directions, len(cell.gates)
    return {
        "source": (T, N, I),
        "recurrent_weight": (D, G * H, H)[2 - D :],
        "input_weight": (D * G * H, I),
        "bias": (D * G * H,),
        "mask": (T, N, D * H),
        **{each.initial: (N, D * H) for each in cell.states},
        **{each.name: (D, G * H)[2 - D :] if each.by_gate else (D * H,) for each in cell.own},
    }


def operations(cell: Cell) -> tuple[Operation, Operation]:
    return operations_of(cell)
