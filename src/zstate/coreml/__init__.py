"""Compiled programs as Core ML packages, for inference.

coremltools builds the package, in its language MIL. A recurrent node becomes MIL's rnn, lstm or
gru, with its weights in Core ML's own gate order (:mod:`zstate.convert`); a node that these cannot
express becomes a loop with its equations. What MIL cannot express raises an error that names the
node, before anything is written. Core ML runs only on Apple's machines; building does not need one.
"""

from .saving import mil_program, save

__all__ = ["mil_program", "save"]


def __dir__() -> list[str]:
    return sorted(__all__)
