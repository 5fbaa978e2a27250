"""Layers for inference: weights packed once, in 32, 16 or 8 bits, and streams of single steps.

``parts.py`` (a layer as it is packed), ``model.py`` (what ``prepare`` gives), ``streams.py``,
``report.py`` (accuracy), ``reference.py`` (the same in NumPy: the oracle of the small weights).
"""

from .model import Prepared, prepare
from .report import Report
from .streams import Stream

__all__ = ["Prepared", "Report", "Stream", "prepare"]
