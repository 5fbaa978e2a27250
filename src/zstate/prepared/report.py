"""How far low-bit weights are from float32 on the user's data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError, refusal
from ..layout import brackets, describe, is_torch_tensor
from ..types import Array


@dataclass(frozen=True)
class Report:
    """Errors of the output h [T,N,H] against float32 weights.

    largest, mean: of |h - h_float32|; size: the largest |h_float32|; agreement: the share of steps
    whose top class is the same, None without a projection; steps: T·N.
    """

    weights: str
    largest: float
    mean: float
    size: float
    agreement: float | None
    steps: int

    def __str__(self) -> str:
        text = (
            f"{self.weights} against float32 over {self.steps} steps: largest error "
            f"{self.largest:.2g}, mean {self.mean:.2g}, where |h| reaches {self.size:.2g}"
        )
        if self.agreement is None:
            return text
        return f"{text}; the top class agrees in {self.agreement:.1%} of them"


def compare(weights: str, exact: Array, found: Array, projection: Any) -> Report:
    """The report on two outputs [T,N,H]."""
    error = np.abs(found.astype(np.float64) - exact)
    agreement = None
    if projection is not None:
        weight, bias = _projection(projection, exact.shape[-1])
        best = [np.argmax(each @ weight.T + bias, axis=-1) for each in (exact, found)]
        agreement = float(np.mean(best[0] == best[1])) if best[0].size else 1.0
    return Report(
        weights,
        float(error.max(initial=0.0)),
        float(error.mean()) if error.size else 0.0,
        float(np.abs(exact).max(initial=0.0)),
        agreement,
        exact.shape[0] * exact.shape[1],
    )


def _projection(given: Any, width: int) -> tuple[Array, Any]:
    pair: Any = given if isinstance(given, tuple | list) and len(given) == 2 else (given, 0.0)
    weight, bias = (each.detach().numpy() if is_torch_tensor(each) else each for each in pair)
    if not isinstance(weight, np.ndarray):
        raise DTypeError(refusal("report", "projection", "an array", describe(given)))
    if weight.ndim != 2 or weight.shape[1] != width:
        expected = f"[classes,{width}]"
        raise ShapeError(refusal("report", "projection", expected, brackets(weight.shape)))
    return weight, bias
