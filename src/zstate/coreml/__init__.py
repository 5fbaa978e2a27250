"""Compiled programs as Core ML packages, for inference.

coremltools builds the package, in its language MIL. A recurrent node becomes MIL's rnn, lstm or
gru, its weights in Core ML's own gate order (:mod:`zstate.convert`); one that these cannot express
becomes a loop with its equations. What MIL cannot say is refused by node before anything is
written. Core ML computes on Apple's machines only; building needs none.
"""

from .saving import mil_program, save

__all__ = ["mil_program", "save"]


def __dir__() -> list[str]:
    return sorted(__all__)
