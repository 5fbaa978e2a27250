"""The array library behind an array, under the array API's names: NumPy, torch or JAX.

The cells, the pipeline and the graph's op table compute through a ``Namespace``. Functions that
both libraries spell as the array API does come from the library itself; what they spell
differently is written here, once per library. torch and JAX are found when one of their arrays
arrives, and never imported before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from .backends.native import fused, product
from .errors import OptionError, refusal
from .layout import dtype_name, is_jax_array, is_plain_array, is_torch_tensor
from .types import Array, Shape, float_dtype


class Namespace(Protocol):
    """What may be called. Attributes beyond these are the array API's functions."""

    def __getattr__(self, name: str) -> Any: ...
    def dtype(self, name: str) -> Any: ...
    def asarray(self, value: Any) -> Any: ...
    def to_numpy(self, value: Any) -> Array: ...
    def info(self, value: Any) -> tuple[Shape, str]: ...
    def copy(self, value: Any) -> Any: ...
    def result(self, value: Any) -> Any: ...
    def astype(self, value: Any, dtype: Any, copy: bool = True) -> Any: ...
    def zeros(self, shape: Shape, dtype: Any) -> Any: ...
    def flip(self, value: Any, axis: Sequence[int]) -> Any: ...
    def relu(self, value: Any) -> Any: ...
    def sigmoid(self, value: Any) -> Any: ...
    def total(self, value: Any, axis: tuple[int, ...]) -> Any:
        """The sum over these axes, added up in float64 and given in the type of the value."""

    def scan(self, step: Any, first: Any, inputs: Any, count: int, reverse: bool) -> Any:
        """(state, result) = step(state, the step's inputs) for every step, first to last or back.

        ``inputs`` are arrays [T,…], None, or tuples of these. Gives the last state, and a tuple
        of the steps' results [T,…].
        """

    @property
    def adds_widely(self) -> bool:
        """Whether a product of 16-bit matrices is added up in float32 without casting these."""

    def fused(self, name: str, *values: Any) -> Any:
        """The result of a row that this library computes in one pass, by the names and forms of
        csrc/python/graph_arrays.h; None: compose it of array functions."""

    def within(self, indices: Any, size: int, operation: str, name: str) -> Any:
        """The indices; refused unless all of them are in range(size)."""

    def uniform(self, state: Any, shape: Shape, dtype: Any, low: float, high: float) -> Any:
        """What ``draw`` in graph/ops/random.py gives, if a device computes it; otherwise None."""

    def put_ones(self, rows: Any, columns: Any, value: float) -> None: ...
    def scatter_add(self, shape: Shape, indices: Any, updates: Any) -> Any: ...
    def scatter_along(self, shape: Shape, axis: int, indices: Any, updates: Any) -> Any: ...


class _AtOnce:
    """What libraries that compute at once share: a scan is a loop, indices are looked at."""

    def scan(self, step: Any, state: Any, inputs: Any, count: int, reverse: bool) -> Any:
        results = []
        for t in reversed(range(count)) if reverse else range(count):
            state, result = step(state, _at(inputs, t))
            results.append(result)
        if reverse:
            results.reverse()
        stack = self.stack  # type: ignore[attr-defined]
        return state, tuple(stack(each, 0) for each in zip(*results, strict=True))

    def within(self, indices: Any, size: int, operation: str, name: str) -> Any:
        if 0 not in indices.shape:
            low, high = int(indices.min()), int(indices.max())
            if low < 0 or high >= size:
                got = f"{low if low < 0 else high}"
                raise OptionError(refusal(operation, name, f"0 to {size - 1}", got))
        return indices

    def uniform(self, state: Any, shape: Shape, dtype: Any, low: float, high: float) -> Any:
        return None


def _at(inputs: Any, t: int) -> Any:
    """One step of what has a leading T axis."""
    if inputs is None:
        return None
    if not isinstance(inputs, tuple):
        return inputs[t]
    parts = [_at(part, t) for part in inputs]
    return type(inputs)(*parts) if hasattr(inputs, "_fields") else tuple(parts)


