"""Scan nodes whose body is one step of a cell as recurrent nodes: the graph has no loops.

Equations of a built-in cell become its node, all others that of a cell from equations.
H hidden units, d units of a head, G gates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import product
from keyword import iskeyword
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ..arrays import NUMPY
from ..cells import CELLS, Cell, MadeCell
from ..cells.expressions import Book, Expression
from ..cells.text import read_cell, text_of
from ..cells.tracing import Trace, trace
from ..descriptors import Activation
from ..errors import OptionError, refusal
from ..graph import Tensor
from .node import Node
from .scan_body import Body, Outer, other

_KINDS = {kind.name.lower(): kind for kind in Activation}


class _Layer(NamedTuple):
    """What the equations of a body are a step of."""

    cell: Cell | MadeCell
    options: dict[str, Any]
    blocks: list[str | None]  # of R, in the order of the gates
    own: dict[str, list[str]]  # the body's parameters that make up one of the cell's


def scan(node: Node) -> list[Tensor | None]:
    """The last states [N,H], and the states of all steps [T,N,H]."""
    body, g = Body(node), node.graph
    layer = _built_in(body) or _from_equations(body)
    is_reverse = _directions(node, "scan_input_directions", len(node.inputs) - body.places)
    is_flipped = _directions(node, "scan_output_directions", len(body.names))
    tensors = {role: node.tensor(body.places + place) for role, place in body.roles.items()}
    if "reset" in tensors:
        # They are those of the direction already: so it is made the forward one.
        if is_reverse:
            tensors = {role: g.reverse(each, axes=[0]) for role, each in tensors.items()}
        is_reverse = False
        tensors["resets"] = g.squeeze(tensors.pop("reset"), axes=[2]) > 0.0
    tensors["source"] = tensors.pop("gates")
    found = _call(body, layer, tensors, is_reverse)
    last = [g.squeeze(g.slice_tensor(each, 0, -1, 1), axes=[0]) for each in found]
    steps = [g.reverse(each, axes=[0]) if is_flipped else each for each in found]
    return [*(node.tensor(k) for k in range(body.first)), *last, *steps]


def _call(
    body: Body, layer: _Layer, tensors: dict[str, Tensor], is_reverse: bool
) -> Sequence[Tensor]:
    """The states of all steps."""
    node, cell = body.node, layer.cell
    definition = cell if isinstance(cell, Cell) else cell.definition
    heads = next(iter(body.heads), body.hidden)  # a diagonal of zeros if there is no product
    tensors["recurrent_weight"] = _weight(body, layer.blocks, heads, tensors["source"].dtype)
    for place, state in enumerate(definition.states, body.first):
        tensors[state.initial] = node.tensor(place)
    for name, parts in layer.own.items():
        tensors[name] = _parameter(body, parts)
    named: dict[str, Any] = {**tensors, "heads": heads, "name": node.name or None}
    if isinstance(cell, MadeCell):
        return node.graph.recurrent(cell, **named, reverse=is_reverse)
    every = {cell.keeps_states: True} if cell.keeps_states else {}
    descriptor = cell.descriptor(**layer.options, **every, reverse=is_reverse)
    found: Sequence[Tensor] = getattr(node.graph, cell.name)(**named, descriptor=descriptor)
    return found


def _weight(body: Body, blocks: Sequence[str | None], heads: int, dtype: str) -> Tensor:
    """R [G·H,H], with heads [heads,G·d,d]; zeros for a gate without a product."""
    g, units = body.node.graph, body.hidden // heads
    shape = (units, units) if heads == 1 else (heads, units, units)
    # As large as what the file holds; else the run makes them, for H may be any number.
    is_held = any(block in body.node.owner.arrays for block in blocks)
    zeros = g.constant(np.zeros(shape if is_held else (), NUMPY.dtype(dtype)))
    found = []
    for block in blocks:
        if block is None:
            found.append(zeros if is_held else g.broadcast(zeros, shape))
        elif heads > 1 and units == 1:  # a row [1,H]
            found.append(g.reshape(body.tensor(block), shape))
        else:
            found.append(g.transpose(body.tensor(block), [1, 0] if heads == 1 else [0, 2, 1]))
    return found[0] if len(found) == 1 else g.concat_tensors(found, axis=len(shape) - 2)


def _parameter(body: Body, names: Sequence[str]) -> Tensor:
    """A parameter of the cell; of one per gate, the whole or what its parts make up."""
    windows = [next(key for key, name in body.own.items() if name == each) for each in names]
    whole, hidden = body.tensor(windows[0].name), body.hidden
    places = [Outer(windows[0].name, k * hidden) for k in range(len(names))]
    if windows[0].start is None and len(names) == 1:
        return whole
    if windows == places and whole.shape == (len(names) * hidden,):
        return whole
    g = body.node.graph
    parts = [
        body.tensor(name) if start is None else g.slice_tensor(body.tensor(name), 0, start, hidden)
        for name, start in windows
    ]
    return parts[0] if len(parts) == 1 else g.concat_tensors(parts, axis=0)


@lru_cache(maxsize=1)
def forms() -> list[tuple[Cell, dict[str, bool], tuple[Expression, ...]]]:
    """The built-in cells' equations, with every option and parameter that changes them.

    An activation is an operation by the name of its option.
    """
    found = []
    for cell in CELLS:
        usual, order = vars(cell.usual), (cell.other_order or ("",))[0]
        others = ("reverse", "bidirectional", "training", cell.keeps_states, order)
        switches = [name for name, said in usual.items() if said is False and name not in others]
        marks = [SimpleNamespace(name=name) for name in cell.descriptor.activation_fields]
        for chosen in product((False, True), repeat=len(switches) + len(cell.own)):
            options = dict(zip(switches, chosen, strict=False))
            own = [p for p, has in zip(cell.own, chosen[len(switches) :], strict=True) if has]
            if not all(options.get(each.only_with, True) for each in own) or any(
                each.required and each not in own for each in cell.own
            ):
                continue
            described = SimpleNamespace(**{**usual, **options}, activations=marks)
            states = tuple(each.name for each in cell.states)
            by_gate = {each.name: each.by_gate for each in own}
            text = trace(cell.equations, cell.gates, states, by_gate, described, False)
            found.append((cell, options, text.states))
    return found


def _built_in(body: Body) -> _Layer | None:
    """The built-in cell whose equations these are."""
    for cell, options, states in forms():
        match = Match(cell)
        is_same = len(states) == len(body.after) and all(map(match.same, states, body.after))
        layer = _bound(body, cell, options, match) if is_same else None
        if layer is not None:
            return layer
    return None


class Match:
    """Whether equations are those of a cell, and what its names mean in them: its activations, its
    leaves, and R of each gate. With ``commutes``, operands may be swapped."""

    def __init__(self, cell: Cell, *, commutes: bool = False) -> None:
        self._fields, self._commutes = frozenset(cell.descriptor.activation_fields), commutes
        self.bound: dict[Any, Any] = {}

    @property
    def activations(self) -> dict[str, Activation]:
        return {name: self.bound[name] for name in self._fields & self.bound.keys()}

    @property
    def own(self) -> dict[tuple[str, ...], Any]:
        """What the cell's own parameters are, by name, with a gate where there is one for each."""
        return {key[1:]: found for key, found in self.bound.items() if key[:1] == ("own",)}

    def same(self, wanted: Expression, found: Expression) -> bool:
        if wanted.op in self._fields:
            kind = _KINDS.get(found.op, Activation.NONE)
            inner = found if kind is Activation.NONE else found.args[0]
            return self._bind(wanted.op, kind) and self.same(wanted.args[0], inner)
        if (wanted.op, len(wanted.args)) != (found.op, len(found.args)):
            return False
        if wanted.op == "leaf":
            kind, name = found.detail
            return kind == wanted.detail[0] and self._bind(wanted.detail, name)
        if wanted.op == "product":
            is_same = self._bind(("R", wanted.detail), found.detail)
        else:
            is_same = wanted.detail == found.detail
        if not is_same:
            return False
        before = dict(self.bound)
        if all(map(self.same, wanted.args, found.args)):
            return True
        self.bound = before
        turned = self._commutes and wanted.op in ("add", "multiply")
        return turned and all(map(self.same, wanted.args, found.args[::-1]))

    def _bind(self, name: Any, value: Any) -> bool:
        return bool(self.bound.setdefault(name, value) == value)


