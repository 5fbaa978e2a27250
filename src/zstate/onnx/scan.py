"""A recurrent node as ONNX's Scan: the cell's equations, one step in the body.

T time, N batch, H hidden units, d units of a head, G gates, D directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from ..arrays import NUMPY
from ..cells.functions import REDUCTIONS
from ..cells.program import Leaf, program
from ..convert.options import ONNX_VALUES
from ..errors import OptionError, refusal
from ..graph.ops.recurrent import operation_of
from ..graph.tensor import Node
from ..layout import direction_part
from .emitter import END, Emitter, Value

# The functions of equations in ONNX.
WORDS = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "negative": "Neg",
    "greater": "Greater",
    "at_least": "GreaterOrEqual",
    "where": "Where",
    "maximum": "Max",
    "minimum": "Min",
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "hard_sigmoid": "HardSigmoid",
    "softplus": "Softplus",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
}
# The attributes that such a node has.
DETAILS: dict[str, dict[str, Any]] = {
    "HardSigmoid": dict(zip(("alpha", "beta"), ONNX_VALUES["hardsigmoid"], strict=True)),
}


def scan(e: Emitter, node: Node) -> Sequence[Value | None]:
    """The cell's states, [T,N,D·H] each."""
    count = 2 if node.attributes["descriptor"].bidirectional else 1
    directions = [_Direction(e, node, index, count).states() for index in range(count)]
    found = [
        e.emit("Concat", *each, axis=2) if count == 2 else each[0]
        for each in zip(*directions, strict=True)
    ]
    return [*found, None][: len(node.results)]  # training_state has no readers


