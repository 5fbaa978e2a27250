"""Loop nodes that are one layer, as Keras' SimpleRNN and GRU are exported: recurrent nodes.

What the body computes without the state is taken out of the loop: of weights alone it is an
ordinary node, of the step's input it is a node on all steps at once. What is left must be the
equations of a cell. Any other body is refused: the graph has no loops of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..convert.table import GRU, RNN
from ..descriptors import Activation
from ..errors import OptionError, refusal
from ..graph import Tensor
from ..layout import DESCRIPTORS, gate_order
from .loading import Node, Row
from .package import onnx_package
from .recurrent import ROW


def _other(what: str) -> OptionError:
    return OptionError(refusal("Loop", "body", "a step of Keras' SimpleRNN or GRU", what))


@dataclass(frozen=True)
class _Counter:
    """The number of the step, counted from 0, plus a number."""

    plus: int


@dataclass(eq=False)
class _State:
    """h before the step."""


@dataclass(eq=False)
class _Sum:
    """known + Σ state · block + Σ products."""

    known: Tensor | None = None
    blocks: list[tuple[Any, Tensor]] = field(default_factory=list)  # of [H,·]
    products: list[_Product] = field(default_factory=list)


@dataclass(eq=False)
class _Active:
    """activation(sum)."""

    kind: Activation
    of: _Sum


@dataclass(eq=False)
class _Rest:
    """1 - value."""

    of: Any


@dataclass(eq=False)
class _Product:
    factors: tuple[Any, Any]

    def beside(self, kind: type) -> Any:
        """The factor that is not of a kind; None unless one of the two is."""
        first, second = self.factors
        if isinstance(first, kind):
            return second
        return first if isinstance(second, kind) else None


class _Body:
    """The values of one step: outside the loop by their own names, the others here."""

    def __init__(self, node: Node, graph: Any, values: dict[str, Any]) -> None:
        self.owner, self.g = node.owner, node.graph
        self.values = values  # that depend on the state, or count
        self.casts: dict[str, Any] = {}
        self.steps: set[str] = set()  # that depend on the step's input; outside, on all steps
        self.tests: list[tuple[Any, Any]] = []
        self.sequence = ""  # the name, outside, of what has an input for each step
        for tensor in graph.initializer:
            self.owner.add_array(tensor)
        for proto in graph.node:
            self._take(proto)

    def _take(self, proto: Any) -> None:
        inputs = [self.values.get(name) for name in proto.input]
        kind = proto.op_type
        if kind == "Gather" and isinstance(inputs[1], _Counter) and inputs[0] is None:
            self._read_step(proto, inputs[1])
        elif kind == "Less" and isinstance(inputs[0], _Counter) and inputs[1] is None:
            self.tests.append((inputs[0], proto.input[1]))
            self.values[proto.output[0]] = True
        elif kind == "And" and inputs == [True, True]:
            self.values[proto.output[0]] = True
        elif any(each is not None for each in inputs):
            found = self._with_state(proto, kind, inputs)
            self.values.update(zip(proto.output, found, strict=True))
        else:
            self.casts[proto.output[0]] = proto
            if any(name in self.steps for name in proto.input):
                proto = self._on_all_steps(proto, kind)
                self.steps.update(proto.output)
            self.owner.take(proto)

    def _read_step(self, proto: Any, at: _Counter) -> None:
        """One step of a sequence: outside, the whole of it."""
        found = self.owner.tensor(proto.input[0])
        if at.plus or proto.attribute or len(found.shape) != 3:
            raise _other(f"a Gather of {found} at step + {at.plus}")
        if self.sequence not in ("", proto.input[0]):
            raise _other("two sequences")
        self.sequence = proto.input[0]
        self.owner.tensors[proto.output[0]] = found
        self.steps.add(proto.output[0])

    def _on_all_steps(self, proto: Any, kind: str) -> Any:
        """The node that computes for all steps at once what this one does for one."""
        others = [name for name in proto.input if name not in self.steps]
        ranks = [len(self.owner.tensor(name).shape) for name in others]
        if kind == "MatMul" and proto.input[0] in self.steps and ranks == [2]:
            return proto
        if kind in ("Add", "Sub", "Mul", *ROW.words) and max(ranks, default=0) <= 2:
            return proto
        if kind in ("Identity", "Cast"):
            return proto
        if kind == "Split" and _axis(proto) in (-1, 1):
            make = onnx_package().helper.make_node
            return make("Split", proto.input, proto.output, proto.name, axis=-1)
        raise _other(f"{kind} of the step's input")

    def _with_state(self, proto: Any, kind: str, inputs: list[Any]) -> list[Any]:
        names = proto.input
        if kind in ("Identity", "Cast"):
            if kind == "Cast" and not isinstance(inputs[0], _Counter):
                raise _other("a Cast of the state")
            return [inputs[0]]
        if isinstance(inputs[0], _Counter) and kind == "Add":
            return [_Counter(inputs[0].plus + int(self.owner.known(names[1]).item()))]
        if kind == "MatMul" and inputs[1] is None and names[1] not in self.steps:
            return [_Sum(blocks=[(inputs[0], self.owner.tensor(names[1]))])]
        if kind == "Add":
            return [self._added(*(self._sum(n, v) for n, v in zip(names, inputs, strict=True)))]
        if kind == "Mul" and None not in inputs:
            return [_Product((inputs[0], inputs[1]))]
        if kind == "Sub" and inputs[0] is None and self.owner.known(names[0]).tolist() == 1:
            return [_Rest(inputs[1])]
        if kind in ("Relu", "Tanh", "Sigmoid") and isinstance(inputs[0], _Sum):
            return [_Active(ROW.words[kind], inputs[0])]
        if kind == "Slice" and isinstance(inputs[0], _Sum):
            starts, ends, axes = (self.owner.known(name).tolist() for name in names[1:4])
            for start, end, axis in zip(starts, ends, axes, strict=True):
                if axis not in (1, -1) and (start, end >= 2**31 - 1) != (0, True):
                    raise _other("a Slice of the batch")
            window: dict[int, Any] = dict(zip(axes, zip(starts, ends, strict=True), strict=True))
            start, end = window.get(1, window.get(-1, (0, 2**63 - 1)))
            if len(names) == 4:
                return [self._part(inputs[0], start, end)]
        if kind == "Split" and isinstance(inputs[0], _Sum) and _axis(proto) in (-1, 1):
            count, width = len(proto.output), self._width(inputs[0])
            sizes = [width // count] * count
            if len(names) > 1:
                sizes = self.owner.known(names[1]).tolist()
            ends = np.cumsum(sizes).tolist()
            return [self._part(inputs[0], end - n, end) for end, n in zip(ends, sizes, strict=True)]
        raise _other(f"{kind} of the state")

    def _sum(self, name: str, value: Any) -> _Sum:
        if value is None:
            return _Sum(self.owner.tensor(name))
        if isinstance(value, _Product):
            return _Sum(products=[value])
        if not isinstance(value, _Sum):
            raise _other(f"Add of {type(value).__name__}")
        return value

    def _added(self, a: _Sum, b: _Sum) -> _Sum:
        known = a.known if b.known is None else b.known
        if a.known is not None and b.known is not None:
            known = self.g.addition(a.known, b.known)
        return _Sum(known, a.blocks + b.blocks, a.products + b.products)

    def _width(self, value: _Sum) -> int:
        size = value.blocks[0][1].shape[1] if value.blocks else None
        if size is None:
            raise _other("a product of unknown size")
        return size

    def _part(self, value: _Sum, start: int, end: int) -> _Sum:
        """A sum's features from one to another."""
        if value.products:
            raise _other("a part of a product")
        start, end, _ = slice(start, end).indices(self._width(value))

        def part(tensor: Tensor) -> Tensor:
            return self.g.slice_tensor(tensor, len(tensor.shape) - 1, start, end - start)

        blocks = [(state, part(block)) for state, block in value.blocks]
        return _Sum(None if value.known is None else part(value.known), blocks)


