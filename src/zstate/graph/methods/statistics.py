"""More operations over axes: reductions, variance, normalization, sorting, running sums, shapes."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError, refusal
from ...layout import TensorInfo, brackets
from ..ops.base import axis_of, check_size, require_float
from ..tensor import Tensor
from .core import label_of, real_number, truth, whole_number, whole_numbers
from .functions import Functions
from .learning import Learning
from .shaping import Shaping


class Statistics(Functions, Learning, Shaping):
    """The methods that reduce, normalize, sort and count."""

    def reduction_minimum(
        self, tensor: Tensor, *, axes: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """The minimum over axes, which keep size 1; equal minima share the gradient."""
        return self._reduced("reduction_minimum", tensor, axes, name)

    def reduction_product(
        self, tensor: Tensor, *, axes: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """The product over axes, which keep size 1; None means all."""
        return self._reduced("reduction_product", tensor, axes, name)

    def reduction_and(
        self, tensor: Tensor, *, axes: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """Whether all are true over axes, which keep size 1; for bools."""
        return self._reduced("reduction_and", tensor, axes, name)

    def reduction_or(
        self, tensor: Tensor, *, axes: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """Whether any is true over axes, which keep size 1; for bools."""
        return self._reduced("reduction_or", tensor, axes, name)

    def reduction_arg_minimum(
        self, tensor: Tensor, *, axis: int, name: str | None = None
    ) -> Tensor:
        """The index of the first minimum along an axis, which keeps size 1: int32."""
        attributes = {"axis": whole_number("reduction_arg_minimum", "axis", axis)}
        return self.apply("reduction_arg_minimum", (tensor,), attributes, name)

    def variance(
        self,
        tensor: Tensor,
        *,
        axes: Sequence[int] | None = None,
        mean: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """The mean of (tensor - mean)² over axes, which keep size 1; None means all.

        ``mean`` defaults to the tensor's own mean over these axes.
        """
        label = label_of("variance", name)
        require_float(label, "tensor", self.own(label, "tensor", tensor).info)
        if mean is None:
            mean = self.mean(tensor, axes=axes)
        self.check_fit(label, {"tensor": tensor, "mean": mean})
        return self.mean(self.square(tensor - mean), axes=axes, name=name)

    def normalization(
        self,
        tensor: Tensor,
        mean: Tensor,
        variance: Tensor,
        *,
        gamma: Tensor | None = None,
        beta: Tensor | None = None,
        epsilon: float = 0.0,
        name: str | None = None,
    ) -> Tensor:
        """gamma · (tensor - mean) / √(variance + epsilon) + beta; gamma defaults to 1 and beta to
        0.

        Gradients flow through mean and variance as through everything else. For batch or layer
        normalization, compute the two from the tensor; for fixed ones, feed them.
        """
        label = label_of("normalization", name)
        given = {"tensor": tensor, "mean": mean, "variance": variance}
        given |= {k: t for k, t in {"gamma": gamma, "beta": beta}.items() if t is not None}
        self.check_fit(label, given)
        require_float(label, "tensor", self.own(label, "tensor", tensor).info)
        root = self.square_root(variance + real_number(label, "epsilon", epsilon))
        result = (tensor - mean) / root
        if gamma is not None:
            result = result * gamma
        return self.identity(result if beta is None else result + beta, name=name)

    def arg_sort(
        self, tensor: Tensor, *, axis: int, descending: bool = False, name: str | None = None
    ) -> Tensor:
        """The indices that sort the elements along an axis in ascending, or descending, order:
        int32.

        Equal elements keep their order.
        """
        attributes = {
            "axis": whole_number("arg_sort", "axis", axis),
            "descending": truth("arg_sort", "descending", descending),
        }
        return self.apply("arg_sort", (tensor,), attributes, name)

    def sort(
        self, tensor: Tensor, *, axis: int, descending: bool = False, name: str | None = None
    ) -> Tensor:
        """The elements along an axis in ascending, or descending, order."""
        order = self.arg_sort(tensor, axis=axis, descending=descending)
        return self.gather_along_axis(tensor, order, axis, name=name)

    def top_k(
        self, tensor: Tensor, k: int, *, axis: int = -1, name: str | None = None
    ) -> list[Tensor]:
        """[the k largest values along an axis, largest first; their indices: int32].

        Equal values keep their order.
        """
        return self._extremes("top_k", tensor, k, axis, True, name)

    def bottom_k(
        self, tensor: Tensor, k: int, *, axis: int = -1, name: str | None = None
    ) -> list[Tensor]:
        """[the k smallest values along an axis, smallest first; their indices: int32]."""
        return self._extremes("bottom_k", tensor, k, axis, False, name)

    def cumulative_sum(
        self,
        tensor: Tensor,
        *,
        axis: int,
        exclusive: bool = False,
        reverse: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """The sum of the elements up to and including each one along an axis; ``exclusive`` leaves
        it out.

        ``reverse`` sums from the end.
        """
        label = label_of("cumulative_sum", name)
        place = whole_number("cumulative_sum", "axis", axis)
        rank = len(self.own(label, "tensor", tensor).shape)
        place = axis_of(label, "axis", place, rank)
        if reverse:
            tensor = self.reverse(tensor, axes=[place])
        if exclusive:
            ends = [None if axis != place else -1 for axis in range(rank)]
            whole = self.pad_tensor(tensor, [int(a == place) for a in range(rank)], [0] * rank)
            tensor = self.strided_slice(whole, [0] * rank, ends)
        total = self.apply("cumulative_sum", (tensor,), {"axis": place}, None if reverse else name)
        return self.reverse(total, axes=[place], name=name) if reverse else total

    def shape_of(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The tensor's sizes: int32 [rank]; the run fills in unknown ones."""
        rank = len(self.own(label_of("shape_of", name), "tensor", tensor).shape)
        sizes = {"sizes": tuple(f"0.{axis}" for axis in range(rank))}
        return self.cast(self.add_node_named("sizes", (tensor,), sizes), "int32", name=name)

    def tile(self, tensor: Tensor, multiplier: Sequence[int], *, name: str | None = None) -> Tensor:
        """The tensor repeated along every axis: multiplier[a] times along axis a."""
        label = label_of("tile", name)
        shape = self.own(label, "tensor", tensor).shape
        times = whole_numbers(label, "multiplier", multiplier)
        if len(times) != len(shape) or any(time < 1 for time in times):
            expected = f"{len(shape)} numbers of at least 1"
            raise ShapeError(refusal(label, "multiplier", expected, brackets(times)))
        sizes = [
            time if size is None else time * size for size, time in zip(shape, times, strict=True)
        ]
        check_size(label, TensorInfo(tuple(sizes), tensor.dtype))
        for axis, time in enumerate(times):
            if time > 1:
                tensor = self.concat_tensors([tensor] * time, axis=axis)
        return self.identity(tensor, name=name)

    def _reduced(
        self, op: str, tensor: Tensor, axes: Sequence[int] | None, name: str | None
    ) -> Tensor:
        places = None if axes is None else whole_numbers(op, "axes", axes)
        return self.apply(op, (tensor,), {"axes": places}, name)

    def _extremes(
        self, op: str, tensor: Tensor, k: int, axis: int, descending: bool, name: str | None
    ) -> list[Tensor]:
        label = label_of(op, name)
        shape = self.own(label, "tensor", tensor).shape
        place = axis_of(label, "axis", whole_number(label, "axis", axis), len(shape))
        count, size = whole_number(label, "k", k), shape[place]
        if count < 1 or (size is not None and count > size):
            expected = f"1 to the size of axis {place} of {brackets(shape)}"
            raise ShapeError(refusal(label, "k", expected, str(count)))
        order = self.arg_sort(tensor, axis=place, descending=descending)
        places = self.slice_tensor(order, place, 0, count)
        return [self.gather_along_axis(tensor, places, place, name=name), places]
