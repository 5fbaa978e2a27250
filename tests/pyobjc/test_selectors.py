"""PyObjC's spelling: the 20 selectors, the descriptors, and a whole script that only changed its
import line."""

from __future__ import annotations

import numpy as np
import pytest

import zstate as zs
from zstate import pyobjc
from zstate.operations import OPERATIONS

# As Apple publishes them, written out: the module makes them from a table.
PUBLISHED = """
singleGateRNNWithSourceTensor:recurrentWeight:inputWeight:bias:initState:mask:descriptor:name:
singleGateRNNWithSourceTensor:recurrentWeight:inputWeight:bias:initState:descriptor:name:
singleGateRNNWithSourceTensor:recurrentWeight:initState:descriptor:name:
singleGateRNNGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:stateGradient:inputWeight:bias:initState:mask:descriptor:name:
singleGateRNNGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:inputWeight:bias:initState:mask:descriptor:name:
singleGateRNNGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:inputWeight:bias:initState:descriptor:name:
singleGateRNNGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:initState:descriptor:name:
LSTMWithSourceTensor:recurrentWeight:inputWeight:bias:initState:initCell:mask:peephole:descriptor:name:
LSTMWithSourceTensor:recurrentWeight:inputWeight:bias:initState:initCell:descriptor:name:
LSTMWithSourceTensor:recurrentWeight:initState:initCell:descriptor:name:
LSTMGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:cellOutputFwd:stateGradient:cellGradient:inputWeight:bias:initState:initCell:mask:peephole:descriptor:name:
LSTMGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:cellOutputFwd:inputWeight:bias:initState:initCell:mask:descriptor:name:
LSTMGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:cellOutputFwd:inputWeight:bias:initState:initCell:descriptor:name:
LSTMGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:cellOutputFwd:descriptor:name:
GRUWithSourceTensor:recurrentWeight:inputWeight:bias:initState:mask:secondaryBias:descriptor:name:
GRUWithSourceTensor:recurrentWeight:inputWeight:bias:initState:descriptor:name:
GRUWithSourceTensor:recurrentWeight:inputWeight:bias:descriptor:name:
GRUGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:outputFwd:stateGradient:inputWeight:bias:initState:mask:secondaryBias:descriptor:name:
GRUGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:outputFwd:inputWeight:bias:initState:descriptor:name:
GRUGradientsWithSourceTensor:recurrentWeight:sourceGradient:zState:outputFwd:inputWeight:bias:descriptor:name:
""".split()

SCRIPT = """
from MetalPerformanceShadersGraph import *
import numpy as np

T, N, I, H = 5, 2, 3, 4
rng = np.random.default_rng(7)

def data(array):
    bytes_ = NSData.dataWithBytes_length_(array.tobytes(), array.nbytes)
    device = MPSGraphDevice.deviceWithMTLDevice_(MTLCreateSystemDefaultDevice())
    return MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_(
        device, bytes_, array.shape, MPSDataTypeFloat32)

graph = MPSGraph.alloc().init()
values = {"x": (T, N, I), "R": (4 * H, H), "W": (4 * H, I), "b": (4 * H,), "h0": (N, H), "c0": (N, H)}
values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in values.items()}
x, R, W, b, h0, c0 = (
    graph.placeholderWithShape_dataType_name_(list(value.shape), MPSDataTypeFloat32, name)
    for name, value in values.items())

descriptor = MPSGraphLSTMDescriptor.descriptor()
descriptor.setTraining_(True)
descriptor.setForgetGateLast_(True)
descriptor.setActivation_(MPSGraphRNNActivationSigmoid)
h, c, z = graph.LSTMWithSourceTensor_recurrentWeight_inputWeight_bias_initState_initCell_descriptor_name_(
    x, R, W, b, h0, c0, descriptor, "lstm")
dy = graph.constantWithScalar_shape_dataType_(1.0, [T, N, H], MPSDataTypeFloat32)
gradients = graph.LSTMGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_cellOutputFwd_inputWeight_bias_initState_initCell_descriptor_name_(
    x, R, dy, z, c, W, b, h0, c0, descriptor, "back")
feeds = {tensor: data(value) for tensor, value in zip((x, R, W, b, h0, c0), values.values())}
found = graph.runWithFeeds_targetTensors_targetOperations_(feeds, [h] + list(gradients), None)
results = []
for tensor in [h] + list(gradients):
    out = np.empty(found[tensor].shape(), np.float32)
    found[tensor].mpsndarray().readBytes_strideBytes_(out, None)
    results.append(out)
"""


