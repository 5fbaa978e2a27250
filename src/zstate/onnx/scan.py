"""A recurrent node as ONNX's Scan: the cell's equations, one step in the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import NUMPY
from ..cells import Cell
from ..cells.program import Leaf, program
from ..convert.options import ONNX_VALUES
from ..errors import OptionError, refusal
from ..graph import Tensor
from ..graph.ops.recurrent import operation_of, refuse_extensions
from ..graph.tensor import Node
from ..layout import direction_part
from .saving import Exporter, Value

# The functions of equations in ONNX.
_WORDS = {
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
    "softplus": "Softplus",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
}


def scan(e: Exporter, node: Node) -> Sequence[Value | None]:
    """The cell's states, [T,N,D·H] each."""
    refuse_extensions(node, "an export to ONNX")
    descriptor = node.attributes["descriptor"]
    tensors = dict(zip(node.attributes["names"], node.inputs, strict=True))
    cell = operation_of(node.op.name, node.attributes).cell
    initial = node.attributes["cell"].initial if "cell" in node.attributes else {}
    count = 2 if descriptor.bidirectional else 1
    directions = [
        _direction(e, cell, initial, descriptor, tensors, index, count) for index in range(count)
    ]
    found = [
        e.emit("Concat", *each, axis=2) if count == 2 else each[0]
        for each in zip(*directions, strict=True)
    ]
    return [*found, None][: len(node.results)]  # training_state has no readers


def _direction(
    e: Exporter,
    cell: Cell,
    initial: Mapping[str, float],
    descriptor: Any,
    tensors: dict[str, Tensor],
    index: int,
    count: int,
) -> list[str]:
    """One direction's states, [T,N,H] each; ``initial`` has those that do not begin with 0."""
    order = cell.gate_order(descriptor)
    hidden = tensors["recurrent_weight"].shape[-1]
    assert hidden is not None
    rows = len(order) * hidden
    dtype = tensors["source"].dtype
    parts = _parts(e, cell, tensors, index, count, hidden)
    source = e.name(tensors["source"])
    if "input_weight" in parts:
        gates = e.emit("MatMul", source, e.transpose(parts["input_weight"], 1, 0))
    else:
        gates = e.part(source, index * rows, (index + 1) * rows, 2)
    if "bias" in parts:
        gates = e.emit("Add", gates, parts["bias"])
    matrix = e.transpose(parts["recurrent_weight"], 1, 0)  # [H,G·H]
    blocks = {
        gate: e.named(e.part(matrix, k * hidden, (k + 1) * hidden, 1))
        for k, gate in enumerate(order)
    }
    own = {each.name: e.named(parts[each.name]) for each in cell.own if each.name in parts}
    batch = e.size(source, 1)
    start = [
        e.named(parts[state.initial])
        if state.initial in parts
        else e.emit(
            "Expand",
            np.asarray(initial.get(state.name, 0.0), NUMPY.dtype(dtype)),
            e.emit("Concat", batch, e.ints(hidden), axis=0),
        )
        for state in cell.states
    ]
    inputs = [gates]
    if "mask" in tensors:
        steps = e.size(source, 0)
        shape = e.emit("Concat", steps, batch, e.ints(count * hidden), axis=0)
        whole = e.emit("Expand", e.name(tensors["mask"]), shape)
        inputs.append(e.part(whole, index * hidden, (index + 1) * hidden, 2))
    body, captured = _body(e, cell, descriptor, blocks, own, hidden, dtype, "mask" in tensors)
    backward = index == 1 or (count == 1 and descriptor.reverse)
    found = e.emit(
        "Scan",
        *captured,
        *start,
        *inputs,
        count=len(captured) + 2 * len(start),
        body=body,
        num_scan_inputs=len(inputs),
        scan_input_directions=[int(backward)] * len(inputs),
        # In a bidirectional layer in the order of the input, else in that of processing.
        scan_output_directions=[int(index == 1)] * len(start),
    )
    return list(found[len(captured) + len(start) :])


