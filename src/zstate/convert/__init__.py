"""Weights of other frameworks in and out: gate orders, biases, transposed kernels, GRU forms.

>>> import numpy as np, zstate as zs, zstate.convert as zc
>>> rng = np.random.default_rng(0)
>>> weights = {"weight_ih_l0": rng.normal(size=(8, 3)), "weight_hh_l0": rng.normal(size=(8, 2))}
>>> layer = zc.load(weights, source="torch", cell="lstm")
>>> zs.lstm(np.ones((5, 1, 3)), **layer.tensors, descriptor=layer.descriptor).state.shape
(5, 1, 2)
>>> sorted(zc.save(layer, target="keras"))
['kernel', 'recurrent_kernel']

No framework is imported. An option that a framework cannot express raises an error that names it.
"""

from .conversion import facts, load, save
from .layer import Layer
from .table import FRAMEWORKS, Framework
from .weights import Weights

__all__ = ["FRAMEWORKS", "Framework", "Layer", "Weights", "facts", "load", "save"]


def __dir__() -> list[str]:
    return sorted(__all__)
