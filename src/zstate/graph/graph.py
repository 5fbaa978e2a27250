"""The graph: placeholders, constants, variables, the six recurrent families, and ``run``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..descriptors import AnyDescriptor, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from ..errors import DTypeError, GraphError, OptionError, ShapeError, refusal
from ..layout import (
    TensorInfo,
    brackets,
    check_descriptor,
    describe,
    dtype_name,
    is_plain_array,
)
from ..operations import OPERATIONS
from ..types import Array, PartialShape, float_dtype
from .ops import CONSTANT, PLACEHOLDER, RECURRENT, VARIABLE, Op
from .tensor import Node, Tensor


class Graph:
    """A graph of operations, built once and run with feeds.

    Methods return Tensors without data; a wrong shape or type is refused when the node is made.
    The recurrent methods return lists in the published order, an absent input having no slot.

    Example:
        >>> import numpy as np
        >>> g = Graph()
        >>> x = g.placeholder(shape=(None, 1, 3), dtype="float64", name="x")
        >>> R = g.constant(np.eye(3))
        >>> (h,) = g.single_gate_rnn(x, recurrent_weight=R)
        >>> h
        <Tensor single_gate_rnn_2:state float64[?,1,3]>
        >>> g.run(feeds={x: np.ones((2, 1, 3))}, targets=[h])[h][-1]
        array([[2., 2., 2.]])
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def placeholder(
        self, *, shape: Sequence[int | None], dtype: str = "float32", name: str | None = None
    ) -> Tensor:
        """A tensor that is fed at every run; a dimension may be None, known at run time."""
        info = TensorInfo(
            _checked_shape("placeholder", shape), _checked_dtype("placeholder", dtype)
        )
        return self._add(PLACEHOLDER, (), {"info": info}, name)[0]

    def constant(
        self,
        value: Array | float,
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A tensor with fixed values: an array, or a number filled into ``shape`` as ``dtype``."""
        return self._stored(CONSTANT, value, shape, dtype, name)

    def variable(
        self,
        value: Array | float,
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A tensor that keeps its values from run to run; ``value`` is the first."""
        return self._stored(VARIABLE, value, shape, dtype, name)

    def single_gate_rnn(
        self,
        source: Tensor,
        *,
        recurrent_weight: Tensor,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        mask: Tensor | None = None,
        descriptor: SingleGateRNNDescriptor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """[h], with training [h, z]. Shapes as in :func:`zstate.single_gate_rnn`."""
        tensors = (source, recurrent_weight, input_weight, bias, init_state, mask)
        return self._recurrent("single_gate_rnn", tensors, descriptor, name)

    def single_gate_rnn_gradients(
        self,
        source: Tensor,
        *,
        recurrent_weight: Tensor,
        source_gradient: Tensor,
        z_state: Tensor,
        state_gradient: Tensor | None = None,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        mask: Tensor | None = None,
        descriptor: SingleGateRNNDescriptor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """Gradients for source, recurrent_weight, and those passed of input_weight, bias,
        init_state."""
        tensors = (
            *(source, recurrent_weight, source_gradient, z_state, state_gradient),
            *(input_weight, bias, init_state, mask),
        )
        return self._recurrent("single_gate_rnn_gradients", tensors, descriptor, name)

    def lstm(
        self,
        source: Tensor,
        *,
        recurrent_weight: Tensor,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        init_cell: Tensor | None = None,
        mask: Tensor | None = None,
        peephole: Tensor | None = None,
        descriptor: LSTMDescriptor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """[h], with produce_cell [h, c], with training [h, c, z]; see :func:`zstate.lstm`."""
        tensors = (
            *(source, recurrent_weight, input_weight, bias, init_state, init_cell),
            *(mask, peephole),
        )
        return self._recurrent("lstm", tensors, descriptor, name)

    def lstm_gradients(
        self,
        source: Tensor,
        *,
        recurrent_weight: Tensor,
        source_gradient: Tensor,
        z_state: Tensor,
        cell_output_fwd: Tensor,
        state_gradient: Tensor | None = None,
        cell_gradient: Tensor | None = None,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        init_cell: Tensor | None = None,
        mask: Tensor | None = None,
        peephole: Tensor | None = None,
        descriptor: LSTMDescriptor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """Gradients for source, recurrent_weight, and those passed of input_weight, bias,
        peephole, init_state, init_cell."""
        tensors = (
            *(source, recurrent_weight, source_gradient, z_state, cell_output_fwd),
            *(state_gradient, cell_gradient, input_weight, bias, init_state, init_cell),
            *(mask, peephole),
        )
        return self._recurrent("lstm_gradients", tensors, descriptor, name)

    def gru(
        self,
        source: Tensor,
        *,
        recurrent_weight: Tensor,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        mask: Tensor | None = None,
        secondary_bias: Tensor | None = None,
        descriptor: GRUDescriptor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """[h], with training [h, z]. Shapes as in :func:`zstate.gru`."""
        tensors = (source, recurrent_weight, input_weight, bias, init_state, mask, secondary_bias)
        return self._recurrent("gru", tensors, descriptor, name)

    def gru_gradients(
        self,
        source: Tensor,
        *,
        recurrent_weight: Tensor,
        source_gradient: Tensor,
        z_state: Tensor,
        output_fwd: Tensor,
        state_gradient: Tensor | None = None,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        mask: Tensor | None = None,
        secondary_bias: Tensor | None = None,
        descriptor: GRUDescriptor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """Gradients for source, recurrent_weight, and those passed of input_weight, bias,
        init_state, secondary_bias."""
        tensors = (
            *(source, recurrent_weight, source_gradient, z_state, output_fwd, state_gradient),
            *(input_weight, bias, init_state, mask, secondary_bias),
        )
        return self._recurrent("gru_gradients", tensors, descriptor, name)

    def run(self, feeds: Mapping[Tensor, Array], targets: Iterable[Tensor]) -> dict[Tensor, Array]:
        """Compute the targets from the feeds: {tensor: array}.

        Every placeholder that a target depends on must be fed, with an array of its type and
        shape. The arrays that come back are the caller's own.
        """
        wanted = list(targets)
        for target in wanted:
            self._own("run", "targets", target)
        values = {tensor: self._checked_feed(tensor, array) for tensor, array in feeds.items()}
        for node in self._needed(wanted):
            if node.op is PLACEHOLDER:
                self._require_fed(node, values)
                continue
            arrays = node.op.evaluate([values[tensor] for tensor in node.inputs], node.attributes)
            values.update(zip(node.results, arrays, strict=True))
        computed = {target: values[target] for target in wanted}
        return {
            target: array if target.node.inputs else array.copy()
            for target, array in computed.items()
        }

    def _recurrent(
        self,
        kind: str,
        tensors: Sequence[Tensor | None],
        descriptor: AnyDescriptor | None,
        name: str | None,
    ) -> list[Tensor]:
        operation = OPERATIONS[kind]
        label = _label(kind, name)
        passed = {}
        for tensor_name, tensor in zip(operation.inputs, tensors, strict=True):
            if tensor is not None or tensor_name in operation.required:
                passed[tensor_name] = self._own(label, tensor_name, tensor)
        attributes = {
            "names": tuple(passed),
            "descriptor": check_descriptor(operation, descriptor, label),
        }
        return self._add(RECURRENT[kind], tuple(passed.values()), attributes, name)

    def _stored(
        self,
        op: Op,
        value: Array | float,
        shape: Sequence[int] | None,
        dtype: str | None,
        name: str | None,
    ) -> Tensor:
        array = _checked_value(_label(op.name, name), value, shape, dtype)
        array.flags.writeable = False
        info = TensorInfo(array.shape, array.dtype.name)
        return self._add(op, (), {"info": info, "store": {"value": array}}, name)[0]

    def _add(
        self, op: Op, inputs: tuple[Tensor, ...], attributes: dict[str, Any], name: str | None
    ) -> list[Tensor]:
        if name is not None and not isinstance(name, str):
            raise DTypeError(refusal(op.name, "name", "a string or None", describe(name)))
        results = op.infer([tensor.info for tensor in inputs], attributes, _label(op.name, name))
        node = Node(self, op, name or f"{op.name}_{len(self.nodes)}", inputs, attributes)
        for result, info in results.items():
            full = f"{node.name}:{result}" if result else node.name
            node.results.append(Tensor(node, full, info))
        self.nodes.append(node)
        return list(node.results)

    def _own(self, label: str, name: str, tensor: object) -> Tensor:
        if not isinstance(tensor, Tensor):
            raise DTypeError(refusal(label, name, "a Tensor of this graph", describe(tensor)))
        if tensor.graph is not self:
            raise GraphError(
                refusal(label, name, "a Tensor of this graph", f"{tensor} of another graph")
            )
        return tensor

    def _checked_feed(self, tensor: object, value: object) -> Array:
        tensor = self._own("run", "feeds", tensor)
        if tensor.node.op is not PLACEHOLDER:
            raise GraphError(
                refusal(
                    "run",
                    f"feed {tensor.name!r}",
                    "a placeholder",
                    f"the result of {tensor.node.op.name}",
                )
            )
        label = f"feed {tensor.name!r}"
        if not is_plain_array(value):
            raise DTypeError(refusal("run", label, "a NumPy array", describe(value)))
        assert isinstance(value, np.ndarray)
        if dtype_name(value.dtype) != tensor.dtype:
            raise DTypeError(refusal("run", label, tensor.dtype, dtype_name(value.dtype)))
        if not _fits(value.shape, tensor.shape):
            expected, got = brackets(tensor.shape), brackets(value.shape)
            raise ShapeError(refusal("run", label, expected, got))
        return value

    def _require_fed(self, node: Node, values: Mapping[Tensor, Array]) -> None:
        (tensor,) = node.results
        if tensor not in values:
            wanted = f"an array {tensor.dtype}{brackets(tensor.shape)}"
            raise GraphError(refusal("run", f"feed {tensor.name!r}", wanted, "nothing"))

    def _needed(self, targets: Iterable[Tensor]) -> list[Node]:
        """The nodes that the targets depend on, in the order in which they were made."""
        needed: set[Node] = set()
        waiting = [target.node for target in targets]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting.extend(tensor.node for tensor in node.inputs)
        return [node for node in self.nodes if node in needed]


def _label(kind: str, name: str | None) -> str:
    return f"{kind} {name!r}" if name else kind


def _fits(shape: tuple[int, ...], pattern: PartialShape) -> bool:
    return len(shape) == len(pattern) and all(
        wanted in (None, size) for size, wanted in zip(shape, pattern, strict=True)
    )


def _checked_shape(label: str, shape: object) -> PartialShape:
    expected = "a sequence of sizes, None where known at run time"
    if not isinstance(shape, list | tuple):
        raise DTypeError(refusal(label, "shape", expected, describe(shape)))
    sizes: list[int | None] = []
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int | np.integer | None):
            raise DTypeError(refusal(label, "shape", expected, describe(size)))
        if size is not None and size < 0:
            raise ShapeError(refusal(label, "shape", expected, str(size)))
        sizes.append(None if size is None else int(size))
    return tuple(sizes)


def _checked_dtype(label: str, dtype: object) -> str:
    try:
        if dtype == "bfloat16":
            return dtype_name(float_dtype("bfloat16"))
        found = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError as error:
        raise DTypeError(refusal(label, "dtype", "the name of a type", repr(dtype))) from error
    name = dtype_name(found)
    if found.kind not in "fiub" and name != "bfloat16":
        raise DTypeError(refusal(label, "dtype", "a real number type", name))
    return name


def _checked_value(
    label: str, value: object, shape: Sequence[int] | None, dtype: str | None
) -> Array:
    """The array behind a constant or a variable: always a copy."""
    if is_plain_array(value):
        if shape is not None or dtype is not None:
            raise OptionError(
                refusal(label, "shape and dtype", "none beside an array", "one of them")
            )
        assert isinstance(value, np.ndarray)
        _checked_dtype(label, value.dtype)
        return np.array(value, order="C")
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise DTypeError(refusal(label, "value", "a NumPy array or a number", describe(value)))
    sizes = _checked_shape(label, () if shape is None else shape)
    if None in sizes:
        raise ShapeError(refusal(label, "shape", "known sizes", brackets(sizes)))
    known = tuple(size for size in sizes if size is not None)
    name = _checked_dtype(label, "float32" if dtype is None else dtype)
    return np.full(known, value, float_dtype(name))