def _parts(
    e: Exporter, cell: Cell, tensors: dict[str, Tensor], index: int, count: int, hidden: int
) -> dict[str, Value]:
    """One direction's weights and initial states."""
    found: dict[str, Value] = {}
    for name, tensor in tensors.items():
        if name in ("source", "mask"):
            continue
        axis, shape = direction_part(cell, name, hidden)
        value = e.value(tensor)
        if axis is None:
            value = e.part(e.reshape(value, count, *shape), index, index + 1, 0)
            found[name] = e.reshape(value, *shape)
        else:
            length = hidden * (len(cell.gates) if name in ("input_weight", "bias") else 1)
            found[name] = e.part(value, index * length, (index + 1) * length, axis)
    return found


def _compute(
    e: Exporter, cell: str, dtype: str, op: str, detail: Any, given: Sequence[Value]
) -> Value:
    """One operation of the equations as a node."""
    if op == "number":
        return np.asarray(detail, NUMPY.dtype(dtype))
    if op == "hard_sigmoid":
        alpha, beta = ONNX_VALUES["hardsigmoid"]
        return e.emit("HardSigmoid", *given, alpha=alpha, beta=beta)
    if op == "log_sigmoid":
        return e.emit("Neg", e.emit("Softplus", e.emit("Neg", *given)))
    if op not in _WORDS:
        raise OptionError(refusal(cell, "equations", "functions that ONNX has", op))
    return e.emit(_WORDS[op], *given)


def _body(
    e: Exporter,
    cell: Cell,
    descriptor: Any,
    blocks: dict[str, Value],
    own: dict[str, Value],
    hidden: int,
    dtype: str,
    has_mask: bool,
) -> tuple[Any, list[Any]]:
    """One step: the states and the projected input, and a mask, to the states and the outputs."""
    helper = e.onnx.helper
    e.begin_body()
    order = cell.gate_order(descriptor)
    trace = cell.forward(descriptor, frozenset(own), has_mask)
    gates, mask = e.new_name("gates"), e.new_name("mask")
    states = [e.new_name(f"{name}_before") for name in trace.names]
    split = e.emit("Split", gates, e.ints(*[hidden] * len(order)), count=len(order), axis=1)
    projected = dict(zip(order, [split] if isinstance(split, str) else split, strict=True))

    def read(leaf: Leaf) -> Value:
        if leaf[0] == "x":
            return projected[leaf[1]]
        if leaf[0] == "before":
            return states[trace.names.index(leaf[1])]
        if leaf[0] == "mask":
            return mask
        k = order.index(leaf[2]) if len(leaf) == 3 else None
        whole = own[leaf[1]]
        return whole if k is None else e.part(whole, k * hidden, (k + 1) * hidden, 0)

    def multiply(op: str, letters: tuple[str, ...], given: Sequence[Value]) -> list[Value]:
        return [e.emit("MatMul", given[0], blocks[letter]) for letter in letters]

    def compute(op: str, detail: Any, given: Sequence[Value]) -> Value:
        return _compute(e, cell.name, dtype, op, detail, given)

    results = program(trace.states).run(read, compute, multiply)
    # A result stands in a body once as a state and once as an output of the step.
    outputs = [e.emit("Identity", each) for each in (*results, *results)]
    number = e.type_number(dtype)

    def declared(name: str, width: int) -> Any:
        return helper.make_tensor_value_info(name, number, [None, width])

    nodes, captured = e.end_body()
    # A value that comes in as a state goes out as it came.
    kept = [(name, e.new_name(name), value) for name, value in captured]
    nodes += [helper.make_node("Identity", [name], [out]) for name, out, _ in kept]
    inputs = [helper.make_tensor_value_info(name, number, None) for name, _, _ in kept]
    inputs += [declared(each, hidden) for each in states]
    inputs.append(declared(gates, len(order) * hidden))
    if has_mask:
        inputs.append(declared(mask, hidden))
    results = [helper.make_tensor_value_info(out, number, None) for _, out, _ in kept]
    results += [declared(each, hidden) for each in outputs]
    return helper.make_graph(nodes, "step", inputs, results), [value for _, _, value in kept]