def _axis(proto: Any) -> Any:
    return next((a.i for a in proto.attribute if a.name == "axis"), 0)


def loop(node: Node) -> list[Tensor | None]:
    """What the loop carries after the last step, and the states of all steps [T,N,H]."""
    graph, owner, g = node.subgraph("body"), node.owner, node.graph
    count, names = len(node.inputs) - 2, [value.name for value in graph.input]
    results = [value.name for value in graph.output]
    if len(names) != count + 2 or len(results) <= count:
        raise _other(f"{len(names)} inputs and {len(results)} results")
    carried, finals = names[2:], results[1 : count + 1]
    values: dict[str, Any] = {names[0]: _Counter(0), names[1]: True}
    last: list[Tensor | None] = [None] * count
    places = []
    for k, (inner, final) in enumerate(zip(carried, finals, strict=True)):
        outside = node.inputs[k + 2]
        if inner == final:
            owner.alias(inner, outside)
            last[k] = owner.tensor(inner)
        elif outside in owner.arrays and owner.arrays[outside].tolist() == 0:
            values[inner] = _Counter(0)
        else:
            places.append(k)
            values[inner] = _State()
    if len(places) != 1:
        raise _other(f"{len(places)} states, as with a mask or in an LSTM")
    (place,) = places
    body = _Body(node, graph, values)
    if not body.sequence:
        raise _other("no sequence")
    for inner, final in zip(carried, finals, strict=True):
        if isinstance(values.get(inner), _Counter) and body.values.get(final) != _Counter(1):
            raise _other("a count by another number than 1")
    _check_count(node, body, results[0])
    outputs = [body.values.get(name) for name in (finals[place], *results[count + 1 :])]
    if any(output is not outputs[0] for output in outputs):
        raise _other("outputs that are not the state")
    found = _call(node, outputs[0], values[carried[place]], node.tensor(place + 2))
    last[place] = g.squeeze(g.slice_tensor(found, 0, -1, 1), axes=[0])
    return [*last, *[found] * (len(results) - count - 1)]


