"""Forward and backward against torch.nn.RNN, LSTM and GRU, one and two directions.

torch.nn has two biases. For the single gate and the LSTM only their sum matters. For the GRU the
recurrent bias of the new gate stands inside the reset, which is `reset_after` with that bias as
`secondary_bias`; its gates are in the order r, z, n, which is `reset_gate_first`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import oracle
from tests.cases import (
    FED_BACK,
    FORWARD_OPS,
    GRADIENT_OPS,
    Array,
    Arrays,
    Case,
    Tolerance,
    assert_close,
)

T, N, I, H = 6, 3, 4, 5
FLAGS = {"gru": frozenset({"reset_gate_first", "reset_after"})}
MODULES = [
    pytest.param("rnn", "tanh", id="rnn-tanh"),
    pytest.param("rnn", "relu", id="rnn-relu"),
    pytest.param("lstm", "", id="lstm"),
    pytest.param("gru", "", id="gru"),
]
PRECISIONS = [
    pytest.param(torch.float64, Tolerance(1e-12, 1e-12), id="float64"),
    pytest.param(torch.float32, Tolerance(2e-6, 2e-6), id="float32"),
]


def make_module(cell: str, kind: str, both: bool, bias: bool, dtype: torch.dtype) -> Any:
    torch.manual_seed(7)
    made = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell]
    more = {"nonlinearity": kind} if cell == "rnn" else {}
    module = made(I, H, bidirectional=both, bias=bias, dtype=dtype, **more)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module


def per_direction(module: Any, name: str) -> list[torch.Tensor]:
    suffixes = ("", "_reverse") if module.bidirectional else ("",)
    return [getattr(module, f"{name}_l0{suffix}") for suffix in suffixes]


def our_tensors(cell: str, module: Any) -> dict[str, torch.Tensor]:
    """The parameters in zstate's layout."""
    recurrent = per_direction(module, "weight_hh")
    found = {
        "recurrent_weight": torch.stack(recurrent) if module.bidirectional else recurrent[0],
        "input_weight": torch.cat(per_direction(module, "weight_ih")),
    }
    if module.bias:
        biases = []
        second = []
        pairs = zip(per_direction(module, "bias_ih"), per_direction(module, "bias_hh"), strict=True)
        for ih, hh in pairs:
            keep = hh.clone()
            if cell == "gru":
                keep[2 * H :] = 0
                second.append(hh[2 * H :])
            biases.append(ih + keep)
        found["bias"] = torch.cat(biases)
        if cell == "gru":
            found["secondary_bias"] = torch.cat(second)
    return found


def our_state(state: torch.Tensor) -> torch.Tensor:
    """[N,DH] from torch's [D,N,H]."""
    return torch.cat(list(state), dim=1)


def to_numpy(tensors: dict[str, torch.Tensor]) -> Arrays:
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def expected_weight_gradients(cell: str, module: Any) -> Arrays:
    """The parameters' gradients in zstate's layout."""

    def grads(name: str) -> list[torch.Tensor]:
        return [parameter.grad for parameter in per_direction(module, name)]

    recurrent = grads("weight_hh")
    found = {
        "recurrent_weight": torch.stack(recurrent) if module.bidirectional else recurrent[0],
        "input_weight": torch.cat(grads("weight_ih")),
    }
    if module.bias:
        found["bias"] = torch.cat(grads("bias_ih"))
        if cell == "gru":
            found["secondary_bias"] = torch.cat([g[2 * H :] for g in grads("bias_hh")])
    return to_numpy(found)


def our_descriptor(cell: str, kind: str, both: bool) -> Any:
    activations = {"tanh": (oracle.TANH,), "relu": (oracle.RELU,)}.get(kind, ())
    direction = "bidirectional" if both else "forward"
    return Case(cell, direction, FLAGS.get(cell, frozenset()), activations).descriptor(
        training=True
    )


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("both", [False, True], ids=["one_direction", "bidirectional"])
@pytest.mark.parametrize(("cell", "kind"), MODULES)
def test_forward_and_backward(
    cell: str, kind: str, both: bool, bias: bool, dtype: torch.dtype, tolerance: Tolerance
) -> None:
    module = make_module(cell, kind, both, bias, dtype)
    d = 2 if both else 1
    x = torch.randn(T, N, I, dtype=dtype, requires_grad=True)
    initial = [torch.randn(d, N, H, dtype=dtype, requires_grad=True) for _ in range(2)]
    dy = torch.randn(T, N, d * H, dtype=dtype)
    dlast = [torch.randn(d, N, H, dtype=dtype) for _ in range(2)]

    lstm = cell == "lstm"
    y, last = module(x, tuple(initial) if lstm else initial[0])
    lasts = list(last) if lstm else [last]
    total = (y * dy).sum()
    for end, gradient in zip(lasts, dlast, strict=False):
        total = total + (end * gradient).sum()
    total.backward()

    states = {"init_state": our_state(initial[0])}
    ends = {"state_gradient": our_state(dlast[0])}
    if lstm:
        states["init_cell"] = our_state(initial[1])
        ends["cell_gradient"] = our_state(dlast[1])
    inputs = to_numpy({"source": x, **our_tensors(cell, module), **states})
    descriptor = our_descriptor(cell, kind, both)
    result = FORWARD_OPS[cell](**inputs, descriptor=descriptor)
    assert_close(result.state, y.detach().numpy(), "state", tolerance)
    check_last(result, [our_state(end).detach().numpy() for end in lasts], both, tolerance)

    gradients = GRADIENT_OPS[cell](
        **inputs,
        **to_numpy(ends),
        source_gradient=dy.numpy(),
        **{name: getattr(result, member) for name, member in FED_BACK[cell].items()},
        descriptor=descriptor,
    )
    expected = expected_weight_gradients(cell, module)
    expected["source"] = x.grad.numpy()
    expected["init_state"] = our_state(initial[0].grad).numpy()
    if lstm:
        expected["init_cell"] = our_state(initial[1].grad).numpy()
    assert set(expected) == {n for n in gradients._fields if getattr(gradients, n) is not None}
    for name, value in expected.items():
        assert_close(getattr(gradients, name), value, name, tolerance)


def check_last(result: Any, lasts: list[Array], both: bool, tolerance: Tolerance) -> None:
    """torch's final states are ours at the last step, t = 0 for the reverse half."""
    per_step = [result.state] if len(lasts) == 1 else [result.state, result.cell]
    for steps, last in zip(per_step, lasts, strict=True):
        assert_close(steps[-1, :, :H], last[:, :H], "last step", tolerance)
        if both:
            assert_close(steps[0, :, H:], last[:, H:], "last step of the reverse half", tolerance)
