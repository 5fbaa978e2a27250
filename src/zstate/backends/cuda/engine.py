"""Project → scan → contract on CUDA tensors: torch's products around one launch of the scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...layout import Layout
from . import plain
from .launch import Kernel, chip_of, prepare
from .options import Options
from .plan import Problem
from .planner import plans
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
    sizes: Sizes
    shapes: dict[str, tuple[int, ...]]  # of the forward results
    sums: dict[str, int]  # numbers in each gradient that is a sum over time and batch
    names: tuple[str, ...]  # of the results
    mask: tuple[int, ...]  # the mask's full shape


def sizes(layout: Layout) -> Sizes:
    return Sizes(*layout.size, layout.directions, len(layout.cell_kind.gates))


def _on_device(
    function: Callable[[TensorCall, Prepared], dict[str, Tensor]], call: TensorCall, ready: Prepared
) -> dict[str, Tensor]:
    """Call with the tensors' device as the current one; usually it is."""
    device = ready.kernel.device
    if device.index == torch.cuda.current_device():
        return function(call, ready)
    with torch.cuda.device(device):
        return function(call, ready)


def forward(call: TensorCall) -> dict[str, Tensor]:
    """The forward operation: its results by name. Nothing is recorded for gradients."""
    ready = _prepared(call)
    return plain.forward(call) if ready is None else _on_device(_forward, call, ready)


def backward(call: TensorCall) -> dict[str, Tensor]:
    """The gradient operation: the gradient of every input that was passed, by name."""
    ready = _prepared(call)
    return plain.backward(call) if ready is None else _on_device(_backward, call, ready)


def _forward(call: TensorCall, ready: Prepared) -> dict[str, Tensor]:
    like: Tensor = call.required("source")
    results = {name: like.new_empty(shape) for name, shape in ready.shapes.items()}
    ready.kernel(
        ready.sizes.T,
        weight=_forward_weight(call, ready),
        gates_x=project(call, ready.sizes),
        state=results["state"],
        cell=results.get("cell"),
        saved=results.get("training_state"),
        **_common(call, ready),
    )
    return results


def _backward(call: TensorCall, ready: Prepared) -> dict[str, Tensor]:
    layout, z, tensors = call.layout, ready.sizes, call.tensors
    source: Tensor = call.required("source")
    gates = source.new_empty(z.T * z.N, z.D * z.G * z.H)
    left = source.new_empty(z.T * z.N, z.D * z.H)
    left_reset = None
    if layout.cell_kind.name == "gru":
        left_reset = torch.empty_like(gates if _resets_after(layout) else left)
    sums = _Sums(ready, source)
    results: dict[str, Tensor] = {
        name: source.new_empty(z.N, z.D * z.H)
        for name in ("init_state", "init_cell")
        if name in layout.present
    }
    unreset, first_unreset = _unreset(call, ready)
    ready.kernel(
        z.T,
        weight=_backward_weight(call, ready),
        saved=_taken(tensors["z_state"]),
        cell=_taken(tensors.get("cell_output_fwd")),
        state=_taken(tensors.get("output_fwd")),
        d_state=_taken(tensors["source_gradient"]),
        d_last=_taken(tensors.get("state_gradient")),
        d_cell=_taken(tensors.get("cell_gradient")),
        unreset=first_unreset,
        d_gates=gates,
        left=left,
        left_reset=left_reset,
        d_state0=results.get("init_state"),
        d_cell0=results.get("init_cell"),
        **_common(call, ready),
        **sums.arguments,
    )
    del unreset  # lives until here
    results.update(sums.results())
    turned = gates.t()  # [D·G·H,T·N]
    results["recurrent_weight"] = _weight_gradient(layout, z, turned, left, left_reset)
    results["source"] = gates
    weight = tensors["input_weight"]
    if weight is not None:
        results["source"] = gates.mm(weight)
        results["input_weight"] = turned.mm(source.reshape(z.T * z.N, z.I))
    return {name: _shaped(results[name], call.required(name).shape) for name in ready.names}


def _shaped(tensor: Tensor, shape: torch.Size) -> Tensor:
    return tensor if tensor.shape == shape else tensor.view(shape)


def _resets_after(layout: Layout) -> bool:
    return getattr(layout.descriptor, "reset_after", False)