class _Direction:
    """One direction of a layer."""

    def __init__(self, e: Emitter, node: Node, index: int, count: int) -> None:
        self.e, self.index, self.count = e, index, count
        self.descriptor = node.attributes["descriptor"]
        self.tensors = dict(zip(node.attributes["names"], node.inputs, strict=True))
        self.cell = operation_of(node.op.name, node.attributes).cell
        self.order = self.cell.gate_order(self.descriptor)
        units = self.tensors["recurrent_weight"].shape[-1]
        assert units is not None
        self.heads, self.units = self.descriptor.heads, units
        self.hidden = self.heads * units
        self.dtype = self.tensors["source"].dtype
        self.is_backward = index == 1 or (count == 1 and self.descriptor.reverse)
        names = [name for name in self.tensors if name not in ("source", "mask", "resets")]
        self.parts = {name: self._part(name) for name in names}

    def states(self) -> list[str]:
        """[T,N,H] each."""
        e, start = self.e, self._start()
        inputs = self._inputs()
        body, captured = _Body(self, list(inputs)).written()
        found = e.emit(
            "Scan",
            *captured,
            *start,
            *inputs.values(),
            count=len(captured) + 2 * len(start),
            body=body,
            num_scan_inputs=len(inputs),
            scan_input_directions=[int(self.is_backward)] * len(inputs),
            # In a bidirectional layer in the order of the input, else in that of processing.
            scan_output_directions=[int(self.index == 1)] * len(start),
        )
        return list(found[len(captured) + len(start) :])

    def _part(self, name: str) -> Value:
        """A weight or an initial state of this direction."""
        e, index = self.e, self.index
        value = e.value(self.tensors[name])
        axis, shape = direction_part(self.cell, name, self.hidden)
        if name == "recurrent_weight" and self.heads > 1:
            shape = (self.heads, len(self.order) * self.units, self.units)
        if axis is None:
            return e.reshape(e.nth(e.reshape(value, self.count, *shape), index, 1, 0), *shape)
        length = self.hidden * (len(self.order) if name in ("input_weight", "bias") else 1)
        return e.nth(value, index, length, axis)

    def _start(self) -> list[Value]:
        """The states before the first step, [N,H] each."""
        e, source = self.e, self.e.name(self.tensors["source"])
        return [
            e.named(self.parts[state.initial])
            if state.initial in self.parts
            else e.emit(
                "Expand",
                np.asarray(state.start, NUMPY.dtype(self.dtype)),
                e.emit("Concat", e.size(source, 1), e.ints(self.hidden), axis=0),
            )
            for state in self.cell.states
        ]

    def _inputs(self) -> dict[str, Value]:
        """What every step reads: gates_x [T,N,G·H], the mask [T,N,H], the resets [T,N,1]."""
        e, parts, hidden = self.e, self.parts, self.hidden
        source, rows = e.name(self.tensors["source"]), len(self.order) * hidden
        if "input_weight" in parts:
            gates = e.emit("MatMul", source, e.transpose(parts["input_weight"], 1, 0))
        else:
            gates = e.nth(source, self.index, rows, 2)
        found = {"gates": e.emit("Add", gates, parts["bias"]) if "bias" in parts else gates}
        if "mask" in self.tensors:
            sizes = (e.size(source, 0), e.size(source, 1), e.ints(self.count * hidden))
            shape = e.emit("Concat", *sizes, axis=0)
            whole = e.emit("Expand", e.name(self.tensors["mask"]), shape)
            found["mask"] = e.nth(whole, self.index, hidden, 2)
        if "resets" in self.tensors:
            found["reset"] = self._resets()
        return found

    def _resets(self) -> Value:
        """Numbers [T,N,1], 1 where this direction begins a new sequence."""
        e, given = self.e, self.tensors["resets"]
        found = e.name(given)
        if len(given.shape) == 3:  # [T,N,D], as an operator of torch has them
            return e.nth(found, self.index, 1, 2)
        if given.dtype != "bool":
            found = e.cast(found, "bool")
        found = e.cast(found, self.dtype)
        if self.is_backward:  # what is read after step t, step t-1, begins anew
            first = e.part(found, 0, 1, 0)
            zeros = e.emit("Sub", first, first)
            found = e.emit("Concat", e.part(found, 1, END, 0), zeros, axis=0)
        return e.emit("Unsqueeze", found, e.ints(2))

    def blocks(self) -> dict[str, Value]:
        """R by gate: [H,H], with heads [heads,d,d], with heads of one unit a row [1,H]."""
        e, units, hint = self.e, self.units, self.tensors["recurrent_weight"].name
        axes = (1, 0) if self.heads == 1 else (0, 2, 1)
        turned = e.transpose(self.parts["recurrent_weight"], *axes)  # […,d,G·d]
        found = {gate: e.nth(turned, k, units, len(axes) - 1) for k, gate in enumerate(self.order)}
        if self.heads > 1 and units == 1:
            found = {gate: e.reshape(block, 1, self.hidden) for gate, block in found.items()}
        return {gate: e.named(block, hint) for gate, block in found.items()}


