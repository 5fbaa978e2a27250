"""Loop nodes that are one layer, as Keras' SimpleRNN and GRU are exported: recurrent nodes.

What the body computes without the state is taken out of the loop: of weights alone it is an
ordinary node, of the step's input it is a node on all steps at once. What is left must be the
equations of a cell. Any other body is refused: the graph has no loops of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any

import numpy as np

from ..cells import Cell
from ..cells.expressions import Book, Expression
from ..errors import OptionError, refusal
from ..graph import Tensor
from .node import Node
from .package import onnx_package
from .recurrent import ROW
from .scan_body import FUNCTIONS
from .scan_reading import Match, forms


def _other(what: str) -> OptionError:
    return OptionError(refusal("Loop", "body", "a step of Keras' SimpleRNN or GRU", what))


@dataclass(frozen=True)
class _Counter:
    """The number of the step, counted from 0, plus a number."""

    plus: int


class _Body:
    """The values of one step: outside the loop by their own names, the others here.

    What depends on the state is an expression. Its leaves are the state and tensors from outside:
    "x" of all steps [T,N,·], "own" of none; a sum has at most one of these, in front. A product has
    the tensor of its weight [H,·].
    """

    def __init__(self, node: Node, graph: Any, values: dict[str, Any], book: Book) -> None:
        self.owner, self.g, self.book = node.owner, node.graph, book
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
        names, first = proto.input, inputs[0]
        if kind in ("Identity", "Cast"):
            if kind == "Cast" and not isinstance(first, _Counter):
                raise _other("a Cast of the state")
            return [first]
        if isinstance(first, _Counter) and kind == "Add":
            return [_Counter(first.plus + int(self.owner.known(names[1]).item()))]
        if kind == "Add":
            return [self._sum(*map(self._term, names, inputs))]
        if kind == "Sub" and first is None and self.owner.known(names[0]).tolist() == 1:
            return [self.book.operation("subtract", 1, inputs[1])]
        if not isinstance(first, Expression):
            raise _other(f"{kind} of the state")
        if kind == "MatMul" and inputs[1] is None and names[1] not in self.steps:
            return [self.book.make("product", (first,), self.owner.tensor(names[1]))]
        if kind == "Mul" and isinstance(inputs[1], Expression):
            return [self.book.operation("multiply", *inputs)]
        if kind in ("Relu", "Tanh", "Sigmoid"):
            return [self.book.operation(FUNCTIONS[kind], first)]
        if kind == "Slice" and len(names) == 4:
            return [self._part(first, *self._window(names))]
        if kind == "Split" and _axis(proto) in (-1, 1):
            count, width = len(proto.output), _width(first)
            sizes = [width // count] * count
            if len(names) > 1:
                sizes = self.owner.known(names[1]).tolist()
            ends = np.cumsum(sizes).tolist()
            return [self._part(first, end - n, end) for end, n in zip(ends, sizes, strict=True)]
        raise _other(f"{kind} of the state")

    def _window(self, names: list[str]) -> tuple[int, int]:
        """The features that a Slice takes, of all rows."""
        starts, ends, axes = (self.owner.known(name).tolist() for name in names[1:4])
        window = (0, 2**63 - 1)
        for start, end, axis in zip(starts, ends, axes, strict=True):
            if axis in (1, -1):
                window = (start, end)
            elif start != 0 or end < 2**31 - 1:
                raise _other("a Slice of the batch")
        return window

    def _term(self, name: str, value: Any) -> Expression:
        if value is None:
            return self._leaf(self.owner.tensor(name))
        if not isinstance(value, Expression):
            raise _other(f"Add of {type(value).__name__}")
        return value

    def _leaf(self, tensor: Tensor) -> Expression:
        return self.book.make("leaf", (), ("x" if len(tensor.shape) == 3 else "own", tensor))

    def _sum(self, *terms: Expression) -> Expression:
        """The tensors among the terms as one, in front."""
        known: list[Tensor] = []
        others: list[Expression] = []
        for term in terms:
            for each in term.args if term.op == "add" else (term,):
                if _is_known(each):
                    known.append(each.detail[1])
                else:
                    others.append(each)
        found = reduce(partial(self.book.operation, "add"), others)
        if not known:
            return found
        return self.book.operation("add", self._leaf(reduce(self.g.addition, known)), found)

    def _part(self, value: Expression, start: int, end: int) -> Expression:
        """The features of a sum from one to another."""
        start, end, _ = slice(start, end).indices(_width(value))

        def part(tensor: Tensor) -> Tensor:
            return self.g.slice_tensor(tensor, len(tensor.shape) - 1, start, end - start)

        @cache  # a short file may say a sum of very many terms
        def of(each: Expression) -> Expression:
            if each.op == "add":
                return self.book.operation("add", *map(of, each.args))
            if _is_known(each):
                return self._leaf(part(each.detail[1]))
            if each.op != "product":
                raise _other("a part of a product")
            return self.book.make("product", each.args, part(each.detail))

        return of(value)


def _is_known(value: Expression) -> bool:
    return value.op == "leaf" and value.detail[0] != "before"


def _width(value: Expression) -> int:
    """The number of features of a sum."""
    while value.op == "add":
        value = value.args[-1]
    size: int | None = value.detail.shape[1] if value.op == "product" else None
    if size is None:
        raise _other("a product of unknown size")
    return size


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
    places, book = [], Book()
    for k, (inner, final) in enumerate(zip(carried, finals, strict=True)):
        outside = node.inputs[k + 2]
        if inner == final:
            owner.alias(inner, outside)
            last[k] = owner.tensor(inner)
        elif outside in owner.arrays and owner.arrays[outside].tolist() == 0:
            values[inner] = _Counter(0)
        else:
            places.append(k)
            values[inner] = book.leaf("before", "h")
    if len(places) != 1:
        raise _other(f"{len(places)} states, as with a mask or in an LSTM")
    (place,) = places
    body = _Body(node, graph, values, book)
    if not body.sequence:
        raise _other("no sequence")
    for inner, final in zip(carried, finals, strict=True):
        if isinstance(values.get(inner), _Counter) and body.values.get(final) != _Counter(1):
            raise _other("a count by another number than 1")
    _check_count(node, body, results[0])
    outputs = [body.values.get(name) for name in (finals[place], *results[count + 1 :])]
    if any(output is not outputs[0] for output in outputs):
        raise _other("outputs that are not the state")
    found = _call(node, outputs[0], node.tensor(place + 2))
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
    found = node.owner.values(name)
    return None if found is None or np.size(found) != 1 else np.ravel(found)[0]


def _call(node: Node, output: Any, first: Tensor) -> Tensor:
    """The layer's states [T,N,H]."""
    cell, options, match = _cell(output)
    g = node.graph

    def joined(kind: str, axis: int) -> Tensor:
        parts: list[Tensor] = [match.bound[kind, gate] for gate in cell.gates]
        parts = [g.transpose(each, [1, 0]) for each in parts] if kind == "R" else parts
        return g.concat_tensors(parts, axis=axis) if len(parts) > 1 else parts[0]

    own = {name: found for (name, *_), found in match.own.items()}
    descriptor = cell.descriptor(**options, **match.activations)
    (found,) = getattr(g, cell.name)(
        joined("x", 2),
        recurrent_weight=joined("R", 0),
        init_state=first,
        **own,
        descriptor=descriptor,
        name=node.name or None,
    )
    tensor: Tensor = found
    return tensor


def _cell(output: Any) -> tuple[Cell, dict[str, bool], Match]:
    """The cell of one state whose equations these are, its options, and what its names are."""
    for cell, options, states in forms():
        match = Match(cell, commutes=True)
        if len(states) == 1 and isinstance(output, Expression) and match.same(*states, output):
            return cell, options, match
    raise _other("other equations")
