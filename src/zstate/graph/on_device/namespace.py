"""torch on a device that nobody waits for: indices are checked there, and what has a kernel of its
own takes one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ...arrays import TorchNamespace
from ...errors import GraphError, OptionError, refusal
from ...types import Array, Shape

_PIECE = 8  # numbers of 16 bits in 16 bytes
_LARGE_PRODUCT = 2**28  # multiply-adds: in smaller products the copies cost more than they save


class Kernels(Protocol):
    """What a device computes in few launches; see :class:`~...cuda.graph_kernels.GraphKernels`."""

    def adam(self, tensors: Sequence[Any], scalars: Sequence[Any], withheld: Any) -> None: ...
    def squares(self, tensors: Sequence[Any]) -> Any: ...
    def narrow(self, tensors: Sequence[Any], dtype: str) -> Sequence[Any]: ...
    def scalars(self, inputs: Sequence[Any], steps: Sequence[tuple[int, int, int]]) -> Any: ...
    def store(self, pairs: Sequence[tuple[Any, Any]], withheld: Any) -> None: ...
    def cross_entropy(self, rows: Any, labels: Any) -> tuple[Any, Any]: ...
    def cross_entropy_gradient(self, factor: Any, soft_max: Any, labels: Any) -> Any: ...
    def add_rows(self, updates: Any, indices: Any, rows: int) -> Any: ...
    def within(self, indices: Any, size: int, number: int, withheld: Any) -> Any: ...
    def uniform(self, state: Any, shape: Shape, dtype: Any, low: float, high: float) -> Any: ...


class HostNeededError(GraphError):
    """A node needs the host while it runs, so no CUDA graph can hold it."""


class DeviceNamespace(TorchNamespace):
    """The namespace of one program on its device.

    Rejecting an index outside its axis at once would force a sync. The index is moved inside
    instead, and ``withheld`` keeps the number of the check that found it. From then on no variable
    changes until the program has raised an error.
    """

    adds_widely = True

    def __init__(self, torch: Any, device: Any, kernels: Kernels | None) -> None:
        super().__init__(torch, device)
        self.kernels = kernels
        self.withheld = torch.zeros((), dtype=torch.int32, device=device)
        self._checks: list[tuple[str, str, int]] = []
        self._inside: dict[tuple[int, int], tuple[Any, Any]] = {}  # of this run

    @property
    def has_checks(self) -> bool:
        """Whether a run so far had an index to check."""
        return bool(self._checks)

    def begin(self) -> None:
        """Forget what the run before has checked."""
        self._inside.clear()

    def refused(self, number: int) -> OptionError:
        """What the check of this number says."""
        operation, name, size = self._checks[number - 1]
        got = "an index outside, so no variable has changed since"
        return OptionError(refusal(operation, name, f"0 to {size - 1}", got))

    def is_capturing(self) -> bool:
        cuda = self._torch.cuda
        return self.device.type == "cuda" and bool(cuda.is_current_stream_capturing())

    def to_numpy(self, value: Any) -> Array:
        if self.is_capturing():
            raise HostNeededError("it computes on the host")
        return super().to_numpy(value)

    def within(self, indices: Any, size: int, operation: str, name: str) -> Any:
        if indices.numel() == 0:
            return indices
        if size == 0:
            raise OptionError(
                refusal(operation, name, "none, because the axis is empty", "indices")
            )
        known = self._inside.get((id(indices), size))
        if known is None:
            known = indices, self._moved_inside(indices, size, (operation, name, size))
            self._inside[id(indices), size] = (
                known  # keeps the indices alive, so that no other object gets their id
            )
        return known[1]

    def _moved_inside(self, indices: Any, size: int, check: tuple[str, str, int]) -> Any:
        if check not in self._checks:
            self._checks.append(check)
        number, torch = self._checks.index(check) + 1, self._torch
        if self.kernels is not None and indices.dtype in (torch.int32, torch.int64):
            return self.kernels.within(indices.contiguous(), size, number, self.withheld)
        wide = indices.long()
        inside = wide.clamp(0, size - 1)
        self.withheld.masked_fill_((inside != wide).any(), number)
        return inside

    def fused(self, name: str, *values: Any) -> Any:
        rows: dict[str, Any] = {
            "soft_max_cross_entropy": self._cross_entropy,
            "soft_max_cross_entropy_gradient": self._cross_entropy_gradient,
        }
        if self.kernels is None or name not in rows or not self._are_plain(values):
            return None
        return rows[name](*values)

    def _are_plain(self, values: Sequence[Any]) -> bool:
        kind = self._torch.float32
        return all(value.dtype == kind and value.numel() for value in values)

    def _cross_entropy(self, source: Any, labels: Any) -> tuple[Any, Any]:
        assert self.kernels is not None
        shape, classes = source.shape, source.shape[-1]
        rows, given = (each.contiguous().view(-1, classes) for each in (source, labels))
        loss, soft_max = self.kernels.cross_entropy(rows, given)
        return loss.view(shape[:-1]), soft_max.view(shape)

    def _cross_entropy_gradient(self, factor: Any, soft_max: Any, labels: Any) -> Any:
        assert self.kernels is not None
        classes = soft_max.shape[-1]
        rows, given = (each.contiguous().view(-1, classes) for each in (soft_max, labels))
        if factor.numel() not in (1, len(rows)):
            return None
        found = self.kernels.cross_entropy_gradient(factor.contiguous(), rows, given)
        return found.view(soft_max.shape)

    def uniform(self, state: Any, shape: Shape, dtype: Any, low: float, high: float) -> Any:
        if self.kernels is None:
            return None
        return self.kernels.uniform(state.contiguous(), shape, dtype, low, high)

    def matmul(self, a: Any, b: Any) -> Any:
        """The product. Large ones of 16 bits are padded with zeros to rows of whole 16 bytes, which
        the matrix units' kernels ask for."""
        multiply: Any = self._torch.matmul
        if a.dtype.itemsize != 2 or a.ndim != 2 or b.ndim != 2:
            return multiply(a, b)
        (rows, inner), columns = a.shape, b.shape[1]
        more_inner, more_columns = -inner % _PIECE, -columns % _PIECE
        if rows * inner * columns < _LARGE_PRODUCT or not (more_inner or more_columns):
            return multiply(a, b)
        pad = self._torch.nn.functional.pad
        if more_inner:
            a = pad(a, (0, more_inner))
        return multiply(a, pad(b, (0, more_columns, 0, more_inner)))[:, :columns]

    def put_ones(self, rows: Any, columns: Any, value: float) -> None:
        rows.scatter_(1, columns[:, None], value)

    def scatter_add(self, shape: Shape, indices: Any, updates: Any) -> Any:
        torch, count = self._torch, len(indices)
        is_served = updates.dtype in (torch.float32, torch.bfloat16, torch.float16)
        if self.kernels is not None and is_served and updates.numel():
            flat = updates.contiguous().view(count, -1)
            found = self.kernels.add_rows(flat, indices.contiguous(), shape[0])
            if found is not None:
                return found.view(shape)
        return super().scatter_add(shape, indices, updates)
