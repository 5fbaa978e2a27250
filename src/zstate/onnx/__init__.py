"""ONNX models in and out.

>>> import numpy as np, onnx, onnx.parser, zstate.onnx as zo
>>> model = zo.load(onnx.parser.parse_model('''
...     <ir_version: 8, opset_import: ["": 17]>
...     example (float[N, 3] x) => (float[N, 3] y) { y = Tanh(x) }'''))
>>> model.run({"x": np.zeros((2, 3), np.float32)})["y"].shape
(2, 3)
"""

from .exporting import torch_translations
from .loading import NeedsValueError, load
from .model import Model
from .saving import save

__all__ = ["Model", "NeedsValueError", "load", "save", "torch_translations"]


def __dir__() -> list[str]:
    return sorted(__all__)