def project(call: TensorCall, z: Sizes) -> Tensor:
    """x[t]W^T + b for all t, [T·N,D·G·H]; a source without a weight is projected already."""
    source: Tensor = call.required("source")
    weight, bias = call.tensors["input_weight"], call.tensors["bias"]
    if weight is None:
        projected = source if bias is None else source + bias
        return _required(_taken(projected))
    return _linear(source.reshape(z.T * z.N, z.I), weight, bias)


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What torch's linear() does, with less around it."""
    return rows.mm(weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())


def _weight_gradient(
    layout: Layout, z: Sizes, gates: Tensor, left: Tensor, left_reset: Tensor | None
) -> Tensor:
    """dR [D,G·H,H] from the gates' gradients [D·G·H,T·N] and what stood in front of R [T·N,D·H]."""
    after = _resets_after(layout)
    if left_reset is not None and after:
        gates = left_reset.t()  # of the products with R
    if z.D == 1 and (left_reset is None or after):
        return gates.mm(left)
    found = gates.new_empty(z.D, z.G * z.H, z.H)
    for d in range(z.D):
        rows = gates[d * z.G * z.H : (d + 1) * z.G * z.H]
        window = slice(d * z.H, (d + 1) * z.H)
        if left_reset is None or after:
            torch.mm(rows, left[:, window], out=found[d])
            continue
        # The candidate's gate is the last in either gate order, and has a left factor of its own.
        split = 2 * z.H
        torch.mm(rows[:split], left[:, window], out=found[d, :split])
        torch.mm(rows[split:], left_reset[:, window], out=found[d, split:])
    return found


class _Sums:
    """Gradients that are sums over time and batch: the scan leaves one a group of rows."""

    def __init__(self, ready: Prepared, like: Tensor) -> None:
        self._widths, self._dtype = ready.sums, like.dtype
        self._found: Tensor | None = None
        self.arguments: dict[str, int] = {}
        if not self._widths:
            return
        groups, total = ready.kernel.plan.tile_groups(ready.sizes.N), sum(self._widths.values())
        kind = like.dtype if groups == 1 else torch.float32
        self._found = torch.empty((groups, total), dtype=kind, device=like.device)
        place, self.arguments["sum_stride"] = self._found.data_ptr(), total
        for name, width in self._widths.items():
            self.arguments[_SUM_NAMES[name]] = place
            place += width * self._found.element_size()

    def results(self) -> dict[str, Tensor]:
        if self._found is None:
            return {}
        found = self._found[0] if len(self._found) == 1 else self._found.sum(0).to(self._dtype)
        if len(self._widths) == 1:
            return dict.fromkeys(self._widths, found)
        parts = torch.split_with_sizes(found, list(self._widths.values()))
        return dict(zip(self._widths, parts, strict=True))


_SUM_NAMES = {"bias": "bias_sum", "peephole": "peephole_sum", "secondary_bias": "bias2_sum"}


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
        found["mask_t"], found["mask_n"], found["mask_h"] = full.stride()
    return found


def _mask_in_pairs(mask: Tensor | None) -> bool:
    """Whether two neighbouring units of a mask can be loaded at once."""
    if mask is None or not mask.ndim or mask.shape[-1] == 1:
        return False
    *others, last = mask.stride()
    aligned = mask.data_ptr() % (2 * mask.element_size()) == 0
    return last == 1 and aligned and all(stride % 2 == 0 for stride in others)


def _forward_weight(call: TensorCall, ready: Prepared) -> Tensor:
    """[D,G,HP,HP]: the caller's own where nothing has to be padded."""
    z, padded = ready.sizes, ready.kernel.plan.padded
    weight: Tensor = call.required("recurrent_weight")
    if padded == z.H:
        return _required(_taken(weight))
    found = weight.new_zeros(z.D, z.G, padded, padded)
    found[:, :, : z.H, : z.H] = weight.reshape(z.D, z.G, z.H, z.H)
    return found