def _check_count(node: Node, body: _Body, condition: str) -> None:
    """The loop has to end after the sequence's last step, and not before."""
    made = {name: proto for proto in node.owner.proto.node for name in proto.output}
    name, steps = body.sequence, []  # its number of steps, and what that is the same as
    while True:
        steps.append(node.size(node.owner.tensor(name), 0))
        if name not in made or made[name].op_type not in ("ReverseSequence", "Identity"):
            break
        name = made[name].input[0]

    def holds(name: str) -> bool:
        """Whether a condition is that there is a step at all."""
        known = node.owner.arrays.get(name)
        if known is not None or name not in made:
            return known is not None and bool(np.all(known))
        proto = made[name]
        if proto.op_type == "And":
            return all(holds(each) for each in proto.input)
        first, second = (_number(node, made, each) for each in [*proto.input, "", ""][:2])
        return bool(proto.op_type == "Less" and first == 0 and second in steps)

    if node.has(1) and not holds(node.inputs[1]):
        raise OptionError(refusal("Loop", "cond", "that there is a step", repr(node.inputs[1])))
    bounds = node.sizes(0) if node.has(0) else []
    for counter, name in body.tests:
        if counter.plus not in (0, 1) or _number(node, body.casts, name) not in steps:
            raise _other("a condition other than that a step is left")
        bounds += steps[:1] if counter.plus == 1 else []
    is_test = body.values.get(condition) is True
    if (
        not (is_test or np.all(node.owner.arrays.get(condition, False)))
        or not bounds
        or any(bound not in steps for bound in bounds)
    ):
        raise _other(f"{bounds} steps, for a sequence of {steps[0]!r}")


