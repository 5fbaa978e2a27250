"""Layers for inference: weights packed once, in 32, 16 or 8 bits, and streams of single steps.

``parts.py`` (a packed layer), ``model.py`` (what ``prepare`` returns), ``streams.py``,
``report.py`` (accuracy), ``reference.py`` (the same in NumPy: the oracle for low-bit weights).
"""

from .model import Prepared, prepare
from .report import Report
from .streams import Stream

__all__ = ["Prepared", "Report", "Stream", "prepare"]