def _backward_weight(call: TensorCall, ready: Prepared) -> Tensor:
    """[D,HP,G,HP]: transposed, so that the backward product reads along its rows too."""
    z, padded = ready.sizes, ready.kernel.plan.padded
    weight: Tensor = call.required("recurrent_weight")
    if padded == z.H and z.D == 1:
        return weight.t().contiguous()
    turned = weight.reshape(z.D, z.G, z.H, z.H).permute(0, 3, 1, 2)
    if padded == z.H:
        return turned.contiguous()
    found = weight.new_zeros(z.D, padded, z.G, padded)
    found[:, : z.H, :, : z.H] = turned
    return found


def _unreset(call: TensorCall, ready: Prepared) -> tuple[Tensor | None, int | None]:
    """What reset_after multiplies by r, for all t in one product; zState does not keep it.

    Returns the tensor and the address of its first step, which may be one that is never read.
    """
    layout, z = call.layout, ready.sizes
    if not _resets_after(layout):
        return None, None
    state: Tensor = call.required("output_fwd")
    first, mask, bias = (call.tensors[n] for n in ("init_state", "mask", "secondary_bias"))
    weight: Tensor = call.required("recurrent_weight")
    if z.D == 1 and first is None and mask is None:
        # The scan knows what comes of no state at all: it reads from the second step on.
        rest = _linear(state[:-1].reshape(-1, z.H), weight[2 * z.H :], bias)
        return rest, rest.data_ptr() - z.N * z.H * rest.element_size()
    weight = weight.reshape(z.D, z.G, z.H, z.H)[:, 2]
    found = state.new_empty(z.T, z.N, z.D, z.H)
    for d in range(z.D):
        window = slice(d * z.H, (d + 1) * z.H) if z.D == 2 else slice(None)
        # In the order of the output; the second direction goes the other way.
        before, rest = (state[:-1], found[1:, :, d]) if d == 0 else (state[1:], found[:-1, :, d])
        begin = found[0 if d == 0 else -1, :, d]
        before = before[:, :, window]
        h0 = None if first is None else first[:, window]
        if mask is not None:
            full = mask.expand(ready.mask)[:, :, window]
            full = full.flip(0) if z.D == 1 and layout.descriptor.reverse else full
            before = before * (full[1:] if d == 0 else full[:-1])
            h0 = None if h0 is None else h0 * full[0 if d == 0 else -1]
        own = None if bias is None else bias[window]
        rest.copy_(_linear(before.reshape(-1, z.H), weight[d], own).view(rest.shape))
        if h0 is not None:
            begin.copy_(_linear(h0, weight[d], own))
    return found, found.data_ptr()


def _is_exact(layout: Layout) -> bool:
    return layout.dtype == "float32" and not torch.backends.cuda.matmul.allow_tf32


def _prepared(call: TensorCall) -> Prepared | None:
    """What calls like this one share, made where it is not there yet; None: the plain path."""
    layout = call.layout
    device = call.required("source").device
    key = (device, _is_exact(layout), _mask_in_pairs(call.tensors["mask"]))
    known: dict[object, Prepared | None] = layout.cache.setdefault("cuda", {})
    if key not in known:
        known[key] = _prepare(call, *key)
    return known[key]


def _prepare(
    call: TensorCall, device: torch.device, exact: bool, mask_pairs: bool
) -> Prepared | None:
    layout, z = call.layout, sizes(call.layout)
    # Full float32 may not fit on a chip with few multiprocessors at all.
    problem = _problem(layout, exact)
    if layout.dtype == "float64" or not (z.T and z.N) or not plans(problem, chip_of(device)):
        return None
    names = layout.result_names()
    shapes = {} if layout.operation.is_gradient else {n: layout.shape(n) for n in names}
    widths = {"bias": z.G, "peephole": 4, "secondary_bias": 1}
    sums = {name: z.D * width * z.H for name, width in widths.items() if name in names}
    kernel = prepare(problem, _options(call, mask_pairs), device)
    return Prepared(kernel, z, shapes, sums, names, layout.shape("mask"))


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
        _optional_registers(layout),
    )


def _optional_registers(layout: Layout) -> int:
    """Of a pair of units: masks, peepholes and the sums of their gradients."""
    sums = 2 if layout.operation.is_gradient else 1
    return 2 * ("mask" in layout.present) + 8 * sums * ("peephole" in layout.present)


def _options(call: TensorCall, mask_pairs: bool) -> Options:
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
        mask_pairs=mask_pairs,
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