def _bound(body: Body, cell: Cell, options: Mapping[str, Any], match: Match) -> _Layer | None:
    """A cell with the meaning of its names; None if its gates or states are in another order."""
    bound = match.bound
    names = zip(cell.states, body.names, strict=True)
    if any(bound.get(("before", state.name), name) != name for state, name in names):
        return None
    if any(start != 0 for start in body.starts.values()):
        return None
    slots = {bound.get(("x", gate)): gate for gate in cell.gates}
    order = tuple(slots[name] for name in body.gates if name in slots)
    if not len(body.gates) == len(order) == len(cell.gates):
        return None
    switch, turned = cell.other_order or ("", ())
    if order not in (cell.gates, turned):
        return None
    fields = {**options, switch: True} if order == turned else {**options}
    fields |= match.activations
    own: dict[str, list[str]] = {}
    for (name, *_), found in match.own.items():
        own.setdefault(name, []).append(found)
    for each in cell.own:
        if each.by_gate and each.name in own:
            own[each.name] = [bound["own", each.name, gate] for gate in order]
    return _Layer(cell, fields, [bound.get(("R", gate)) for gate in order], own)


def _from_equations(body: Body) -> _Layer:
    """A cell of these equations."""
    gates = _gates_of_blocks(body)
    book, new = Book(), dict[Expression, Expression]()
    for each in body.every:
        detail = gates[each.detail] if each.op == "product" else each.detail
        new[each] = book.make(each.op, tuple(new[arg] for arg in each.args), detail)
    own = [name for name in body.own.values() if body.book.leaf("own", name) in new]
    states = tuple(new[each] for each in body.after)
    steps = Trace(book, tuple(body.gates), tuple(body.names), states, (), {})
    is_name = body.label.isidentifier() and not iskeyword(body.label)
    starts = {name: start for name, start in body.starts.items() if start}
    text = text_of(body.label if is_name else "step", steps, own, initial=starts)
    blocks = {gate: block for block, gate in gates.items()}
    return _Layer(
        read_cell(text), {}, [*map(blocks.get, body.gates)], {name: [name] for name in own}
    )


