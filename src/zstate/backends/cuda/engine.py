"""Project → scan → contract on CUDA tensors: torch's products around one launch of the scan."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from ...layout import Layout
from . import plain
from .launch import Kernel, chip_of, prepare
from .options import Options
from .planner import Problem, plans
from .tensors import TensorCall

Tensor = torch.Tensor


class Sizes(NamedTuple):
    """The letters of a call."""

    T: int
    N: int
    I: int
    H: int
    D: int
    G: int


class Prepared(NamedTuple):
    """What calls of one signature share: looked up once it was made."""

    kernel: Kernel
    shapes: dict[str, tuple[int, ...]]  # of the forward results
    names: tuple[str, ...]  # of the results
    mask: tuple[int, ...]  # the mask's full shape


def sizes(layout: Layout) -> Sizes:
    found: Sizes | None = layout.cache.get("cuda sizes")
    if found is None:
        found = Sizes(*layout.size, layout.directions, len(layout.cell_kind.gates))
        layout.cache["cuda sizes"] = found
    return found


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the current one, unless it is."""
    if device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def forward(call: TensorCall) -> dict[str, Tensor]:
    """The forward operation: its results by name."""
    layout, z = call.layout, sizes(call.layout)
    source: Tensor = call.required("source")
    if layout.dtype == "float64" or not (z.T and z.N) or not _has_plan(call):
        return plain.forward(call)
    with _on(source.device), torch.no_grad():
        ready = _prepared(call)
        results = {name: source.new_empty(shape) for name, shape in ready.shapes.items()}
        ready.kernel(
            z.T,
            z.N,
            weight=_forward_weight(call, ready.kernel),
            gates_x=project(call),
            **_common(call, ready),
            state=results["state"],
            cell=results.get("cell"),
            saved=results.get("training_state"),
        )
    return results


def backward(call: TensorCall) -> dict[str, Tensor]:
    """The gradient operation: the gradient of every input that was passed, by name."""
    layout, z = call.layout, sizes(call.layout)
    source: Tensor = call.required("source")
    if layout.dtype == "float64" or not (z.T and z.N) or not _has_plan(call):
        return plain.backward(call)
    with _on(source.device), torch.no_grad():
        ready = _prepared(call)
        kernel = ready.kernel
        gates = source.new_empty(z.T, z.N, z.D * z.G * z.H)
        left = source.new_empty(z.T * z.N, z.D * z.H)
        is_gru = layout.cell_kind.name == "gru"
        left_reset = torch.empty_like(left) if is_gru else None
        sums = _Sums(layout, kernel, source)
        results: dict[str, Tensor] = {
            name: source.new_empty(z.N, z.D * z.H)
            for name in ("init_state", "init_cell")
            if name in layout.present
        }
        cell_gradient = call.tensors.get("cell_gradient")
        kernel(
            z.T,
            z.N,
            weight=_backward_weight(call, kernel),
            **_common(call, ready),
            saved=_taken(call.tensors["z_state"]),
            cell=_taken(call.tensors.get("cell_output_fwd")),
            state=_taken(call.tensors.get("output_fwd")),
            d_state=_taken(call.tensors["source_gradient"]),
            d_last=_taken(call.tensors.get("state_gradient")),
            d_cell=_taken(cell_gradient),
            unreset=_unreset(call, ready),
            d_gates=gates,
            left=left,
            left_reset=left_reset,
            d_state0=results.get("init_state"),
            d_cell0=results.get("init_cell"),
            bias_sum=sums.bias,
            peephole_sum=sums.peephole,
            bias2_sum=sums.bias2,
        )
        results.update(sums.results())
        turned = gates.view(z.T * z.N, -1).t()  # [D·G·H,T·N]
        results["recurrent_weight"] = _weight_gradient(layout, turned, left, left_reset)
        results["source"] = gates
        weight = call.tensors["input_weight"]
        if weight is not None:
            results["source"] = gates @ weight
            results["input_weight"] = turned @ source.reshape(z.T * z.N, z.I)
        return {name: _shaped(results[name], call.required(name).shape) for name in ready.names}


def _shaped(tensor: Tensor, shape: torch.Size) -> Tensor:
    return tensor if tensor.shape == shape else tensor.view(shape)


def project(call: TensorCall) -> Tensor:
    """x[t]W^T + b for all t, [T·N,D·G·H]; a source without a weight is projected already."""
    z = sizes(call.layout)
    source: Tensor = call.required("source")
    weight, bias = call.tensors["input_weight"], call.tensors["bias"]
    if weight is None:
        projected = source if bias is None else source + bias
        return _required(_taken(projected))
    rows = source.reshape(z.T * z.N, z.I)
    if bias is None:
        return rows @ weight.t()
    return torch.addmm(bias, rows, weight.t())


