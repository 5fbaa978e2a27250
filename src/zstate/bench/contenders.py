"""The contenders: zstate, and those of PyTorch, ONNX Runtime, OpenVINO and JAX that are installed.

Each contender turns a row into a function without arguments that does the whole operation once and
returns its results (or a function that puts them in order), so that they can be checked before
anything is timed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .. import functional
from ..errors import OptionError, refusal
from ..types import Array
from .rows import Data, Row

Results = list[Any]
Maker = Callable[[Row, Data, bool, int], Callable[[], Results] | None]

OPERATIONS = {"LSTM": "lstm", "GRU": "gru", "RNN": "single_gate_rnn"}


def zstate_inputs(row: Row, data: Data) -> dict[str, Array]:
    """The inputs of the forward operation by name."""
    inputs = {
        "source": data.x,
        "recurrent_weight": data.R,
        "input_weight": data.W,
        "bias": data.b,
    }
    if row.states:
        inputs["init_state"] = data.h0
    if row.states and row.cell == "LSTM":
        inputs["init_cell"] = data.c0
    if row.cell == "GRU":
        inputs["secondary_bias"] = data.b2
    return inputs


def zstate_calls(backend: str | None) -> Maker:
    """zstate's functions, on NumPy arrays or on torch tensors."""

    def make(row: Row, data: Data, training: bool, threads: int) -> Callable[[], Results]:
        inputs = zstate_inputs(row, data)
        name = OPERATIONS[row.cell]
        forward, backward = getattr(functional, name), getattr(functional, f"{name}_gradients")
        descriptor = replace(row.descriptor, training=training)
        if not training:
            return lambda: [forward(**inputs, descriptor=descriptor, backend=backend).state]
        fed = {"LSTM": ("cell_output_fwd", "cell"), "GRU": ("output_fwd", "state")}.get(row.cell)

        def train() -> Results:
            there = forward(**inputs, descriptor=descriptor, backend=backend)
            extra = {fed[0]: getattr(there, fed[1])} if fed else {}
            back = backward(
                **inputs,
                **extra,
                source_gradient=data.dy,
                z_state=there.training_state,
                descriptor=descriptor,
                backend=backend,
            )
            return [there.state, *(getattr(back, name) for name in inputs)]

        return train

    return make


def oracle(row: Row, data: Data, training: bool) -> Results:
    """The results that every contender must give, in float64."""
    wide = {name: value.astype(np.float64) for name, value in vars(data).items()}
    make = zstate_calls("reference")(row, Data(**wide), training, 1)
    assert make is not None
    return make()


def _by_direction(row: Row, array: Any, axis: int = 0) -> list[Any]:
    """The parts of an array or a tensor."""
    if isinstance(array, np.ndarray):
        return np.split(array, row.directions, axis=axis)
    return list(array.chunk(row.directions, axis))


def _modules(package: str) -> Maker:
    """The layers of torch.nn, or of zstate.torch, which has the same."""

    def make(row: Row, data: Data, training: bool, threads: int) -> Callable[[], Results]:
        import torch

        torch.set_num_threads(threads)
        values: dict[str, Any] = {name: torch.from_numpy(v) for name, v in vars(data).items()}
        tensors = Data(**values)
        return layer_calls(
            getattr(importlib.import_module(package), row.cell), row, tensors, training
        )

    return make