def _gates_of_blocks(body: Body) -> dict[str, str]:
    """The gate of each part of R: that of the x with which its product is summed, if it may be.

    A gate whose x nothing reads has to have one.
    """
    found: dict[str, str] = {}
    xs: dict[Expression, dict[str, None]] = {}  # in a sum, and without a part of R so far
    parts: dict[Expression, dict[str, None]] = {}  # likewise
    for each in body.every:
        if each.op == "leaf" and each.detail[0] == "x":
            xs[each] = {each.detail[1]: None}
        elif each.op == "product":
            parts[each] = {each.detail: None}
        elif each.op in ("add", "subtract", "multiply", "divide"):
            parts[each] = _left(parts, each, found)
            if each.op in ("add", "subtract"):
                xs[each] = _left(xs, each, found.values())
                found |= dict(zip(parts[each], xs[each], strict=False))
    blocks = dict.fromkeys(each.detail for each in body.every if each.op == "product")
    unread = [gate for gate in body.gates if body.book.leaf("x", gate) not in body.every]
    left = [block for block in blocks if block not in found]
    while found and len(left) < len(unread):
        left.append(found.popitem()[0])
    free = unread + [each for each in body.gates if each not in (*unread, *found.values())]
    if len(left) > len(free):
        raise other("more recurrent weights than gates")
    return found | dict(zip(left, free, strict=False))


def _left(
    of: Mapping[Expression, Mapping[str, None]], each: Expression, taken: Collection[str]
) -> dict[str, None]:
    """What the arguments of a value have, but for what is taken."""
    every = (name for arg in each.args for name in of.get(arg, ()))
    return {name: None for name in every if name not in taken}


def _directions(node: Node, name: str, count: int) -> bool:
    """Whether all of them go backwards; they have to agree, and the first axis be the time."""
    found = node.attribute(name, [0] * count)
    if len(found) != count or len(set(found)) != 1 or found[0] not in (0, 1):
        raise OptionError(refusal("Scan", name, f"{count} equal directions", str(found)))
    return bool(found[0])