class _Body:
    """One step: the states and what the step reads, to the states and the outputs."""

    def __init__(self, layer: _Direction, inputs: Sequence[str]) -> None:
        self.e, self.layer = layer.e, layer
        self.blocks = layer.blocks()
        names = [each.name for each in layer.cell.own if each.name in layer.parts]
        self.own = {name: self.e.named(layer.parts[name]) for name in names}
        self.e.begin_body()
        form = (frozenset(names), "mask" in inputs, "reset" in inputs)
        self.trace = layer.cell.forward(layer.descriptor, *form)
        self.inputs = {name: self.e.new_name(name) for name in inputs}
        self.before = {name: self.e.new_name(f"{name}_before") for name in self.trace.names}
        self.narrow: set[str] = set()  # values with one number per row, or one row for all
        gates, sizes = len(layer.order), [layer.hidden] * len(layer.order)
        split = self.e.emit("Split", self.inputs["gates"], self.e.ints(*sizes), count=gates, axis=1)
        self.x = dict(zip(layer.order, [split] if gates == 1 else split, strict=True))

    def written(self) -> tuple[Any, list[Any]]:
        """The body, and the outside values that it takes as states."""
        e, helper = self.e, self.e.onnx.helper
        found = program(self.trace.states).run(self._read, self._compute, self._multiply)
        # A body has each result twice: as a state and as an output of the step.
        outputs = [e.emit("Identity", self._whole(each)) for each in (*found, *found)]
        nodes, captured = e.end_body()
        # A value passed as a state leaves unchanged.
        kept = [(name, e.new_name(name), value) for name, value in captured]
        nodes += [helper.make_node("Identity", [name], [out]) for name, out, _ in kept]
        number, hidden = e.type_number(self.layer.dtype), self.layer.hidden

        def declared(name: str, width: int | None) -> Any:
            shape = None if width is None else [None, width]
            return helper.make_tensor_value_info(name, number, shape)

        widths = {"gates": len(self.x) * hidden, "mask": hidden, "reset": 1}
        inputs = [declared(name, None) for name, _, _ in kept]
        inputs += [declared(each, hidden) for each in self.before.values()]
        inputs += [declared(each, widths[name]) for name, each in self.inputs.items()]
        results = [declared(out, None) for _, out, _ in kept]
        results += [declared(each, hidden) for each in outputs]
        graph = helper.make_graph(nodes, self.layer.cell.name, inputs, results)
        return graph, [value for _, _, value in kept]

    def _read(self, leaf: Leaf) -> Value:
        kind, *names = leaf
        if kind == "x":
            return self.x[names[0]]
        if kind == "before":
            return self.before[names[0]]
        if kind == "mask":
            return self.inputs["mask"]
        if kind == "reset":
            found = self.inputs["reset"]
        elif len(names) == 1:
            found = self.own[names[0]]
        else:
            k, hidden = self.layer.order.index(names[1]), self.layer.hidden
            found = self.e.nth(self.own[names[0]], k, hidden, 0)
        self.narrow.add(found)
        return found

    def _compute(self, op: str, detail: Any, given: Sequence[Value]) -> Value:
        """One operation of the equations as a node."""
        e = self.e
        if op == "number":
            return np.asarray(detail, NUMPY.dtype(self.layer.dtype))
        if op == "log_sigmoid":
            found = e.emit("Neg", e.emit("Softplus", e.emit("Neg", *given)))
        elif op == "mean":
            found = self._mean(given)
        elif op == "variance":
            middle = self._mean(given)
            centred = [e.emit("Sub", each, middle) for each in given]
            found = self._mean([e.emit("Mul", each, each) for each in centred])
        elif op in WORDS:
            found = e.emit(WORDS[op], *given, **DETAILS.get(WORDS[op], {}))
        else:
            expected = "functions that ONNX has"
            raise OptionError(refusal(self.layer.cell.name, "equations", expected, op))
        if op in REDUCTIONS or all(isinstance(v, np.ndarray) or v in self.narrow for v in given):
            self.narrow.add(found)
        return found

    def _mean(self, values: Sequence[Value]) -> Value:
        """Of all of them over the units of a row."""
        total = reduce(partial(self.e.emit, "Add"), values)
        if len(values) > 1:
            share = np.asarray(1 / len(values), NUMPY.dtype(self.layer.dtype))
            total = self.e.emit("Mul", total, share)
        return self.e.mean(total)

    def _multiply(self, op: str, gates: tuple[str, ...], given: Sequence[Value]) -> list[Value]:
        e, heads, units = self.e, self.layer.heads, self.layer.units
        value, blocks = self._whole(given[0]), [self.blocks[gate] for gate in gates]
        if heads == 1 or units == 1:
            word = "MatMul" if heads == 1 else "Mul"
            return [e.emit(word, value, block) for block in blocks]
        split = e.transpose(e.reshape(value, 0, heads, units), 1, 0, 2)  # [heads,N,d]
        products = [e.transpose(e.emit("MatMul", split, block), 1, 0, 2) for block in blocks]
        return [e.reshape(each, 0, self.layer.hidden) for each in products]

    def _whole(self, value: Value) -> Value:
        """[N,H]."""
        if value not in self.narrow:
            return value
        shape = self.e.emit("Shape", next(iter(self.before.values())))
        return self.e.emit("Expand", value, shape)