def layer_calls(kind: Any, row: Row, data: Data, training: bool) -> Callable[[], Results]:
    """A layer as torch.nn has it, with the tensors of ``data`` as its weights."""
    import torch

    x: Any = data.x
    layer = kind(row.H, row.H, bidirectional=row.bidirectional, dtype=x.dtype, device=x.device)
    recurrent = data.R.reshape(row.directions, -1, row.H)
    with torch.no_grad():
        for d, suffix in zip(range(row.directions), ("", "_reverse"), strict=False):
            parts: dict[str, Any] = {
                "weight_ih_l0": _by_direction(row, data.W)[d],
                "weight_hh_l0": recurrent[d],
                "bias_ih_l0": _by_direction(row, data.b)[d],
                "bias_hh_l0": x.new_zeros(recurrent.shape[1]),
            }
            if row.cell == "GRU":
                parts["bias_hh_l0"][2 * row.H :] = _by_direction(row, data.b2)[d]
            for name, value in parts.items():
                getattr(layer, name + suffix).copy_(value)
        layer.flatten_parameters()  # one piece of memory, as cuDNN wants it
    first = (data.h0, data.c0)[: 2 if row.cell == "LSTM" else 1] if row.states else ()
    states: list[Any] = [torch.stack(_by_direction(row, state, 1)) for state in first]
    initial: Any = None if not states else tuple(states) if row.cell == "LSTM" else states[0]
    if not training:

        def infer() -> Results:
            with torch.inference_mode():
                return [layer(x, initial)[0]]

        return infer
    dy: Any = data.dy
    for tensor in (x, *states):
        tensor.requires_grad_(True)
    leaves = [x, *states, *layer.parameters()]

    def train() -> Results:
        for leaf in leaves:
            leaf.grad = None
        out = layer(x, initial)[0]
        out.backward(dy)
        return [out.detach(), *_torch_gradients(row, layer, x, states)]

    return train


def _torch_gradients(row: Row, layer: Any, x: Any, states: list[Any]) -> Results:
    """PyTorch's gradients as they lie, in the order of zstate's inputs; copied when checked."""
    suffixes = ("", "_reverse")[: row.directions]

    def of(name: str) -> list[Any]:
        return [getattr(layer, name + suffix).grad for suffix in suffixes]

    recurrent, weight, bias, hidden = map(
        of, ("weight_hh_l0", "weight_ih_l0", "bias_ih_l0", "bias_hh_l0")
    )
    gradients: Results = [x.grad, recurrent, weight, bias, *(state.grad for state in states)]
    if row.cell == "GRU":
        gradients.append([each[2 * row.H :] for each in hidden])
    return gradients


def onnx_model(row: Row, data: Data) -> tuple[Any, dict[str, Array]]:
    """A model of one node with y and the last states as outputs, and the states as feeds."""
    import onnx

    # ONNX has the gates of an LSTM as i, o, f, c and those of a GRU as z, r, h.
    order = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}[row.cell]
    both, gates = row.directions, len(order)

    def reorder(array: Array) -> Array:
        shape = array.reshape(both, gates, row.H, -1)[:, order]
        return np.ascontiguousarray(shape.reshape(both, gates * row.H, -1))

    bias = np.zeros((both, 2 * gates * row.H), np.float32)
    bias[:, : gates * row.H] = reorder(data.b)[..., 0]
    if row.cell == "GRU":
        bias[:, -row.H :] = data.b2.reshape(both, row.H)
    weights = {"W": reorder(data.W), "R": reorder(data.R), "B": bias}
    states = {"h0": data.h0, "c0": data.c0} if row.cell == "LSTM" else {"h0": data.h0}
    fed = {
        name: np.ascontiguousarray(np.stack(_by_direction(row, state, 1)))
        for name, state in states.items()
    }
    attributes: dict[str, Any] = {"hidden_size": row.H}
    attributes["direction"] = "bidirectional" if row.bidirectional else "forward"
    if row.cell == "GRU":
        attributes["linear_before_reset"] = 1
    last = [f"last_{name}" for name in fed]
    node = onnx.helper.make_node(
        row.cell, ["x", "W", "R", "B", "", *fed], ["y", *last], **attributes
    )
    value = onnx.helper.make_tensor_value_info
    real = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "row",
        [value("x", real, data.x.shape), *(value(n, real, a.shape) for n, a in fed.items())],
        [
            value("y", real, (row.T, both, row.N, row.H)),
            *(value(name, real, (both, row.N, row.H)) for name in last),
        ],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8
    )
    return model, fed


