"""The contenders: zstate, and those of PyTorch, ONNX Runtime, OpenVINO and JAX that are installed.

Each contender turns a case and its numbers into a function without arguments that does the whole
operation once and returns its results, so that they can be checked before anything is timed.
"""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import functional
from ..convert import Layer, save
from ..errors import OptionError, refusal
from ..prepared import prepare
from ..types import Array
from .rows import Data, Row

Results = list[Any]
Call = Callable[[], Any]

OPERATIONS = {"LSTM": "lstm", "GRU": "gru", "RNN": "single_gate_rnn"}


@dataclass(frozen=True)
class Case:
    """A row and how it runs."""

    row: Row
    training: bool = False
    type: str = "float32"  # of every tensor on a GPU, of the weights of prepared layers
    way: str = "numpy"  # how zstate is called: a key of OURS
    device: str = "cpu"
    threads: int = 1

    @property
    def place(self) -> str:
        """What peers are grouped by: a device, or one of zstate's other ways."""
        return self.device if self.way in ("numpy", "torch") else self.way


Maker = Callable[[Case, Data], Call | None]


@dataclass(frozen=True)
class Contender:
    """How to make its calls, the places where it is a peer, and the packages it needs."""

    make: Maker
    places: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def inputs_of(row: Row, data: Data) -> dict[str, Any]:
    """The inputs of the forward operation by name."""
    inputs = {"source": data.x, **weights_of(row, data)}
    if row.states:
        inputs["init_state"] = data.h0
    if row.states and row.cell == "LSTM":
        inputs["init_cell"] = data.c0
    return inputs


def weights_of(row: Row, data: Data) -> dict[str, Any]:
    """Those inputs that are parameters."""
    weights = {"recurrent_weight": data.R, "input_weight": data.W, "bias": data.b}
    return weights | {"secondary_bias": data.b2} if row.cell == "GRU" else weights


def layer_of(row: Row, data: Data) -> Layer:
    """The layer, to be packed or to be written as another library has it."""
    return Layer(OPERATIONS[row.cell], row.descriptor, weights_of(row, data))


def functions(case: Case, data: Data, backend: str | None = None) -> Call:
    """zstate's functions, on NumPy arrays or, on a GPU, on torch tensors."""
    if case.device == "cuda":
        data, backend = tensors(case, data), "cuda"
    inputs, name = inputs_of(case.row, data), OPERATIONS[case.row.cell]
    forward, backward = getattr(functional, name), getattr(functional, f"{name}_gradients")
    descriptor = replace(case.row.descriptor, training=case.training)
    given: dict[str, Any] = {"descriptor": descriptor, "backend": backend}
    if not case.training:
        return lambda: [forward(**inputs, **given).state]
    fed = {"LSTM": ("cell_output_fwd", "cell"), "GRU": ("output_fwd", "state")}.get(case.row.cell)

    def train() -> Results:
        there = forward(**inputs, **given)
        extra = {"source_gradient": data.dy, "z_state": there.training_state}
        extra |= {fed[0]: getattr(there, fed[1])} if fed else {}
        back = backward(**inputs, **extra, **given)
        return [there.state, *(getattr(back, name) for name in inputs)]

    return train


def tensors(case: Case, data: Data) -> Data:
    """The arrays as torch tensors."""
    import torch

    kind = getattr(torch, case.type)
    return Data(**{n: torch.from_numpy(v).to(case.device, kind) for n, v in vars(data).items()})


def modules(package: str) -> Maker:
    """The layers of torch.nn, or of zstate.torch, which has the same."""

    def make(case: Case, data: Data) -> Call:
        import torch

        torch.set_num_threads(case.threads)
        row, there = case.row, tensors(case, data)
        kind = getattr(importlib.import_module(package), row.cell)
        layer = kind(row.H, row.H, bidirectional=row.bidirectional)
        own = save(layer_of(row, data), target="torch").items()
        layer.load_state_dict({name: torch.from_numpy(value) for name, value in own})
        layer.to(there.x.device, there.x.dtype)
        layer.flatten_parameters()  # one piece of memory, as cuDNN wants it
        first = (there.h0, there.c0)[: 2 if row.cell == "LSTM" else 1] if row.states else ()
        states = [torch.stack(state.chunk(row.directions, 1)) for state in first]
        initial: Any = None if not states else tuple(states) if row.cell == "LSTM" else states[0]
        if not case.training:

            def infer() -> Results:
                with torch.inference_mode():
                    return [layer(there.x, initial)[0]]

            return infer
        leaves = [there.x, *states, *layer.parameters()]
        for leaf in leaves:
            leaf.requires_grad_(True)

        def train() -> Results:
            for leaf in leaves:
                leaf.grad = None
            out = layer(there.x, initial)[0]
            out.backward(there.dy)
            return [out.detach(), *_torch_gradients(row, layer, there.x, states)]

        return train

    return make


def _torch_gradients(row: Row, layer: Any, x: Any, states: list[Any]) -> Results:
    """PyTorch's gradients as they lie, in the order of zstate's inputs; copied when checked."""
    suffixes = ("", "_reverse")[: row.directions]

    def of(name: str) -> list[Any]:
        return [getattr(layer, name + suffix).grad for suffix in suffixes]

    gradients: Results = [x.grad, *map(of, ("weight_hh_l0", "weight_ih_l0", "bias_ih_l0"))]
    if row.cell == "GRU":
        gradients.append([each[2 * row.H :] for each in of("bias_hh_l0")])
    return [*gradients, *(state.grad for state in states)]


