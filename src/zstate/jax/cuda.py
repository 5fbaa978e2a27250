"""The CUDA engine inside XLA programs: its scans as custom calls between XLA's own products.

A call's steps are those that ``backends.cuda`` describes. Its products become JAX's, and XLA makes
them; its scan becomes one custom call (csrc/xla/launches.cpp), which launches the kernel on XLA's
stream and works in memory of XLA's. The kernel is chosen and compiled while the program is lowered,
for the first CUDA device of this process, and travels inside the program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..backends import cuda as backend
from ..backends.cuda import calls
from ..backends.cuda.arguments import MASK, Argument, Shape
from ..backends.cuda.calls import Call
from ..backends.cuda.operands import operand_of
from ..backends.cuda.placements import placements
from ..backends.cuda.products import Matrix, Product
from ..errors import BackendError
from ..heads import reduces_rows
from ..layout import Layout
from . import ffi
from .signature import Signature, Value, result_types

_TARGET = "zstate_launch"
# On import, because a program that another process compiled may be loaded and need it.
_UNREGISTERED = ffi.register(_TARGET, "CUDA")
_KINDS = {"nt": (1, 1), "nn": (1, 0), "tn": (0, 0)}  # the axes that a product sums over


@lru_cache(maxsize=1)
def unavailable() -> str | None:
    """Why the CUDA engine cannot be called from JAX, or None."""
    reason = backend.no_compiler()
    if reason is not None:
        return reason
    try:
        _device()
    except (RuntimeError, BackendError) as error:
        return f"there is no CUDA device ({error})"
    return _UNREGISTERED


def refuses(layout: Layout) -> str | None:
    """Why the engine cannot serve such a call from JAX, or None."""
    reason = unavailable() or backend.refuses(layout)
    if reason is not None:
        return reason
    if backend.by_torch(layout) or (layout.descriptor.heads > 1 and reduces_rows(layout)):
        return "it has no kernel for the means of such a cell"
    if layout.dtype == "float64":
        return "it does not compute in float64"
    if not (layout.size[0] and layout.size[1]):
        return "there is nothing to scan"
    if not placements(calls.scan_of(layout, _exact()), _chip()):
        return f"H = {layout.size[3]} does not fit on this device"
    return None


def run(signature: Signature, values: Sequence[Value]) -> list[Value]:
    """A call's results, as JAX operations and one custom call."""
    layout = signature.layout(values)
    tensors = dict(zip(signature.inputs, values, strict=True))
    shapes: dict[str, Shape] = {name: tuple(value.shape) for name, value in tensors.items()}
    call = calls.describe(layout, _kernel(layout, shapes), shapes)
    for step in call.steps:
        if isinstance(step, calls.Multiply):
            for product in (one for each in step.products for one in each.each_head()):
                tensors[product.out.name] = _multiply(call, product, tensors)
        elif isinstance(step, calls.RunScan):
            tensors |= _run_scan(call, step, tensors)
        else:
            tensors[step.to] = _make(call, step, tensors)
    made = [tensors[name] for name in call.published if name is not None]
    types = result_types(signature, values)
    return [value.reshape(each.shape) for value, each in zip(made, types, strict=True)]


# ---- the device and its kernel ----


def _device() -> int:
    """The driver's number of this process's first CUDA device."""
    return int(jax.local_devices(backend="cuda")[0].local_hardware_id)


def _chip() -> Any:
    from ..backends.cuda.launch import chip_of

    return chip_of(_device())


def _exact() -> bool:
    """Whether products of float32 must be of full precision, as JAX's own setting has it."""
    return jax.config.jax_default_matmul_precision in ("float32", "highest")


def _kernel(layout: Layout, shapes: dict[str, Shape]) -> Any:
    from ..backends.cuda.launch import enter, kernel_of

    device = _device()
    enter(device)
    *others, last = _mask_strides(shapes["mask"]) if "mask" in shapes else (0,)
    in_pairs = last == 1 and all(stride % 2 == 0 for stride in others)
    options = calls.options_of(layout, shapes, in_pairs)
    return kernel_of(calls.scan_of(layout, _exact()), options, device)


def _mask_strides(shape: Shape) -> list[int]:
    """Numbers between neighbours along T, N and D·H; 0 along an axis that the mask has not."""
    full = (*(1,) * (3 - len(shape)), *shape)
    return [0 if size == 1 else prod(full[k + 1 :]) for k, size in enumerate(full)]


# ---- the steps ----


def _make(call: Call, step: Any, tensors: dict[str, Value]) -> Value:
    """What a step makes that neither multiplies nor scans."""
    z = calls.sizes(call.layout)
    if isinstance(step, calls.AddBias):
        return tensors["source"] + tensors["bias"]
    if isinstance(step, calls.MakeOperand):
        return operand_of(call, step, partial(_read, call.layout, tensors))
    weight = tensors["recurrent_weight"].reshape(z.chains, z.G, z.units, z.units)
    more = (0, call.kernel.placement.padded - z.units)
    if step.turned:
        return jnp.pad(weight.transpose(0, 3, 1, 2), ((0, 0), more, (0, 0), more))
    return jnp.pad(weight, ((0, 0), (0, 0), more, more))


