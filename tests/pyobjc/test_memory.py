"""Buffers, arrays, command buffers, handlers and Foundation's values under PyObjC's spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate import pyobjc
from zstate.types import Array

F32, I32 = pyobjc.MPSDataTypeFloat32, pyobjc.MPSDataTypeInt32
SHARED = pyobjc.MTLResourceStorageModeShared
DEVICE = pyobjc.MTLCreateSystemDefaultDevice()
QUEUE = DEVICE.newCommandQueue()
A = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5


def buffer_of(array: Array, options: int = SHARED) -> Any:
    return DEVICE.newBufferWithBytes_length_options_(array.tobytes(), array.nbytes, options)


def contents(buffer: Any, dtype: Any = np.float32) -> Array:
    return np.frombuffer(buffer.contents().as_buffer(buffer.length()), dtype)


def in_buffer(buffer: Any, *shape: int) -> Any:
    return pyobjc.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_(
        buffer, list(shape), F32
    )


def descriptor(*shape: int, dtype: int = F32) -> Any:
    return pyobjc.MPSNDArrayDescriptor.descriptorWithDataType_shape_(dtype, list(shape))


def squares() -> tuple[Any, Any, Any]:
    """A graph, its feed [2,3] and the square of it."""
    graph = pyobjc.MPSGraph.alloc().init()
    x = graph.placeholderWithShape_dataType_name_([2, 3], F32, "x")
    return graph, x, graph.squareWithTensor_name_(x, "y")


def compiled(graph: Any, x: Any, y: Any, descriptor: Any = None) -> Any:
    shaped = pyobjc.MPSGraphShapedType.alloc().initWithShape_dataType_(x.shape(), F32)
    compile_ = graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_
    return compile_(None, {x: shaped}, [y], None, descriptor)


def test_a_buffer_is_read_when_the_graph_runs_and_written_in_place() -> None:
    graph, x, y = squares()
    source, target = buffer_of(A), DEVICE.newBufferWithLength_options_(A.nbytes, SHARED)
    feed, result = in_buffer(source, 2, 3), in_buffer(target, 2, 3)
    source.contents().as_buffer(4)[:] = np.float32(9).tobytes()
    graph.runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_(
        QUEUE, {x: feed}, None, {y: result}
    )
    wanted = A.copy()
    wanted[0, 0] = 9
    np.testing.assert_array_equal(contents(target).reshape(2, 3), wanted**2)
    assert source.length() == 24


def test_rows_may_have_a_distance() -> None:
    graph, x, y = squares()
    padded = np.full((2, 5), np.nan, np.float32)
    padded[:, :3] = A
    make = pyobjc.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_rowBytes_
    feed = make(buffer_of(padded), [2, 3], F32, 20)
    assert feed.shape() == [2, 3] and feed.dataType() == F32
    found = graph.runWithFeeds_targetTensors_targetOperations_({x: feed}, [y], None)
    np.testing.assert_array_equal(np.asarray(found[y]), A**2)
    three = make(buffer_of(np.tile(padded, (2, 1))), [2, 2, 3], F32, 20)
    np.testing.assert_array_equal(np.asarray(three), np.stack([A, A]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: in_buffer(buffer_of(A), 2, 4), r"buffer: expected at least 32 bytes for float32"),
        (lambda: in_buffer(A, 2, 3), "buffer: expected an MTLBuffer, got"),
        (lambda: in_buffer(buffer_of(A), 2, -1), r"shape: expected sizes of at least 0, got \[2,"),
        (
            lambda: pyobjc.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_rowBytes_(
                buffer_of(A), [2, 3], F32, 8
            ),
            "rowBytes: expected at least 12 and a multiple of 4, got 8",
        ),
        (lambda: DEVICE.newBufferWithLength_options_(0, SHARED), "length: expected at least 1"),
        (lambda: DEVICE.newBufferWithLength_options_(4, 64), "options: expected MTLResourceStora"),
        (
            lambda: DEVICE.newBufferWithBytes_length_options_(b"abc", 4, SHARED),
            "bytes: expected at least 4 bytes, got 3 bytes",
        ),
        (
            lambda: buffer_of(A, pyobjc.MTLResourceStorageModePrivate).contents(),
            "buffer: expected a buffer that the CPU may read",
        ),
        (lambda: buffer_of(A).contents().as_buffer(25), "count: expected at most the 24 bytes"),
        (
            lambda: pyobjc.MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_(
                DEVICE, bytes(4), [1], F32
            ),
            "device: expected an MPSGraphDevice",
        ),
        (
            lambda: pyobjc.MPSNDArray.alloc().initWithDevice_descriptor_(DEVICE, [2]),
            "descriptor: expected an MPSNDArrayDescriptor, got list",
        ),
        (
            lambda: pyobjc.MPSGraphTensorData.alloc().initWithMPSNDArray_(A),
            "ndarray: expected an MPSNDArray, got",
        ),
        (
            lambda: pyobjc.MPSCommandBuffer.commandBufferFromCommandQueue_(DEVICE),
            "commandQueue: expected an MTLCommandQueue, got",
        ),
        (lambda: QUEUE.commandBuffer().waitUntilCompleted(), "expected one after commit"),
    ],
)
def test_refusals_name_what_was_wrong(build: Any, message: str) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        build()


def test_an_array_is_written_read_and_fed() -> None:
    graph, x, y = squares()
    kind = descriptor(2, 3)
    assert (kind.getShape(), kind.numberOfDimensions()) == ([2, 3], 2)
    assert (kind.lengthOfDimension_(0), kind.lengthOfDimension_(1)) == (3, 2)
    array = pyobjc.MPSNDArray.alloc().initWithDevice_descriptor_(DEVICE, kind)
    assert not np.asarray(array).any()
    feed = pyobjc.MPSGraphTensorData.alloc().initWithMPSNDArray_(array)
    array.writeBytes_strideBytes_(A, None)
    assert feed.mpsndarray() is array
    out = pyobjc.MPSNDArray.alloc().initWithDevice_descriptor_(DEVICE, array.descriptor())
    result = pyobjc.MPSGraphTensorData.alloc().initWithMPSNDArray_(out)
    graph.runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_(
        QUEUE, {x: feed}, None, {y: result}
    )
    packed = np.empty((2, 3), np.float32)
    out.readBytes_strideBytes_(packed, None)
    np.testing.assert_array_equal(packed, A**2)


def test_strides_go_from_the_fastest_dimension_to_the_slowest() -> None:
    array = pyobjc.MPSNDArray.alloc().initWithDevice_descriptor_(DEVICE, descriptor(2, 3))
    columns = np.ascontiguousarray(A.T)  # [3,2]: the fastest dimension is 8 bytes apart
    array.writeBytes_strideBytes_(columns, [8, 4])
    np.testing.assert_array_equal(np.asarray(array), A)
    wide = np.zeros((2, 4), np.float32)
    array.readBytes_strideBytes_(wide, [4, 16])
    np.testing.assert_array_equal(wide, np.pad(A, [(0, 0), (0, 1)]))
    with pytest.raises(zs.ShapeError, match=r"buffer: expected at least 28 bytes for float32\[2,3"):
        array.readBytes_strideBytes_(np.empty(6, np.float32), [4, 16])


def test_an_array_is_exported_by_the_commit() -> None:
    array = pyobjc.MPSNDArray.alloc().initWithDevice_descriptor_(DEVICE, descriptor(2, 3))
    array.writeBytes_strideBytes_(np.arange(2, 8, dtype=np.float32), None)
    export = array.exportDataWithCommandBuffer_toBuffer_destinationDataType_offset_rowStrides_
    commands, whole = QUEUE.commandBuffer(), DEVICE.newBufferWithLength_options_(32, SHARED)
    export(commands, whole, I32, 8, None)
    assert not contents(whole, np.int32).any()  # nothing before the commit
    commands.commit()
    assert contents(whole, np.int32).tolist() == [0, 0, 2, 3, 4, 5, 6, 7]
    with pytest.raises(zs.OptionError, match=r"\[exportData\] rowStrides: expected None"):
        export(QUEUE.commandBuffer(), whole, F32, 0, [4])


def test_encoded_work_is_done_by_the_commit() -> None:
    graph, x, y = squares()
    source, told = buffer_of(A), []
    commands = pyobjc.MPSCommandBuffer.commandBufferFromCommandQueue_(QUEUE)
    descriptor = pyobjc.MPSGraphExecutionDescriptor.alloc().init()
    descriptor.setCompletionHandler_(lambda results, error: told.append((results, error)))
    encode = graph.encodeToCommandBuffer_feeds_targetTensors_targetOperations_executionDescriptor_
    results = encode(commands, {x: in_buffer(source, 2, 3)}, [y], None, descriptor)
    commands.addCompletedHandler_(lambda buffer: told.append(buffer.status()))
    with pytest.raises(zs.GraphError, match="none before the commit of the command buffer"):
        np.asarray(results[y])
    assert commands.status() == pyobjc.MTLCommandBufferStatusNotEnqueued and not told
    source.contents().as_buffer(24)[:] = (A + 1).tobytes()
    commands.commit()
    commands.waitUntilCompleted()
    np.testing.assert_array_equal(np.asarray(results[y]), (A + 1) ** 2)
    assert told == [(results, None), pyobjc.MTLCommandBufferStatusCompleted]
    assert commands.status() == 4
    with pytest.raises(zs.GraphError, match="expected one that is not committed yet"):
        encode(commands, {x: A}, [y], None, None)


def test_commits_order_work() -> None:
    graph, x, y = squares()
    middle, last = (DEVICE.newBufferWithLength_options_(24, SHARED) for _ in range(2))
    commands = pyobjc.MPSCommandBuffer.commandBufferFromCommandQueue_(QUEUE)
    encode = (
        graph.encodeToCommandBuffer_feeds_targetOperations_resultsDictionary_executionDescriptor_
    )
    encode(commands, {x: A}, None, {y: in_buffer(middle, 2, 3)}, None)
    commands.commit()
    np.testing.assert_array_equal(contents(middle).reshape(2, 3), A**2)
    commands = pyobjc.MPSCommandBuffer.commandBufferFromCommandQueue_(QUEUE)
    encode(commands, {x: in_buffer(middle, 2, 3)}, None, {y: in_buffer(last, 2, 3)}, None)
    assert not contents(last).any()
    commands.commit()
    np.testing.assert_array_equal(contents(last).reshape(2, 3), A**4)


def test_runs_with_handlers() -> None:
    graph, x, y = squares()
    told: list[Any] = []
    descriptor = pyobjc.MPSGraphExecutionDescriptor.alloc().init()
    descriptor.setScheduledHandler_(lambda results, error: told.append("scheduled"))
    descriptor.setCompletionHandler_(lambda results, error: told.append(results))
    descriptor.setWaitUntilCompleted_(True)
    assert descriptor.waitUntilCompleted() is True
    run = graph.runAsyncWithFeeds_targetTensors_targetOperations_executionDescriptor_
    found = run({x: A}, [y], None, descriptor)
    assert told == ["scheduled", found]
    on_queue = (
        graph.runAsyncWithMTLCommandQueue_feeds_targetTensors_targetOperations_executionDescriptor_
    )
    np.testing.assert_array_equal(np.asarray(on_queue(QUEUE, {x: A}, [y], None, None)[y]), A**2)
    result = in_buffer(DEVICE.newBufferWithLength_options_(24, SHARED), 2, 3)
    name = (
        "runAsyncWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_executionDescriptor_"
    )
    getattr(graph, name)(QUEUE, {x: A}, None, {y: result}, descriptor)
    np.testing.assert_array_equal(np.asarray(result), A**2)
    assert told[-1] == {y: result}
    with pytest.raises(
        zs.DTypeError, match="executionDescriptor: expected an MPSGraphExecutionDes"
    ):
        run({x: A}, [y], None, pyobjc.MPSGraphLSTMDescriptor.descriptor())
    with pytest.raises(zs.DescriptorError, match="completionHandler: expected a function or None"):
        descriptor.setCompletionHandler_(3)
    with pytest.raises(
        zs.ShapeError, match=r"resultsDictionary\[y\]: expected float32\[2,3\], got"
    ):
        graph.runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_(
            QUEUE, {x: A}, None, {y: in_buffer(buffer_of(A), 3, 2)}
        )


def test_executables_run_encode_and_tell() -> None:
    graph, x, y = squares()
    told: list[Any] = []
    how = pyobjc.MPSGraphCompilationDescriptor.alloc().init()
    assert how.optimizationLevel() == pyobjc.MPSGraphOptimizationLevel1
    how.setOptimizationLevel_(pyobjc.MPSGraphOptimizationLevel0)
    how.disableTypeInference()
    how.setCompilationCompletionHandler_(lambda program, error: told.append((program, error)))
    program = compiled(graph, x, y, how)
    assert told == [(program, None)]
    (kind,) = program.getOutputTypesWithDevice_inputTypes_compilationDescriptor_(
        None, [pyobjc.MPSGraphShapedType.alloc().initWithShape_dataType_([2, 3], F32)], None
    )
    assert (kind.shape(), kind.dataType()) == ([2, 3], F32)
    with pytest.raises(
        zs.ShapeError, match=r"\[specialize\] inputTypes: expected float32\[2,3\] f"
    ):
        program.specializeWithDevice_inputTypes_compilationDescriptor_(
            None, [pyobjc.MPSGraphShapedType.alloc().initWithShape_dataType_([2, 4], F32)], None
        )
    run = pyobjc.MPSGraphExecutableExecutionDescriptor.alloc().init()
    run.setCompletionHandler_(lambda results, error: told.append(results))
    results = program.runAsyncWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        QUEUE, [A], None, run
    )
    assert told[-1] == results
    np.testing.assert_array_equal(np.asarray(results[0]), A**2)
    target = DEVICE.newBufferWithLength_options_(24, SHARED)
    commands = pyobjc.MPSCommandBuffer.commandBufferFromCommandQueue_(QUEUE)
    encode = program.encodeToCommandBuffer_inputsArray_resultsArray_executionDescriptor_
    later = encode(commands, [A + 2], [in_buffer(target, 2, 3)], run)
    free = encode(commands, [A], None, None)
    assert told[-1] == results and not contents(target).any()
    commands.commit()
    assert told[-1] == later
    np.testing.assert_array_equal(contents(target).reshape(2, 3), (A + 2) ** 2)
    np.testing.assert_array_equal(np.asarray(free[0]), A**2)
    program.setOptions_(pyobjc.MPSGraphOptionsNone)
    assert program.options() == pyobjc.MPSGraphOptionsNone


def test_an_executable_goes_to_a_package_and_back(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    graph, x, y = squares()
    v = graph.variableWithData_shape_dataType_name_(A.tobytes(), [2, 3], F32, "v")
    total = graph.additionWithPrimaryTensor_secondaryTensor_name_(y, v, None)
    url = pyobjc.NSURL.fileURLWithPath_(str(tmp_path / "model.mpsgraphpackage"))
    how = pyobjc.MPSGraphExecutableSerializationDescriptor.alloc().init()
    how.setDeploymentPlatform_(pyobjc.MPSGraphDeploymentPlatformMacOS)
    how.setMinimumDeploymentTarget_("14.0.0")
    for _ in range(2):  # the second takes the place of the first
        compiled(graph, x, total).serializeToMPSGraphPackageAtURL_descriptor_(url, how)
    load = pyobjc.MPSGraphExecutable.alloc().initWithMPSGraphPackageAtURL_compilationDescriptor_
    again = load(url, None)
    assert again.feedTensors() is None and again.targetTensors() is None
    (found,) = again.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        QUEUE, [in_buffer(buffer_of(A), 2, 3)], None, None
    )
    np.testing.assert_array_equal(np.asarray(found), A**2 + A)
    how.setAppend_(True)
    with pytest.raises(zs.OptionError, match="append: expected False, got True"):
        again.serializeToMPSGraphPackageAtURL_descriptor_(url, how)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "manifest.plist").write_text("x")
    theirs = pyobjc.NSURL.fileURLWithPath_(str(tmp_path / "theirs"))
    with pytest.raises(zs.GraphError, match="URL: expected a new package, or one that zstate wrot"):
        again.serializeToMPSGraphPackageAtURL_descriptor_(theirs, None)
    with pytest.raises(zs.GraphError, match="URL: expected a package that zstate wrote, got"):
        load(theirs, None)


def test_constructors_take_pyobjcs_keywords() -> None:
    kind = pyobjc.MPSNDArrayDescriptor(dataType=F32, shape=[2, 3])
    array = pyobjc.MPSNDArray(device=DEVICE, descriptor=kind)
    data = pyobjc.MPSGraphTensorData(MPSNDArray=array)
    assert data.mpsndarray() is array
    assert pyobjc.MPSGraphTensorData(MTLBuffer=buffer_of(A), shape=[6], dataType=F32).shape() == [6]
    assert pyobjc.MPSGraphDevice(MTLDevice=DEVICE).metalDevice() is DEVICE
    assert pyobjc.MPSGraphShapedType(shape=[4], dataType=I32).dataType() == I32
    assert isinstance(pyobjc.MPSGraph(), pyobjc.MPSGraph)
    with pytest.raises(TypeError, match="does not take the keywords dataType, shape, in this ord"):
        pyobjc.MPSGraphShapedType(dataType=I32, shape=[4])


def test_tensors_know_their_operations_and_graphs_their_placeholders() -> None:
    graph, x, y = squares()
    v = graph.variableWithData_shape_dataType_name_(A.tobytes(), [2, 3], F32, "v")
    assert graph.placeholderTensors() == [x]
    operation = y.operation()
    assert operation.name() == "y" and operation.graph() is graph
    assert operation.inputTensors() == [x] and operation.outputTensors() == [y]
    assert operation.controlDependencies() == [] and y.operation() is operation
    assert isinstance(v.operation(), pyobjc.MPSGraphVariableOp)
    assert (v.operation().shape(), v.operation().dataType()) == ([2, 3], F32)
    graph.setOptions_(pyobjc.MPSGraphOptionsVerbose)
    assert graph.options() == pyobjc.MPSGraphOptionsVerbose
    device = pyobjc.MPSGraphDevice.deviceWithMTLDevice_(DEVICE)
    assert device.metalDevice() is DEVICE


def test_gradient_descent_on_a_variable() -> None:
    graph, x, _ = squares()
    v = graph.variableWithData_shape_dataType_name_(A.tobytes(), [2, 3], F32, "v")
    rate = graph.constantWithScalar_dataType_(0.5, F32)
    name = "applyStochasticGradientDescentWithLearningRateTensor_variable_gradientTensor_name_"
    step = getattr(graph, name)(rate, v.operation(), x, "step")
    assert step.outputTensors() == [] and step.name() == "step"
    graph.runWithFeeds_targetTensors_targetOperations_({x: A * 0 + 1}, [], [step])
    found = graph.runWithFeeds_targetTensors_targetOperations_({}, [v], None)
    np.testing.assert_array_equal(np.asarray(found[v]), A - 0.5)
    with pytest.raises(zs.DTypeError, match="variable: expected an MPSGraphVariableOp, got"):
        getattr(graph, name)(rate, v, x, None)


def test_bytes() -> None:
    data = pyobjc.NSData.dataWithBytes_length_(b"abcdef", 2)
    assert (data.length(), len(data), bytes(data), bytes(data.bytes())) == (2, 2, b"ab", b"ab")
    again = pyobjc.NSData.dataWithBytes_length_(data, 1)
    assert bytes(again) == b"a" and data.bytes().readonly
    assert pyobjc.NSData.alloc().init().length() == 0
