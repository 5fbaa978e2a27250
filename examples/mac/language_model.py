"""A character language model in PyObjC's spelling of MPSGraph: on a Mac, Apple's framework trains
it; elsewhere zstate does. It trains with dictionaries of feeds, then with a compiled executable.

    python examples/mac/language_model.py
"""

import importlib
import sys

import numpy as np

mps = importlib.import_module(
    "MetalPerformanceShadersGraph" if sys.platform == "darwin" else "zstate.pyobjc"
)

TEXT = "she sells sea shells by the sea shore; the shells she sells are sea shells for sure. "
T, N, E, H = 12, 6, 8, 16  # steps, sequences, embedding, hidden
FEEDS_STEPS, EXECUTABLE_STEPS = 4, 60
LETTERS = sorted(set(TEXT))
V = len(LETTERS)
F32, I32 = mps.MPSDataTypeFloat32, mps.MPSDataTypeInt32

device = mps.MTLCreateSystemDefaultDevice()
queue = device.newCommandQueue()
graph = mps.MPSGraph.alloc().init()
rng = np.random.default_rng(3)


def packed(array):
    return mps.NSData.dataWithBytes_length_(array.tobytes(), array.nbytes)


def variable(name, value):
    return graph.variableWithData_shape_dataType_name_(packed(value), list(value.shape), F32, name)


def scalar(value):
    return graph.constantWithScalar_dataType_(value, F32)


def tensor_data(array):
    return mps.MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_(
        mps.MPSGraphDevice.deviceWithMTLDevice_(device), packed(array), list(array.shape), I32
    )


def number(data):
    """The one float of a result."""
    out = np.empty(1, np.float32)
    data.mpsndarray().readBytes_strideBytes_(out, None)
    return float(out[0])


# The parameters. Their initial values are kept, so that a test can check the results.
initial = {
    "table": rng.normal(size=(V, E)),
    "W": rng.normal(size=(4 * H, E)) / E**0.5,
    "R": rng.normal(size=(4 * H, H)) / H**0.5,
    "b": rng.normal(size=4 * H) / 4,
    "P": rng.normal(size=(H, V)) / H**0.5,
}
initial = {name: value.astype(np.float32) for name, value in initial.items()}
parameters = {name: variable(name, value) for name, value in initial.items()}

# The model.
tokens = graph.placeholderWithShape_dataType_name_([T, N], I32, "tokens")
targets = graph.placeholderWithShape_dataType_name_([T, N], I32, "targets")
x = graph.gatherWithUpdatesTensor_indicesTensor_axis_batchDimensions_name_(
    parameters["table"], tokens, 0, 0, "x"
)
descriptor = mps.MPSGraphLSTMDescriptor.descriptor()
descriptor.setTraining_(True)
outputs = (
    graph.LSTMWithSourceTensor_recurrentWeight_inputWeight_bias_initState_initCell_descriptor_name_(
        x, parameters["R"], parameters["W"], parameters["b"], None, None, descriptor, "encoder"
    )
)
rows = graph.reshapeTensor_withShape_name_(outputs[0], [T * N, H], None)
logits = graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(
    rows, parameters["P"], "logits"
)
labels = graph.oneHotWithIndicesTensor_depth_dataType_name_(
    graph.reshapeTensor_withShape_name_(targets, [T * N], None), V, F32, None
)
loss = graph.softMaxCrossEntropyWithSourceTensor_labelsTensor_axis_reductionType_name_(
    logits, labels, -1, mps.MPSGraphLossReductionTypeMean, "loss"
)

# Adam, with the powers of its betas in variables.
gradients = graph.gradientForPrimaryTensor_withTensors_name_(loss, list(parameters.values()), None)
rate, beta1, beta2, epsilon = scalar(0.02), scalar(0.9), scalar(0.99), scalar(1e-8)
updates, powers = [], []
for beta, name in [(beta1, "power1"), (beta2, "power2")]:
    power = variable(name, np.ones(1, np.float32))
    powers.append(graph.multiplicationWithPrimaryTensor_secondaryTensor_name_(power, beta, None))
    updates.append(graph.assignVariable_withValueOfTensor_name_(power, powers[-1], None))
for name, parameter in parameters.items():
    zeros = np.zeros_like(initial[name])
    momentum, velocity = variable(name + "_m", zeros), variable(name + "_v", zeros)
    stepped = graph.adamWithLearningRateTensor_beta1Tensor_beta2Tensor_epsilonTensor_beta1PowerTensor_beta2PowerTensor_valuesTensor_momentumTensor_velocityTensor_maximumVelocityTensor_gradientTensor_name_(
        rate,
        beta1,
        beta2,
        epsilon,
        powers[0],
        powers[1],
        parameter,
        momentum,
        velocity,
        None,
        gradients[parameter],
        None,
    )
    for old, new in zip([parameter, momentum, velocity], stepped, strict=True):
        updates.append(graph.assignVariable_withValueOfTensor_name_(old, new, None))

# The text as batches: every sequence continues where it stopped.
codes = np.array([LETTERS.index(letter) for letter in TEXT * 20], np.int32)


def batch(step):
    starts = (step * T + np.arange(N) * 17) % (len(TEXT) * 10)
    window = np.stack([codes[start : start + T + 1] for start in starts], axis=1)
    return np.ascontiguousarray(window[:-1]), np.ascontiguousarray(window[1:])


losses = []

# A dictionary of feeds per step.
for step in range(FEEDS_STEPS):
    inputs, outputs_wanted = batch(step)
    feeds = {tokens: tensor_data(inputs), targets: tensor_data(outputs_wanted)}
    found = graph.runWithMTLCommandQueue_feeds_targetTensors_targetOperations_(
        queue, feeds, [loss], updates
    )
    losses.append(number(found[loss]))

# Compiled once, run many times.
shaped = mps.MPSGraphShapedType.alloc().initWithShape_dataType_([T, N], I32)
options = mps.MPSGraphCompilationDescriptor.alloc().init()
options.setOptimizationLevel_(mps.MPSGraphOptimizationLevel1)
program = graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
    mps.MPSGraphDevice.deviceWithMTLDevice_(device),
    {tokens: shaped, targets: shaped},
    [loss],
    updates,
    options,
)
for step in range(FEEDS_STEPS, FEEDS_STEPS + EXECUTABLE_STEPS):
    inputs, outputs_wanted = batch(step)
    feeds = {tokens: tensor_data(inputs), targets: tensor_data(outputs_wanted)}
    (result,) = program.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        queue, [feeds[tensor] for tensor in program.feedTensors()], None, None
    )
    losses.append(number(result))

print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {len(losses)} steps")
