"""Recurrent nodes of a graph as ONNX's RNN, LSTM and GRU; what these cannot express, as a Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import NUMPY
from ..convert.options import ONNX_VALUES
from ..convert.table import GRU, LSTM
from ..descriptors import AnyDescriptor
from ..errors import OptionError, refusal
from ..graph import Tensor
from ..graph.tensor import Node
from ..layout import gate_order
from .recurrent import CELLS, ROW, gate_rows
from .saving import Exporter, Value
from .scan import scan

_KINDS = {cell: kind for kind, cell in CELLS.items()}
_WORDS = {kind: word for word, kind in ROW.words.items()}


def recurrent(e: Exporter, node: Node) -> Sequence[Value | None]:
    """The values of a recurrent node's results; None for one that has no readers."""
    for tensor in node.results:
        if tensor.name.endswith(":training_state") and _is_read(e, tensor):
            expected = "no readers, as only gradient operations have a use for it"
            raise OptionError(refusal(node.op.name, "training_state", expected, "one"))
    words = _activations(node.op.name, node.attributes["descriptor"])
    ends = _last_cells(e, node)
    if words is None or ends is None or not _is_plain(e, node):
        return scan(e, node)
    return _node(e, node, words, ends)


def _is_read(e: Exporter, tensor: Tensor) -> bool:
    return bool(e.readers.get(tensor)) or tensor in e.outputs.values()


def _activations(cell: str, descriptor: AnyDescriptor) -> list[str] | None:
    """ONNX's words for one direction; None if gates that share one differ."""
    words = []
    for names in ROW.activations[cell].values():
        kinds = {getattr(descriptor, name) for name in names}
        if len(kinds) > 1:
            return None
        words.append(_WORDS[kinds.pop()])
    return words


def _is_plain(e: Exporter, node: Node) -> bool:
    """Whether ONNX's own node computes the same."""
    names, descriptor = node.attributes["names"], node.attributes["descriptor"]
    if "mask" in names or getattr(descriptor, "flip_z", False) != ROW.flip_z:
        return False
    if "peephole" not in names:
        return True
    value = e.value(node.inputs[names.index("peephole")])
    if not isinstance(value, np.ndarray):
        return False
    order = gate_order(descriptor)
    hidden = node.inputs[names.index("recurrent_weight")].shape[-1]
    whole = value.reshape(-1, len(order), hidden)
    # ONNX's cell gate has no peephole, and its output gate looks at c[t].
    zeros = "z" if descriptor.peephole_on_new_cell else "zo"
    return not any(np.any(whole[:, order.index(gate)]) for gate in zeros)


def _last_cells(e: Exporter, node: Node) -> list[tuple[Node, int, int, int]] | None:
    """The readers of an LSTM's cells if all of them read the last step of a direction, which is
    all that ONNX gives: (slice, direction, first and last feature). Else None."""
    found: list[tuple[Node, int, int, int]] = []
    cells = [tensor for tensor in node.results if tensor.name.endswith(":cell")]
    if not cells:
        return found
    (cell,) = cells
    if cell in e.outputs.values():
        return None
    steps, _, width = cell.shape
    assert width is not None
    hidden = width // 2 if node.attributes["descriptor"].bidirectional else width
    for reader in e.readers.get(cell, []):
        if reader.op.name != "slice":
            return None
        a = reader.attributes
        first, last, _ = slice(a["starts"][2], a["ends"][2]).indices(width)
        direction = first // hidden
        window = (a["starts"][0], a["ends"][0])
        is_end = window in ((-1, None), (None if steps is None else steps - 1, steps))
        if direction == 1:
            is_end = window == (0, 1)
        whole = a["starts"][1] == 0 and a["ends"][1] is None and set(a["strides"]) == {1}
        if not is_end or not whole or last > (direction + 1) * hidden:
            return None
        found.append((reader, direction, first - direction * hidden, last - direction * hidden))
    return found


