"""The facade's objects: nothing is swallowed, a slip is named, and a repr helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate import pyobjc
from zstate.pyobjc import constants

F32 = pyobjc.MPSDataTypeFloat32


def objects() -> dict[str, Any]:
    """One of every class."""
    graph = pyobjc.MPSGraph.alloc().init()
    x = graph.placeholderWithShape_dataType_name_([2, 3], F32, "x")
    v = graph.variableWithData_shape_dataType_name_(bytes(24), [2, 3], F32, "v")
    assign = graph.assignVariable_withValueOfTensor_name_(v, x, "assign")
    kind = pyobjc.MPSGraphShapedType.alloc().initWithShape_dataType_([2, 3], F32)
    compile_ = graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_
    data = pyobjc.MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_(
        None, bytes(24), [2, 3], F32
    )
    device = pyobjc.MTLCreateSystemDefaultDevice()
    made = [
        *(graph, x, assign, kind, compile_(None, {x: kind}, [x], None, None), data, device),
        *(
            data.mpsndarray(),
            device.newCommandQueue(),
            pyobjc.NSData.dataWithBytes_length_(b"a", 1),
        ),
        pyobjc.MPSGraphDevice.deviceWithMTLDevice_(device),
        pyobjc.MPSGraphRandomOpDescriptor.descriptorWithDistribution_dataType_(0, F32),
        pyobjc.MPSGraphLSTMDescriptor.descriptor(),
        pyobjc.MPSGraphGRUDescriptor.new(),
        pyobjc.MPSGraphSingleGateRNNDescriptor.alloc().init(),
        pyobjc.MPSGraphCompilationDescriptor.alloc().init(),
        pyobjc.MPSGraphExecutionDescriptor.new(),
        pyobjc.MPSGraphExecutableSerializationDescriptor.new(),
        pyobjc.NSURL.fileURLWithPath_("a.mpsgraphpackage"),
        pyobjc.NSAutoreleasePool.new(),
        pyobjc.MPSGraphExecutableExecutionDescriptor.new(),
        pyobjc.MPSCommandBuffer.commandBufferFromCommandQueue_(device.newCommandQueue()),
        pyobjc.MPSNDArrayDescriptor.descriptorWithDataType_shape_(F32, [2, 3]),
        v.operation(),
        device.newBufferWithLength_options_(4, pyobjc.MTLResourceStorageModeShared),
    ]
    return {type(one).__name__: one for one in made}


NAMES = sorted(objects())


def test_every_class_is_here() -> None:
    classes = {n for n in pyobjc.__all__ if isinstance(getattr(pyobjc, n), type)}
    assert classes <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attribute", ["training", "shape", "anything", "setTraining_", "name"])
def test_no_assignment_is_swallowed(name: str, attribute: str) -> None:
    one = objects()[name]
    with pytest.raises(AttributeError, match=rf"\[{name}\] {attribute}: cannot be assigned to"):
        setattr(one, attribute, True)


@pytest.mark.parametrize(
    ("name", "attribute", "setter"),
    [
        ("MPSGraphLSTMDescriptor", "training", r"call setTraining_\(True\)"),
        ("MPSGraphLSTMDescriptor", "forgetGateLast", r"call setForgetGateLast_\(True\)"),
        ("MPSGraphLSTMDescriptor", "forget_gate_last", r"call setForgetGateLast_\(True\)"),
        ("MPSGraphLSTMDescriptor", "trainning", r"did you mean setTraining_\(True\)\?"),
        ("MPSGraphGRUDescriptor", "resetAfter", r"call setResetAfter_\(True\)"),
        ("MPSGraphSingleGateRNNDescriptor", "activation", r"call setActivation_\(True\)"),
        ("MPSGraphRandomOpDescriptor", "max", r"call setMax_\(True\)"),
        ("MPSGraphTensorData", "shape", "it has no such setter"),
    ],
)
def test_the_refusal_names_the_setter(name: str, attribute: str, setter: str) -> None:
    one = objects()[name]
    with pytest.raises(zs.ZStateError, match=setter):
        setattr(one, attribute, True)


def test_there_is_no_option_that_mpsgraph_does_not_have() -> None:
    descriptor = objects()["MPSGraphLSTMDescriptor"]
    assert callable(descriptor.setForgetGateLast_)
    for name in ("peepholeOnNewCell", "setPeepholeOnNewCell_"):
        with pytest.raises(AttributeError, match=name):
            getattr(descriptor, name)
    assert descriptor._frozen() == zs.LSTMDescriptor()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda o: o["MPSGraph"].reshapeTensor_withShape_,
            "unknown selector 'reshapeTensor_withShape_'; did you mean 'reshapeTensor_withShape_na",
        ),
        (lambda o: o["MPSGraph"].softmaxWithTensor_axis_name_, "did you mean 'softMaxWithTensor_"),
        (lambda o: o["MPSGraphLSTMDescriptor"].setTrainning_, "did you mean 'setTraining_'"),
        (lambda o: o["MPSGraphTensorData"].mpsNDArray, "did you mean 'mpsndarray'"),
        (lambda o: o["MPSNDArray"].readBytes_, "did you mean 'readBytes_strideBytes_'"),
        (lambda o: pyobjc.MPSGraphLSTMDescriptor.descripter(), "did you mean 'descriptor'"),
        (lambda o: pyobjc.MPSGraphDevice.deviceWithDevice_, "mean 'deviceWithMTLDevice_'"),
        (
            lambda o: o["MPSGraph"].LSTM,
            "mean 'LSTMWithSourceTensor_.* or 'LSTMWithSourceTensor_recurrentWeight_inputWeight_",
        ),
        (
            lambda o: o["MPSGraph"].LSTMWithSourceTensor_,
            "did you mean 'LSTMWithSourceTensor_recurrentW",
        ),
        (lambda o: o["MPSGraph"].placeholder, "did you mean 'placeholderWithShape_dataType_name_'"),
        (lambda o: o["MPSGraph"].soft_max, "did you mean 'softMaxWithTensor_axis_name_'"),
        (lambda o: o["MPSGraph"].zzz, r"\[MPSGraph\] unknown selector 'zzz'$"),
    ],
)
def test_a_mistyped_selector_gets_a_suggestion(act: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        act(objects())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NSArray", "'NSArray': pass a list, as PyObjC takes one"),
        ("NSMutableDictionary", "pass a dict"),
        ("NSNumber", "pass a number"),
        ("NSMutableData", "read into a bytearray or an array"),
    ],
)
def test_a_name_that_is_not_here_says_what_to_use(name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(pyobjc, name)


def test_an_object_that_was_only_allocated_says_so() -> None:
    with pytest.raises(AttributeError, match="expected an initialised object, got alloc"):
        pyobjc.MPSGraphTensorData.alloc().shape()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MPSGraph", "<MPSGraph <Graph of 3 nodes: feeds [x float32[2,3]], 1 variables>>"),
        ("MPSGraphTensor", "<MPSGraphTensor x float32[2,3]>"),
        ("MPSGraphTensorData", "<MPSGraphTensorData float32[2,3]>"),
        ("MPSNDArray", "<MPSNDArray float32[2,3]>"),
        ("MPSGraphShapedType", "<MPSGraphShapedType float32[2,3]>"),
        ("MPSGraphOperation", "<MPSGraphOperation assign>"),
        ("NSData", "<NSData 1 bytes>"),
        ("MPSGraphLSTMDescriptor", "<MPSGraphLSTMDescriptor>"),
        (
            "MPSGraphExecutable",
            "<MPSGraphExecutable <Executable of 1 nodes: [x float32[2,3]] -> [x float32[2,3]], "
            "0 variables>>",
        ),
    ],
)
def test_reprs_help(name: str, text: str) -> None:
    assert repr(objects()[name]) == text


def test_the_repr_of_a_descriptor_shows_what_was_set() -> None:
    d = pyobjc.MPSGraphLSTMDescriptor.descriptor()
    d.setTraining_(True)
    d.setCellGateActivation_(pyobjc.MPSGraphRNNActivationRelu)
    assert repr(d) == "<MPSGraphLSTMDescriptor training=True cellGateActivation=1>"


def test_a_call_on_the_class_names_the_method() -> None:
    kind = pyobjc.MPSGraphLSTMDescriptor
    with pytest.raises(TypeError, match=r"^setTraining_\(\) missing"):
        kind.setTraining_(True)
    with pytest.raises(TypeError, match=r"^descriptorWithDistribution_dataType_\(\) missing"):
        pyobjc.MPSGraphRandomOpDescriptor.descriptorWithDistribution_dataType_(0)


GRAPH_REFUSALS: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda g, x: np.asarray(x), r"\[np.array\] tensor: expected values, got <Tensor x"),
    (lambda g, x: np.sum(x), r"\[np.array\] tensor: expected values, got <Tensor x"),
    (lambda g, x: g.placeholderWithShape_name_([2.5], None), "shape: expected an integer, got"),
    (lambda g, x: g.placeholderWithShape_name_("ab", None), "shape: expected a list of sizes, got"),
    (lambda g, x: g.reshapeTensor_withShape_name_(x, [2.0, 3], None), "shape: expected an integer"),
    (lambda g, x: g.meanOfTensor_axes_name_(x, 1, None), "axes: expected a list of sizes, got int"),
    (lambda g, x: g.squeezeTensor_axis_name_(x, "0", None), "axis: expected an integer"),
    (lambda g, x: g.splitTensor_numSplits_axis_name_(x, [1], 0, None), "numSplits: expected an inte"),
    (
        lambda g, x: g.constantWithData_shape_dataType_(None, [2], F32),
        "data: expected contiguous bytes, got None",
    ),
    (
        lambda g, x: g.constantWithData_shape_dataType_(bytes(24), [-2, -3], F32),
        r"shape: expected sizes of at least 0, got \[-2,-3\]",
    ),
    (
        lambda g, x: g.constantWithData_shape_dataType_(bytes(0), [2**32, 2**32], F32),
        "data: expected 73786976294838206464 bytes",
    ),
    (lambda g, x: pyobjc.NSData.dataWithBytes_length_(b"abc", 4), "length: expected 0 to 3, got 4"),
    (
        lambda g, x: g.runWithFeeds_targetTensors_targetOperations_(None, [x], None),
        "feeds: expected a dictionary, got None",
    ),
    (
        lambda g, x: g.runWithFeeds_targetTensors_targetOperations_({}, None, None),
        "targetTensors: expected a list of tensors, got None",
    ),
    (
        lambda g, x: g.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
            None, {x: [2, 3]}, [x], None, None
        ),
        "feeds: expected an MPSGraphShapedType, got list",
    ),
    (
        lambda g, x: g.singleGateRNNGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_initState_descriptor_name_(
            x, x, x, None, None, pyobjc.MPSGraphSingleGateRNNDescriptor.descriptor(), None
        ),
        "z_state: expected the training_state of the forward operation, got None; run the forward",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("act", "message"), GRAPH_REFUSALS)
def test_more_refusals(act: Callable[[Any, Any], Any], message: str) -> None:
    graph = pyobjc.MPSGraph.alloc().init()
    x = graph.placeholderWithShape_dataType_name_([2, 3], F32, "x")
    with pytest.raises(zs.ZStateError, match=message):
        act(graph, x)


def test_every_constant_is_exported() -> None:
    named = {name for name in vars(constants) if name.startswith("MPS")}
    assert named <= set(pyobjc.__all__)
    assert all(hasattr(pyobjc, name) for name in pyobjc.__all__)
