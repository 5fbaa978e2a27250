"""A recurrent node as ONNX's Scan: the equations of docs/equations.md, one step in the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import NUMPY
from ..convert.options import ONNX_VALUES
from ..convert.table import GRU, LSTM
from ..descriptors import Activation
from ..graph import Tensor
from ..graph.tensor import Node
from ..layout import gate_order
from .recurrent import ROW
from .saving import Exporter, Value

_WORDS = {kind: word for word, kind in ROW.words.items()}


def scan(e: Exporter, node: Node) -> Sequence[Value | None]:
    """The state, and of an LSTM the cell, [T,N,D·H]."""
    descriptor = node.attributes["descriptor"]
    tensors = dict(zip(node.attributes["names"], node.inputs, strict=True))
    count = 2 if descriptor.bidirectional else 1
    directions = [
        _direction(e, node.op.name, descriptor, tensors, index, count) for index in range(count)
    ]
    found = [
        e.emit("Concat", *each, axis=2) if count == 2 else each[0]
        for each in zip(*directions, strict=True)
    ]
    return [*found, None][: len(node.results)]  # training_state has no readers


def _direction(
    e: Exporter, cell: str, descriptor: Any, tensors: dict[str, Tensor], index: int, count: int
) -> list[str]:
    """One direction's states, and cells, [T,N,H]."""
    order = gate_order(descriptor)
    hidden = tensors["recurrent_weight"].shape[-1]
    assert hidden is not None
    rows = len(order) * hidden
    dtype = tensors["source"].dtype
    parts = _parts(e, tensors, index, count, rows, hidden)
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
    rest: dict[str, Value] = {
        name: e.named(parts[name]) for name in ("peephole", "secondary_bias") if name in parts
    }
    batch = e.size(source, 1)
    start = [
        e.named(parts[name])
        if name in parts
        else e.emit(
            "Expand",
            np.zeros((), NUMPY.dtype(dtype)),
            e.emit("Concat", batch, e.ints(hidden), axis=0),
        )
        for name in (("init_state", "init_cell") if cell == LSTM else ("init_state",))
    ]
    inputs = [gates]
    if "mask" in tensors:
        steps = e.size(source, 0)
        shape = e.emit("Concat", steps, batch, e.ints(count * hidden), axis=0)
        whole = e.emit("Expand", e.name(tensors["mask"]), shape)
        inputs.append(e.part(whole, index * hidden, (index + 1) * hidden, 2))
    body, captured = _body(e, cell, descriptor, blocks, rest, hidden, dtype, "mask" in tensors)
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
    e: Exporter, tensors: dict[str, Tensor], index: int, count: int, rows: int, hidden: int
) -> dict[str, Value]:
    """One direction's weights and initial states."""
    whole = {
        name: e.value(tensor) for name, tensor in tensors.items() if name not in ("source", "mask")
    }
    found: dict[str, Value] = {}
    for name, value in whole.items():
        if name in ("recurrent_weight", "peephole"):
            shape = (rows, hidden) if name == "recurrent_weight" else (rows,)
            value = e.part(e.reshape(value, count, *shape), index, index + 1, 0)
            found[name] = e.reshape(value, *shape)
        else:
            length = rows if name in ("input_weight", "bias") else hidden
            axis = 1 if name in ("init_state", "init_cell") else 0
            found[name] = e.part(value, index * length, (index + 1) * length, axis)
    return found


def _body(
    e: Exporter,
    cell: str,
    descriptor: Any,
    blocks: dict[str, Value],
    rest: dict[str, Value],
    hidden: int,
    dtype: str,
    has_mask: bool,
) -> tuple[Any, list[Any]]:
    """One step: the states and the projected input, and a mask, to the states and the outputs."""
    helper = e.onnx.helper
    e.begin_body()
    order = gate_order(descriptor)
    kinds = dict(
        zip([*gate_order(type(descriptor)()), "cell"], descriptor.activations, strict=False)
    )
    names = {name: e.new_name(name) for name in ("h_before", "c_before", "gates", "mask")}
    h, c = names["h_before"], names["c_before"]
    split = e.emit(
        "Split", names["gates"], e.ints(*[hidden] * len(order)), count=len(order), axis=1
    )
    projected = dict(zip(order, [split] if isinstance(split, str) else split, strict=True))
    masked = e.emit("Mul", h, names["mask"]) if has_mask else h

    def gate(letter: str, state: Value = None) -> Value:
        product = e.emit("MatMul", masked if state is None else state, blocks[letter])
        return e.emit("Add", projected[letter], product)

    def looked(value: Value, letter: str, at: Value) -> Value:
        if "peephole" not in rest:
            return value
        k = order.index(letter)
        weight = e.part(rest["peephole"], k * hidden, (k + 1) * hidden, 0)
        return e.emit("Add", value, e.emit("Mul", at, weight))

    def active(value: Value, kind: Activation) -> Value:
        word = _WORDS[kind]
        if kind is Activation.NONE:
            return value
        if kind is Activation.HARD_SIGMOID:
            alpha, beta = ONNX_VALUES["hardsigmoid"]
            return e.emit(word, value, alpha=alpha, beta=beta)
        return e.emit(word, value)

    states = [h]
    if cell == LSTM:
        i, f, z = (active(looked(gate(k), k, c), kinds[k]) for k in "ifz")
        new_c = e.emit("Add", e.emit("Mul", f, c), e.emit("Mul", i, z))
        at = new_c if descriptor.peephole_on_new_cell else c
        o = active(looked(gate("o"), "o", at), kinds["o"])
        results = [e.emit("Mul", o, active(new_c, kinds["cell"])), new_c]
        states = [h, c]
    elif cell == GRU:
        z, r = (active(gate(k), kinds[k]) for k in "zr")
        if descriptor.reset_after:
            inner = e.emit("MatMul", masked, blocks["o"])
            if "secondary_bias" in rest:
                inner = e.emit("Add", inner, rest["secondary_bias"])
            candidate = e.emit("Add", projected["o"], e.emit("Mul", inner, r))
        else:
            candidate = gate("o", e.emit("Mul", masked, r))
        o = active(candidate, kinds["o"])
        other = e.emit("Sub", np.ones((), NUMPY.dtype(dtype)), z)
        keep, new = (other, z) if descriptor.flip_z else (z, other)
        results = [e.emit("Add", e.emit("Mul", keep, h), e.emit("Mul", new, o))]
    else:
        results = [active(gate("z"), kinds["z"])]
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
    inputs.append(declared(names["gates"], len(order) * hidden))
    if has_mask:
        inputs.append(declared(names["mask"], hidden))
    results = [helper.make_tensor_value_info(out, number, None) for _, out, _ in kept]
    results += [declared(each, hidden) for each in outputs]
    return helper.make_graph(nodes, "step", inputs, results), [value for _, _, value in kept]