def test_a_script_runs_with_only_its_import_line_changed() -> None:
    namespace: dict[str, object] = {}
    exec(SCRIPT.replace("MetalPerformanceShadersGraph", "zstate.pyobjc"), namespace)
    values: dict[str, np.ndarray] = namespace["values"]  # type: ignore[assignment]
    inputs = {
        "source": values["x"],
        "recurrent_weight": values["R"],
        "input_weight": values["W"],
        "bias": values["b"],
        "init_state": values["h0"],
        "init_cell": values["c0"],
    }
    d = zs.LSTMDescriptor(training=True, forget_gate_last=True, activation=zs.Activation.SIGMOID)
    h, c, z = zs.lstm(**inputs, descriptor=d)
    wanted = zs.lstm_gradients(
        **inputs, source_gradient=np.ones_like(h), z_state=z, cell_output_fwd=c, descriptor=d
    )
    expected = [h, *(array for array in wanted if array is not None)]
    found: list[np.ndarray] = namespace["results"]  # type: ignore[assignment]
    assert len(found) == len(expected) == 7
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_selectors_are_the_published_ones() -> None:
    made = [selector.replace("_", ":") for selector, _, _ in pyobjc.selectors()]
    assert sorted(made) == sorted(PUBLISHED)
    assert len(made) == 20
    for selector in PUBLISHED:
        assert callable(getattr(pyobjc.MPSGraph, selector.replace(":", "_")))


def test_every_keyword_belongs_to_its_operation() -> None:
    for _, operation, keywords in pyobjc.selectors():
        assert set(keywords) <= set(OPERATIONS[operation].inputs)
        assert set(OPERATIONS[operation].required) <= {"source", *keywords}


def sizes(keyword: str, gates: int) -> tuple[int, ...]:
    T, N, I, H = 4, 2, 3, 5
    wide = gates * H
    per_step = dict.fromkeys(("source_gradient", "cell_output_fwd", "output_fwd"), (T, N, H))
    return {
        "source": (T, N, I),
        "recurrent_weight": (wide, H),
        "input_weight": (wide, I),
        "bias": (wide,),
        "peephole": (wide,),
        "mask": (T, N, H),
        "secondary_bias": (H,),
        "z_state": (T, N, wide),
        **dict.fromkeys(("init_state", "init_cell", "state_gradient", "cell_gradient"), (N, H)),
        **per_step,
    }[keyword]


@pytest.mark.parametrize(("selector", "operation", "keywords"), list(pyobjc.selectors()))
def test_each_selector_computes_its_operation(
    selector: str, operation: str, keywords: tuple[str, ...]
) -> None:
    """Every argument in its own place: a wrong order gives wrong shapes or wrong numbers."""
    rng = np.random.default_rng(1)
    gates = len(OPERATIONS[operation].cell.gates)
    arrays = {"source": rng.normal(size=sizes("source", gates))}
    if "input_weight" not in keywords:
        arrays["source"] = rng.normal(size=(4, 2, gates * 5))
    arrays |= {keyword: rng.normal(size=sizes(keyword, gates)) for keyword in keywords}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    kind = {1: "SingleGateRNN", 4: "LSTM", 3: "GRU"}[gates]
    descriptor = getattr(pyobjc, f"MPSGraph{kind}Descriptor").descriptor()
    if gates == 3:
        descriptor.setResetAfter_(True)
    graph = pyobjc.MPSGraph.alloc().init()
    tensors = {
        name: graph.placeholderWithShape_dataType_name_(
            list(array.shape), pyobjc.MPSDataTypeFloat32, name
        )
        for name, array in arrays.items()
    }
    found = getattr(graph, selector)(*tensors.values(), descriptor, None)
    feeds = {tensors[name]: array for name, array in arrays.items()}
    results = graph.runWithFeeds_targetTensors_targetOperations_(feeds, found, None)
    wanted = getattr(zs, operation)(**arrays, descriptor=descriptor._frozen())
    expected = [array for array in wanted if array is not None]
    assert len(found) == len(expected)
    for tensor, array in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(results[tensor]), array)


