"""Every engine and exporter either gives the float64 reference's numbers for a cell that was added
by the recipe, or refuses it by name. Runs in the copy of the source that has the cell."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch

import zstate as zs
import zstate.convert as zc
import zstate.jax
import zstate.onnx as zo
import zstate.torch
from tests.cells.test_made_up import backward_inputs, run
from tests.cuda.emulated import COMPILER, emulate
from zstate import functional, pyobjc
from zstate.backends import native
from zstate.operations import OPERATIONS, Operation
from zstate.types import Array

T, N, I, H = 4, 3, 5, 6
# The storage types, and how far from float64's numbers theirs may lie.
TYPES = [("float64", 1e-12), ("float32", 1e-5), ("float16", 4e-3), (ml_dtypes.bfloat16, 3e-2)]
Call = Callable[[Operation, dict[str, Any]], dict[str, Any]]


def same(found: Any, exact: Any, bound: float, what: str) -> None:
    found, exact = np.asarray(found, "float64"), np.asarray(exact, "float64")
    assert found.shape == exact.shape, what
    scale = 1 + abs(exact).max()
    np.testing.assert_allclose(found / scale, exact / scale, rtol=0, atol=bound, err_msg=what)


def as_type(kind: Any, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.astype(kind) for name, array in arrays.items()}


class Toy:
    """A cell by the name of its operation, and a call of it with everything that it takes."""

    def __init__(self, name: str) -> None:
        self.name, self.forward = name, OPERATIONS[name]
        self.backward, self.cell = OPERATIONS[f"{name}_gradients"], self.forward.cell
        rows, rng = len(self.cell.gates) * H, np.random.default_rng(1)
        shapes = {
            "source": (T, N, I),
            "recurrent_weight": (rows, H),
            "input_weight": (rows, I),
            "bias": (rows,),
            "mask": (T, N, H),
            **{state.initial: (N, H) for state in self.cell.states},
            **{each.name: (H,) for each in self.cell.own},
        }
        self.inputs = {each: rng.normal(size=shape) / 2 for each, shape in shapes.items()}
        self.single = as_type("float32", self.inputs)
        self.gradients = {s.gradient: rng.normal(size=(T, N, H)) for s in self.cell.states}
        self.trained: Any = self.cell.descriptor(training=True)
        keeps = {self.cell.keeps_states: True} if self.cell.keeps_states else {}
        self.every: Any = self.cell.descriptor(**keeps)  # all states, and no training state
        self.results = run(self.forward, self.inputs, self.trained)
        given = backward_inputs(self.cell, self.inputs, self.results, self.gradients)
        self.totals = run(self.backward, given, self.trained)

    def check_states(self, found: Any, bound: float, what: str) -> None:
        for state, value in zip(self.cell.states, found, strict=True):
            same(value, getattr(self.results, state.name), bound, f"{what} {state.name}")

    def check_calls(self, call: Call, kind: Any, bound: float, what: str) -> None:
        """Forward, and backward from what the reference saved, all of it rounded to a type."""
        small, passed = as_type(kind, self.inputs), as_type(kind, self.gradients)
        exact = run(self.forward, as_type("float64", small), self.trained)
        saved = type(exact)(*(None if each is None else each.astype(kind) for each in exact))
        given = backward_inputs(self.cell, small, saved, passed)
        back = run(self.backward, as_type("float64", given), self.trained)
        for operation, tensors, right in (
            (self.forward, small, exact),
            (self.backward, given, back),
        ):
            found = call(operation, tensors)
            wanted = {n: a for n, a in right._asdict().items() if a is not None}
            assert found.keys() == wanted.keys()
            for each, value in found.items():
                same(value, wanted[each], bound, f"{what} {operation.name} {each}")


def on_the_native_engine(toy: Toy) -> None:
    def call(operation: Operation, given: dict[str, Any]) -> dict[str, Any]:
        tensors = tuple(map(given.get, operation.inputs))
        found = functional.run(operation, tensors, toy.trained, "native")
        return {name: each for name, each in found._asdict().items() if each is not None}

    for kind, bound in TYPES:
        toy.check_calls(call, kind, bound, f"native {kind}")


def on_jax(toy: Toy) -> None:
    jax.config.update("jax_enable_x64", True)
    names = list(toy.inputs)

    def states(*given: Any) -> list[Any]:
        tensors = tuple(map(dict(zip(names, given, strict=True)).get, toy.forward.inputs))
        found = functional.run(toy.forward, tensors, toy.every, None)
        return [getattr(found, state.name) for state in toy.cell.states]

    def loss(*given: Any) -> Any:
        pairs = zip(states(*given), toy.gradients.values(), strict=True)
        return sum((state * weight).sum() for state, weight in pairs)

    arrays = [jax.numpy.asarray(array) for array in toy.inputs.values()]
    toy.check_states(jax.jit(states)(*arrays), 1e-12, "jax")
    found = jax.jit(jax.grad(loss, argnums=tuple(range(len(names)))))(*arrays)
    for name, value in zip(names, found, strict=True):
        if name != "mask":
            same(value, getattr(toy.totals, name), 1e-11, f"jax d{name}")


def on_cuda(toy: Toy) -> None:
    """The printed text, run by the CPU, and compiled for a GPU."""
    if COMPILER is not None:
        from tests.cuda.test_emulated import call

        def emulated(operation: Operation, given: dict[str, Any]) -> dict[str, Any]:
            found = call(operation, given, toy.trained)
            assert isinstance(found, dict), found
            return found

        with pytest.MonkeyPatch.context() as patch:
            emulate(patch, Path(tempfile.mkdtemp(dir=".")))
            toy.check_calls(emulated, "float32", 1e-5, "cuda")
    if find_spec("cuda") and find_spec("cuda.bindings") and find_spec("cuda.core"):
        from tests.cuda.forms import everything
        from tests.cuda.test_compile import CHIPS, build
        from zstate.backends.cuda.passes import pass_of
        from zstate.backends.cuda.placement import Scan
        from zstate.backends.cuda.placements import placements

        for backward in (False, True):
            options = everything(toy.cell, toy.trained, backward)
            asked = Scan(pass_of(options).form, "bfloat16", 64, 16, 1, 0)
            plan = placements(asked, CHIPS["sm_90"])[0]
            assert build("sm_90", asked, options, plan)[:4] == b"\x7fELF"


def built(toy: Toy) -> tuple[zs.Graph, zs.Tensor, list[zs.Tensor]]:
    g = zs.Graph()
    x = g.placeholder(shape=(None, N, I), name="x")
    tensors = {n: g.constant(a) for n, a in toy.single.items() if n != "source"}
    return g, x, getattr(g, toy.name)(x, **tensors, descriptor=toy.every)


def in_onnx(toy: Toy) -> None:
    g, _, results = built(toy)
    zo.save(g, {f"out{k}": tensor for k, tensor in enumerate(results)}, "cell.onnx")
    feeds = {"x": toy.single["source"]}
    found = onnxruntime.InferenceSession("cell.onnx").run(None, feeds)
    toy.check_states(found, 1e-5, "onnxruntime")
    loaded = zo.load("cell.onnx")
    assert toy.name in [node.op.name for node in loaded.graph.nodes]
    toy.check_states(loaded.run(feeds).values(), 1e-5, "onnx.load")


def in_onnx_by_torch(toy: Toy) -> None:
    if not find_spec("onnxscript"):
        return
    others = [
        torch.from_numpy(toy.single[n]) if n in toy.single else None for n in toy.forward.inputs
    ]

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            found = functional.run(toy.forward, (x, *others[1:]), toy.every, None)
            return [getattr(found, state.name) for state in toy.cell.states]

    source, table = torch.from_numpy(toy.single["source"]), zo.torch_translations()
    exported = torch.onnx.export(
        Model(), (source,), dynamo=True, custom_translation_table=table, verbose=False
    )
    assert exported is not None
    exported.save("exported.onnx")
    found = onnxruntime.InferenceSession("exported.onnx").run(None, {"x": source.numpy()})
    toy.check_states(found, 1e-5, "torch.onnx.export")


def in_core_ml(toy: Toy) -> None:
    if not find_spec("coremltools"):
        return
    from tests.coreml.evaluator import evaluate
    from zstate import coreml

    g, x, results = built(toy)
    program = g.compile({x: ((T, N, I), "float32")}, results)
    found = evaluate(coreml.mil_program(program), {"x": toy.single["source"]})
    toy.check_states(found.values(), 1e-5, "coreml")


def refusals(toy: Toy) -> None:
    """Of what cannot express it."""
    name, graph = toy.name, built(toy)[0]
    selector = f"{name}WithSourceTensor_recurrentWeight_initState_descriptor_name_"
    attempts: list[Callable[[], Any]] = [
        lambda: graph.to_swift("Model"),
        lambda: getattr(pyobjc.MPSGraph.alloc().init(), selector),
        lambda: getattr(pyobjc, f"MPSGraph{name.upper()}Descriptor"),
    ]
    weights = ("recurrent_weight", "input_weight", "bias")
    layer = zc.Layer(name, toy.every, {each: toy.single[each] for each in weights})
    attempts += [lambda to=to: zc.save(layer, target=to) for to in ("torch", "keras", "onnx")]
    for attempt in attempts:
        with pytest.raises((zs.ZStateError, AttributeError), match=f"(?i){name}"):
            attempt()


def check(name: str) -> None:
    toy = Toy(name)
    if native.unavailable() is None:
        on_the_native_engine(toy)
    for each in (on_jax, on_cuda, in_onnx, in_onnx_by_torch, in_core_ml):
        each(toy)
    refusals(toy)
