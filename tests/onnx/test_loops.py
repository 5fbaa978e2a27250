"""Loop nodes as Keras' layers are exported load as recurrent nodes; any other is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph

import zstate as zs
import zstate.onnx as zo
from tests.onnx.common import close, runtime
from zstate.types import Array

I, H = 4, 5
GRU_AFTER = """
    b_x2, b_h2 = Split <axis = 0> (b)
    b_x = Squeeze(b_x2, zero1)  b_h = Squeeze(b_h2, zero1)
    xw = MatMul(x_t, W)  xb = Add(xw, b_x)  x_z, x_r, x_o = Split <axis = -1> (xb)
    hw = MatMul(h_in, R)  hb = Add(hw, b_h)
    h_z = Slice(hb, s0, e1, axes)  h_r = Slice(hb, s1, e2, axes)  h_o = Slice(hb, s2, e3, axes)
    sum_z = Add(x_z, h_z)  z = Sigmoid(sum_z)
    sum_r = Add(x_r, h_r)  r = Sigmoid(sum_r)
    inner = Mul(r, h_o)  sum_o = Add(x_o, inner)  o = Tanh(sum_o)
    rest = Sub(one, z)  new = Mul(rest, o)  old = Mul(z, h_in)  h_new = Add(old, new)"""
GRU_BEFORE = """
    xw = MatMul(x_t, W)  xb = Add(xw, b)  x_z, x_r, x_o = Split <axis = -1> (xb)
    R_zr = Slice(R, s0, e2, axes)  R_o = Slice(R, s2, e3, axes)
    hw = MatMul(h_in, R_zr)
    h_z = Slice(hw, s0, e1, axes)  h_r = Slice(hw, s1, e2, axes)
    sum_z = Add(x_z, h_z)  z = Sigmoid(sum_z)
    sum_r = Add(x_r, h_r)  r = Sigmoid(sum_r)
    reset = Mul(r, h_in)  h_o = MatMul(reset, R_o)  sum_o = Add(x_o, h_o)  o = Tanh(sum_o)
    rest = Sub(one, z)  old = Mul(z, h_in)  new = Mul(rest, o)  h_new = Add(old, new)"""
RNN = """
    xw = MatMul(x_t, W)  xb = Add(xw, b)  hw = MatMul(h_in, R)  sum = Add(xb, hw)
    h_new = Relu(sum)"""
STEPS: dict[str, tuple[int, tuple[int, ...], str]] = {
    "rnn": (1, (H,), RNN),
    "gru after": (3, (2, 3 * H), GRU_AFTER),
    "gru before": (3, (3 * H,), GRU_BEFORE),
}


def model(rng: np.random.Generator, cell: str, steps: str = "T") -> Any:
    """Batch first outside, as Keras has it; the loop counts up to the number of steps."""
    gates, bias, step = STEPS[cell]
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        m (float[N, {steps}, {I}] x, float[N, {H}] h0)
        => (float[N, {steps}, {H}] y, float[N, {H}] h)
        <int32 zero = {{0}}, int64[1] zero1 = {{0}}, int64[1] one1 = {{1}}, float zero_f = {{0}},
         int64[2] s0 = {{0, 0}}, int64[2] s1 = {{0, {H}}}, int64[2] s2 = {{0, {2 * H}}},
         int64[2] axes = {{0, 1}}>
        {{
            turned = Transpose <perm = [1, 0, 2]> (x)
            shape = Shape(turned)  shape32 = Cast <to = 6> (shape)
            count1 = Slice(shape32, zero1, one1, zero1)  count = Squeeze(count1, zero1)
            most = Cast <to = 7> (count)  count_f = Cast <to = 1> (count)
            some = Less(zero_f, count_f)  begin = And(some, some)
            last, h, n, w_out, r_out, b_out, states = Loop (
                most, begin, zero, h0, count, W_whole, R_whole, b_whole) <body = step (
                    int64 i, bool go, int32 at, float[N, {H}] h_in, int32 until,
                    float[{I}, {gates * H}] W, float[{H}, {gates * H}] R, float[BIAS] b
                ) => (bool more, int32 next, float[N, {H}] h_out, int32 until,
                    float[{I}, {gates * H}] W, float[{H}, {gates * H}] R, float[BIAS] b,
                    float[N, {H}] h_new)
                <int32 one_i = {{1}}, float one = {{1}},
                 int64[2] e1 = {{2147483647, {H}}}, int64[2] e2 = {{2147483647, {2 * H}}},
                 int64[2] e3 = {{2147483647, {3 * H}}}>
                {{
                    x_t = Gather(turned, at)
                    next = Add(at, one_i)
                    {step}
                    h_out = Identity(h_new)
                    next_f = Cast <to = 1> (next)  until_f = Cast <to = 1> (until)
                    within = Less(next_f, until_f)  i_f = Cast <to = 1> (i)
                    within_i = Less(i_f, until_f)  more = And(within_i, within)
                }}>
            y = Transpose <perm = [1, 0, 2]> (states)
        }}""".replace("BIAS", ", ".join(map(str, bias)))
    )  # fmt: skip
    shapes = {"W_whole": (I, gates * H), "R_whole": (H, gates * H), "b_whole": bias}
    for name, shape in shapes.items():
        array = (rng.normal(size=shape) * 0.4).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def feeds(rng: np.random.Generator) -> dict[str, Array]:
    arrays = {"x": rng.normal(size=(3, 7, I)), "h0": rng.normal(size=(3, H))}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


