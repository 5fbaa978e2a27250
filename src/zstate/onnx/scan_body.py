"""The body of a Scan as equations: one step of a cell, in the form of scan.py.

It is read node by node. What is no equation of cells is refused.
N batch, H hidden units, d units of a head, G gates.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cells.expressions import Book, Expression, ordered
from ..cells.functions import FUNCTIONS as OF_CELLS
from ..errors import OptionError, refusal
from ..graph import Tensor
from .node import Node
from .package import onnx_package
from .scan import DETAILS, WORDS

FUNCTIONS = {word: name for name, word in WORDS.items()}
_COUNTS = {  # of their arguments, behind the library
    word: len(inspect.signature(OF_CELLS[name].apply).parameters) - 1
    for word, name in FUNCTIONS.items()
}
_MOST_NODES = 4096  # of a body: the text of a cell would not hold more
# What a step reads, by the operator that reads it.
_ROLES = {"Split": "gates", "Mul": "mask", "Greater": "reset"}


def other(what: str) -> OptionError:
    """The body is not one step of a cell."""
    return OptionError(refusal("Scan", "body", "one step of a cell, as onnx.save writes it", what))


class Outer(NamedTuple):
    """A value from outside the body, or H numbers of it."""

    name: str
    start: int | None = None


class _View(NamedTuple):
    """A value on its way through a product: operators so far, each with its detail."""

    value: Expression
    steps: tuple[tuple[str, Any], ...] = ()


class _Shape:
    """[N,H], to which a value is broadcast."""


def _terms(value: Expression) -> list[Expression]:
    """The k values whose sum times 1/k it is, as the mean of several is written; or itself."""
    if value.op != "multiply" or value.args[1].op != "number":
        return [value]
    total, share = value.args[0], value.args[1].detail
    count = round(1 / share) if share > 0 else 0
    if count < 2 or share not in (1 / count, float(np.float32(1 / count))):
        return [value]
    terms: list[Expression] = []
    while total.op == "add" and len(terms) < count - 1:
        total, last = total.args
        terms.insert(0, last)
    return [total, *terms] if len(terms) == count - 1 else [value]


class Body:
    """The equations of a body."""

    def __init__(self, node: Node) -> None:
        graph = node.subgraph("body")
        self.node, self.label = node, str(graph.name)
        self.book = Book()
        self.gates: list[str] = []
        self.hidden = 0  # units
        self.heads: set[int] = set()  # in the products
        self.own: dict[Outer, str] = {}  # parameters, and their names
        self.starts: dict[str, float] = {}  # what a reset sets a state to
        names, results = ([each.name for each in some] for some in (graph.input, graph.output))
        sequences = int(node.attribute("num_scan_inputs", 0))
        if not 1 <= sequences <= len(_ROLES):
            raise other(f"{sequences} inputs of each step")
        if len(graph.node) > _MOST_NODES:
            raise other(f"{len(graph.node)} nodes")
        self.places = len(node.inputs) - sequences  # of states, and of values passed as states
        count = len(results) - self.places
        if len(names) != len(node.inputs) or not 0 < count <= self.places:
            raise other(f"{len(names)} inputs and {len(results)} results")
        self.first = self.places - count  # torch's exporter hands weights in as states
        self.names = ["h", *(f"s{k}" for k in range(1, count))]
        self.roles = self._roles(graph, names[self.places :])
        self.values = self._inputs(names)
        for tensor in graph.initializer:
            node.owner.add_array(tensor)
        for proto in graph.node:
            self._take(proto)
        self._finish(names, results)

    def _roles(self, graph: Any, names: Sequence[str]) -> dict[str, int]:
        """The places of what every step reads; what no node reads has no role."""
        found: dict[str, int] = {}
        for place, name in enumerate(names):
            kinds = {each.op_type for each in graph.node if name in each.input}
            role = _ROLES.get(*kinds) if len(kinds) == 1 else None
            if kinds and (role is None or role in found):
                raise other(f"an input of each step for {', '.join(sorted(kinds))}")
            if role is not None:
                found[role] = place
        if "gates" not in found:
            raise other("no Split of a projected input")
        return found

    def _inputs(self, names: Sequence[str]) -> dict[str, Any]:
        """The body's inputs as values."""
        found: dict[str, Any] = {
            name: Outer(outside)
            for name, outside in zip(names[: self.first], self.node.inputs, strict=False)
        }
        kind = "unset" if "reset" in self.roles else "before"
        for name, state in zip(names[self.first : self.places], self.names, strict=True):
            found[name] = self.book.leaf(kind, state)
        for role, place in self.roles.items():
            found[names[self.places + place]] = self.book.leaf(role)
        return found

    def _finish(self, names: list[str], results: list[str]) -> None:
        """The states after the step, which have to be its outputs too."""
        found = [self.values.get(name) for name in results]
        if found[: self.first] != [self.values[name] for name in names[: self.first]]:
            raise other("a weight that changes")
        after = found[self.first : self.places]
        if found[self.places :] != after:
            raise other("outputs that are not the states")
        self.after = [e for e in after if isinstance(e, Expression) and not e.is_condition]
        if len(self.after) != len(after):
            raise other("a state that is no value of the step")
        self.every = ordered(self.after)
        for each in self.every:
            if each.op == "leaf" and each.detail[0] in ("mask", "reset", "unset"):
                raise other(f"a {each.detail[0]} outside of its place")
        for window in self.own:
            shape = self.tensor(window.name).shape
            if len(shape) != 1 or (window.start is None and shape[0] != self.hidden):
                raise other(f"{window.name!r} where one number per unit should be")
        if len(self.heads) > 1:
            raise other("products of different heads")

    def tensor(self, name: str) -> Tensor:
        return self.node.owner.tensor(name)

    def _take(self, proto: Any) -> None:
        """One node of the body."""
        kind, helper = proto.op_type, onnx_package().helper
        told = {each.name: helper.get_attribute_value(each) for each in proto.attribute}
        given = [self.values.get(name, Outer(name)) for name in proto.input]
        if kind in _SPECIAL:
            _SPECIAL[kind](self, proto, given, told)
            return
        if kind not in FUNCTIONS:
            raise other(f"the operator {kind}")
        wanted = DETAILS.get(kind, {})
        if told.keys() != wanted.keys() or not all(
            np.allclose(told[key], value, rtol=1e-6, atol=0) for key, value in wanted.items()
        ):
            raise other(f"{kind} with {told}")
        if len(given) != _COUNTS[kind]:
            raise other(f"{kind} of {len(given)} inputs")
        self._set(proto, self._function(kind, given))

    def _set(self, proto: Any, value: Any) -> None:
        (name,) = proto.output
        self.values[name] = value

    def _function(self, kind: str, given: list[Any]) -> Expression:
        if kind == "Mul" and isinstance(given[1], Outer) and self._is_row(given[1].name):
            self.heads.add(self.hidden)
            return self._product(self._operand(given[0]), given[1].name)
        args = [self._operand(each) for each in given]
        if kind == "Where":
            if not args[0].is_condition:
                raise other("Where of what is no comparison")
            if args[0].args[0] is self.book.leaf("reset"):
                return self._restarted(*args)
        return self.book.operation(FUNCTIONS[kind], *args)

    def _restarted(self, begins: Expression, start: Expression, state: Expression) -> Expression:
        """A state, where a sequence begins another value."""
        limit = begins.args[1]
        is_plain = (begins.op, limit.op, limit.detail) == ("greater", "number", 0)
        is_state = state.op == "leaf" and state.detail[0] == "unset" and start.op == "number"
        if not (is_plain and is_state):
            raise other("a reset that is not one of a state")
        name = state.detail[1]
        if self.starts.setdefault(name, start.detail) != start.detail:
            raise other("a state with two values to begin with")
        return self.book.leaf("before", name)

    def _operand(self, value: Any) -> Expression:
        """A value of the step; from outside, a number or a parameter."""
        if isinstance(value, Expression):
            return value
        if not isinstance(value, Outer):
            raise other("a part of a product as a value")
        if value.start is None and not self.tensor(value.name).shape:
            return self.book.number(float(self.node.owner.known(value.name)))
        return self.book.leaf("own", self.own.setdefault(value, f"p{len(self.own)}"))

    def _is_row(self, name: str) -> bool:
        """Whether a value from outside is [1,H]: a diagonal R."""
        return self.tensor(name).shape == (1, self.hidden)

    def _product(self, value: Expression, block: str) -> Expression:
        """With a mask, that of the masked value."""
        if "mask" in self.roles:
            if value.op != "multiply" or value.args[1] is not self.book.leaf("mask"):
                raise other("a product without the mask")
            value = value.args[0]
        return self.book.make("product", (value,), block)

    def _split(self, proto: Any, given: list[Any], told: dict[str, Any]) -> None:
        sizes = self.node.owner.known(proto.input[1]).tolist() if len(given) == 2 else []
        if given[0] is not self.book.leaf("gates") or told != {"axis": 1} or self.gates:
            raise other("another Split")
        if len(sizes) != len(proto.output) or len(set(sizes)) != 1:
            raise other(f"gates of {sizes} units")
        self.gates, self.hidden = [f"g{k}" for k in range(len(sizes))], int(sizes[0])
        for gate, name in zip(self.gates, proto.output, strict=True):
            self.values[name] = self.book.leaf("x", gate)

    def _copy(self, proto: Any, given: list[Any], told: dict[str, Any]) -> None:
        self._set(proto, given[0])

    def _constant(self, proto: Any, given: list[Any], told: dict[str, Any]) -> None:
        self.node.owner.take(proto)
        self._set(proto, Outer(proto.output[0]))

    def _slice(self, proto: Any, given: list[Any], told: dict[str, Any]) -> None:
        """A gate's part of a parameter."""
        bounds = [int(self.node.owner.known(name).item()) for name in proto.input[1:]]
        k = bounds[0] // self.hidden if self.hidden else 0
        wanted = [k * self.hidden, (k + 1) * self.hidden, 0]
        if not isinstance(given[0], Outer) or given[0].start is not None or bounds != wanted:
            raise other(f"a Slice of {bounds}")
        self._set(proto, Outer(given[0].name, bounds[0]))

    def _shape(self, proto: Any, given: list[Any], told: dict[str, Any]) -> None:
        value = given[0]
        is_leaf = isinstance(value, Expression) and value.op == "leaf"
        if not is_leaf or value.detail[0] not in ("before", "unset") or told:
            raise other("a Shape of what is no state")
        self._set(proto, _Shape())

    def _expand(self, proto: Any, given: list[Any], told: dict[str, Any]) -> None:
        if not isinstance(given[1], _Shape):
            raise other("an Expand to another shape than the states'")
        self._set(proto, self._operand(given[0]))

    def _clip(self, proto: Any, given: list[Any], told: dict[str, Any]) -> None:
        """torch's exporter makes it of a Max and a Min; either bound may be missing."""
        if told:
            raise other(f"Clip with {told}")
        value = self._operand(given[0])
        for name, bound, function in zip(
            proto.input[1:], given[1:], ("maximum", "minimum"), strict=False
        ):
            if name:
                value = self.book.operation(function, value, self._operand(bound))
        self._set(proto, value)

    def _mean(self, proto: Any, given: list[Any], told: dict[str, Any]) -> None:
        axes = told.pop("axes", None)  # from opset 18 on an input
        if axes is None and len(given) == 2:
            axes = self.node.owner.known(proto.input[1]).tolist()
        if axes != [-1] or told.pop("keepdims", 1) != 1 or told:
            raise other(f"ReduceMean of the axes {axes}")
        self._set(proto, self.book.operation("mean", *_terms(self._operand(given[0]))))

    def _rearrange(self, proto: Any, given: list[Any], told: dict[str, Any]) -> None:
        """A product is a MatMul; by head, one between two Transposes between two Reshapes."""
        kind, value = proto.op_type, given[0]
        if not isinstance(value, _View):
            value = _View(self._operand(value))
        if kind == "Transpose":
            detail: Any = tuple(told.pop("perm", ()))
        elif kind == "Reshape":
            detail = tuple(self.node.owner.known(proto.input[1]).tolist())
        else:
            detail = given[1].name if isinstance(given[1], Outer) else ""
        if told:
            raise other(f"{kind} with {told}")
        found = _View(value.value, (*value.steps, (kind, detail)))
        self._set(proto, self._completed(found))

    def _completed(self, view: _View) -> Expression | _View:
        """The product that these steps are; the steps if more have to follow."""
        across = ("Transpose", (1, 0, 2))
        shape: tuple[int, ...]
        match view.steps:
            case (("MatMul", block),):
                heads, shape = 1, (self.hidden, self.hidden)
            case (("Reshape", (0, heads, units)), first, ("MatMul", block), second, last):
                shape = (heads, units, units)
                if (first, second, last) != (across, across, ("Reshape", (0, heads * units))):
                    raise other("other steps of a product by head")
            case _:
                return view
        if self.tensor(block).shape != shape or heads * shape[-1] != self.hidden:
            raise other(f"{block!r} where a weight of {list(shape)} should be")
        self.heads.add(heads)
        return self._product(view.value, block)


_SPECIAL = {
    "Split": Body._split,
    "Identity": Body._copy,
    "Constant": Body._constant,
    "Slice": Body._slice,
    "Shape": Body._shape,
    "Expand": Body._expand,
    "Clip": Body._clip,
    "ReduceMean": Body._mean,
    **dict.fromkeys(("Reshape", "Transpose", "MatMul"), Body._rearrange),
}
