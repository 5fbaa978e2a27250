"""Scan nodes in the form that scan.py writes, as recurrent nodes of the graph.

The body is read from its results back to its inputs, and every value on the way has to be what the
equations say. Any other body is refused: the graph has no loops of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..convert.options import ONNX_VALUES
from ..convert.table import GRU, LSTM, RNN
from ..descriptors import Activation
from ..errors import OptionError, refusal
from ..graph import Tensor
from ..layout import DESCRIPTORS, gate_order
from .loading import Node
from .package import onnx_package
from .recurrent import ROW

_FORMS: list[tuple[str, dict[str, Any]]] = [
    (RNN, {}),
    (LSTM, {}),
    (LSTM, {"forget_gate_last": True}),
    (GRU, {}),
    (GRU, {"reset_gate_first": True}),
]
# By the order of the gates: the cell, and the option that gives it that order.
_ORDERS = {gate_order(DESCRIPTORS[cell](**options)): (cell, options) for cell, options in _FORMS}


def _other(what: str) -> OptionError:
    """The body is not one that scan.py writes."""
    return OptionError(
        refusal("Scan", "body", "one step of a built-in cell as onnx.save writes it", what)
    )


@dataclass(frozen=True)
class _Gate:
    """activation(projected + state·block [+ at·peephole])."""

    activation: Activation
    slot: int  # its place in the projected input
    block: str  # [H,H]
    state: str  # what is multiplied with the block
    at: str = ""  # the cell that a peephole looks at
    peephole: str = ""


class _Body:
    """The nodes of one step by the values that they make."""

    def __init__(self, node: Node, graph: Any) -> None:
        self.node = node
        self.made = {name: (each, k) for each in graph.node for k, name in enumerate(each.output)}
        self.names = [value.name for value in graph.input]
        self.results = [value.name for value in graph.output]
        self.read: set[str] = set()  # the values that were looked at
        self.outside: dict[str, str] = {}  # a state that stays as it is: its name outside
        if graph.initializer or graph.sparse_initializer:
            raise _other("one with initialisers")

    def kind(self, name: str) -> str:
        return str(self.made[name][0].op_type) if name in self.made else ""

    def inputs(self, name: str, kind: str, count: int | None = None) -> list[str]:
        """The inputs of the node that makes a value, which has to be of this kind."""
        if self.kind(name) != kind:
            raise _other(f"{self.kind(name) or 'an input'} where {kind} should be")
        proto = self.made[name][0]
        self.read |= set(proto.output)
        if count is not None and len(proto.input) != count:
            raise _other(f"{kind} of {len(proto.input)} inputs")
        return list(proto.input)

    def pair(self, name: str, kind: str) -> tuple[str, str]:
        first, second = self.inputs(name, kind, 2)
        return first, second

    def active(self, name: str) -> tuple[Activation, str]:
        """An activation and what it is of."""
        activation = ROW.words.get(self.kind(name), Activation.NONE)
        if activation is Activation.NONE:
            return activation, name
        (inner,) = self.inputs(name, self.kind(name), 1)
        helper = onnx_package().helper
        told = {a.name: helper.get_attribute_value(a) for a in self.made[name][0].attribute}
        wanted: dict[str, float] = {}
        if activation is Activation.HARD_SIGMOID:
            wanted = dict(zip(("alpha", "beta"), ONNX_VALUES["hardsigmoid"], strict=True))
        if told.keys() != wanted.keys() or any(
            abs(told[key] - value) > 1e-6 for key, value in wanted.items()
        ):
            raise _other(f"{self.kind(name)} with {told}")
        return activation, inner

    def projected(self, name: str, source: str) -> int:
        """The place of a gate's part of the projected input."""
        taken, _ = self.pair(name, "Split")
        if taken != source:
            raise _other(f"a Split of {taken!r}")
        return int(self.made[name][1])

    def gate(self, name: str, source: str) -> _Gate:
        activation, total = self.active(name)
        value, last = self.pair(total, "Add")
        at = peephole = ""
        if self.kind(last) == "Mul":
            at, peephole = self.pair(last, "Mul")
            value, last = self.pair(value, "Add")
        state, block = self.pair(last, "MatMul")
        return _Gate(activation, self.projected(value, source), block, state, at, peephole)

    def window(self, name: str) -> tuple[str, int, int]:
        """A slice of a vector: what it is of, and its bounds."""
        whole, *bounds = self.inputs(name, "Slice", 4)
        start, stop, axis = (int(self.node.owner.known(bound).item()) for bound in bounds)
        if axis != 0:
            raise _other(f"a Slice of axis {axis}")
        return whole, start, stop

    def plain(self, name: str) -> str:
        """What a value is a copy of."""
        while self.kind(name) == "Identity":
            (name,) = self.inputs(name, "Identity", 1)
        return name

    def constant(self, name: str) -> str:
        """The name, outside, of a value that no step changes."""
        return self.outside.get(name, name)

    def same(self, found: str, wanted: str) -> None:
        if found != wanted:
            raise _other(f"{found!r} where {wanted!r} should be")