def test_optional_arguments_may_be_none() -> None:
    graph = pyobjc.MPSGraph.new()
    x = graph.placeholderWithShape_name_([4, 2, 3], None)
    R = graph.constantWithScalar_shape_dataType_(0.1, [3, 3], pyobjc.MPSDataTypeFloat32)
    d = pyobjc.MPSGraphSingleGateRNNDescriptor.descriptor()
    (h,) = graph.singleGateRNNWithSourceTensor_recurrentWeight_initState_descriptor_name_(
        x, R, None, d, None
    )
    assert h.shape() == [4, 2, 3]
    assert h.dataType() == pyobjc.MPSDataTypeFloat32
    assert "single_gate_rnn" in repr(h)


def test_descriptors_have_every_property() -> None:
    d = pyobjc.MPSGraphGRUDescriptor.descriptor()
    assert d._frozen() == zs.GRUDescriptor()
    assert d.training() is False
    for name in ("Reverse", "Bidirectional", "Training", "ResetGateFirst", "ResetAfter", "FlipZ"):
        getattr(d, f"set{name}_")(True)
        assert getattr(d, name[0].lower() + name[1:])() is True
    d.setUpdateGateActivation_(pyobjc.MPSGraphRNNActivationHardSigmoid)
    assert d.updateGateActivation() == 4
    assert d.resetGateActivation() == pyobjc.MPSGraphRNNActivationSigmoid
    assert d._frozen() == zs.GRUDescriptor(
        True, True, True, True, True, True, zs.Activation.HARD_SIGMOID
    )


@pytest.mark.parametrize(
    ("setter", "value", "message"),
    [
        (
            "setActivation_",
            5,
            "activation: expected an MPSGraphRNNActivation constant, 0 to 4, got 5",
        ),
        ("setTraining_", "yes", "training: expected True or False, got 'yes'"),
    ],
)
def test_descriptors_refuse(setter: str, value: object, message: str) -> None:
    d = pyobjc.MPSGraphLSTMDescriptor.descriptor()
    with pytest.raises(zs.DescriptorError, match=message):
        getattr(d, setter)(value)


def test_unknown_dimensions_are_minus_one() -> None:
    graph = pyobjc.MPSGraph.alloc().init()
    x = graph.placeholderWithShape_dataType_name_([-1, 2, 3], pyobjc.MPSDataTypeFloat16, None)
    assert x.shape() == [-1, 2, 3]
    assert x._tensor.shape == (None, 2, 3)


def test_constants_and_variables_from_data() -> None:
    graph = pyobjc.MPSGraph.alloc().init()
    values = np.arange(6, dtype=np.float16)
    raw = pyobjc.NSData.dataWithBytes_length_(values.tobytes(), values.nbytes)
    assert raw.length() == 12
    float16 = pyobjc.MPSDataTypeFloat16
    constant = graph.constantWithData_shape_dataType_(raw, [2, 3], float16)
    variable = graph.variableWithData_shape_dataType_name_(raw, [3, 2], float16, "v")
    scalar = graph.constantWithScalar_dataType_(2.0, float16)
    wanted = [constant, variable, scalar]
    found = graph.runWithFeeds_targetTensors_targetOperations_({}, wanted, None)
    np.testing.assert_array_equal(np.asarray(found[constant]), values.reshape(2, 3))
    np.testing.assert_array_equal(np.asarray(found[variable]), values.reshape(3, 2))
    assert np.asarray(found[scalar]) == 2
    assert found[constant].dataType() == float16
    array = found[constant].mpsndarray()
    assert array.numberOfDimensions() == 2
    assert array.lengthOfDimension_(0) == 3
    buffer = bytearray(12)
    array.readBytes_strideBytes_(buffer, None)
    assert bytes(buffer) == values.tobytes()