def _weight_gradient(
    layout: Layout, gates: Tensor, left: Tensor, left_reset: Tensor | None
) -> Tensor:
    """dR [D,G·H,H] from the gates' gradients [D·G·H,T·N] and what stood in front of R [T·N,D·H]."""
    z = sizes(layout)
    if z.D == 1 and left_reset is None:
        return gates @ left
    found = gates.new_empty(z.D, z.G * z.H, z.H)
    for d in range(z.D):
        rows = gates[d * z.G * z.H : (d + 1) * z.G * z.H]
        window = slice(d * z.H, (d + 1) * z.H)
        if left_reset is None:
            torch.mm(rows, left[:, window], out=found[d])
            continue
        # The candidate's gate is the last in either gate order, and has factors of its own.
        split, own = 2 * z.H, left_reset[:, window]
        torch.mm(rows[:split], left[:, window], out=found[d, :split])
        if getattr(layout.descriptor, "reset_after", False):
            torch.mm(own.t(), left[:, window], out=found[d, split:])
        else:
            torch.mm(rows[split:], own, out=found[d, split:])
    return found


class _Sums:
    """Gradients that are sums over time and batch: the scan leaves one a row of a tile."""

    def __init__(self, layout: Layout, kernel: Kernel, like: Tensor) -> None:
        z, plan = sizes(layout), kernel.plan
        self._dtype = like.dtype
        groups = -(-z.N // (plan.tile_rows * plan.tiles))

        def make(name: str, width: int) -> Tensor | None:
            if name not in layout.present:
                return None
            shape = (groups * plan.rows, z.D * width)
            return torch.empty(shape, dtype=torch.float32, device=like.device)

        self.bias = make("bias", z.G * z.H)
        self.peephole = make("peephole", 4 * z.H)
        self.bias2 = make("secondary_bias", z.H)

    def results(self) -> dict[str, Tensor]:
        named = {"bias": self.bias, "peephole": self.peephole, "secondary_bias": self.bias2}
        return {
            name: rows.sum(0).to(self._dtype) for name, rows in named.items() if rows is not None
        }


def _common(call: TensorCall, ready: Prepared) -> dict[str, Any]:
    """The arguments that both directions of time share."""
    tensors = call.tensors
    found: dict[str, Any] = {
        "peephole": _taken(tensors.get("peephole")),
        "bias2": _taken(tensors.get("secondary_bias")),
        "state0": _taken(tensors["init_state"]),
        "cell0": _taken(tensors.get("init_cell")),
    }
    mask = tensors["mask"]
    if mask is not None:
        full = mask.expand(ready.mask)
        found["mask"] = full
        t, n, h = found["mask_t"], found["mask_n"], found["mask_h"] = full.stride()
        aligned = full.data_ptr() % (2 * full.element_size()) == 0
        found["mask_pairs"] = int(h == 1 and t % 2 == 0 and n % 2 == 0 and aligned)
    return found


def _forward_weight(call: TensorCall, kernel: Kernel) -> Tensor:
    """[D,G,HP,HP]: the caller's own where nothing has to be padded."""
    z, padded = sizes(call.layout), kernel.plan.padded
    weight: Tensor = call.required("recurrent_weight")
    if padded == z.H:
        return _required(_taken(weight))
    found = weight.new_zeros(z.D, z.G, padded, padded)
    found[:, :, : z.H, : z.H] = weight.reshape(z.D, z.G, z.H, z.H)
    return found


def _backward_weight(call: TensorCall, kernel: Kernel) -> Tensor:
    """[D,HP,G,HP]: transposed, so that the backward product reads along its rows too."""
    z, padded = sizes(call.layout), kernel.plan.padded
    weight: Tensor = call.required("recurrent_weight")
    turned = weight.reshape(z.D, z.G, z.H, z.H).permute(0, 3, 1, 2)
    if padded == z.H:
        return turned.contiguous()
    found = weight.new_zeros(z.D, padded, z.G, padded)
    found[:, : z.H, :, : z.H] = turned
    return found


def _unreset(call: TensorCall, ready: Prepared) -> Tensor | None:
    """What reset_after multiplies by r, for all t in one product; zState does not keep it."""
    layout, z = call.layout, sizes(call.layout)
    if not getattr(layout.descriptor, "reset_after", False):
        return None
    state: Tensor = call.required("output_fwd")
    first, bias = call.tensors["init_state"], call.tensors["secondary_bias"]
    weight = call.required("recurrent_weight").reshape(z.D, z.G, z.H, z.H)[:, 2]
    found = state.new_empty(z.T, z.N, z.D, z.H)
    for d in range(z.D):
        window = slice(d * z.H, (d + 1) * z.H) if z.D == 2 else slice(None)
        # In the order of the output; the second direction goes the other way.
        before, rest = (state[:-1], found[1:, :, d]) if d == 0 else (state[1:], found[:-1, :, d])
        begin = found[0 if d == 0 else -1, :, d]
        h0 = state.new_zeros(z.N, z.H) if first is None else first[:, window]
        mask = call.tensors["mask"]
        if mask is not None:
            full = mask.expand(ready.mask)[:, :, window]
            full = full.flip(0) if z.D == 1 and layout.descriptor.reverse else full
            before = before[:, :, window] * (full[1:] if d == 0 else full[:-1])
            h0 = h0 * full[0 if d == 0 else -1]
        else:
            before = before[:, :, window]
        for left, out in ((before.reshape(-1, z.H), rest.reshape(-1, z.H)), (h0, begin)):
            if bias is None:
                torch.mm(left, weight[d].t(), out=out)
            else:
                torch.addmm(bias[window], left, weight[d].t(), out=out)
    return found


def _has_plan(call: TensorCall) -> bool:
    """Whether the scan fits on this chip at all: full float32 may not, with few multiprocessors."""
    key = "cuda plan exact" if _is_exact(call.layout) else "cuda plan"
    found: bool | None = call.layout.cache.get(key)
    if found is None:
        problem = _problem(call.layout, _is_exact(call.layout))
        found = bool(plans(problem, chip_of(call.required("source").device)))
        call.layout.cache[key] = found
    return found


def _is_exact(layout: Layout) -> bool:
    _, batch, _, hidden = layout.size
    # One row times a small matrix is faster without tensor cores, and then exact for nothing.
    exact = not torch.backends.cuda.matmul.allow_tf32 or (batch == 1 and hidden <= 256)
    return exact and layout.dtype == "float32"


def _prepared(call: TensorCall) -> Prepared:
    layout = call.layout
    device = call.required("source").device
    exact = _is_exact(layout)
    known: dict[tuple[torch.device, bool], Prepared] = layout.cache.setdefault("cuda", {})
    ready = known.get((device, exact))
    if ready is None:
        names = layout.result_names()
        shapes = {} if layout.operation.is_gradient else {n: layout.shape(n) for n in names}
        kernel = prepare(_problem(layout, exact), _options(call), device)
        ready = known[device, exact] = Prepared(kernel, shapes, names, layout.shape("mask"))
    return ready


def _problem(layout: Layout, exact: bool) -> Problem:
    z = sizes(layout)
    kind = "tf32" if layout.dtype == "float32" and not exact else layout.dtype
    return Problem(
        layout.cell_kind.name,
        layout.operation.is_gradient,
        getattr(layout.descriptor, "reset_after", False),
        kind,
        z.H,
        z.N,
        z.D,
    )


def _options(call: TensorCall) -> Options:
    layout, present = call.layout, call.layout.present
    descriptor, names = layout.descriptor, layout.result_names()
    gradient = layout.operation.is_gradient
    cell_gradient = call.tensors.get("cell_gradient")
    every = (
        cell_gradient is not None
        and cell_gradient.ndim == 3
        and cell_gradient.shape[0] == layout.size[0]
    )
    return Options(
        slots=layout.slots,
        activations=tuple(int(kind) for kind in descriptor.activations),
        reverse=descriptor.reverse and not descriptor.bidirectional,
        flip_z=getattr(descriptor, "flip_z", False),
        mask="mask" in present,
        peephole="peephole" in present,
        bias2="secondary_bias" in present,
        state="init_state" in present,
        cell="init_cell" in present,
        save_cell="cell" in names,
        save_gates="training_state" in names,
        last_state="state_gradient" in present,
        last_cell=cell_gradient is not None and not every,
        every_cell=every,
        want_left=gradient,
        sum_bias=gradient and "bias" in present,
        sum_peephole=gradient and "peephole" in present,
        sum_bias2=gradient and "secondary_bias" in present,
    )


def _taken(tensor: Tensor | None) -> Tensor | None:
    """A tensor as the kernel reads it: contiguous, and aligned for 16-byte loads."""
    if tensor is None:
        return None
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _required(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
