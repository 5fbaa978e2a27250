"""Elementwise arithmetic, comparison, select, functions and cast.

Shapes broadcast as in NumPy; the types must be the same. A number becomes a constant of the other
tensor's type.
"""

from __future__ import annotations

from ..ops import CONSTANT
from ..ops.elementwise import check_exponent
from ..tensor import Tensor
from .core import Core, checked_dtype, label_of


class Arithmetic(Core):
    """The elementwise methods."""

    def addition(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary + secondary."""
        return self.apply("addition", (primary, secondary), name=name)

    def subtraction(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary - secondary."""
        return self.apply("subtraction", (primary, secondary), name=name)

    def multiplication(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary · secondary."""
        return self.apply("multiplication", (primary, secondary), name=name)

    def division(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary / secondary, for floats."""
        return self.apply("division", (primary, secondary), name=name)

    def power(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary to the power of secondary, which must be at least 0 for integers."""
        result = self.apply("power", (primary, secondary), name=name)
        exponent = result.node.inputs[1].node
        if exponent.op is CONSTANT and result.dtype.startswith("int"):
            check_exponent(label_of("power", name), exponent.attributes["store"].value)
        return result

    def maximum(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """The larger of the two; if they are equal, primary gets the gradient."""
        return self.apply("maximum", (primary, secondary), name=name)

    def minimum(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """The smaller of the two; if they are equal, primary gets the gradient."""
        return self.apply("minimum", (primary, secondary), name=name)

    def equal(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """Whether the two are equal: bool."""
        return self.apply("equal", (primary, secondary), name=name)

    def not_equal(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """Whether they differ: bool."""
        return self.apply("not_equal", (primary, secondary), name=name)

    def less_than(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary < secondary: bool."""
        return self.apply("less_than", (primary, secondary), name=name)

    def less_than_or_equal_to(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary ≤ secondary: bool."""
        return self.apply("less_than_or_equal_to", (primary, secondary), name=name)

    def greater_than(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary > secondary: bool."""
        return self.apply("greater_than", (primary, secondary), name=name)

    def greater_than_or_equal_to(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary ≥ secondary: bool."""
        return self.apply("greater_than_or_equal_to", (primary, secondary), name=name)

    def select(
        self,
        predicate: Tensor,
        true_tensor: Tensor | float,
        false_tensor: Tensor | float,
        *,
        name: str | None = None,
    ) -> Tensor:
        """true_tensor where predicate (bool) is true, else false_tensor."""
        return self.apply("select", (predicate, true_tensor, false_tensor), name=name)

    def negative(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """-tensor."""
        return self.apply("negative", (tensor,), name=name)

    def absolute(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """|tensor|; its derivative at 0 is 0."""
        return self.apply("absolute", (tensor,), name=name)

    def sign(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """-1, 0 or 1; its derivative is 0."""
        return self.apply("sign", (tensor,), name=name)

    def square(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """tensor²."""
        return self.apply("square", (tensor,), name=name)

    def exponent(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """e to the power of tensor."""
        return self.apply("exponent", (tensor,), name=name)

    def logarithm(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The natural logarithm."""
        return self.apply("logarithm", (tensor,), name=name)

    def square_root(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """√tensor."""
        return self.apply("square_root", (tensor,), name=name)

    def reciprocal(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """1 / tensor."""
        return self.apply("reciprocal", (tensor,), name=name)

    def tanh(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The hyperbolic tangent."""
        return self.apply("tanh", (tensor,), name=name)

    def sigmoid(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """1 / (1 + exp(-tensor))."""
        return self.apply("sigmoid", (tensor,), name=name)

    def relu(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """max(tensor, 0); its derivative at 0 is 0."""
        return self.apply("relu", (tensor,), name=name)

    def cast(self, tensor: Tensor, dtype: str, *, name: str | None = None) -> Tensor:
        """The tensor in another type; its gradient is cast back, and stops at integers."""
        attributes = {"dtype": checked_dtype("cast", dtype)}
        return self.apply("cast", (tensor,), attributes, name)
