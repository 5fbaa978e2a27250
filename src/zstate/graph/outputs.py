"""What a whole graph is for, where nobody has said: the tensors that nothing reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .compiling import trained_twins
from .ops import ASSIGN, CONSTANT, PLACEHOLDER, VARIABLE
from .ops.recurrent import BACKWARD
from .tensor import Tensor, result_name

if TYPE_CHECKING:
    from .graph import Graph

_GIVEN = (PLACEHOLDER, CONSTANT, VARIABLE, ASSIGN)
_SAVED = ("soft_max", "training_state")  # for a gradient operation only


def outputs_of(graph: Graph) -> list[Tensor]:
    """The results that no node reads, in the order in which they were made.

    Not those of assigns, which change variables; nor what is kept for gradient operations, nor
    the gradients that come with one that is read.
    """
    read = {tensor for node in graph.nodes for tensor in node.inputs}
    twins = set(trained_twins(graph.nodes).values())
    found = []
    for node in graph.nodes:
        if node.op in _GIVEN or node in twins:
            continue
        if node.op.name in BACKWARD and any(tensor in read for tensor in node.results):
            continue
        for tensor in node.results:
            if tensor not in read and result_name(tensor) not in _SAVED:
                found.append(tensor)
    return found
