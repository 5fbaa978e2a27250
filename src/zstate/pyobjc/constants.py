"""Apple's constants, with their published numbers, and what they are called in zstate."""

from __future__ import annotations

from collections.abc import Mapping

from ..descriptors import Activation
from ..errors import DTypeError, OptionError, refusal
from .base import shown

# MPSDataType: bit patterns as Apple's headers publish them
_FLOAT, _SIGNED, _ALTERNATE = 0x10000000, 0x20000000, 0x80000000
MPSDataTypeInvalid = 0
MPSDataTypeFloat16 = _FLOAT | 16
MPSDataTypeFloat32 = _FLOAT | 32
MPSDataTypeBFloat16 = _ALTERNATE | _FLOAT | 16
MPSDataTypeInt8 = _SIGNED | 8
MPSDataTypeInt16 = _SIGNED | 16
MPSDataTypeInt32 = _SIGNED | 32
MPSDataTypeInt64 = _SIGNED | 64
MPSDataTypeUInt8 = 8
MPSDataTypeUInt16 = 16
MPSDataTypeUInt32 = 32
MPSDataTypeUInt64 = 64
MPSDataTypeBool = _ALTERNATE | 8

_DATA_TYPES: dict[int, str] = {
    number: name.removeprefix("MPSDataType").lower()
    for name, number in [*globals().items()]
    if name.startswith("MPSDataType") and number != MPSDataTypeInvalid
}
DATA_TYPE_NUMBERS = {name: number for number, name in _DATA_TYPES.items()}

MPSGraphRNNActivationNone = int(Activation.NONE)
MPSGraphRNNActivationRelu = int(Activation.RELU)
MPSGraphRNNActivationTanh = int(Activation.TANH)
MPSGraphRNNActivationSigmoid = int(Activation.SIGMOID)
MPSGraphRNNActivationHardSigmoid = int(Activation.HARD_SIGMOID)

MPSGraphLossReductionTypeNone = MPSGraphLossReductionTypeAxis = 0
MPSGraphLossReductionTypeSum = 1
MPSGraphLossReductionTypeMean = 2
REDUCTIONS = {0: "none", 1: "sum", 2: "mean"}

MPSGraphPaddingModeConstant = 0
MPSGraphPaddingModeReflect = 1
MPSGraphPaddingModeSymmetric = 2
MPSGraphPaddingModeClampToEdge = 3
MPSGraphPaddingModeZero = 4
MPSGraphPaddingModePeriodic = 5
MPSGraphPaddingModeAntiPeriodic = 6
PADDING_MODES = {0: "constant", 1: "reflect", 2: "symmetric", 3: "clamp_to_edge", 4: "zero"}

MPSGraphScatterModeAdd = 0
SCATTER_MODES = {0: "add"}

MPSGraphRandomDistributionUniform = 0
MPSGraphRandomDistributionNormal = 1
MPSGraphRandomDistributionTruncatedNormal = 2
DISTRIBUTIONS = {0: "uniform", 1: "normal"}

MPSGraphOptionsNone = 0
MPSGraphOptionsSynchronizeResults = MPSGraphOptionsDefault = 1
MPSGraphOptionsVerbose = 2
MPSGraphDeploymentPlatformMacOS = 0
MPSGraphDeploymentPlatformIOS = 1
MPSGraphDeploymentPlatformTvOS = 2
MPSGraphDeploymentPlatformVisionOS = 3
MPSGraphOptimizationLevel0 = 0
MPSGraphOptimizationLevel1 = 1
MPSGraphOptimizationProfilePerformance = 0
MPSGraphOptimizationProfilePowerEfficiency = 1
MPSGraphReducedPrecisionFastMathNone = MPSGraphReducedPrecisionFastMathDefault = 0

MTLResourceStorageModeShared = 0
MTLResourceStorageModeManaged = 16
MTLResourceStorageModePrivate = 32
MTLCommandBufferStatusNotEnqueued = 0
MTLCommandBufferStatusCommitted = 2
MTLCommandBufferStatusCompleted = 4
MTLCommandBufferStatusError = 5


def type_name(label: str, number: object) -> str:
    if not isinstance(number, int) or number not in _DATA_TYPES:
        raise DTypeError(refusal(label, "dataType", "an MPSDataType constant", shown(number)))
    return _DATA_TYPES[number]


def chosen(label: str, name: str, names: Mapping[int, str], number: object) -> str:
    """The meaning of an enumeration's constant; some of Apple's are not supported."""
    if not isinstance(number, int) or number not in names:
        served = ", ".join(f"{value} ({word})" for value, word in names.items())
        raise OptionError(refusal(label, name, f"one of {served}", shown(number)))
    return names[number]