def scan(node: Node) -> list[Tensor | None]:
    """The last states [N,H], and the states of all steps [T,N,H], of an LSTM h and c of each."""
    body = _Body(node, node.subgraph("body"))
    sequences = int(node.attribute("num_scan_inputs", 0))
    states = len(node.inputs) - sequences
    if sequences not in (1, 2) or len(body.names) != states + sequences:
        raise _other(f"{len(body.names)} inputs of which {sequences} are sequences")
    results = [body.plain(name) for name in body.results]
    source, mask = body.names[states], body.names[states + 1 :]
    # torch's exporter hands weights in as states that stay what they are.
    first = 0
    while first < states and results[first] == body.names[first]:
        body.outside[body.names[first]] = node.inputs[first]
        first += 1
    carried, results = body.names[first:states], results[first:]
    if len(carried) not in (1, 2) or results != results[: len(carried)] * 2:
        raise _other(f"{len(carried)} states, and outputs that are not they")
    fields, gates, extra = _cell(body, results[: len(carried)], carried, source)
    used = {gate.state for gate in gates.values()} - {extra.get("reset", "")}
    wanted = carried[0]
    if mask:
        (masked,) = used if len(used) == 1 else ("",)
        body.same(body.pair(masked, "Mul")[0], wanted)
        body.same(body.pair(masked, "Mul")[1], mask[0])
    elif used - {wanted}:
        raise _other("a product with something other than the state")
    if not set(body.made) <= body.read:
        raise _other(f"{len(set(body.made) - body.read)} values more")
    found = _call(body, fields, gates, extra, first, len(carried), bool(mask))
    return [*(node.tensor(k) for k in range(first)), *found]


_Cell = tuple[dict[str, Any], dict[str, _Gate], dict[str, str]]


def _cell(body: _Body, results: list[str], states: list[str], source: str) -> _Cell:
    """The descriptor's fields, the gates by letter, and what else there is, by name."""
    if len(states) == 2:
        return _lstm(body, results, states, source)
    if body.kind(results[0]) == "Add" and body.kind(body.pair(results[0], "Add")[0]) == "Mul":
        return _gru(body, results[0], states[0], source)
    gate = body.gate(results[0], source)
    return {"activation": gate.activation}, {"z": gate}, {}


