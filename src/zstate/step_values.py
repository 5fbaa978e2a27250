"""Values per step of cells from equations: further gates of x that no weight reaches.

A cell with ``steps="k"`` is one with an extra gate k, whose x is the value. So the source is
projected first, the values are appended, and R gets rows of zeros that nothing reads.
T time, N batch, H hidden units, G gates, K values per step, D directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .arrays import Namespace, namespace_of
from .pipeline import outer_sum, product
from .types import Value


class StepValues(NamedTuple):
    """A checked call of a cell with values per step; ``gates`` counts those of x and R alone."""

    names: tuple[str, ...]
    gates: int
    directions: int
    by_gate: tuple[str, ...] = ()  # the cell's parameters with a vector per gate

    def inner(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """The inputs of the cell with further gates, in the type of the arithmetic."""
        xp, kind = _arithmetic(given["source"])
        wide = {name: xp.astype(value, kind, copy=False) for name, value in given.items()}
        source, weight = wide["source"], wide.pop("input_weight", None)
        gates = source if weight is None else product(source, weight.T)
        bias = wide.pop("bias", None)
        if bias is not None:
            gates = gates + bias
        shape = (*gates.shape[:-1], gates.shape[-1] // self.gates)  # [T,N,D·H]
        values = [xp.broadcast_to(wide.pop(name), shape) for name in self.names]
        wide["source"] = self._joined(xp, gates, values)
        wide["recurrent_weight"] = self._longer(xp, wide["recurrent_weight"])
        for name in self.by_gate:
            if name in wide:
                wide[name] = self._longer_parameter(xp, wide[name])
        return wide

    def outer(self, given: Mapping[str, Value], found: Mapping[str, Value]) -> dict[str, Value]:
        """The gradients of the caller's inputs, from those of the inner call."""
        source = given["source"]
        xp, _ = _arithmetic(source)
        steps, batch = source.shape[:2]
        count = self.gates + len(self.names)
        hidden = found["source"].shape[-1] // (self.directions * count)
        split = found["source"].reshape((steps, batch, self.directions, count, hidden))
        flat = (steps, batch, self.directions * self.gates * hidden)
        gates = split[..., : self.gates, :].reshape(flat)
        results = {**found, "source": gates, "bias": xp.total(gates, (0, 1))}
        weight = given.get("input_weight")
        if weight is not None:
            results["source"] = product(gates, xp.astype(weight, gates.dtype))
            results["input_weight"] = outer_sum(gates, xp.astype(source, gates.dtype))
        rows = given["recurrent_weight"].shape[-2]
        results["recurrent_weight"] = found["recurrent_weight"][..., :rows, :]
        for k, name in enumerate(self.names):
            whole = split[..., self.gates + k, :].reshape((steps, batch, self.directions * hidden))
            results[name] = _summed(xp, whole, tuple(given[name].shape))
        return {
            name: xp.astype(results[name].reshape(value.shape), source.dtype)
            for name, value in given.items()
            if name in results
        }

    def _joined(self, xp: Namespace, gates: Value, values: list[Value]) -> Value:
        """[T,N,D·(G+K)·H]."""
        lead, width = gates.shape[:-1], gates.shape[-1] // (self.directions * self.gates)
        parts = [gates.reshape((*lead, self.directions, self.gates, width))]
        parts += [value.reshape((*lead, self.directions, 1, width)) for value in values]
        count = self.directions * (self.gates + len(values)) * width
        return xp.concat(parts, -2).reshape((*lead, count))

    def _longer(self, xp: Namespace, weight: Value) -> Value:
        """[…,(G+K)·d,d]."""
        *lead, rows, units = weight.shape
        zeros = xp.zeros((*lead, len(self.names) * units, units), weight.dtype)
        return xp.concat([weight.reshape((*lead, rows, units)), zeros], -2)

    def _longer_parameter(self, xp: Namespace, value: Value) -> Value:
        """[D·(G+K)·H]."""
        rows = value.reshape((self.directions, self.gates, -1))
        zeros = xp.zeros((self.directions, len(self.names), rows.shape[-1]), rows.dtype)
        return xp.concat([rows, zeros], -2).reshape((-1,))


def _arithmetic(source: Value) -> tuple[Namespace, Any]:
    """The library, and the type to compute in: float32 at least."""
    xp = namespace_of(source)
    wide = str(source.dtype).removeprefix("torch.") == "float64"
    return xp, xp.dtype("float64" if wide else "float32")


def _summed(xp: Namespace, gradient: Value, shape: tuple[int, ...]) -> Value:
    """The gradient of what was broadcast."""
    full = (*(1,) * (gradient.ndim - len(shape)), *shape)
    axes = tuple(k for k, size in enumerate(full) if size == 1 and gradient.shape[k] != 1)
    return (xp.total(gradient, axes) if axes else gradient).reshape(shape)
