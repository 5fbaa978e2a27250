"""The operations and their gradients as plain torch operations, step by step.

Slow, and differentiable as often as anybody likes, forwards and backwards. It serves what the
engines do not give: derivatives of gradients, forward-mode derivatives, and the gradients of the
mask and of the training state. The equations are those of docs/equations.md and docs/gradients.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..descriptors import Activation, AnyDescriptor
from ..layout import gate_order
from ..operations import Operation

Tensors = Mapping[str, Tensor]  # by the operation's names; one that was not passed is not there


def _hard_sigmoid(x: Tensor) -> Tensor:
    y = 0.2 * x + 0.5
    return torch.where((y > 0) & (y < 1), y, (y >= 1).to(y.dtype))


def _hard_sigmoid_slope(y: Tensor) -> Tensor:
    return ((y > 0) & (y < 1)).to(y.dtype) * 0.2


class _Function(NamedTuple):
    """An activation, and its slope as a function of its output."""

    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


_FUNCTIONS: dict[Activation, _Function] = {
    Activation.NONE: _Function(lambda x: x, torch.ones_like),
    Activation.RELU: _Function(torch.relu, lambda y: (y > 0).to(y.dtype)),
    Activation.TANH: _Function(torch.tanh, lambda y: (1 - y) * (1 + y)),
    Activation.SIGMOID: _Function(torch.sigmoid, lambda y: y * (1 - y)),
    Activation.HARD_SIGMOID: _Function(_hard_sigmoid, _hard_sigmoid_slope),
}


@dataclass(frozen=True)
class _Way:
    """One direction: its inputs, what is missing filled in, per-step ones in processing order."""

    gates_x: Tensor  # [T,N,G,H]
    weight: Tensor  # [G,H,H]
    mask: Tensor  # [T,N,H]
    peephole: Tensor  # [G,H]
    secondary_bias: Tensor  # [H]
    state: Tensor  # h[-1] [N,H]
    cell: Tensor  # c[-1] [N,H]
    slots: tuple[int, ...]  # the place of each canonical gate
    functions: tuple[_Function, ...]
    reset_after: bool
    flip_z: bool

    def gates(self, stacked: Tensor) -> list[Tensor]:
        """The canonical gates of [N,G,H] or [T,N,G,H]."""
        return [stacked.select(-2, slot) for slot in self.slots]

    def stack(self, gates: list[Tensor]) -> Tensor:
        """The inverse of ``gates``."""
        return torch.stack([gates[self.slots.index(k)] for k in range(len(gates))], dim=-2)


class _Problem:
    """A call, cut into directions."""

    def __init__(self, operation: Operation, descriptor: AnyDescriptor, tensors: Tensors) -> None:
        self.cell = operation.cell
        self.descriptor = descriptor
        self.storage = tensors["source"].dtype
        self.dtype = torch.float64 if self.storage == torch.float64 else torch.float32
        self.tensors = {name: tensor.to(self.dtype) for name, tensor in tensors.items()}
        self.directions = 2 if descriptor.bidirectional else 1
        source, weight = self.tensors["source"], self.tensors["recurrent_weight"]
        self.steps, self.batch = source.shape[:2]
        self.hidden = weight.shape[-1]
        self.count = len(self.cell.gates)
        self.zero = weight.new_zeros(())

    def project(self) -> Tensor:
        """x W^T + b, [T,N,D·G·H]."""
        gates = self.tensors["source"]
        if "input_weight" in self.tensors:
            gates = gates @ self.tensors["input_weight"].T
        return gates + self.tensors.get("bias", self.zero)

    def part(self, tensor: Tensor, index: int) -> Tensor:
        """One direction of a tensor whose last axis holds both side by side."""
        width = tensor.shape[-1] // self.directions
        return tensor[..., index * width : (index + 1) * width]

    def turned(self, tensor: Tensor, index: int, input_order: bool = False) -> Tensor:
        """From the caller's order of steps to the order of processing, or back."""
        backwards = index == 1 or (input_order and self.directions == 1 and self.descriptor.reverse)
        return tensor.flip(0) if backwards else tensor

    def way(self, gates_x: Tensor, index: int) -> _Way:
        """The inputs of one direction."""
        by_gate = (self.count, self.hidden)
        full = (self.steps, self.batch, self.directions * self.hidden)
        given, order = self.tensors, gate_order(self.descriptor)
        mask = given.get("mask", self.zero + 1).expand(full)
        states = [
            self.part(given.get(name, self.zero).expand(full[1:]), index)
            for name in ("init_state", "init_cell")
        ]
        peephole = given.get("peephole", self.zero.expand(self.directions, *by_gate))
        second = given.get("secondary_bias", self.zero.expand(full[-1]))
        return _Way(
            gates_x=self.turned(self.part(gates_x, index), index, True).unflatten(-1, by_gate),
            weight=given["recurrent_weight"].reshape(self.directions, *by_gate, -1)[index],
            mask=self.turned(self.part(mask, index), index, True),
            peephole=peephole.reshape(self.directions, *by_gate)[index],
            secondary_bias=self.part(second, index),
            state=states[0],
            cell=states[1],
            slots=tuple(order.index(gate) for gate in self.cell.gates),
            functions=tuple(_FUNCTIONS[kind] for kind in self.descriptor.activations),
            reset_after=getattr(self.descriptor, "reset_after", False),
            flip_z=getattr(self.descriptor, "flip_z", False),
        )

    def steps_of(self, steps: list[Tensor], width: tuple[int, ...]) -> Tensor:
        """[T,N,…], also for T = 0."""
        return torch.stack(steps) if steps else self.zero.new_zeros(0, self.batch, *width)