@pytest.mark.parametrize("steps", ["T", "7"])
@pytest.mark.parametrize("cell", STEPS)
def test_a_layer_of_keras(cell: str, steps: str) -> None:
    rng = np.random.default_rng(7)
    proto, given = model(rng, cell, steps), feeds(rng)
    before = proto.SerializeToString()
    loaded = zo.load(proto)
    assert proto.SerializeToString() == before
    close(loaded.run(given), runtime(proto, given))
    kind = "single_gate_rnn" if cell == "rnn" else "gru"
    assert [n.op.name for n in loaded.graph.nodes].count(kind) == 1
    assert {"W_whole", "R_whole", "b_whole"} <= set(loaded.parameters)
    g, y = loaded.graph, loaded.outputs["y"]
    gradients = g.gradients(g.reduction_sum(y), [loaded.parameters["R_whole"]])
    assert all(np.isfinite(each).all() for each in g.run(
        {loaded.inputs[name]: array for name, array in given.items()}, gradients.values()
    ).values())  # fmt: skip


def body_of(proto: Any) -> Any:
    (node,) = [node for node in proto.graph.node if node.op_type == "Loop"]
    return node.attribute[0].g


@pytest.mark.parametrize("cell", STEPS)
def test_another_body_is_refused_or_means_the_same(cell: str) -> None:
    """Every node in turn becomes another one, or has its operands swapped."""
    rng = np.random.default_rng(8)
    whole = model(rng, cell)
    # Small: where a gate has no bound, the state grows, and with it what rounding leaves.
    given = {name: array * np.float32(0.3) for name, array in feeds(rng).items()}
    unary, binary = ["Tanh", "Sigmoid", "Relu", "Identity", "Neg"], ["Add", "Sub", "Mul", "And"]
    refused = accepted = 0
    for place, node in enumerate(body_of(whole).node):
        for kind in [*unary, *(binary if len(node.input) > 1 else []), "swap", "count"]:
            proto = onnx.ModelProto()
            proto.CopyFrom(whole)
            changed = body_of(proto).node[place]
            if kind == "swap":
                changed.input[:] = list(node.input)[::-1]
            elif kind == "count":
                if "one_i" not in node.input:
                    continue
                changed.input[1] = "until"
            else:
                changed.op_type = kind
                del changed.input[1 + (kind in binary) :], changed.output[1:], changed.attribute[:]
            try:
                wanted = runtime(proto, given)
            except (Fail, InvalidGraph, InvalidArgument):  # no model at all
                continue
            try:
                found = zo.load(proto).run(given)
            except zs.ZStateError:
                refused += 1
                continue
            accepted += 1
            close(found, wanted, f"{node.output[0]}: {node.op_type} -> {kind}")
    assert refused > 20 and accepted > 0


def test_a_sum_of_very_many_terms_is_refused_at_once() -> None:
    proto = model(np.random.default_rng(9), "gru after")
    nodes = body_of(proto).node
    (place,) = [k for k, node in enumerate(nodes) if node.output[0] == "hb"]
    doubled = [helper.make_node("Add", [f"hb{k}"] * 2, [f"hb{k + 1}"]) for k in range(64)]
    whole = [*nodes]
    whole[place].output[0], doubled[-1].output[0] = "hb0", "hb"
    del nodes[:]
    nodes.extend([*whole[: place + 1], *doubled, *whole[place + 1 :]])
    with pytest.raises(zs.ZStateError, match="Loop"):
        zo.load(proto)


def test_what_a_loop_counts_is_checked() -> None:
    rng = np.random.default_rng(9)
    whole = model(rng, "rnn")

    def refusal(change: Any) -> None:
        proto = onnx.ModelProto()
        proto.CopyFrom(whole)
        (loop,) = [node for node in proto.graph.node if node.op_type == "Loop"]
        change(proto, loop, body_of(proto))
        with pytest.raises(zs.ZStateError, match="Loop"):
            zo.load(proto)

    def other_count(proto: Any, loop: Any, body: Any) -> None:
        loop.input[0] = "five"
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(5), "five"))

    def never(proto: Any, loop: Any, body: Any) -> None:
        loop.input[1] = "no"
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(False), "no"))

    def from_one(proto: Any, loop: Any, body: Any) -> None:
        loop.input[2] = "first"
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.int32), "first"))

    def bound(proto: Any, loop: Any, body: Any) -> None:
        cast = next(node for node in body.node if node.output[0] == "until_f")
        cast.input[0] = "zero"

    def once(proto: Any, loop: Any, body: Any) -> None:
        body.output[0].name = "within_no"
        body.node.append(helper.make_node("Not", ["more"], ["within_no"]))

    for change in (other_count, never, from_one, bound, once):
        refusal(change)
