"""An encoder of sentences of different lengths, in PyObjC's spelling of MPSGraph: an LSTM with
peepholes, and a mask that cuts off the state in the padding. On a Mac, Apple's framework runs it;
elsewhere zstate does.

    python examples/mac/encoder.py
"""

import importlib
import sys

import numpy as np

mps = importlib.import_module(
    "MetalPerformanceShadersGraph" if sys.platform == "darwin" else "zstate.pyobjc"
)

T, N, I, H, K = 6, 4, 3, 5, 2  # steps, sentences, input, hidden, best matches
LENGTHS = [6, 3, 5, 1]
F32 = mps.MPSDataTypeFloat32
device = mps.MTLCreateSystemDefaultDevice()
graph = mps.MPSGraph.alloc().init()
rng = np.random.default_rng(11)


def constant(array):
    data = mps.NSData.dataWithBytes_length_(array.tobytes(), array.nbytes)
    return graph.constantWithData_shape_dataType_(data, list(array.shape), F32)


def array_with(values):
    """The values in an MPSNDArray, ready to feed."""
    shape = mps.MPSNDArrayDescriptor.descriptorWithDataType_shape_(F32, list(values.shape))
    array = mps.MPSNDArray.alloc().initWithDevice_descriptor_(device, shape)
    array.writeBytes_strideBytes_(values, None)
    return mps.MPSGraphTensorData.alloc().initWithMPSNDArray_(array)


def values_of(data, shape, dtype):
    out = np.empty(shape, dtype)
    data.mpsndarray().readBytes_strideBytes_(out, None)
    return out


weights = {
    "W": rng.normal(size=(4 * H, I)),
    "R": rng.normal(size=(4 * H, H)) / 2,
    "b": rng.normal(size=4 * H) / 2,
    "p": rng.normal(size=4 * H) / 2,
    "h0": rng.normal(size=(N, H)),
    "c0": rng.normal(size=(N, H)),
    "gamma": 1 + rng.normal(size=(1, H)) / 4,
    "beta": rng.normal(size=(1, H)) / 4,
}
weights = {name: value.astype(np.float32) for name, value in weights.items()}
W, R, b, p, h0, c0, gamma, beta = map(constant, weights.values())

# The encoder. The mask is 0 past the end of a sentence, so no state passes through R there.
x = graph.placeholderWithShape_dataType_name_([T, N, I], F32, "x")
lengths = graph.placeholderWithShape_dataType_name_([1, N, 1], F32, "lengths")
places = graph.castTensor_toType_name_(
    graph.coordinateAlongAxis_withShape_name_(0, [T, N, 1], None), F32, None
)
inside = graph.lessThanWithPrimaryTensor_secondaryTensor_name_(places, lengths, None)
valid = graph.castTensor_toType_name_(inside, F32, "valid")
mask = graph.broadcastTensor_toShape_name_(valid, [T, N, H], "mask")
descriptor = mps.MPSGraphLSTMDescriptor.descriptor()
descriptor.setActivation_(mps.MPSGraphRNNActivationTanh)
descriptor.setTraining_(True)
h, cell, state = (
    graph.LSTMWithSourceTensor_recurrentWeight_inputWeight_bias_initState_initCell_mask_peephole_descriptor_name_(
        x, R, W, b, h0, c0, mask, p, descriptor, "encoder"
    )
)

# The mean over the steps that count, normalized over its elements.
kept = graph.multiplicationWithPrimaryTensor_secondaryTensor_name_(h, mask, None)
total = graph.reductionSumWithTensor_axis_name_(kept, 0, None)
pooled = graph.reshapeTensor_withShape_name_(
    graph.divisionWithPrimaryTensor_secondaryTensor_name_(total, lengths, None), [N, H], "pooled"
)
mean = graph.meanOfTensor_axes_name_(pooled, [1], None)
variance = graph.varianceOfTensor_meanTensor_axes_name_(pooled, mean, [1], None)
code = graph.normalizationWithTensor_meanTensor_varianceTensor_gammaTensor_betaTensor_epsilon_name_(
    pooled, mean, variance, gamma, beta, 1e-3, "code"
)

# The sentences most like each one, itself included; and gradients of the peepholes and the input.
likeness = graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(
    code, graph.transposeTensor_dimension_withDimension_name_(code, 0, 1, None), "likeness"
)
best, who = graph.topKWithSourceTensor_k_name_(likeness, K, "best")
loss = graph.reductionSumWithTensor_axes_name_(
    graph.squareWithTensor_name_(code, None), [0, 1], "loss"
)
gradients = graph.gradientForPrimaryTensor_withTensors_name_(loss, [p, x], None)

sentences = rng.normal(size=(T, N, I)).astype(np.float32)
counts = np.array(LENGTHS, np.float32).reshape(1, N, 1)
feeds = {x: array_with(sentences), lengths: array_with(counts)}
wanted = [code, best, who, gradients[p], gradients[x]]
done = []
options = mps.MPSGraphExecutionDescriptor.alloc().init()
options.setWaitUntilCompleted_(True)
options.setCompletionHandler_(lambda results, error: done.append(error))
found = graph.runAsyncWithFeeds_targetTensors_targetOperations_executionDescriptor_(
    feeds, wanted, None, options
)
codes = values_of(found[code], (N, H), np.float32)
matches = values_of(found[who], (N, K), np.int32)
scores = values_of(found[best], (N, K), np.float32)
peephole_gradient = values_of(found[gradients[p]], (4 * H,), np.float32)
source_gradient = values_of(found[gradients[x]], (T, N, I), np.float32)
print("most alike:", matches.tolist())