def _graph_and_array() -> tuple[pyobjc.MPSGraph, pyobjc.MPSNDArray]:
    graph = pyobjc.MPSGraph.alloc().init()
    c = graph.constantWithScalar_shape_dataType_(1.0, [2, 2], pyobjc.MPSDataTypeFloat32)
    found = graph.runWithFeeds_targetTensors_targetOperations_({}, [c], None)
    return graph, found[c].mpsndarray()


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (
            np.empty((2, 3), np.float32),
            "expected a writable buffer of 16 bytes, got a buffer of 24",
        ),
        (bytes(16), "expected a writable buffer of 16 bytes, got a read-only buffer"),
        (np.empty((2, 4), np.float32)[:, ::2], "expected a contiguous buffer, got a strided array"),
        (np.empty(0, np.float32), "expected a writable buffer of 16 bytes, got a buffer of 0"),
    ],
)
def test_a_bad_buffer_is_refused(buffer: object, message: str) -> None:
    _, array = _graph_and_array()
    with pytest.raises(zs.ShapeError, match=message):
        array.readBytes_strideBytes_(buffer, None)


def test_other_refusals() -> None:
    graph, array = _graph_and_array()
    with pytest.raises(zs.ShapeError, match="strideBytes: expected None, or 2 strides in bytes"):
        array.readBytes_strideBytes_(bytearray(16), [4])
    with pytest.raises(zs.DTypeError, match="dataType: expected an MPSDataType constant, got 7"):
        graph.placeholderWithShape_dataType_name_([1], 7, None)
    with pytest.raises(zs.DTypeError, match="shape: expected a list of sizes, got None"):
        graph.placeholderWithShape_dataType_name_(None, pyobjc.MPSDataTypeFloat32, None)  # type: ignore[arg-type]
    with pytest.raises(zs.ShapeError, match=r"data: expected 16 bytes for float32\[2,2\], got 4"):
        graph.constantWithData_shape_dataType_(bytes(4), [2, 2], pyobjc.MPSDataTypeFloat32)
    with pytest.raises(zs.DTypeError, match="targetOperations: expected an MPSGraphOperation, got"):
        graph.runWithFeeds_targetTensors_targetOperations_({}, [], [object()])  # type: ignore[list-item]
    with pytest.raises(zs.DTypeError, match="feeds: expected an MPSGraphTensor, got str 'x'"):
        graph.runWithFeeds_targetTensors_targetOperations_({"x": 1}, [], None)  # type: ignore[dict-item]
    name = "singleGateRNNWithSourceTensor_recurrentWeight_initState_descriptor_name_"
    method = getattr(graph, name)
    with pytest.raises(TypeError, match="takes 5 arguments, got 1"):
        method(1)
    x = graph.placeholderWithShape_name_([4, 2, 3], None)
    with pytest.raises(
        zs.DTypeError, match="descriptor: expected MPSGraph's descriptor of single_gate_rnn"
    ):
        method(x, x, None, None, None)
    with pytest.raises(
        zs.DTypeError, match="recurrent_weight: expected an MPSGraphTensor, got None"
    ):
        method(x, None, None, pyobjc.MPSGraphSingleGateRNNDescriptor.descriptor(), None)


def test_a_strange_feed_is_named() -> None:
    graph = pyobjc.MPSGraph.alloc().init()
    x = graph.placeholderWithShape_name_([1], "x")
    with pytest.raises(zs.DTypeError, match="feed 'x': expected a NumPy array .*, got list"):
        graph.runWithFeeds_targetTensors_targetOperations_({x: [1.0]}, [x], None)


def test_the_device_has_a_name() -> None:
    assert pyobjc.MTLCreateSystemDefaultDevice().name() == "zstate"


def test_bfloat16_travels_as_bytes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    graph = pyobjc.MPSGraph.alloc().init()
    values = np.array([1.5, 2.0], ml_dtypes.bfloat16)
    c = graph.constantWithData_shape_dataType_(values.tobytes(), [2], pyobjc.MPSDataTypeBFloat16)
    out = np.zeros(2, ml_dtypes.bfloat16)
    found = graph.runWithFeeds_targetTensors_targetOperations_({}, [c], None)[c]
    found.mpsndarray().readBytes_strideBytes_(out, None)
    np.testing.assert_array_equal(out, values)