def _prepared(case: Case, data: Data) -> Call:
    """The row's layer as zs.prepare packs it."""
    model = prepare(layer_of(case.row, data), case.type)
    states = (data.h0, data.c0) if case.row.cell == "LSTM" else (data.h0,)
    return lambda: [model(data.x, states)[0]]


def _streamed(case: Case, data: Data) -> Call:
    """The next step or chunk of the sequence, from the start again after its end."""
    stream = prepare(layer_of(case.row, data), case.type).stream()
    is_step = case.row.T == 1
    turn = itertools.cycle(list(data.x) if is_step else chunks_of(case, data))
    run = stream.step if is_step else stream.run
    return lambda: [run(next(turn))]


def chunks_of(case: Case, data: Data) -> list[Array]:
    """The sequence in pieces of the row's length."""
    return [data.x[t : t + case.row.T] for t in range(0, len(data.x), case.row.T)]


def onnx_model(row: Row, data: Data) -> tuple[Any, dict[str, Array]]:
    """A model of one node with y and the last states as outputs, and the states as feeds."""
    import onnx.parser

    D, N, H, T = row.directions, row.N, row.H, row.T
    states = {"h0": data.h0, "c0": data.c0} if row.cell == "LSTM" else {"h0": data.h0}
    fed = {name: np.stack(np.split(state, D, 1)) for name, state in states.items()}
    last = [f"{name}_last" for name in fed]
    first_typed, last_typed = (
        ", ".join(f"float[{D},{N},{H}] {name}" for name in names) for names in (fed, last)
    )
    options = f'hidden_size = {H}, direction = "{"forward" if D == 1 else "bidirectional"}"'
    options += ", linear_before_reset = 1" if row.cell == "GRU" else ""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 14]>
        row (float[{T},{N},{H}] x, {first_typed}) => (float[{T},{D},{N},{H}] y, {last_typed}) {{
            y, {", ".join(last)} = {row.cell} <{options}> (x, W, R, B, , {", ".join(fed)})
        }}"""
    )
    for name, array in save(layer_of(row, data), target="onnx").items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model, fed


def _onnxruntime(case: Case, data: Data) -> Call | None:
    """A stream carries its states on and takes the next chunk at every call."""
    if case.training or (case.type == "int8" and case.row.cell != "LSTM"):
        return None  # for other cells it has no small weights
    import onnxruntime

    model, states = onnx_model(case.row, data)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = case.threads
    session = onnxruntime.InferenceSession(
        (_quantised(model) if case.type == "int8" else model).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    if case.way != "streamed":
        feeds = {"x": data.x, **states}
        return lambda: [("onnx", session.run(["y"], feeds)[0])]
    turn = itertools.cycle(chunks_of(case, data))
    states = {name: np.zeros_like(state) for name, state in states.items()}

    def run() -> Results:
        y, *last = session.run(None, {"x": next(turn), **states})
        states.update(zip(states, last, strict=True))
        return [("onnx", y)]

    return run


def _quantised(model: Any) -> Any:
    """The model with int8 weights from ONNX Runtime's quantize_dynamic."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    # There is nothing to simplify in a model of one node: this says so, or every call warns.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "float32.onnx"), Path(folder, "int8.onnx")
        onnx.save(model, before)
        quantize_dynamic(before, after)
        return onnx.load(after)


def _openvino(case: Case, data: Data) -> Call | None:
    if case.training or case.type != "float32":
        return None
    import openvino

    model, states = onnx_model(case.row, data)
    core, feeds = openvino.Core(), {"x": data.x, **states}
    # Without the precision it would take bfloat16 where the CPU has it.
    options = {"INFERENCE_NUM_THREADS": case.threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", options)
    request = compiled.create_infer_request()
    return lambda: [("onnx", request.infer(feeds)["y"])]


def on_jax(name: str) -> Maker:
    """A layer of jax_layers.py."""

    def make(case: Case, data: Data) -> Call | None:
        from . import jax_layers

        return jax_layers.calls(case, data, getattr(jax_layers, name))

    return make


# How zstate is called.
OURS: dict[str, Maker] = {
    "numpy": functions,
    "torch": modules("zstate.torch"),
    "jax": on_jax("ours"),
    "prepared": _prepared,
    "streamed": _streamed,
}
# zstate's float32 layer, timed with one with smaller weights; no peer.
OWN_FLOAT = "float32"

_ONNX = ("onnxruntime", "onnx")
CONTENDERS: dict[str, Contender] = {
    "zstate": Contender(lambda case, data: OURS[case.way](case, data)),
    "torch": Contender(modules("torch.nn"), ("cpu", "cuda"), ("torch",)),
    "onnxruntime": Contender(_onnxruntime, ("cpu", "prepared", "streamed"), _ONNX),
    "openvino": Contender(_openvino, ("cpu", "prepared"), ("openvino", "onnx")),
    "jax": Contender(on_jax("scan"), ("cpu", "jax"), ("jax",)),
    OWN_FLOAT: Contender(lambda case, data: _prepared(replace(case, type="float32"), data)),
}


def missing(name: str) -> list[str]:
    """The packages a contender needs that are not installed."""
    return [p for p in CONTENDERS[name].packages if importlib.util.find_spec(p) is None]


def chosen_peers(names: str | None, place: str) -> list[str]:
    """The peers to time: all that are installed, or those named, which must be installed."""
    known = [name for name, each in CONTENDERS.items() if place in each.places]
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
