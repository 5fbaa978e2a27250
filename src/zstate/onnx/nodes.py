"""The table of ONNX operators: each row translates a node into nodes of the graph.

Recurrent nodes are in recurrent.py and scan_reading.py, all others in operators/, arithmetic on
sizes that are not known yet in shapes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..convert.objects import CELLS
from ..errors import OptionError, refusal
from . import loop_reading, shapes
from .node import Node, Row
from .operators import contractions, einsum, elementwise, indexing, reductions, shaping, values
from .recurrent import recurrent
from .scan_reading import scan

ROWS: dict[str, Row] = {
    **elementwise.ROWS,
    **contractions.ROWS,
    **einsum.ROWS,
    **reductions.ROWS,
    **indexing.ROWS,
    **shaping.ROWS,
    **values.ROWS,
    **loop_reading.ROWS,
    **dict.fromkeys(CELLS, recurrent),
    "Scan": scan,
    "Shape": shapes.shape,
    "Size": shapes.size,
}


def translate(node: Node) -> Sequence[Any]:
    """The results of a node: tensors of the graph, arrays, or arrays of sizes."""
    if node.kind not in ROWS:
        expected = "an operator that zstate's graph has"
        raise OptionError(refusal("onnx.load", "op_type", expected, repr(node.kind)))
    return ROWS[node.kind](node)
