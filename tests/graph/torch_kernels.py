"""The kernels of programs on a device, by plain torch operations, and NumPy for random
numbers: for tests without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zstate.graph.ops.random import draw

Tensor = torch.Tensor


class TorchKernels:
    """Computes what the CUDA kernels compute, and notes the names of those that were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def adam(self, tensors: Sequence[Any], scalars: Sequence[Any], withheld: Tensor) -> None:
        self.called.append("adam")
        allowed, rate, beta1, beta2, epsilon, power1, power2, scale = scalars
        if int(withheld) or not (allowed is None or allowed):
            return
        for values, m, v, largest, gradient in tensors:
            g = gradient.float() * (1.0 if scale is None else scale)
            m.lerp_(g, 1 - beta1)
            v.lerp_(g * g, 1 - beta2)
            below = v
            if largest is not None:
                below = largest.copy_(torch.maximum(largest, v))
            corrected = (m / (1 - power1)) / (below / (1 - power2)).sqrt()
            smaller = below.sqrt() / (
                below.sqrt() + epsilon
            )  # ε beside √v, not beside the quotient
            values.sub_(rate * torch.nan_to_num(corrected) * smaller)

    def squares(self, tensors: Sequence[Tensor]) -> Tensor:
        self.called.append("squares")
        return torch.stack([each.float().square().sum() for each in tensors])

    def narrow(self, tensors: Sequence[Tensor], dtype: str) -> list[Tensor]:
        self.called.append("narrow")
        return [each.to(getattr(torch, dtype)) for each in tensors]

    def scalars(self, inputs: Sequence[Tensor], steps: Sequence[tuple[int, int, int]]) -> Tensor:
        self.called.append("scalars")
        functions: list[Any] = [
            *(torch.add, torch.sub, torch.mul, torch.div, torch.minimum, torch.maximum),
            lambda a, _: a.sqrt(),
        ]
        values = [each.reshape(()) for each in inputs]
        for operation, a, b in steps:
            values.append(functions[operation](values[a], values[b]))
        return torch.stack(values[len(inputs) :])

    def store(self, pairs: Sequence[tuple[Tensor, Tensor]], withheld: Tensor) -> None:
        self.called.append("store")
        for to, value in pairs:
            assert value.is_contiguous()
            if not int(withheld):
                to.copy_(value)

    def cross_entropy(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.called.append("cross_entropy")
        return -(labels * rows.log_softmax(1)).sum(1), rows.softmax(1)

    def cross_entropy_gradient(self, factor: Tensor, soft_max: Tensor, labels: Tensor) -> Tensor:
        self.called.append("cross_entropy_gradient")
        return (soft_max * labels.sum(1, keepdim=True) - labels) * factor.reshape(-1, 1)

    def add_rows(self, updates: Tensor, indices: Tensor, rows: int) -> Tensor:
        self.called.append("add_rows")
        wide = updates.float()
        total = wide.new_zeros(rows, updates.shape[1]).index_add(0, indices, wide)
        return total.to(updates.dtype)

    def within(self, indices: Tensor, size: int, number: int, withheld: Tensor) -> Tensor:
        self.called.append("within")
        inside = indices.clamp(0, size - 1)
        if bool((inside != indices).any()):
            withheld.fill_(number)
        return inside

    def uniform(
        self, state: Tensor, shape: Sequence[int], dtype: torch.dtype, low: float, high: float
    ) -> tuple[Tensor, Tensor]:
        self.called.append("uniform")
        attributes = {"distribution": "uniform", "first": low, "second": high}
        attributes["dtype"] = "float64" if dtype == torch.float64 else "float32"
        values, after = draw(state.numpy(), tuple(shape), attributes)
        return torch.tensor(values).to(dtype), torch.from_numpy(after)