def _lstm(body: _Body, results: list[str], states: list[str], source: str) -> _Cell:
    (h, c), (_, old) = results, states
    kept, new = body.pair(c, "Add")
    f, seen = body.pair(kept, "Mul")
    body.same(seen, old)
    i, z = body.pair(new, "Mul")
    o, active = body.pair(h, "Mul")
    activation, inner = body.active(active)
    body.same(inner, c)
    names = {"i": i, "f": f, "z": z, "o": o}
    gates = {letter: body.gate(name, source) for letter, name in names.items()}
    words = {"i": "input", "f": "forget", "z": "cell", "o": "output"}
    fields: dict[str, Any] = {
        f"{word}_gate_activation": gates[letter].activation for letter, word in words.items()
    }
    fields["activation"] = activation
    extra: dict[str, str] = {}
    if gates["i"].peephole:
        for letter in "ifz":
            body.same(gates[letter].at, old)
        fields["peephole_on_new_cell"] = gates["o"].at != old
        if fields["peephole_on_new_cell"]:
            body.same(gates["o"].at, c)
        whole = body.window(gates["i"].peephole)[0]
        width = body.node.owner.tensor(body.constant(whole)).shape[0] or 0
        for gate in gates.values():
            place = (whole, gate.slot * width // 4, (gate.slot + 1) * width // 4)
            if body.window(gate.peephole) != place:
                raise _other("a peephole in another gate's place")
        extra["peephole"] = whole
    elif any(gate.at for gate in gates.values()):
        raise _other("peepholes on some gates")
    return fields, gates, extra


def _gru(body: _Body, result: str, h: str, source: str) -> _Cell:
    old, new = body.pair(result, "Add")
    keep, seen = body.pair(old, "Mul")
    body.same(seen, h)
    share, candidate = body.pair(new, "Mul")
    flip = body.kind(keep) == "Sub"
    z = share if flip else keep
    one, inner = body.pair(keep if flip else share, "Sub")
    body.same(inner, z)
    if body.node.owner.known(one).tolist() != 1:
        raise _other("a difference from another number than 1")
    update = body.gate(z, source)
    activation, total = body.active(candidate)
    value, last = body.pair(total, "Add")
    slot = body.projected(value, source)
    extra: dict[str, str] = {}
    after = body.kind(last) == "Mul"
    if after:
        last, r = body.pair(last, "Mul")
        if body.kind(last) == "Add":
            last, extra["secondary_bias"] = body.pair(last, "Add")
        state, block = body.pair(last, "MatMul")
    else:
        state, block = body.pair(last, "MatMul")
        inner = state
        if update.state != h:  # it is masked: so is this one
            inner, mask = body.pair(state, "Mul")
            body.same(mask, body.pair(update.state, "Mul")[1])
        old, r = body.pair(inner, "Mul")
        body.same(old, h)
        extra["reset"] = state
    gate = body.gate(r, source)
    fields = {
        "update_gate_activation": update.activation,
        "reset_gate_activation": gate.activation,
        "output_gate_activation": activation,
        "reset_after": after,
        "flip_z": flip,
    }
    return fields, {"z": update, "r": gate, "o": _Gate(activation, slot, block, state)}, extra


def _call(
    body: _Body,
    fields: dict[str, Any],
    gates: dict[str, _Gate],
    extra: dict[str, str],
    first: int,
    states: int,
    has_mask: bool,
) -> list[Tensor | None]:
    """The last states, and the states of all steps; ``first`` is the place of h[-1]."""
    node, owner = body.node, body.node.owner
    g = node.graph
    order = tuple(sorted(gates, key=lambda letter: gates[letter].slot))
    if order not in _ORDERS or {gate.slot for gate in gates.values()} != set(range(len(order))):
        raise _other(f"gates in the order {', '.join(order)}")
    cell, options = _ORDERS[order]
    backwards = _directions(node, "scan_input_directions", 1 + has_mask)
    flipped = _directions(node, "scan_output_directions", states)
    fields = fields | options | ({"produce_cell": True} if cell == LSTM else {})
    descriptor = DESCRIPTORS[cell](**fields, reverse=backwards)
    outside = [owner.tensor(body.constant(gates[letter].block)) for letter in order]
    blocks = [g.transpose(block, [1, 0]) for block in outside]
    tensors = {
        "recurrent_weight": g.concat_tensors(blocks, axis=0) if len(blocks) > 1 else blocks[0],
        "init_state": node.tensor(first),
    }
    if cell == LSTM:
        tensors["init_cell"] = node.tensor(first + 1)
    for name in ("peephole", "secondary_bias"):
        if name in extra:
            tensors[name] = owner.tensor(body.constant(extra[name]))
    if has_mask:
        tensors["mask"] = node.tensor(first + states + 1)
    found: Sequence[Tensor] = getattr(g, cell)(
        node.tensor(first + states), **tensors, descriptor=descriptor, name=node.name or None
    )
    last = [g.squeeze(g.slice_tensor(each, 0, -1, 1), axes=[0]) for each in found]
    return [*last, *(g.reverse(each, axes=[0]) if flipped else each for each in found)]


def _directions(node: Node, name: str, count: int) -> bool:
    """Whether all of them go backwards; they have to agree, and the first axis be the time."""
    found = node.attribute(name, [0] * count)
    if len(found) != count or len(set(found)) != 1 or found[0] not in (0, 1):
        raise OptionError(refusal("Scan", name, f"{count} equal directions", str(found)))
    return bool(found[0])
