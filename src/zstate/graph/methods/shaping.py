"""Moving, splitting and joining; matrix products and reductions."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import DTypeError, ShapeError, refusal
from ...layout import brackets, describe
from ..ops.base import axis_of
from ..tensor import Tensor
from .core import Core, exact_number, label_of, listed, whole_number, whole_numbers


class Shaping(Core):
    """The methods that change shapes."""

    def matrix_multiplication(
        self, primary: Tensor, secondary: Tensor, *, name: str | None = None
    ) -> Tensor:
        """[…,n,k] @ […,k,m] = […,n,m]; the leading dimensions broadcast."""
        return self.apply("matrix_multiplication", (primary, secondary), name=name)

    def transpose(
        self, tensor: Tensor, permutation: Sequence[int], *, name: str | None = None
    ) -> Tensor:
        """The axes in the order of ``permutation``."""
        axes = whole_numbers("transpose", "permutation", permutation)
        return self.apply("transpose", (tensor,), {"permutation": axes}, name)

    def transpose_tensor(
        self, tensor: Tensor, dimension: int, with_dimension: int, *, name: str | None = None
    ) -> Tensor:
        """Two axes swapped; negative ones count from the end."""
        label = label_of("transpose_tensor", name)
        rank = len(self.own(label, "tensor", tensor).shape)
        axes = list(range(rank))
        first, second = (
            axis_of(label, what, whole_number(label, what, axis), rank)
            for what, axis in (("dimension", dimension), ("with_dimension", with_dimension))
        )
        axes[first], axes[second] = second, first
        return self.transpose(tensor, axes, name=name)

    def reshape(self, tensor: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
        """The same elements in another shape; one size may be -1, which is inferred."""
        attributes = {"shape": whole_numbers("reshape", "shape", shape)}
        return self.apply("reshape", (tensor,), attributes, name)

    def broadcast(self, tensor: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
        """The tensor repeated along axes of size 1 and along new leading axes."""
        attributes = {"shape": whole_numbers("broadcast", "shape", shape)}
        return self.apply("broadcast", (tensor,), attributes, name)

    def concat_tensors(
        self, tensors: Sequence[Tensor], *, axis: int, name: str | None = None
    ) -> Tensor:
        """The tensors joined along an axis."""
        attributes = {"axis": whole_number("concat_tensors", "axis", axis)}
        return self.apply(
            "concat_tensors", listed("concat_tensors", "tensors", tensors), attributes, name
        )

    def stack(self, tensors: Sequence[Tensor], *, axis: int, name: str | None = None) -> Tensor:
        """The tensors stacked along a new axis."""
        return self.apply(
            "stack",
            listed("stack", "tensors", tensors),
            {"axis": whole_number("stack", "axis", axis)},
            name,
        )

    def split(
        self,
        tensor: Tensor,
        split_sizes: Sequence[int] | int,
        *,
        axis: int,
        name: str | None = None,
    ) -> list[Tensor]:
        """The tensor split along an axis into pieces of these sizes, or into this many equal
        pieces.
        """
        label = label_of("split", name)
        shape = self.own(label, "tensor", tensor).shape
        place = whole_number(label, "axis", axis)
        if not isinstance(split_sizes, Sequence):
            split_sizes = whole_number(label, "split_sizes", split_sizes)
            axis_of(label, "axis", place, len(shape))
            size = shape[place]
            # No more parts than there are elements: an empty axis would divide into any number.
            if size is None or not 1 <= split_sizes <= max(size, 1) or size % split_sizes:
                expected = f"equal parts of axis {place} of {brackets(shape)}"
                raise ShapeError(refusal(label, "split_sizes", expected, str(split_sizes)))
            split_sizes = [size // split_sizes] * split_sizes
        sizes = whole_numbers(label, "split_sizes", split_sizes)
        return self.apply_many("split", (tensor,), {"sizes": sizes, "axis": place}, name)

    def slice_tensor(
        self, tensor: Tensor, dimension: int, start: int, length: int, *, name: str | None = None
    ) -> Tensor:
        """``length`` entries of one dimension from ``start``, which may count from the end."""
        label = label_of("slice_tensor", name)
        shape = self.own(label, "tensor", tensor).shape
        axis, first, count = (
            whole_number(label, what, value)
            for what, value in (("dimension", dimension), ("start", start), ("length", length))
        )
        axis = axis_of(label, "dimension", axis, len(shape))
        size = shape[axis]
        stop = first + count
        if count < 0 or (size is not None and not -size <= first <= stop <= size):
            expected = f"a window of dimension {axis} of {brackets(shape)}"
            raise ShapeError(refusal(label, "start and length", expected, f"{first} and {count}"))
        starts = [0] * len(shape)
        ends: list[int | None] = [None] * len(shape)
        starts[axis] = first
        ends[axis] = None if first < 0 and stop == 0 else stop
        return self.strided_slice(tensor, starts, ends, name=name)

    def strided_slice(
        self,
        tensor: Tensor,
        starts: Sequence[int],
        ends: Sequence[int | None],
        strides: Sequence[int] | None = None,
        *,
        name: str | None = None,
    ) -> Tensor:
        """tensor[starts:ends:strides] in every dimension, as Python slices; strides are at least
        1. MPSGraph's slice with starts, ends and strides."""
        label = label_of("strided_slice", name)
        first = whole_numbers(label, "starts", starts)
        if not isinstance(ends, list | tuple):
            raise DTypeError(refusal(label, "ends", "a sequence of integers", describe(ends)))
        last = (None if end is None else whole_number(label, "ends", end) for end in ends)
        steps = [1] * len(first) if strides is None else strides
        attributes = {
            "starts": first,
            "ends": tuple(last),
            "strides": whole_numbers(label, "strides", steps),
        }
        return self.apply("slice", (tensor,), attributes, name)

    def expand_dims(
        self, tensor: Tensor, *, axes: Sequence[int], name: str | None = None
    ) -> Tensor:
        """New axes of size 1 at these positions in the result."""
        attributes = {"axes": whole_numbers("expand_dims", "axes", axes)}
        return self.apply("expand_dims", (tensor,), attributes, name)

    def squeeze(
        self, tensor: Tensor, *, axes: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """The tensor without these axes of size 1; None means all axes known to have size 1."""
        shape = self.own("squeeze", "tensor", tensor).shape
        if axes is None:
            axes = [axis for axis, size in enumerate(shape) if size == 1]
        attributes = {"axes": whole_numbers("squeeze", "axes", axes)}
        return self.apply("squeeze", (tensor,), attributes, name)

    def reverse(
        self, tensor: Tensor, *, axes: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """Reversed along these axes; None means all."""
        attributes = {"axes": _axes("reverse", axes)}
        return self.apply("reverse", (tensor,), attributes, name)

    def pad_tensor(
        self,
        tensor: Tensor,
        left_padding: Sequence[int],
        right_padding: Sequence[int],
        *,
        padding_mode: str = "constant",
        constant_value: float = 0.0,
        name: str | None = None,
    ) -> Tensor:
        """The tensor with padding before and after every dimension.

        Args:
            tensor: of any shape.
            left_padding: how much to add before each dimension.
            right_padding: how much to add after each dimension.
            padding_mode: "constant" adds ``constant_value``, "zero" adds zeros; the others repeat
                elements of the tensor. Around [a,b,c], with 2 on each side: "reflect" mirrors
                around the edge element, c b [a b c] b a, at most size - 1; "symmetric" mirrors
                the edge element too, b a [a b c] c b, at most size; "clamp_to_edge" repeats it,
                a a [a b c] c c.
            constant_value: for "constant".
            name: a name for messages and prints.
        """
        label = label_of("pad_tensor", name)
        attributes = {
            "left": whole_numbers(label, "left_padding", left_padding),
            "right": whole_numbers(label, "right_padding", right_padding),
        }
        if padding_mode in ("constant", "zero"):
            value = constant_value if padding_mode == "constant" else 0.0
            number = exact_number(label, "constant_value", value)
            return self.apply("pad_tensor", (tensor,), {**attributes, "value": number}, name)
        return self.apply("pad_around", (tensor,), {**attributes, "mode": padding_mode}, name)

    def reduction_sum(
        self, tensor: Tensor, *, axes: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """The sum over axes, which keep size 1; None means all."""
        attributes = {"axes": _axes("reduction_sum", axes)}
        return self.apply("reduction_sum", (tensor,), attributes, name)

    def mean(
        self, tensor: Tensor, *, axes: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """The mean over axes, which keep size 1; None means all."""
        return self.apply("mean", (tensor,), {"axes": _axes("mean", axes)}, name)

    def reduction_maximum(
        self, tensor: Tensor, *, axes: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """The maximum over axes, which keep size 1; equal maxima share the gradient."""
        attributes = {"axes": _axes("reduction_maximum", axes)}
        return self.apply("reduction_maximum", (tensor,), attributes, name)

    def reduction_arg_maximum(
        self, tensor: Tensor, *, axis: int, name: str | None = None
    ) -> Tensor:
        """The index of the first maximum along an axis, which keeps size 1: int32."""
        attributes = {"axis": whole_number("reduction_arg_maximum", "axis", axis)}
        return self.apply("reduction_arg_maximum", (tensor,), attributes, name)


def _axes(label: str, axes: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if axes is None else whole_numbers(label, "axes", axes)