def _number(node: Node, made: dict[str, Any], name: str) -> Any:
    """A number or a size behind casts."""
    while name in made and made[name].op_type == "Cast":
        name = made[name].input[0]
    symbols = node.owner.symbols
    found = symbols[name].values if name in symbols else node.owner.arrays.get(name)
    return None if found is None or np.size(found) != 1 else np.ravel(found)[0]


def _gate(value: Any, h: Any) -> tuple[Activation, Tensor, Tensor]:
    """activation(known + h·block)."""
    if isinstance(value, _Active) and not value.of.products and len(value.of.blocks) == 1:
        state, block = value.of.blocks[0]
        known = value.of.known
        if state is h and known is not None and len(known.shape) == 3:
            return value.kind, known, block
    raise _other("a gate that is not activation(x + h·R)")


def _call(node: Node, output: Any, h: Any, first: Tensor) -> Tensor:
    """The layer's states [T,N,H]."""
    g = node.graph
    more: dict[str, Tensor] = {}
    if isinstance(output, _Active):
        cell, gates = RNN, {"z": _gate(output, h)}
        fields: dict[str, Any] = {"activation": gates["z"][0]}
    else:
        cell, (gates, fields, more) = GRU, _gru(output, h)
    descriptor = DESCRIPTORS[cell](**fields)
    order = gate_order(descriptor)
    parts = [gates[letter][1] for letter in order]
    blocks = [g.transpose(gates[letter][2], [1, 0]) for letter in order]
    source = g.concat_tensors(parts, axis=2) if len(parts) > 1 else parts[0]
    more["recurrent_weight"] = g.concat_tensors(blocks, axis=0) if len(blocks) > 1 else blocks[0]
    (found,) = getattr(g, cell)(
        source, init_state=first, **more, descriptor=descriptor, name=node.name or None
    )
    tensor: Tensor = found
    return tensor


_Gates = dict[str, tuple[Activation, Tensor, Tensor]]


def _gru(output: Any, h: Any) -> tuple[_Gates, dict[str, Any], dict[str, Tensor]]:
    """The gates, the descriptor's fields, and the bias inside the reset."""
    products = output.products if isinstance(output, _Sum) and not output.blocks else []
    old = [each for each in products if h in each.factors]
    if len(products) != 2 or len(old) != 1 or output.known is not None:
        raise _other("a state that is not z·h + (1-z)·new")
    keep = old[0].beside(_State)
    (new,) = (each for each in products if each is not old[0])
    flip = isinstance(keep, _Rest)
    z = keep.of if flip else keep
    share, candidate = new.factors if isinstance(new.factors[1], _Active) else new.factors[::-1]
    if flip and share is not z:  # both factors are activations
        share, candidate = candidate, share
    if (share if flip else getattr(share, "of", None)) is not z:
        raise _other("shares of the state that do not add up to 1")
    if not isinstance(candidate, _Active) or candidate.of.known is None:
        raise _other("a new state that is not an activation")
    inner, more = candidate.of, {}
    reset: Any = None
    after = len(inner.products) == 1 and not inner.blocks
    if after:
        reset = inner.products[0].beside(_Sum)
        inner = inner.products[0].beside(_Active)
        if isinstance(inner, _Sum) and inner.known is not None:
            more["secondary_bias"] = inner.known
    if not isinstance(inner, _Sum) or len(inner.blocks) != 1 or (inner.products and not after):
        raise _other("a new state that is not activation(x + (r·h)·R)")
    state, block = inner.blocks[0]
    if not after:
        reset = state.beside(_State) if isinstance(state, _Product) else None
    elif state is not h:
        raise _other("a product with something other than the state")
    gates = {"z": _gate(z, h), "r": _gate(reset, h)}
    gates["o"] = (candidate.kind, candidate.of.known, block)
    fields = {
        "update_gate_activation": gates["z"][0],
        "reset_gate_activation": gates["r"][0],
        "output_gate_activation": candidate.kind,
        "reset_after": after,
        "flip_z": flip,
    }
    return gates, fields, more


ROWS: dict[str, Row] = {"Loop": loop}