def _node(
    e: Exporter, node: Node, words: list[str], ends: list[tuple[Node, int, int, int]]
) -> Sequence[Value | None]:
    cell, descriptor = node.op.name, node.attributes["descriptor"]
    tensors = dict(zip(node.attributes["names"], node.inputs, strict=True))
    count = 2 if descriptor.bidirectional else 1
    hidden = tensors["recurrent_weight"].shape[-1]
    assert hidden is not None
    is_reverse = descriptor.reverse and count == 1
    source = e.name(tensors["source"])
    inputs = _weights(e, cell, descriptor, tensors, count, hidden)
    for name in ("init_state", "init_cell") if cell == LSTM else ("init_state",):
        state = ""
        if name in tensors:
            whole = e.reshape(e.value(tensors[name]), *_rows(tensors[name]), count, hidden)
            state = e.named(e.transpose(whole, 1, 0, 2), tensors[name].name)
        inputs.append(state)
    peephole = ""
    if "peephole" in tensors:
        value = e.reshape(e.value(tensors["peephole"]), count, 4 * hidden)
        order = gate_rows(gate_order(descriptor), tuple(ROW.peephole), hidden)
        peephole = e.named(e.take(value, order, 1), tensors["peephole"].name)
    if cell == LSTM:
        inputs.append(peephole)
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "activations": words * count,
        "direction": "bidirectional" if count == 2 else "reverse" if is_reverse else "forward",
    }
    pairs = [ONNX_VALUES[w.lower()] for w in words * count if w.lower() in ONNX_VALUES]
    if pairs:
        attributes["activation_alpha"] = [alpha for alpha, _ in pairs]
        attributes["activation_beta"] = [beta for _, beta in pairs]
    if cell == GRU:
        attributes[ROW.reset_fact] = int(getattr(descriptor, "reset_after", False))
    while inputs and not inputs[-1]:
        inputs.pop()
    outputs = 3 if ends else 1
    made = e.emit(_KINDS[cell], source, *inputs, count=outputs, **attributes)
    state = made[0] if ends else made
    if count == 1:
        state = e.emit("Squeeze", state, e.ints(1))
        state = e.flip(state, [0]) if is_reverse else state
    else:
        state = e.emit("Transpose", state, perm=[0, 2, 1, 3])
        state = e.emit("Reshape", state, e.ints(0, 0, count * hidden))
    for reader, direction, first, last in ends:
        value = e.part(made[2], direction, direction + 1, 0)  # [1,N,H]
        e.names[reader.results[0]] = e.part(value, first, last, 2)
    return [state, *[None] * (len(node.results) - 1)]


def _rows(tensor: Tensor) -> tuple[int, ...]:
    """N of an initial state for a reshape: a 0 keeps an axis as it is, when the model runs."""
    return (0 if tensor.shape[0] is None else tensor.shape[0],)


def _weights(
    e: Exporter,
    cell: str,
    descriptor: AnyDescriptor,
    tensors: dict[str, Tensor],
    count: int,
    hidden: int,
) -> list[str]:
    """W, R, B and the empty place of the lengths."""
    ours, theirs = gate_order(descriptor), tuple(ROW.gates[cell])
    rows, order = len(ours) * hidden, gate_rows(ours, theirs, hidden)
    dtype = NUMPY.dtype(tensors["source"].dtype)
    if "input_weight" in tensors:
        width = tensors["input_weight"].shape[1]
        assert width is not None
        weight: Value = e.value(tensors["input_weight"])
    else:  # the source is projected already
        width, weight = count * rows, np.eye(count * rows, dtype=dtype)
    weight = e.take(e.reshape(weight, count, rows, width), order, 1)
    matrix = e.reshape(e.value(tensors["recurrent_weight"]), count, rows, hidden)
    bias = ""
    if "bias" in tensors or "secondary_bias" in tensors:
        first: Value = np.zeros((count, rows), dtype)
        if "bias" in tensors:
            first = e.take(e.reshape(e.value(tensors["bias"]), count, rows), order, 1)
        second: Value = np.zeros((count, rows), dtype)
        if "secondary_bias" in tensors:
            inner = e.reshape(e.value(tensors["secondary_bias"]), count, hidden)
            place = theirs.index("o") * hidden
            before, after = np.zeros((count, place)), np.zeros((count, rows - hidden - place))
            pieces: list[Value] = [before.astype(dtype), inner, after.astype(dtype)]
            second = e.concat(pieces, 1)
        name = tensors["bias"].name if "bias" in tensors else "bias"
        bias = e.named(e.concat([first, second], 1), name)
    hint = tensors["input_weight"].name if "input_weight" in tensors else "identity"
    return [
        e.named(weight, hint),
        e.named(e.take(matrix, order, 1), tensors["recurrent_weight"].name),
        bias,
        "",
    ]
