"""The MPSGraph workflow: build a graph, differentiate it, compile it, run it with feeds."""

from .executable import Executable, Memory
from .graph import Graph
from .tensor import Tensor

__all__ = ["Executable", "Graph", "Memory", "Tensor"]


def __dir__() -> list[str]:
    return sorted(__all__)
