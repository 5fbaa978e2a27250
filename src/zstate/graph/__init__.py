"""MPSGraph's shape of work: build a graph first, run it later."""

from .graph import Graph
from .tensor import Tensor

__all__ = ["Graph", "Tensor"]
