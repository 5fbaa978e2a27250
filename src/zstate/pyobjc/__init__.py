"""MPSGraph in PyObjC's spelling, on any machine.

To run a PyObjC script that builds, differentiates, compiles and runs a recurrent model, change only
its import line to ``from zstate.pyobjc import *``. The selectors are those of
:mod:`zstate.mpsgraph.published`; ``operations.py`` says which method of :class:`zstate.Graph` each
stands for. Everything is computed by that graph.
"""

import typing as _typing

from ..hints import missing as _missing
from .constants import (
    MPSDataTypeBFloat16,
    MPSDataTypeBool,
    MPSDataTypeFloat16,
    MPSDataTypeFloat32,
    MPSDataTypeInt8,
    MPSDataTypeInt16,
    MPSDataTypeInt32,
    MPSDataTypeInt64,
    MPSDataTypeInvalid,
    MPSDataTypeUInt8,
    MPSDataTypeUInt16,
    MPSDataTypeUInt32,
    MPSDataTypeUInt64,
    MPSGraphDeploymentPlatformIOS,
    MPSGraphDeploymentPlatformMacOS,
    MPSGraphDeploymentPlatformTvOS,
    MPSGraphDeploymentPlatformVisionOS,
    MPSGraphLossReductionTypeAxis,
    MPSGraphLossReductionTypeMean,
    MPSGraphLossReductionTypeNone,
    MPSGraphLossReductionTypeSum,
    MPSGraphOptimizationLevel0,
    MPSGraphOptimizationLevel1,
    MPSGraphOptimizationProfilePerformance,
    MPSGraphOptimizationProfilePowerEfficiency,
    MPSGraphOptionsDefault,
    MPSGraphOptionsNone,
    MPSGraphOptionsSynchronizeResults,
    MPSGraphOptionsVerbose,
    MPSGraphPaddingModeAntiPeriodic,
    MPSGraphPaddingModeClampToEdge,
    MPSGraphPaddingModeConstant,
    MPSGraphPaddingModePeriodic,
    MPSGraphPaddingModeReflect,
    MPSGraphPaddingModeSymmetric,
    MPSGraphPaddingModeZero,
    MPSGraphRandomDistributionNormal,
    MPSGraphRandomDistributionTruncatedNormal,
    MPSGraphRandomDistributionUniform,
    MPSGraphReducedPrecisionFastMathDefault,
    MPSGraphReducedPrecisionFastMathNone,
    MPSGraphRNNActivationHardSigmoid,
    MPSGraphRNNActivationNone,
    MPSGraphRNNActivationRelu,
    MPSGraphRNNActivationSigmoid,
    MPSGraphRNNActivationTanh,
    MPSGraphScatterModeAdd,
    MTLCommandBufferStatusCommitted,
    MTLCommandBufferStatusCompleted,
    MTLCommandBufferStatusError,
    MTLCommandBufferStatusNotEnqueued,
    MTLResourceStorageModeManaged,
    MTLResourceStorageModePrivate,
    MTLResourceStorageModeShared,
)
from .descriptors import (
    MPSGraphCompilationDescriptor,
    MPSGraphExecutableExecutionDescriptor,
    MPSGraphExecutableSerializationDescriptor,
    MPSGraphExecutionDescriptor,
    MPSGraphGRUDescriptor,
    MPSGraphLSTMDescriptor,
    MPSGraphRandomOpDescriptor,
    MPSGraphSingleGateRNNDescriptor,
)
from .executable import MPSGraphExecutable
from .foundation import NSURL, NSAutoreleasePool, NSData
from .graph import MPSGraph
from .metal import MPSCommandBuffer, MPSGraphDevice, MTLCreateSystemDefaultDevice
from .ndarrays import MPSGraphTensorData, MPSNDArray, MPSNDArrayDescriptor
from .objects import MPSGraphOperation, MPSGraphShapedType, MPSGraphTensor, MPSGraphVariableOp
from .operations import operation_selectors, selectors

