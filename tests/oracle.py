"""The independent answer: the three cells as a plain PyTorch loop, gradients by autograd.

Written straight from the equations, one time step and one gate at a time, sharing nothing with the
package under test (it is not even imported here). Options are a plain dict with the descriptor's
field names; activations are the numbers 0 to 4. Tensors are a dict with the operation's keyword
names; a missing key is a missing input.

Letters: T time, N batch, I input features, H hidden features, G gates, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

NONE, RELU, TANH, SIGMOID, HARD_SIGMOID = range(5)

Options = Mapping[str, int]
Tensors = Mapping[str, Tensor]
Trace = list[tuple[int, Tensor]]  # every (activation, pre-activation) that was computed


class Forward(NamedTuple):
    state: Tensor  # [T,N,DH]
    cell: Tensor | None  # [T,N,DH], LSTM only
    training_state: Tensor  # [T,N,DGH]; DH for the single gate
    last_state: Tensor  # [N,DH], of the last processed step, or the initial one where T = 0
    last_cell: Tensor  # [N,DH]


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))  # the derivative at 0 is 0


def hard_sigmoid(x: Tensor) -> Tensor:
    y = 0.2 * x + 0.5
    inside = (y > 0) & (y < 1)
    return torch.where(inside, y, y.detach().clamp(0, 1))  # 0 where the output is 0 or 1


ACTIVATIONS: dict[int, Callable[[Tensor], Tensor]] = {
    NONE: lambda x: x,
    RELU: relu,
    TANH: torch.tanh,
    SIGMOID: torch.sigmoid,
    HARD_SIGMOID: hard_sigmoid,
}


def activate(kind: int, x: Tensor, trace: Trace) -> Tensor:
    trace.append((kind, x.detach()))
    return ACTIVATIONS[kind](x)


def gate_order(cell: str, options: Options) -> str:
    """The gates along the G·H axis, one letter each."""
    if cell == "rnn":
        return "z"
    if cell == "lstm":
        return "izfo" if options["forget_gate_last"] else "ifzo"
    return "rzo" if options["reset_gate_first"] else "zro"


def direction_of(cell: str, options: Options, tensors: Tensors, d: int) -> dict[str, Tensor]:
    """What direction d sees of every tensor; missing ones get the value they stand for."""
    r = tensors["recurrent_weight"]
    both = bool(options["bidirectional"])
    r = r[d] if both else r  # [GH,H]
    gh, h = r.shape
    x = tensors["source"]
    t, n = x.shape[:2]
    zeros = r.new_zeros

    def part(name: str, size: int, missing: Tensor) -> Tensor:
        """Rows (or last-axis columns, which is the same for a vector) of direction d."""
        if name not in tensors:
            return missing
        whole = tensors[name]
        return whole[..., d * size : (d + 1) * size]

    view = {"R": r}
    if "input_weight" in tensors:
        view["x"] = x
        view["W"] = tensors["input_weight"][d * gh : (d + 1) * gh]  # [GH,I]
    else:
        view["x"] = x[:, :, d * gh : (d + 1) * gh]  # [T,N,GH], already projected
    view["b"] = part("bias", gh, zeros(gh))
    view["b2"] = part("secondary_bias", h, zeros(h))
    view["h"] = part("init_state", h, zeros(n, h))
    view["c"] = part("init_cell", h, zeros(n, h))
    view["p"] = zeros(gh)
    if "peephole" in tensors:
        peephole = tensors["peephole"]
        view["p"] = peephole.reshape(2, gh)[d] if both else peephole
    directions = 2 if both else 1
    mask = tensors.get("mask", torch.ones((), dtype=r.dtype)).expand(t, n, directions * h)
    view["m"] = mask[:, :, d * h : (d + 1) * h]
    return view


def input_term(view: dict[str, Tensor], step: int, rows: slice) -> Tensor:
    x = view["x"][step]
    return x @ view["W"][rows].T if "W" in view else x[:, rows]


def rnn_step(
    options: Options, view: dict[str, Tensor], step: int, h: Tensor, c: Tensor, trace: Trace
) -> tuple[Tensor, Tensor, Tensor]:
    z = input_term(view, step, slice(None)) + (h * view["m"][step]) @ view["R"].T + view["b"]
    return activate(options["activation"], z, trace), c, z


def lstm_step(
    options: Options, view: dict[str, Tensor], step: int, h: Tensor, c: Tensor, trace: Trace
) -> tuple[Tensor, Tensor, Tensor]:
    size = h.shape[1]
    kinds = {
        "i": options["input_gate_activation"],
        "f": options["forget_gate_activation"],
        "z": options["cell_gate_activation"],
        "o": options["output_gate_activation"],
    }
    order = gate_order("lstm", options)

    def gate(name: str, seen: Tensor) -> Tensor:
        k = order.index(name)
        rows = slice(k * size, (k + 1) * size)
        total = (h * view["m"][step]) @ view["R"][rows].T
        total = total + input_term(view, step, rows) + view["b"][rows] + view["p"][rows] * seen
        return activate(kinds[name], total, trace)

    gates = {name: gate(name, c) for name in "ifz"}
    new_c = gates["f"] * c + gates["i"] * gates["z"]
    gates["o"] = gate("o", new_c if options["peephole_on_new_cell"] else c)
    new_h = gates["o"] * activate(options["activation"], new_c, trace)
    return new_h, new_c, torch.cat([gates[name] for name in order], dim=1)


def gru_step(
    options: Options, view: dict[str, Tensor], step: int, h: Tensor, c: Tensor, trace: Trace
) -> tuple[Tensor, Tensor, Tensor]:
    size = h.shape[1]
    order = gate_order("gru", options)
    rows = {name: slice(k * size, (k + 1) * size) for k, name in enumerate(order)}
    m = view["m"][step]

    def gate(name: str, field: str, recurrent: Tensor) -> Tensor:
        total = recurrent + input_term(view, step, rows[name]) + view["b"][rows[name]]
        return activate(options[field], total, trace)

    z = gate("z", "update_gate_activation", (h * m) @ view["R"][rows["z"]].T)
    r = gate("r", "reset_gate_activation", (h * m) @ view["R"][rows["r"]].T)
    if options["reset_after"]:
        term = ((h * m) @ view["R"][rows["o"]].T + view["b2"]) * r
    else:
        term = (h * r * m) @ view["R"][rows["o"]].T
    o = gate("o", "output_gate_activation", term)
    new_h = (1 - z) * h + z * o if options["flip_z"] else z * h + (1 - z) * o
    gates = {"z": z, "r": r, "o": o}
    return new_h, c, torch.cat([gates[name] for name in order], dim=1)


STEPS = {"rnn": rnn_step, "lstm": lstm_step, "gru": gru_step}


def stack(steps: list[Tensor], like: Tensor, size: int) -> Tensor:
    """[T,N,size], also for T = 0."""
    return torch.stack(steps) if steps else like.new_zeros((0, like.shape[0], size))


def scan(
    cell: str, options: Options, tensors: Tensors, d: int, backwards: bool, trace: Trace
) -> Forward:
    """One direction; the per-step results are in processing order."""
    view = direction_of(cell, options, tensors, d)
    h, c = view["h"], view["c"]
    states, cells, zs = [], [], []
    times = list(range(view["x"].shape[0]))
    for step in reversed(times) if backwards else times:
        h, c, z = STEPS[cell](options, view, step, h, c, trace)
        states.append(h)
        cells.append(c)
        zs.append(z)
    gh, size = view["R"].shape
    return Forward(stack(states, h, size), stack(cells, c, size), stack(zs, h, gh), h, c)


def forward(cell: str, options: Options, tensors: Tensors, trace: Trace | None = None) -> Forward:
    """Everything that the forward operation can give, and the last state and cell."""
    trace = [] if trace is None else trace
    if not options["bidirectional"]:
        result = scan(cell, options, tensors, 0, bool(options["reverse"]), trace)
    else:
        a = scan(cell, options, tensors, 0, False, trace)
        b = scan(cell, options, tensors, 1, True, trace)
        aligned = [torch.cat([f, r.flip(0)], dim=2) for f, r in zip(a[:3], b[:3], strict=True)]
        last = [torch.cat([f, r], dim=1) for f, r in zip(a[3:], b[3:], strict=True)]
        result = Forward(*aligned, *last)
    return result if cell == "lstm" else result._replace(cell=None)


def objective(result: Forward, cotangents: Tensors) -> Tensor:
    """The scalar whose gradients the gradient operation returns."""
    total = (result.state * cotangents["source_gradient"]).sum()
    if "state_gradient" in cotangents:
        total = total + (result.last_state * cotangents["state_gradient"]).sum()
    if "cell_gradient" in cotangents:
        gradient = cotangents["cell_gradient"]
        # [T,N,DH] is the gradient of the whole cell output; [N,DH] and [1,N,DH] of the last cell
        whole = gradient.ndim == 3 and gradient.shape[0] == result.state.shape[0]
        total = total + ((result.cell if whole else result.last_cell) * gradient).sum()
    return total


def forward_and_gradients(
    cell: str, options: Options, tensors: Tensors, cotangents: Tensors
) -> tuple[Forward, dict[str, Tensor]]:
    """Also one gradient for every tensor that was passed, except the mask."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in tensors.items()}
    if "mask" in leaves:
        leaves["mask"].requires_grad_(False)
    wanted = [name for name in leaves if name != "mask"]
    result = forward(cell, options, leaves)
    total = objective(result, cotangents)
    total = total + sum(0 * leaves[name].sum() for name in wanted)  # unused (T = 0) means zero
    found = torch.autograd.grad(total, [leaves[name] for name in wanted])
    detached = Forward(*(None if t is None else t.detach() for t in result))
    return detached, dict(zip(wanted, found, strict=True))


def gradients(
    cell: str, options: Options, tensors: Tensors, cotangents: Tensors
) -> dict[str, Tensor]:
    return forward_and_gradients(cell, options, tensors, cotangents)[1]


def kink_distance(cell: str, options: Options, tensors: Tensors) -> float:
    """How near any relu or hardSigmoid comes to the place where it has no derivative.

    Random inputs are exactly there only where other gates hold them there (a cell whose gates are
    all shut is 0 and stays 0 nearby), so that the function is constant around: not counted.
    """
    trace: Trace = []
    forward(cell, options, tensors, trace)
    nearest = float("inf")
    for kind, x in trace:
        kinks = {RELU: (0.0,), HARD_SIGMOID: (-2.5, 2.5)}.get(kind, ())
        for kink in kinks:
            distances = (x - kink).abs().flatten().tolist()
            nearest = min([nearest, *(d for d in distances if d)])
    return nearest