class NumPyNamespace(_AtOnce):
    """NumPy, versions 1.25 and later, under the array API's names."""

    adds_widely = False
    concat = staticmethod(np.concatenate)
    fused = staticmethod(fused)
    matmul = staticmethod(product)
    pow = staticmethod(np.power)
    permute_dims = staticmethod(np.transpose)
    relu = staticmethod(lambda value: np.maximum(value, 0))
    take_along_axis = staticmethod(np.take_along_axis)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def dtype(self, name: str) -> Any:
        return float_dtype(name)

    def asarray(self, value: Any) -> Array:
        """The value as an array of this library; no copy where it is one."""
        return value if isinstance(value, np.ndarray) else _torch_to_numpy(value)

    def to_numpy(self, value: Any) -> Array:
        return np.asarray(value)

    def info(self, value: Array) -> tuple[Shape, str]:
        return value.shape, dtype_name(value.dtype)

    def copy(self, value: Any) -> Array:
        return np.array(value, order="C")

    def result(self, value: Any) -> Array:
        """What a caller gets or a variable keeps: an array, also where NumPy's arithmetic gave a
        scalar, in C order, since the bits of a small product depend on the order."""
        return np.asarray(value, order="C")

    def astype(self, value: Any, dtype: Any, copy: bool = True) -> Any:
        return value.astype(dtype, copy=copy)

    def zeros(self, shape: Shape, dtype: Any) -> Array:
        return np.zeros(shape, dtype)

    def total(self, value: Any, axis: tuple[int, ...]) -> Any:
        return value.sum(axis=axis, dtype=np.float64).astype(value.dtype)

    def sigmoid(self, value: Any) -> Any:
        # exp of what is never positive cannot overflow, and small results keep their digits.
        wide = np.float64 if value.dtype == np.float64 else np.float32
        x = value.astype(wide, copy=False)
        small = np.exp(-np.abs(x))
        return (np.where(x >= 0, 1, small) / (1 + small)).astype(value.dtype, copy=False)

    def flip(self, value: Any, axis: Sequence[int]) -> Any:
        return np.flip(value, tuple(axis))

    def argsort(self, value: Any, axis: int) -> Any:
        return np.argsort(value, axis=axis, kind="stable")

    def take(self, value: Any, indices: Any, axis: int) -> Any:
        if axis == 0:
            found = fused("take_rows", value, indices.astype(np.int64, copy=False))
            if found is not None:
                return found
        return np.take(value, indices, axis=axis)

    def put_ones(self, rows: Any, columns: Any, value: float) -> None:
        """rows[k, columns[k]] = value for every k."""
        rows[np.arange(len(rows)), columns] = value

    def scatter_add(self, shape: Shape, indices: Any, updates: Any) -> Array:
        """Sum updates[k] [K, …] into row indices[k] of zeros; rows in a fixed order."""
        found: Array | None = fused("add_rows", updates, indices, shape[0])
        if found is not None:
            return found
        total = np.zeros(shape, updates.dtype)
        if len(indices) == 0:
            return total
        order = np.argsort(indices, kind="stable")
        rows, starts = np.unique(indices[order], return_index=True)
        wide = updates.dtype if updates.dtype.itemsize > 2 else np.dtype(np.float32)
        sums = np.add.reduceat(updates[order].astype(wide, copy=False), starts, axis=0)
        total[rows] = sums
        return total

    def scatter_along(self, shape: Shape, axis: int, indices: Any, updates: Any) -> Array:
        wide = updates.dtype if updates.dtype.itemsize > 2 else np.dtype(np.float32)
        total = np.zeros(shape, wide)
        grid = list(np.indices(indices.shape, sparse=True))
        grid[axis] = indices
        np.add.at(total, tuple(grid), updates.astype(wide, copy=False))
        return total.astype(updates.dtype, copy=False)