__all__ = [
    "NSURL",
    "MPSCommandBuffer",
    "MPSDataTypeBFloat16",
    "MPSDataTypeBool",
    "MPSDataTypeFloat16",
    "MPSDataTypeFloat32",
    "MPSDataTypeInt8",
    "MPSDataTypeInt16",
    "MPSDataTypeInt32",
    "MPSDataTypeInt64",
    "MPSDataTypeInvalid",
    "MPSDataTypeUInt8",
    "MPSDataTypeUInt16",
    "MPSDataTypeUInt32",
    "MPSDataTypeUInt64",
    "MPSGraph",
    "MPSGraphCompilationDescriptor",
    "MPSGraphDeploymentPlatformIOS",
    "MPSGraphDeploymentPlatformMacOS",
    "MPSGraphDeploymentPlatformTvOS",
    "MPSGraphDeploymentPlatformVisionOS",
    "MPSGraphDevice",
    "MPSGraphExecutable",
    "MPSGraphExecutableExecutionDescriptor",
    "MPSGraphExecutableSerializationDescriptor",
    "MPSGraphExecutionDescriptor",
    "MPSGraphGRUDescriptor",
    "MPSGraphLSTMDescriptor",
    "MPSGraphLossReductionTypeAxis",
    "MPSGraphLossReductionTypeMean",
    "MPSGraphLossReductionTypeNone",
    "MPSGraphLossReductionTypeSum",
    "MPSGraphOperation",
    "MPSGraphOptimizationLevel0",
    "MPSGraphOptimizationLevel1",
    "MPSGraphOptimizationProfilePerformance",
    "MPSGraphOptimizationProfilePowerEfficiency",
    "MPSGraphOptionsDefault",
    "MPSGraphOptionsNone",
    "MPSGraphOptionsSynchronizeResults",
    "MPSGraphOptionsVerbose",
    "MPSGraphPaddingModeAntiPeriodic",
    "MPSGraphPaddingModeClampToEdge",
    "MPSGraphPaddingModeConstant",
    "MPSGraphPaddingModePeriodic",
    "MPSGraphPaddingModeReflect",
    "MPSGraphPaddingModeSymmetric",
    "MPSGraphPaddingModeZero",
    "MPSGraphRNNActivationHardSigmoid",
    "MPSGraphRNNActivationNone",
    "MPSGraphRNNActivationRelu",
    "MPSGraphRNNActivationSigmoid",
    "MPSGraphRNNActivationTanh",
    "MPSGraphRandomDistributionNormal",
    "MPSGraphRandomDistributionTruncatedNormal",
    "MPSGraphRandomDistributionUniform",
    "MPSGraphRandomOpDescriptor",
    "MPSGraphReducedPrecisionFastMathDefault",
    "MPSGraphReducedPrecisionFastMathNone",
    "MPSGraphScatterModeAdd",
    "MPSGraphShapedType",
    "MPSGraphSingleGateRNNDescriptor",
    "MPSGraphTensor",
    "MPSGraphTensorData",
    "MPSGraphVariableOp",
    "MPSNDArray",
    "MPSNDArrayDescriptor",
    "MTLCommandBufferStatusCommitted",
    "MTLCommandBufferStatusCompleted",
    "MTLCommandBufferStatusError",
    "MTLCommandBufferStatusNotEnqueued",
    "MTLCreateSystemDefaultDevice",
    "MTLResourceStorageModeManaged",
    "MTLResourceStorageModePrivate",
    "MTLResourceStorageModeShared",
    "NSAutoreleasePool",
    "NSData",
    "operation_selectors",
    "selectors",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not _typing.TYPE_CHECKING:  # a type checker would take any name to be there

    def __getattr__(name: str) -> object:
        raise _missing("zstate.pyobjc", name, __all__)