def _read(layout: Layout, tensors: dict[str, Value], name: str) -> Value | None:
    """A tensor of the call; the mask in its full shape."""
    value = tensors.get(name)
    is_mask = name == "mask" and value is not None
    return jnp.broadcast_to(value, layout.shape("mask")) if is_mask else value


def _multiply(call: Call, product: Product, tensors: dict[str, Value]) -> Value:
    """The tensor that a product writes to, with the product in its place."""
    name = product.out.name
    shape, dtype = _type(call, name)
    if product.kind == "sum":
        found = _window(tensors, product.left, product.k, product.n).sum(0, keepdims=True)
    else:
        found = _product(product, tensors)
    found = found.astype(dtype)
    row, column = divmod(product.out.begin, product.out.stride)
    rows = prod(shape) // product.out.stride
    if found.shape == (rows, product.out.stride):
        return found.reshape(shape)
    whole = tensors.get(name, jnp.zeros(shape, dtype)).reshape(rows, product.out.stride)
    end = (row + found.shape[0], column + found.shape[1])
    return whole.at[row : end[0], column : end[1]].set(found).reshape(shape)


def _product(product: Product, tensors: dict[str, Value]) -> Value:
    assert product.right is not None
    shapes = product.shapes()
    left = _window(tensors, product.left, *shapes["left"])
    right = _window(tensors, product.right, *shapes["right"])
    along = (((_KINDS[product.kind][0],), (_KINDS[product.kind][1],)), ((), ()))
    if product.bias is None:
        return jax.lax.dot_general(left, right, along)
    # Rounded once, after the bias; XLA would round the product and the sum.
    found = jax.lax.dot_general(left, right, along, preferred_element_type=jnp.float32)
    begin = product.bias.begin
    return found + tensors[product.bias.name].reshape(-1)[begin : begin + product.n]


def _window(tensors: dict[str, Value], matrix: Matrix, rows: int, columns: int) -> Value:
    row, column = divmod(matrix.begin, matrix.stride)
    whole = tensors[matrix.name].reshape(-1, matrix.stride)
    return whole[row : row + rows, column : column + columns]


def _type(call: Call, name: str) -> tuple[Shape, str]:
    piece = call.arguments.pieces.get(name)
    if piece is not None:
        return piece.shape, piece.dtype
    return call.shapes[name], call.layout.dtype


# ---- the launch ----


def _run_scan(call: Call, step: calls.RunScan, tensors: dict[str, Value]) -> dict[str, Value]:
    """What the scan writes, by name."""
    fields, written = step
    named = {field: each[0] for field, each in fields.items() if not isinstance(each, int)}
    strides = named.keys() & set(MASK[1:])
    results = list(dict.fromkeys(name for f, name in named.items() if f in written))
    operands = list(dict.fromkeys(n for f, n in named.items() if f not in written | strides))

    def word(field: str, argument: Argument) -> tuple[int, int]:
        """A number as it is, or one that an address is added to: (operand or result, number)."""
        if isinstance(argument, int):
            return -1, argument
        if field in strides:
            return -1, _mask_strides(call.shapes["mask"])[MASK.index(field) - 1]
        name, begin = argument
        place = len(operands) + results.index(name) if field in written else operands.index(name)
        return place, begin

    words = [word(field, argument) for field, argument in fields.items()]
    types = [jax.ShapeDtypeStruct(*_type(call, name)) for name in results]
    made = jax.ffi.ffi_call(
        _TARGET,
        types,
        # The gates of a source that was projected here make room for what is kept of them.
        input_output_aliases={operands.index(n): k for k, n in enumerate(results) if n in operands},
    )(
        *(tensors[name].reshape(_type(call, name)[0]) for name in operands),
        words=np.array(words, np.int64).reshape(-1),
        **_launch(call, list(fields)),
    )
    return dict(zip(results, made, strict=True))


def _launch(call: Call, fields: list[str]) -> dict[str, Any]:
    """The attributes that csrc/xla/launches.cpp reads."""
    kernel, placement = call.kernel, call.kernel.placement
    filled = kernel.exchange(call.layout.size[0]).filled
    shape = {
        "cooperative": int(placement.is_cooperative),
        "cluster": placement.cluster_blocks,
        "threads": placement.launched_threads,
        "shared_bytes": placement.shared,
        "first_group": fields.index("first_group"),
        "exchange": fields.index("exchange"),
        "filled_words": filled,
    }
    code = kernel.code + bytes(-len(kernel.code) % 8)
    return {
        "key": hashlib.sha256(repr(shape).encode() + code).hexdigest(),
        "code": np.frombuffer(code, np.int64),
        "fields": " ".join(shape),
        "launch": np.array([*shape.values()], np.int64),
        "groups": np.array(kernel.launches, np.int64).reshape(-1),
    }
