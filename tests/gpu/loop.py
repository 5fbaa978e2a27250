"""The operations as a loop of torch operations, every number in the type of the tensors.

What the CUDA engine's errors are measured against; written without zstate/cells.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from checked import Call

from zstate.descriptors import Activation

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


def _hard_sigmoid(x: Tensor) -> Tensor:
    return (0.2 * x + 0.5).clamp(0, 1)


_APPLY: dict[Activation, Function] = {
    Activation.NONE: lambda x: x,
    Activation.RELU: torch.relu,
    Activation.TANH: torch.tanh,
    Activation.SIGMOID: torch.sigmoid,
    Activation.HARD_SIGMOID: _hard_sigmoid,
}
_SLOPE: dict[Activation, Function] = {  # through the activation's output
    Activation.NONE: torch.ones_like,
    Activation.RELU: lambda y: (y > 0).to(y.dtype),
    Activation.TANH: lambda y: 1 - y * y,
    Activation.SIGMOID: lambda y: y * (1 - y),
    Activation.HARD_SIGMOID: lambda y: 0.2 * ((y > 0) & (y < 1)).to(y.dtype),
}


class _Direction:
    """One direction of a call: views of its inputs, steps in the order of the input."""

    def __init__(self, call: Call, index: int) -> None:
        layout = call.layout
        self.T, self.N, _, self.H = layout.size
        self.D, self.G = layout.directions, len(layout.cell_kind.gates)
        self.index, self.call = index, call
        self.kind = layout.cell_kind.name
        self.slots = layout.slots
        descriptor = layout.descriptor
        self.apply = [_APPLY[kind] for kind in descriptor.activations]
        self.slope = [_SLOPE[kind] for kind in descriptor.activations]
        self.reset_after = getattr(descriptor, "reset_after", False)
        self.flip_z = getattr(descriptor, "flip_z", False)
        self.sees_new_cell = getattr(descriptor, "peephole_on_new_cell", False)
        backwards = index == 1 if self.D == 2 else descriptor.reverse
        steps = range(self.T)
        self.in_order = list(reversed(steps) if backwards else steps)
        self.out_order = list(reversed(steps) if index == 1 else steps)
        like = call.required("source")
        self.zero = like.new_zeros(self.N, self.H)
        self.heads, self.d = descriptor.heads, self.H // descriptor.heads
        blocks = self.blocks(call.required("recurrent_weight"))  # zeros between heads
        self.R = [torch.block_diag(*blocks[:, slot]) for slot in self.slots]
        self.p = self._own("peephole", 4)
        self.b2 = self._own("secondary_bias", 1)
        mask = call.tensors["mask"]
        self.mask = None if mask is None else mask.expand(layout.shape("mask"))[..., self.window]
        resets = call.tensors["resets"]
        self.resets = None if resets is None else resets[..., index, None]

    def blocks(self, weight: Tensor) -> Tensor:
        """Of a recurrent weight or its gradient, [heads,G,d,d]."""
        return weight.reshape(self.D, self.heads, self.G, self.d, self.d)[self.index]

    @property
    def window(self) -> slice:
        return slice(self.index * self.H, (self.index + 1) * self.H)

    def _own(self, name: str, gates: int) -> list[Tensor] | None:
        tensor = self.call.tensors.get(name)
        if tensor is None:
            return None
        view = tensor.reshape(self.D, gates, self.H)[self.index]
        return [view[slot] for slot in (self.slots if gates > 1 else (0,))]

    def first(self, name: str) -> Tensor:
        tensor = self.call.tensors.get(name)
        return (
            self.zero if tensor is None else tensor.reshape(self.N, self.D * self.H)[:, self.window]
        )

    def masked(self, h: Tensor, s: int) -> Tensor:
        return h if self.mask is None else h * self.mask[self.in_order[s]]

    def begun(self, state: Tensor, s: int) -> Tensor:
        """A state before step s, or its gradient: 0 where the step begins a new sequence."""
        return state if self.resets is None else state * (1 - self.resets[self.in_order[s]])


def _gates(tensor: Tensor, d: _Direction, t: int) -> list[Tensor]:
    view = tensor.view(d.T, d.N, d.D, d.G, d.H)[t, :, d.index]
    return [view[:, slot] for slot in d.slots]


def forward(call: Call) -> dict[str, Tensor]:
    layout = call.layout
    source = call.required("source")
    results = {name: source.new_empty(layout.shape(name)) for name in layout.result_names()}
    if not source.shape[0] or not source.shape[1]:
        return results
    weight, bias = call.tensors["input_weight"], call.tensors["bias"]
    projected = source if weight is None else source @ weight.t()
    projected = (projected if bias is None else projected + bias).contiguous()
    for index in range(layout.directions):
        d = _Direction(call, index)
        h, c = d.first("init_state"), d.first("init_cell")
        for s in range(d.T):
            x = _gates(projected, d, d.in_order[s])
            h, c, saved = _step(d, x, d.begun(h, s), d.begun(c, s), s)
            t = d.out_order[s]
            results["state"][t][:, d.window] = h
            if "cell" in results:
                results["cell"][t][:, d.window] = c
            if "training_state" in results:
                for place, gate in zip(_gates(results["training_state"], d, t), saved, strict=True):
                    place.copy_(gate)
    return results


def _step(
    d: _Direction, x: list[Tensor], h: Tensor, c: Tensor, s: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    hm = d.masked(h, s)
    if d.kind == "gru":
        z = d.apply[0](x[0] + hm @ d.R[0].t())
        r = d.apply[1](x[1] + hm @ d.R[1].t())
        if d.reset_after:
            unreset = hm @ d.R[2].t()
            u = (unreset if d.b2 is None else unreset + d.b2[0]) * r
        else:
            u = (hm * r) @ d.R[2].t()
        o = d.apply[2](u + x[2])
        keep = 1 - z if d.flip_z else z
        return keep * h + (1 - keep) * o, c, [z, r, o]
    before = [x[k] + hm @ d.R[k].t() for k in range(d.G)]
    if d.kind == "single_gate_rnn":
        return d.apply[0](before[0]), c, before
    p = d.p or [d.zero] * 4
    i, f, z = (d.apply[k](before[k] + p[k] * c) for k in range(3))
    new_c = f * c + i * z
    o = d.apply[3](before[3] + p[3] * (new_c if d.sees_new_cell else c))
    return o * d.apply[4](new_c), new_c, [i, f, z, o]


def backward(call: Call) -> dict[str, Tensor]:
    layout = call.layout
    source = call.required("source")
    steps, batch, inputs, _ = layout.size
    found = {name: torch.zeros_like(call.required(name)) for name in layout.result_names()}
    gates = source.new_zeros(layout.shape("gates"))
    for index in range(layout.directions):
        _backward_direction(_Direction(call, index), gates, found)
    rows = gates.view(steps * batch, -1) if gates.numel() else gates.new_zeros(0, gates.shape[-1])
    weight = call.tensors["input_weight"]
    found["source"] = gates
    if weight is not None:
        found["source"] = gates @ weight
        found["input_weight"] = rows.t() @ source.reshape(len(rows), inputs)
    if "bias" in found:
        found["bias"] = rows.sum(0)
    return {name: found[name].reshape(call.required(name).shape) for name in layout.result_names()}


def _backward_direction(d: _Direction, gates: Tensor, found: dict[str, Tensor]) -> None:
    call = d.call
    source = call.required("source")
    tensors = call.tensors
    dh = d.first("state_gradient")
    every = tensors.get("cell_gradient")
    if every is not None and not (every.ndim == 3 and every.shape[0] == d.T):
        every = None
    dc = d.zero if every is not None else d.first("cell_gradient")
    weight = source.new_zeros(d.G, d.H, d.H)
    z_state = call.required("z_state").contiguous()
    dy = call.required("source_gradient")

    def saved(s: int) -> list[Tensor]:
        return _gates(z_state, d, d.out_order[s])

    def output(s: int) -> Tensor:
        if s < 0:
            return d.first("init_state")
        if d.kind == "gru":
            return call.required("output_fwd")[d.out_order[s]][:, d.window]
        if d.kind == "lstm":
            return saved(s)[3] * d.apply[4](cell(s))
        return d.apply[0](saved(s)[0])

    def cell(s: int) -> Tensor:
        if s < 0 or d.kind != "lstm":
            return d.first("init_cell")
        return call.required("cell_output_fwd")[d.out_order[s]][:, d.window]

    for s in reversed(range(d.T)):
        t = d.out_order[s]
        dh = dh + dy[t][:, d.window]
        h, c = d.begun(output(s - 1), s), d.begun(cell(s - 1), s)
        hm = d.masked(h, s)
        values = saved(s)
        left = [hm] * d.G
        if d.kind == "gru":
            z, r, o = values
            keep = 1 - z if d.flip_z else z
            dkeep = dh * (h - o)
            dz = (-dkeep if d.flip_z else dkeep) * d.slope[0](z)
            du = dh * (1 - keep) * d.slope[2](o)
            into = [dz, du, du]  # what is multiplied with R, gate by gate
            if d.reset_after:
                unreset = hm @ d.R[2].t()
                dr = du * (unreset if d.b2 is None else unreset + d.b2[0])
                into[2] = du * r
                through = into[2] @ d.R[2]
                if "secondary_bias" in found:
                    found["secondary_bias"].view(d.D, d.H)[d.index] += into[2].sum(0)
            else:
                dreset = du @ d.R[2]
                dr = dreset * hm
                through = dreset * r
                left[2] = hm * r
            dr = dr * d.slope[1](r)
            into[1] = dr
            own = [dz, dr, du]
            dh = dh * keep + d.masked(through + dz @ d.R[0] + dr @ d.R[1], s)
        elif d.kind == "lstm":
            if every is not None:
                dc = dc + every[t][:, d.window]
            i, f, z, o = values
            g = d.apply[4](cell(s))
            da_o = dh * g * d.slope[3](o)
            dc = dc + dh * o * d.slope[4](g)
            if d.p is not None and d.sees_new_cell:
                dc = dc + da_o * d.p[3]
            after = (dc * z, dc * c, dc * i)
            own = [*(da * d.slope[k](values[k]) for k, da in enumerate(after)), da_o]
            dc = dc * f
            for k in range(4 if d.p is not None else 0):
                sums = found["peephole"].view(d.D, 4, d.H)[d.index, d.slots[k]]
                if k == 3 and d.sees_new_cell:
                    sums += (own[k] * cell(s)).sum(0)
                else:
                    sums += (own[k] * c).sum(0)
                    dc = dc + own[k] * d.p[k]
            into = own
            dh = d.masked(sum((own[k] @ d.R[k] for k in range(1, 4)), own[0] @ d.R[0]), s)
        else:
            own = into = [dh * d.slope[0](d.apply[0](values[0]))]
            dh = d.masked(own[0] @ d.R[0], s)
        for k, place in enumerate(_gates(gates, d, d.in_order[s])):
            place.copy_(own[k])
            weight[d.slots[k]] += into[k].t() @ left[k]
        dh, dc = d.begun(dh, s), d.begun(dc, s)
    for k in range(d.heads):
        own = slice(k * d.d, (k + 1) * d.d)
        d.blocks(found["recurrent_weight"])[k] += weight[:, own, own]
    for name, value in (("init_state", dh), ("init_cell", dc)):
        if name in found:
            found[name].view(d.N, d.D * d.H)[:, d.window] = value
