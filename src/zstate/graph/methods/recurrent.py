"""The six recurrent families as methods."""

from __future__ import annotations

from collections.abc import Sequence

from ...descriptors import AnyDescriptor, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from ...layout import check_descriptor
from ...operations import OPERATIONS, check_saved
from ..ops import RECURRENT
from ..ops.recurrent import with_training
from ..tensor import Node, Tensor
from .core import Core, label_of


class Recurrent(Core):
    """The recurrent methods; they return lists in the published order."""

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

    def training_twin(self, node: Node) -> Node:
        """The recurrent node itself if it keeps its training state, else its twin that does."""
        if node.attributes["descriptor"].training:
            return node
        if node not in self._twins:
            results = self.add_node(node.op, node.inputs, with_training(node.attributes))
            self._twins[node] = results[0].node
        return self._twins[node]

    def _recurrent(
        self,
        kind: str,
        tensors: Sequence[Tensor | None],
        descriptor: AnyDescriptor | None,
        name: str | None,
    ) -> list[Tensor]:
        operation = OPERATIONS[kind]
        label = label_of(kind, name)
        passed = {}
        for tensor_name, tensor in zip(operation.inputs, tensors, strict=True):
            check_saved(operation, tensor_name, tensor, label)
            if tensor is not None or tensor_name in operation.required:
                passed[tensor_name] = self.own(label, tensor_name, tensor)
        attributes = {
            "names": tuple(passed),
            "descriptor": check_descriptor(operation, descriptor, label),
        }
        return self.add_node(RECURRENT[kind], tuple(passed.values()), attributes, name)
