"""Inference from Metal buffers, in PyObjC's spelling of MPSGraph: an LSTM reads a stream in chunks,
and its state stays in buffers. On a Mac, Apple's framework runs it; elsewhere zstate does.

    python examples/mac/streaming.py
"""

import importlib
import sys

import numpy as np

mps = importlib.import_module(
    "MetalPerformanceShadersGraph" if sys.platform == "darwin" else "zstate.pyobjc"
)

CHUNKS, T, N, I, H, O = 3, 4, 2, 5, 6, 3  # chunks of T steps, N streams, input, hidden, output
F32, SHARED = mps.MPSDataTypeFloat32, mps.MTLResourceStorageModeShared
device = mps.MTLCreateSystemDefaultDevice()
queue = device.newCommandQueue()
rng = np.random.default_rng(7)


def buffer_with(array):
    return device.newBufferWithBytes_length_options_(array.tobytes(), array.nbytes, SHARED)


def in_buffer(buffer, shape):
    return mps.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_(buffer, shape, F32)


# The weights, in buffers. P's rows are 16 bytes apart, of which 12 are used.
weights = {
    "W": rng.normal(size=(4 * H, I)) / 2,
    "R": rng.normal(size=(4 * H, H)) / 2,
    "b": rng.normal(size=4 * H) / 2,
}
weights = {name: value.astype(np.float32) for name, value in weights.items()}
projection = rng.normal(size=(H, O)).astype(np.float32)
padded = np.zeros((H, O + 1), np.float32)
padded[:, :O] = projection

# The graph: one chunk, and the state that the next chunk starts from.
graph = mps.MPSGraph.alloc().init()


def placeholder(name, shape):
    return graph.placeholderWithShape_dataType_name_(shape, F32, name)


x, h0, c0 = placeholder("x", [T, N, I]), placeholder("h0", [N, H]), placeholder("c0", [N, H])
W, R, b = (placeholder(name, list(value.shape)) for name, value in weights.items())
P = placeholder("P", [H, O])
descriptor = mps.MPSGraphLSTMDescriptor.descriptor()
descriptor.setProduceCell_(True)
h, c = (
    graph.LSTMWithSourceTensor_recurrentWeight_inputWeight_bias_initState_initCell_descriptor_name_(
        x, R, W, b, h0, c0, descriptor, "lstm"
    )
)


def last(tensor):
    """[N,H]: the last of the T steps."""
    step = graph.sliceTensor_dimension_start_length_name_(tensor, 0, T - 1, 1, None)
    return graph.reshapeTensor_withShape_name_(step, [N, H], None)


h_next, c_next = last(h), last(c)
rows = graph.reshapeTensor_withShape_name_(h, [T * N, H], None)
y = graph.sigmoidWithTensor_name_(
    graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(rows, P, None), "y"
)

# The stream, a buffer for one chunk, and initial states that are not zero.
stream = rng.normal(size=(CHUNKS, T, N, I)).astype(np.float32)
states = rng.normal(size=(2, N, H)).astype(np.float32)
chunk = device.newBufferWithLength_options_(stream[0].nbytes, SHARED)
hidden, cell = buffer_with(states[0]), buffer_with(states[1])
result = device.newBufferWithLength_options_(T * N * O * 4, SHARED)
feeds = {
    x: in_buffer(chunk, [T, N, I]),
    h0: in_buffer(hidden, [N, H]),
    c0: in_buffer(cell, [N, H]),
    P: mps.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_rowBytes_(
        buffer_with(padded), [H, O], F32, 4 * (O + 1)
    ),
}
for tensor, value in zip([W, R, b], weights.values(), strict=True):
    feeds[tensor] = in_buffer(buffer_with(value), list(value.shape))

outputs = np.empty((CHUNKS, T * N, O), np.float32)
finished = []
for number in range(CHUNKS):
    chunk.contents().as_buffer(stream[number].nbytes)[:] = stream[number].tobytes()
    # The next state goes to two arrays first, because this run still reads the buffers.
    next_hidden, next_cell = (
        mps.MPSNDArray.alloc().initWithDevice_descriptor_(
            device, mps.MPSNDArrayDescriptor.descriptorWithDataType_shape_(F32, [N, H])
        )
        for _ in range(2)
    )
    results = {
        y: in_buffer(result, [T * N, O]),
        h_next: mps.MPSGraphTensorData.alloc().initWithMPSNDArray_(next_hidden),
        c_next: mps.MPSGraphTensorData.alloc().initWithMPSNDArray_(next_cell),
    }
    commands = mps.MPSCommandBuffer.commandBufferFromCommandQueue_(queue)
    graph.encodeToCommandBuffer_feeds_targetOperations_resultsDictionary_executionDescriptor_(
        commands, feeds, None, results, None
    )
    for array, buffer in [(next_hidden, hidden), (next_cell, cell)]:
        array.exportDataWithCommandBuffer_toBuffer_destinationDataType_offset_rowStrides_(
            commands, buffer, F32, 0, None
        )
    commands.addCompletedHandler_(lambda buffer: finished.append(buffer.status()))
    commands.commit()
    commands.waitUntilCompleted()
    outputs[number] = np.frombuffer(
        result.contents().as_buffer(result.length()), np.float32
    ).reshape(T * N, O)

final = np.frombuffer(hidden.contents().as_buffer(hidden.length()), np.float32).reshape(N, H)
print(f"{CHUNKS} chunks of {T} steps; the last output is {outputs[-1, -1].round(3).tolist()}")
