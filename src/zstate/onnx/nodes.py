"""The table of ONNX operators: each row translates a node into nodes of the graph.

Recurrent nodes are in recurrent.py, scan_reading.py and loop_reading.py, all others in operators/.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..convert.objects import CELLS
from ..errors import OptionError, refusal
from .loop_reading import loop
from .node import Node, Row
from .operators import contractions, einsum, elementwise, indexing, reductions, shaping, values
from .package import onnx_package
from .recurrent import recurrent
from .scan_reading import scan

_OLDEST = 7  # the opset whose operators, and later ones, the rows know
ROWS: dict[str, Row] = {
    **elementwise.ROWS,
    **contractions.ROWS,
    **einsum.ROWS,
    **reductions.ROWS,
    **indexing.ROWS,
    **shaping.ROWS,
    **values.ROWS,
    **dict.fromkeys(CELLS, recurrent),
    "Loop": loop,
    "Scan": scan,
}


def translate(node: Node) -> Sequence[Any]:
    """The results of a node: tensors of the graph, or arrays."""
    if node.kind not in ROWS:
        expected = "an operator that zstate's graph has"
        raise OptionError(refusal("onnx.load", "op_type", expected, repr(node.kind)))
    if _is_older(node):
        expected = f"opset {_OLDEST} or later, since which it is another (onnx.version_converter)"
        raise OptionError(refusal(node.kind, "opset_import", expected, str(node.opset)))
    return ROWS[node.kind](node)


def _is_older(node: Node) -> bool:
    """Whether an operator is from before the rows' time, with other defaults or another meaning."""
    defs = onnx_package().defs
    return (
        node.opset < _OLDEST
        and defs.has(node.kind, _OLDEST)
        and defs.get_schema(node.kind, _OLDEST).since_version > node.opset
    )
