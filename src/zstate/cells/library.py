"""Cells from papers, each as its equations, just as users would write them."""

from __future__ import annotations

import math
from typing import Any

from .decorator import cell
from .expressions import Expression
from .language import exp, layer_norm, log_sigmoid, maximum, relu, sigmoid, tanh


@cell(gates="f z", states="h")
def mgu(x: Any, R: Any, h: Expression) -> Expression:
    """The minimal gated unit (Zhou et al. 2016): one gate forgets and resets."""
    f = sigmoid(x.f + R.f @ h)
    z = tanh(x.z + R.z @ (f * h))
    return (1 - f) * h + f * z


@cell(gates="f z o", states="h c")
def cifg(x: Any, R: Any, h: Expression, c: Expression) -> tuple[Expression, Expression]:
    """The LSTM with coupled input and forget gates (Greff et al. 2015): i = 1 - f."""
    f = sigmoid(x.f + R.f @ h)
    z = tanh(x.z + R.z @ h)
    o = sigmoid(x.o + R.o @ h)
    new = f * c + (1 - f) * z
    return o * tanh(new), new


@cell(gates="i f z o", states="h c n m", initial={"m": -math.inf})
def slstm(
    x: Any, R: Any, h: Expression, c: Expression, n: Expression, m: Expression
) -> tuple[Expression, ...]:
    """The sLSTM (Beck et al. 2024) with its stabiliser m."""
    i, f = x.i + R.i @ h, x.f + R.f @ h
    z, o = tanh(x.z + R.z @ h), sigmoid(x.o + R.o @ h)
    a = log_sigmoid(f) + m
    new_m = maximum(a, i)
    keep, renew = exp(a - new_m), exp(i - new_m)
    new_c = keep * c + renew * z
    new_n = keep * n + renew
    return o * new_c / new_n, new_c, new_n, new_m


def _norms(of: str, gates: str) -> str:
    """The names of a layer norm's parameters: a scale and a shift per gate."""
    return " ".join(f"{what}_{of}_{gate}" for what in ("scale", "shift") for gate in gates)


@cell(
    gates="i f z o",
    states="h c",
    parameters=f"{_norms('x', 'ifzo')} {_norms('h', 'ifzo')} scale_c shift_c",
)
def layer_norm_lstm(
    x: Any, R: Any, h: Expression, c: Expression, *own: Expression
) -> tuple[Expression, Expression]:
    """The LSTM with layer norm (Ba et al. 2016) as torch's examples have it in TorchScript: x's
    products of all gates together, R's likewise, and the new cell are normalised."""
    gates = ("i", "f", "z", "o")
    of_x = layer_norm([x[gate] for gate in gates], own[:4], own[4:8])
    of_h = layer_norm([R[gate] @ h for gate in gates], own[8:12], own[12:16])
    i, f, z, o = (a + b for a, b in zip(of_x, of_h, strict=True))
    new = layer_norm(sigmoid(f) * c + sigmoid(i) * tanh(z), own[16], own[17])
    return sigmoid(o) * tanh(new), new


@cell(gates="z r o", states="h", parameters=f"{_norms('x', 'zro')} {_norms('h', 'zro')}")
def layer_norm_gru(x: Any, R: Any, h: Expression, *own: Expression) -> Expression:
    """The GRU that resets after its product, as haste has it with layer norm: x's products of all
    gates are normalised together, and so are R's."""
    gates = ("z", "r", "o")
    a = layer_norm([x[gate] for gate in gates], own[:3], own[3:6])
    b = layer_norm([R[gate] @ h for gate in gates], own[6:9], own[9:])
    z, r = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
    return z * h + (1 - z) * tanh(a[2] + r * b[2])


@cell(gates="r o z", states="h", parameters=_norms("x", "roz"))
def block_gru(x: Any, R: Any, h: Expression, *own: Expression) -> Expression:
    """DreamerV3's GRU: with heads, R is made of blocks; one layer norm over all gates; the update
    gate starts nearly closed.

    The parameters are those of the norm: scale_x_r and so on."""
    sums = [x[gate] + R[gate] @ h for gate in ("r", "o", "z")]
    r, o, z = layer_norm(sums, own[:3], own[3:], epsilon=1e-3)
    update = sigmoid(z - 1)
    return update * tanh(sigmoid(r) * o) + (1 - update) * h


@cell(gates="h", states="h")
def indrnn(x: Any, R: Any, h: Expression) -> Expression:
    """The IndRNN (Li et al. 2018), with a diagonal R: heads = H."""
    return relu(x.h + R.h @ h)


@cell(gates="z r o", states="h")
def diagonal_gru(x: Any, R: Any, h: Expression) -> Expression:
    """The GRU with a diagonal R: heads = H."""
    z, r = sigmoid(x.z + R.z @ h), sigmoid(x.r + R.r @ h)
    return z * h + (1 - z) * tanh(x.o + R.o @ (r * h))
