"""The recurrent operations as methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...cells import CELLS, Cell, MadeCell
from ...descriptors import AnyDescriptor
from ...errors import DTypeError, OptionError, refusal
from ...extensions import has_head_axis, with_heads
from ...layout import describe
from ...operations import OPERATIONS, Operation, calls_of, check_saved
from ...signatures import arguments_of, sign, signature_of
from ..ops import RECURRENT
from ..ops.recurrent import MADE, operation_of, with_training
from ..tensor import Node, Tensor, result_name
from .core import Core, label_of
from .step_values import accepted, in_type_of, with_step_values

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...keywords import (
        GraphGRU,
        GraphGRUGradients,
        GraphLSTM,
        GraphLSTMGradients,
        GraphRNN,
        GraphRNNGradients,
    )


class Recurrent(Core):
    """The recurrent methods; they return lists in the published order."""

    def single_gate_rnn(self, source: Tensor, **inputs: Unpack[GraphRNN]) -> list[Tensor]:
        """[h]; with training [h, z]. For the shapes see :func:`zstate.single_gate_rnn`."""
        return self._by_table("single_gate_rnn", source, inputs)

    def single_gate_rnn_gradients(
        self, source: Tensor, **inputs: Unpack[GraphRNNGradients]
    ) -> list[Tensor]:
        """Gradients for source, recurrent_weight and, if passed, input_weight, bias,
        init_state."""
        return self._by_table("single_gate_rnn_gradients", source, inputs)

    def lstm(self, source: Tensor, **inputs: Unpack[GraphLSTM]) -> list[Tensor]:
        """[h]; with produce_cell [h, c]; with training [h, c, z]. See :func:`zstate.lstm`."""
        return self._by_table("lstm", source, inputs)

    def lstm_gradients(self, source: Tensor, **inputs: Unpack[GraphLSTMGradients]) -> list[Tensor]:
        """Gradients for source, recurrent_weight and, if passed, input_weight, bias,
        peephole, init_state, init_cell."""
        return self._by_table("lstm_gradients", source, inputs)

    def gru(self, source: Tensor, **inputs: Unpack[GraphGRU]) -> list[Tensor]:
        """[h]; with training [h, z]. For the shapes see :func:`zstate.gru`."""
        return self._by_table("gru", source, inputs)

    def gru_gradients(self, source: Tensor, **inputs: Unpack[GraphGRUGradients]) -> list[Tensor]:
        """Gradients for source, recurrent_weight and, if passed, input_weight, bias,
        init_state, secondary_bias."""
        return self._by_table("gru_gradients", source, inputs)

    def recurrent(
        self,
        cell: MadeCell | Cell | str,
        source: Tensor,
        *,
        recurrent_weight: Tensor | None,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        resets: Tensor | None = None,
        heads: int = 1,
        reverse: bool = False,
        bidirectional: bool = False,
        training: bool = False,
        name: str | None = None,
        **tensors: Tensor | None,
    ) -> list[Tensor]:
        """Every state [T,N,D·H]; with training, also the training state.

        ``cell`` is a cell from equations (:func:`zstate.cells.cell`), or a built-in one or its
        name; the latter returns what its own method returns. ``tensors`` are the initial states,
        init_<state> [N,D·H], and the cell's own parameters and values per step by name. Shapes are
        the same as in a call of the cell; without products, recurrent_weight is None.

        Example:
            >>> import numpy as np
            >>> import zstate as zs
            >>> from zstate import cells
            >>> g = zs.Graph()
            >>> x = g.placeholder(shape=(None, 2, 12))
            >>> R = g.variable(np.ones((12, 3), np.float32))
            >>> h, c, n, m = g.recurrent(cells.slstm, x, recurrent_weight=R)
            >>> c
            <Tensor recurrent_2:c float32[?,2,3]>
        """
        tensors |= {"source": source, "recurrent_weight": recurrent_weight, "resets": resets}
        tensors |= {"input_weight": input_weight, "bias": bias, "mask": mask}
        options = {"reverse": reverse, "bidirectional": bidirectional, "training": training}
        return self._of_cell("", cell, tensors, options, heads, name)

    def recurrent_gradients(
        self,
        cell: MadeCell | Cell | str,
        source: Tensor,
        *,
        recurrent_weight: Tensor | None,
        source_gradient: Tensor,
        z_state: Tensor,
        heads: int = 1,
        reverse: bool = False,
        bidirectional: bool = False,
        name: str | None = None,
        **tensors: Tensor | None,
    ) -> list[Tensor]:
        """Gradients for source, recurrent_weight and, if passed, input_weight, bias, the cell's own
        parameters and the initial states. :meth:`gradients` adds these nodes for you.

        source_gradient is the gradient of the first state [T,N,D·H]; <state>_gradient is that of
        another state, or of the last step alone [N,D·H]. z_state is the training state, and
        <state>_output_fwd a state that :meth:`recurrent` returned. The other tensors are the same
        as there.
        """
        tensors |= {"source": source, "recurrent_weight": recurrent_weight}
        tensors |= {"source_gradient": source_gradient, "z_state": z_state}
        options = {"reverse": reverse, "bidirectional": bidirectional}
        return self._of_cell("_gradients", cell, tensors, options, heads, name)

    def _of_cell(
        self,
        suffix: str,
        cell: object,
        tensors: Mapping[str, Tensor | None],
        options: Mapping[str, Any],
        heads: int,
        name: str | None,
    ) -> list[Tensor]:
        built_in = _BUILT_IN.get(cell) if isinstance(cell, Cell | str) else None
        kind = (MADE if built_in is None else built_in.name) + suffix
        label = label_of(kind, name)
        if built_in is None and not isinstance(cell, MadeCell):
            one_of = ", ".join(each.name for each in CELLS)
            expected = f"a cell from zstate.cells.cell, or one of {one_of}"
            raise DTypeError(refusal(label, "cell", expected, describe(cell)))
        more: dict[str, Any] = {} if built_in else {"cell": cell}
        operation = operation_of(kind, more)
        steps = cell.steps if isinstance(cell, MadeCell) else ()
        if steps and operation.is_gradient:
            expected = "a cell without values per step, or graph.gradients, which has theirs too"
            raise OptionError(refusal(label, "cell", expected, f"{operation.name} with some"))
        passed = {each: tensor for each, tensor in tensors.items() if tensor is not None}
        call = calls_of(operation.cell)[operation.is_gradient]
        for each in passed:
            if each not in call.inputs:
                one_of = f"one of {', '.join((*operation.inputs, *steps))}"
                raise OptionError(refusal(label, each, one_of, "another name"))
        descriptor: Any = operation.cell.descriptor(**options)
        descriptor = with_heads(operation, descriptor, heads, label)
        given = passed
        if steps or "recurrent_weight" not in passed:
            given = accepted(self, label, call, passed, descriptor)
        inner = with_step_values(self, label, operation.cell, given, descriptor) if steps else given
        inputs = [inner.get(each) for each in operation.inputs]
        found = self._recurrent(kind, inputs, descriptor, name, heads, more)
        if operation.is_gradient:
            found = [each for each in found if result_name(each) in passed]
        return in_type_of(self, found, given["source"]) if steps else found

    def training_twin(self, node: Node) -> Node:
        """The recurrent node itself if it keeps its training state, or else its twin."""
        if node.attributes["descriptor"].training:
            return node
        if node not in self._twins:
            results = self.add_node(node.op, node.inputs, with_training(node.attributes))
            self._twins[node] = results[0].node
        return self._twins[node]

    def _by_table(self, kind: str, source: Tensor, inputs: Mapping[str, object]) -> list[Tensor]:
        """A method of the table of operations: it takes what its signature says."""
        operation = OPERATIONS[kind]
        given = arguments_of(kind, _SIGNATURES[kind], source, **inputs)
        tensors = [given.pop(each) for each in operation.inputs]
        return self._recurrent(kind, tensors, **given)

    def _recurrent(
        self,
        kind: str,
        tensors: Sequence[Tensor | None],
        descriptor: AnyDescriptor | None,
        name: str | None,
        heads: int = 1,
        more: Mapping[str, Any] | None = None,
    ) -> list[Tensor]:
        more = more or {}
        operation = operation_of(kind, more)
        label = label_of(kind, name)
        passed = {}
        for tensor_name, tensor in zip(operation.inputs, tensors, strict=True):
            check_saved(operation, tensor_name, tensor, label)
            if tensor is not None or tensor_name in operation.required:
                passed[tensor_name] = self.own(label, tensor_name, tensor)
        found = with_heads(operation, descriptor, heads, label)
        weight = passed["recurrent_weight"]
        axis = {"axes": (len(weight.shape) - 3,)}  # of the one head, where it has one
        has_axis = has_head_axis(operation, weight, found)
        if has_axis:
            passed["recurrent_weight"] = self.apply("squeeze", (weight,), axis)
        attributes = {"names": tuple(passed), "descriptor": found, **more}
        results = self.add_node(RECURRENT[kind], tuple(passed.values()), attributes, name)
        if not (has_axis and operation.is_gradient):
            return results
        return [
            self.apply("expand_dims", (each,), axis)
            if result_name(each) == "recurrent_weight"
            else each
            for each in results
        ]


_BUILT_IN: dict[object, Cell] = {key: each for each in CELLS for key in (each, each.name)}


_SIGNATURES = {
    name: signature_of(each, ("source",), Tensor, list[Tensor], name=str)
    for name, each in OPERATIONS.items()
}


def _method_of(operation: Operation) -> Callable[..., list[Tensor]]:
    """The method for an operation that is not written out above: another cell's."""

    def method(self: Recurrent, source: Tensor, **inputs: object) -> list[Tensor]:
        return self._by_table(operation.name, source, inputs)

    method.__name__ = operation.name
    method.__doc__ = f"{operation.name}: {', '.join(operation.result._fields)}."
    return method


for _name, _signature in _SIGNATURES.items():
    if not hasattr(Recurrent, _name):
        setattr(Recurrent, _name, _method_of(OPERATIONS[_name]))
    sign(getattr(Recurrent, _name), _signature, is_method=True)