def onnx_session(model: Any, threads: int) -> Any:
    """A session of onnxruntime on so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _onnxruntime(
    row: Row, data: Data, training: bool, threads: int
) -> Callable[[], Results] | None:
    if training:
        return None
    model, states = onnx_model(row, data)
    session, fed = onnx_session(model, threads), {"x": data.x, **states}
    return lambda: [("onnx", session.run(["y"], fed)[0])]


def _openvino(row: Row, data: Data, training: bool, threads: int) -> Callable[[], Results] | None:
    if training:
        return None
    import openvino

    model, states = onnx_model(row, data)
    core, fed = openvino.Core(), {"x": data.x, **states}
    # Without the precision it would take bfloat16 where the CPU has it.
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", options)
    request = compiled.create_infer_request()
    return lambda: [("onnx", request.infer(fed)["y"])]


def _on_jax(name: str) -> Maker:
    """A contender on jax arrays (jax_layers.py), or "zstate"."""

    def make(row: Row, data: Data, training: bool, threads: int) -> Callable[[], Results] | None:
        import jax

        from . import jax_layers

        arrays = jax_layers.put(data, jax.devices("cpu")[0])
        layer = {**jax_layers.PEERS, "zstate": jax_layers.ours}[name](row, arrays)
        return None if layer is None else jax_layers.calls(row, arrays, layer, training)

    return make


# zstate by its functions on NumPy arrays, by its modules on torch tensors, or on jax arrays.
THROUGH: dict[str, Maker] = {
    "numpy": zstate_calls(None),
    "torch": _modules("zstate.torch"),
    "jax": _on_jax("zstate"),
}

CONTENDERS: dict[str, Maker] = {
    "zstate": THROUGH["numpy"],
    "torch": _modules("torch.nn"),
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "jax": _on_jax("scan"),
}

ONLY_INFER = ("onnxruntime", "openvino")

# What zstate through JAX is compared with: the same scan, and flax's cells in its nn.RNN.
JAX_PEERS: dict[str, Maker] = {name: _on_jax(name) for name in ("scan", "flax", "nnx", "cudnn")}

_PACKAGES = {
    "torch": ["torch"],
    "onnxruntime": ["onnxruntime", "onnx"],
    "openvino": ["openvino", "onnx"],
    "jax": ["jax"],
    "flax": ["jax", "flax"],
    "nnx": ["jax", "flax"],
}


def makers(through: str, peers: list[str]) -> dict[str, Maker]:
    """zstate by one of its ways, and the peers."""
    return {"zstate": THROUGH[through], **{name: _peers(through)[name] for name in peers}}


def _peers(through: str) -> dict[str, Maker]:
    if through == "jax":
        return JAX_PEERS
    if through == "prepare":
        return {name: CONTENDERS[name] for name in ONLY_INFER}
    return {name: maker for name, maker in CONTENDERS.items() if name != "zstate"}


def installed() -> list[str]:
    """zstate, and the peers installed on this machine."""
    return [name for name in CONTENDERS if not missing(name)]


def missing(name: str) -> list[str]:
    """The packages a contender needs that are not installed."""
    return [p for p in _PACKAGES.get(name, []) if importlib.util.find_spec(p) is None]


def chosen_peers(names: str | None, through: str = "numpy") -> list[str]:
    """The peers to time: all that are installed, or those named, which must be installed."""
    known = _peers(through)
    if names is None:
        return [name for name in known if not missing(name)]
    chosen = [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]
    for name in chosen:
        if name not in known:
            expected = f"none, or some of {', '.join(known)}"
            raise OptionError(refusal("bench", "--peers", expected, repr(name)))
        if missing(name):
            needed = " ".join(missing(name))
            raise OptionError(f"[bench] --peers: {name} is not installed: pip install {needed}")
    return chosen


def in_order(results: Any) -> Results:
    """A contender's results; one that keeps them in another layout returns a function."""
    found: Results = results() if callable(results) else results
    return found


def as_array(row: Row, result: Any, shape: tuple[int, ...]) -> Array:
    """A contender's result in zstate's layout."""
    if isinstance(result, tuple):  # ONNX has y as [T,D,N,H]
        return np.asarray(np.moveaxis(result[1], 1, 2)).reshape(shape)
    if isinstance(result, list):
        return np.concatenate([np.asarray(part) for part in result]).reshape(shape)
    array = np.asarray(result)
    if array.shape != shape and array.ndim == 3:  # PyTorch has states as [D,N,H]
        array = np.concatenate(list(array), axis=1)
    return array.reshape(shape)