def _rnn(way: _Way, t: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = way.gates_x[t, :, 0] + (h * way.mask[t]) @ way.weight[0].T
    return way.functions[0].apply(z), c, z[:, None]


def _lstm(way: _Way, t: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    recurrent = (h * way.mask[t]) @ way.weight.flatten(0, 1).T
    before = way.gates_x[t] + recurrent.unflatten(1, way.peephole.shape)
    before = before + way.peephole * c[:, None]
    pairs = zip(way.functions, way.gates(before), strict=False)
    i, f, z, o = gates = [function.apply(x) for function, x in pairs]
    c = f * c + i * z
    return o * way.functions[4].apply(c), c, way.stack(gates)


def _gru(way: _Way, t: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (f_z, f_r, f_o), m = way.functions, way.mask[t]
    x_z, x_r, x_o = way.gates(way.gates_x[t])
    w_z, w_r, w_o = (way.weight[slot] for slot in way.slots)
    z = f_z.apply(x_z + (h * m) @ w_z.T)
    r = f_r.apply(x_r + (h * m) @ w_r.T)
    after = ((h * m) @ w_o.T + way.secondary_bias) * r
    o = f_o.apply((after if way.reset_after else (h * r * m) @ w_o.T) + x_o)
    keep = 1 - z if way.flip_z else z
    return keep * h + (1 - keep) * o, c, way.stack([z, r, o])


_STEPS = {"single_gate_rnn": _rnn, "lstm": _lstm, "gru": _gru}


def forward(operation: Operation, descriptor: AnyDescriptor, tensors: Tensors) -> dict[str, Tensor]:
    """state, cell and training_state, whatever the descriptor asks for; no cell without one."""
    problem = _Problem(operation, descriptor, tensors)
    gates_x = problem.project()
    hidden = (problem.hidden,)
    found: list[list[Tensor]] = []
    for index in range(problem.directions):
        way = problem.way(gates_x, index)
        h, c = way.state, way.cell
        states, cells, saved = [], [], []
        for t in range(problem.steps):
            h, c, z = _STEPS[problem.cell.name](way, t, h, c)
            states.append(h)
            cells.append(c)
            saved.append(z)
        gates = problem.steps_of(saved, (problem.count, problem.hidden)).flatten(2)
        parts = (problem.steps_of(states, hidden), problem.steps_of(cells, hidden), gates)
        found.append([problem.turned(part, index) for part in parts])
    names = ("state", "cell", "training_state")
    joined = [torch.cat(parts, dim=-1).to(problem.storage) for parts in zip(*found, strict=True)]
    results = dict(zip(names, joined, strict=True))
    return {name: results[name] for name in operation.result._fields}


class _Before(NamedTuple):
    """What one step backward reads, or all steps at once."""

    mask: Tensor
    state: Tensor  # h[t-1]
    cell: Tensor  # c[t-1]
    cell_now: Tensor  # c[t]
    saved: Tensor


def _rnn_back(way: _Way, at: _Before, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (f,) = way.functions
    dz = dh * f.slope(f.apply(at.saved[:, 0]))
    return dz[:, None], (dz @ way.weight[0]) * at.mask, dc


def _lstm_back(way: _Way, at: _Before, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    i, f, z, o = gates = way.gates(at.saved)
    g = way.functions[4]
    g_of_c = g.apply(at.cell_now)
    dc = dc + dh * o * g.slope(g_of_c)
    after = (dc * z, dc * at.cell, dc * i, dh * g_of_c)
    before = way.stack(
        [
            gradient * function.slope(gate)
            for gradient, function, gate in zip(after, way.functions, gates, strict=False)
        ]
    )
    dh_before = (before.flatten(1) @ way.weight.flatten(0, 1)) * at.mask
    return before, dh_before, dc * f + (before * way.peephole).sum(1)


def _gru_back(way: _Way, at: _Before, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    f_z, f_r, f_o = way.functions
    z, r, o = way.gates(at.saved)
    w_z, w_r, w_o = (way.weight[slot] for slot in way.slots)
    h, m = at.state, at.mask
    keep = 1 - z if way.flip_z else z
    dkeep = dh * (h - o)
    dz = (-dkeep if way.flip_z else dkeep) * f_z.slope(z)
    du = dh * (1 - keep) * f_o.slope(o)
    if way.reset_after:
        dr = du * ((h * m) @ w_o.T + way.secondary_bias)
        dh_before = dh * keep + ((du * r) @ w_o) * m
    else:
        dreset = du @ w_o
        dr = dreset * h * m
        dh_before = dh * keep + dreset * r * m
    dr = dr * f_r.slope(r)
    dh_before = dh_before + (dz @ w_z + dr @ w_r) * m
    return way.stack([dz, dr, du]), dh_before, dc


_BACK = {"single_gate_rnn": _rnn_back, "lstm": _lstm_back, "gru": _gru_back}


def _all_states(way: _Way, cell: str, saved: Tensor, cells: Tensor, given: Any) -> Tensor:
    """h [T,N,H], from the training state where that determines it."""
    if cell == "single_gate_rnn":
        return way.functions[0].apply(saved[:, :, 0])
    if cell == "lstm":
        return way.gates(saved)[3] * way.functions[4].apply(cells)
    states: Tensor = given
    return states


def _parameters(way: _Way, cell: str, at: _Before, gates: Tensor) -> dict[str, Tensor]:
    """Gradients of the recurrent weight and of the cell's own parameters, summed over T and N."""
    masked = at.state * at.mask
    if cell != "gru":
        weight = torch.einsum("tngh,tnk->ghk", gates, masked)
        return {
            "recurrent_weight": weight,
            "peephole": (gates * at.cell[:, :, None]).sum((0, 1)),
        }
    dz, dr, du = way.gates(gates)
    r = way.gates(at.saved)[1]
    pairs = [(dz, masked), (dr, masked)]
    pairs.append((du * r, masked) if way.reset_after else (du, masked * r))
    weights = [torch.einsum("tnh,tnk->hk", left, right) for left, right in pairs]
    stacked = torch.stack([weights[way.slots.index(k)] for k in range(3)])
    return {"recurrent_weight": stacked, "secondary_bias": (du * r).sum((0, 1))}


def gradients(
    operation: Operation, descriptor: AnyDescriptor, tensors: Tensors
) -> dict[str, Tensor]:
    """The gradient operation: a gradient for every input that was passed, by name."""
    problem = _Problem(operation, descriptor, tensors)
    given, cell = problem.tensors, problem.cell.name
    gates_x = problem.project()
    found: list[dict[str, Tensor]] = []
    for index in range(problem.directions):
        way = problem.way(gates_x, index)
        gates, dh, dc, at = _scan_back(problem, way, index)
        parts = _parameters(way, cell, at, gates)
        whole = problem.turned(gates, index, True).flatten(2)
        found.append({**parts, "gates": whole, "init_state": dh, "init_cell": dc})
    dgates = torch.cat([each["gates"] for each in found], dim=-1)  # [T,N,D·G·H], input order
    results = {"source": dgates, "bias": dgates.sum((0, 1))}
    if "input_weight" in given:
        results["source"] = dgates @ given["input_weight"]
        results["input_weight"] = torch.einsum("tng,tni->gi", dgates, given["source"])
    for name in found[0].keys() - {"gates"}:
        each = [part[name] for part in found]
        results[name] = torch.cat(each, 1) if name.startswith("init_") else torch.stack(each)
    return {
        name: results[name].reshape(tensors[name].shape).to(problem.storage)
        for name in operation.result._fields
        if name in tensors
    }


def _scan_back(problem: _Problem, way: _Way, index: int) -> tuple[Tensor, Tensor, Tensor, _Before]:
    """The gates' gradients [T,N,G,H] in processing order, and those of h[-1] and c[-1]."""
    given, steps = problem.tensors, problem.steps
    nothing = problem.zero.expand(problem.batch, problem.hidden)
    none = nothing.expand(steps, -1, -1)

    def each(name: str) -> Tensor:
        if name not in given:
            return none
        return problem.turned(problem.part(given[name], index), index)

    def last(name: str) -> Tensor:
        if name not in given:
            return nothing
        tensor = problem.part(given[name], index)
        return tensor[0] if tensor.ndim == 3 else tensor

    saved = each("z_state").unflatten(-1, (problem.count, problem.hidden))
    cells, dstates = each("cell_output_fwd"), each("source_gradient")
    states = _all_states(way, problem.cell.name, saved, cells, each("output_fwd"))
    dcell = given.get("cell_gradient")
    every = dcell is not None and dcell.ndim == 3 and dcell.shape[0] == steps
    dcells, dc = (each("cell_gradient"), nothing) if every else (none, last("cell_gradient"))
    dh = last("state_gradient")
    at = _Before(way.mask, _shifted(way.state, states), _shifted(way.cell, cells), cells, saved)
    gates: list[Tensor] = []
    for t in reversed(range(steps)):
        now = _Before(*(tensor[t] for tensor in at))
        gradient, dh, dc = _BACK[problem.cell.name](way, now, dh + dstates[t], dc + dcells[t])
        gates.append(gradient)
    whole = problem.steps_of(gates[::-1], (problem.count, problem.hidden))
    return whole, dh, dc, at


def _shifted(first: Tensor, steps: Tensor) -> Tensor:
    """What stood before each step: first, steps[0], …, steps[T-2]."""
    return torch.cat([first[None], steps[:-1]])[: steps.shape[0]]
