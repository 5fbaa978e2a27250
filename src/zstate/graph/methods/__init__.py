"""The methods of a graph that build nodes, by family; one method per MPSGraph operation."""

from .arithmetic import Arithmetic
from .core import Core
from .learning import Learning
from .recurrent import Recurrent
from .shaping import Shaping

__all__ = ["Arithmetic", "Core", "Learning", "Recurrent", "Shaping"]