class TorchNamespace(_AtOnce):
    """torch on one device, under the array API's names."""

    adds_widely = False

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self.device = torch, device
        self.take_along_axis = lambda x, indices, axis: torch.take_along_dim(x, indices, axis)
        self.equal = torch.eq  # torch.equal compares whole tensors
        self.rint = torch.round
        self.moveaxis = torch.movedim  # torch.moveaxis has no rule for torch.vmap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def dtype(self, name: str) -> Any:
        return getattr(self._torch, name)

    def asarray(self, value: Any) -> Any:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return value.detach().to(self.device)
        if value.dtype.name == "bfloat16":  # NumPy's and torch's have the same bits
            bits = torch.from_numpy(value.view(np.int16).copy())
            return bits.view(torch.bfloat16).to(self.device)
        if not (value.flags.writeable and value.flags.c_contiguous):
            value = np.array(value, order="C")
        return torch.from_numpy(value).to(self.device)

    def to_numpy(self, value: Any) -> Array:
        return _torch_to_numpy(value)

    def info(self, value: Any) -> tuple[Shape, str]:
        return tuple(value.shape), str(value.dtype).removeprefix("torch.")

    def copy(self, value: Any) -> Any:
        return value.detach().clone(memory_format=self._torch.contiguous_format)

    def result(self, value: Any) -> Any:
        return value.contiguous()

    def astype(self, value: Any, dtype: Any, copy: bool = True) -> Any:
        return value.to(dtype)  # a tensor of another type is a copy; of the same, never written to

    def fused(self, name: str, *values: Any) -> None:
        return None

    def zeros(self, shape: Shape, dtype: Any) -> Any:
        return self._torch.zeros(shape, dtype=dtype, device=self.device)

    def sum(self, value: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        # torch sums over all axes where it is given none.
        return self._torch.sum(value, axis, keepdim=keepdims) if axis else value

    def total(self, value: Any, axis: tuple[int, ...]) -> Any:
        is_apple = self.device.type == "mps"  # which has no float64
        wide = value.dtype if is_apple else self._torch.float64
        return value.sum(axis, dtype=wide).to(value.dtype)

    def max(self, value: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        return self._torch.amax(value, axis, keepdim=keepdims) if axis else value

    def min(self, value: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        return self._torch.amin(value, axis, keepdim=keepdims) if axis else value

    def prod(self, value: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        return self._one_by_one(self._torch.prod, value, axis)

    def all(self, value: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        return self._one_by_one(self._torch.all, value, axis)

    def any(self, value: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        return self._one_by_one(self._torch.any, value, axis)

    def _one_by_one(self, reduce: Any, value: Any, axis: tuple[int, ...]) -> Any:
        """A reduction that torch has over one axis; the axes stay."""
        for one in axis:
            value = reduce(value, one, keepdim=True)
        return value

    def argsort(self, value: Any, axis: int) -> Any:
        return self._torch.argsort(value, dim=axis, stable=True)

    def permute_dims(self, value: Any, axes: tuple[int, ...]) -> Any:
        return value.permute(axes)

    def expand_dims(self, value: Any, axis: tuple[int, ...]) -> Any:
        for one in axis:
            value = value.unsqueeze(one)
        return value

    def flip(self, value: Any, axis: Sequence[int]) -> Any:
        return value.flip(list(axis))

    def take(self, value: Any, indices: Any, axis: int) -> Any:
        found = self._torch.index_select(value, axis, indices.reshape(-1).long())
        return found.reshape(value.shape[:axis] + indices.shape + value.shape[axis + 1 :])

    def put_ones(self, rows: Any, columns: Any, value: float) -> None:
        rows[self._arange(len(rows)), columns] = value

    def scatter_add(self, shape: Shape, indices: Any, updates: Any) -> Any:
        wide = self._wide(updates)
        total = self.zeros(shape, wide.dtype)
        if updates.is_cuda:  # index_add_ is atomic there; this one sorts, so its order is fixed
            total.index_put_((indices,), wide, accumulate=True)
        else:
            total.index_add_(0, indices, wide)
        return total.to(updates.dtype)

    def scatter_along(self, shape: Shape, axis: int, indices: Any, updates: Any) -> Any:
        wide = self._wide(updates)
        total = self.zeros(shape, wide.dtype)
        grid = list(self._torch.meshgrid(*map(self._arange, indices.shape), indexing="ij"))
        grid[axis] = indices
        return total.index_put_(tuple(grid), wide, accumulate=True).to(updates.dtype)

    def _wide(self, value: Any) -> Any:
        """In the type of sums: at least float32."""
        return value if value.dtype.itemsize > 2 else value.float()

    def _arange(self, size: int) -> Any:
        return self._torch.arange(size, device=self.device)


class JaxNamespace:
    """jax.numpy; what the cells and the pipeline call, and no more: no graph computes with it."""

    def __init__(self, jax: Any) -> None:
        self._jax, self._numpy = jax, jax.numpy
        self.sigmoid, self.relu = jax.nn.sigmoid, jax.nn.relu
        self.concat = jax.numpy.concatenate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._numpy, name)

    def dtype(self, name: str) -> Any:
        return self._numpy.dtype(name)

    def astype(self, value: Any, dtype: Any, copy: bool = True) -> Any:
        return value.astype(dtype)

    def total(self, value: Any, axis: tuple[int, ...]) -> Any:
        # Without jax_enable_x64 there is no float64.
        wide = self._jax.dtypes.canonicalize_dtype(np.float64)
        return value.sum(axis, dtype=wide).astype(value.dtype)

    def scan(self, step: Any, state: Any, inputs: Any, count: int, reverse: bool) -> Any:
        from .jax.versions import vary_alike  # here, where JAX is there

        leaves, tree = self._jax.tree.flatten((state, inputs))
        state, inputs = self._jax.tree.unflatten(tree, vary_alike(leaves))
        return self._jax.lax.scan(step, state, inputs, count, reverse)


NUMPY = NumPyNamespace()
_TORCH: dict[Any, TorchNamespace] = {}


def is_array(value: object) -> bool:
    """Whether a graph can be fed with it."""
    return is_plain_array(value) or is_torch_tensor(value)


def namespace_of(value: Any) -> Namespace:
    """The namespace of an array: its library and, in torch, its device."""
    if is_jax_array(value):
        return _jax_namespace()
    if not is_torch_tensor(value):
        return NUMPY
    known = _TORCH.get(value.device)
    # Threads may race here: all of them get the one that is kept.
    return known or _TORCH.setdefault(
        value.device, TorchNamespace(sys.modules["torch"], value.device)
    )


@lru_cache(maxsize=1)
def _jax_namespace() -> JaxNamespace:
    return JaxNamespace(sys.modules["jax"])


def allows_tf32(torch: Any) -> bool:
    """Whether products of float32 on a GPU may use TF32. torch 2.9 has two names for the setting,
    and refuses to read the older one after the newer has been set."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32 if precision is None else precision == "tf32")


def _torch_to_numpy(value: Any) -> Array:
    value = value.detach().cpu().contiguous()
    if str(value.dtype) == "torch.bfloat16":
        bits: Array = value.view(sys.modules["torch"].int16).numpy()
        return bits.view(float_dtype("bfloat16"))
    array: Array = value.numpy()
    return array
