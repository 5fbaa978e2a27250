"""MPSGraph under PyObjC's spelling, on any machine.

A PyObjC script that builds a recurrent model, differentiates it, compiles it and runs it runs with
only its import line changed to ``from zstate.pyobjc import *``. The selectors come from two tables:
``recurrent.py`` has the 20 recurrent ones, ``operations.py`` those around them. Everything is
computed by :class:`zstate.Graph`.
"""

from . import constants as _constants
from .constants import *  # noqa: F403 - every constant that Apple names
from .descriptors import (
    MPSGraphGRUDescriptor,
    MPSGraphLSTMDescriptor,
    MPSGraphRandomOpDescriptor,
    MPSGraphSingleGateRNNDescriptor,
)
from .graph import MPSGraph, MPSGraphExecutable
from .objects import (
    MPSGraphDevice,
    MPSGraphOperation,
    MPSGraphShapedType,
    MPSGraphTensor,
    MPSGraphTensorData,
    MPSNDArray,
    MTLCreateSystemDefaultDevice,
    NSData,
)
from .operations import operation_selectors
from .recurrent import selectors

__all__ = [
    "MPSGraph",
    "MPSGraphDevice",
    "MPSGraphExecutable",
    "MPSGraphGRUDescriptor",
    "MPSGraphLSTMDescriptor",
    "MPSGraphOperation",
    "MPSGraphRandomOpDescriptor",
    "MPSGraphShapedType",
    "MPSGraphSingleGateRNNDescriptor",
    "MPSGraphTensor",
    "MPSGraphTensorData",
    "MPSNDArray",
    "MTLCreateSystemDefaultDevice",
    "NSData",
    "operation_selectors",
    "selectors",
    *_constants.__all__,
]
