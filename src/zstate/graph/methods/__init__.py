"""The methods of a graph that build nodes, by family; one method per MPSGraph operation."""

from .arithmetic import Arithmetic
from .core import Core
from .functions import Functions
from .learning import Learning
from .recurrent import Recurrent
from .shaping import Shaping
from .statistics import Statistics

__all__ = [
    "Arithmetic",
    "Core",
    "Functions",
    "Learning",
    "Recurrent",
    "Shaping",
    "Statistics",
]
