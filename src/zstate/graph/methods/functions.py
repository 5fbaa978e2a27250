"""More elementwise operations: rounding, roots, circular functions, logic, clamping."""

from __future__ import annotations

from collections.abc import Mapping

from ..ops.base import broadcast_shapes, require_float, require_same_type
from ..tensor import Tensor
from .arithmetic import Arithmetic
from .core import is_number, label_of


class Functions(Arithmetic):
    """Further elementwise methods."""

    def identity(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The tensor itself, under another name."""
        return self.apply("identity", (tensor,), name=name)

    def floor(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The largest integer not above x."""
        return self.apply("floor", (tensor,), name=name)

    def ceil(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The smallest integer not below x."""
        return self.apply("ceil", (tensor,), name=name)

    def truncate(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """x without its fraction."""
        return self.apply("truncate", (tensor,), name=name)

    def rint(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The nearest integer; halves round to even."""
        return self.apply("rint", (tensor,), name=name)

    def round(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The nearest integer; halves round away from 0."""
        whole = self.truncate(tensor)
        up = self.greater_than_or_equal_to(self.absolute(tensor - whole), 0.5)
        step = self.select(up, self.sign(tensor), 0.0)
        return self.addition(whole, step, name=name)

    def exponent_base2(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """2 to the power of x."""
        return self.apply("exponent_base2", (tensor,), name=name)

    def exponent_base10(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """10 to the power of x, for floats."""
        label = label_of("exponent_base10", name)
        require_float(label, "tensor", self.own(label, "tensor", tensor).info)
        return self.power(10.0, tensor, name=name)

    def logarithm_base2(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """log2 x."""
        return self.apply("logarithm_base2", (tensor,), name=name)

    def logarithm_base10(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """log10 x."""
        return self.apply("logarithm_base10", (tensor,), name=name)

    def reciprocal_square_root(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """1 / √x."""
        return self.reciprocal(self.square_root(tensor), name=name)

    def sin(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """sin x, in radians."""
        return self.apply("sin", (tensor,), name=name)

    def cos(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """cos x, in radians."""
        return self.apply("cos", (tensor,), name=name)

    def tan(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """tan x, in radians."""
        return self.apply("tan", (tensor,), name=name)

    def sinh(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The hyperbolic sine."""
        return self.apply("sinh", (tensor,), name=name)

    def cosh(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The hyperbolic cosine."""
        return self.apply("cosh", (tensor,), name=name)

    def asin(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The angle whose sine is x."""
        return self.apply("asin", (tensor,), name=name)

    def acos(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The angle whose cosine is x."""
        return self.apply("acos", (tensor,), name=name)

    def atan(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The angle whose tangent is x."""
        return self.apply("atan", (tensor,), name=name)

    def asinh(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The inverse of sinh."""
        return self.apply("asinh", (tensor,), name=name)

    def acosh(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The inverse of cosh, for x ≥ 1."""
        return self.apply("acosh", (tensor,), name=name)

    def atanh(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The inverse of tanh."""
        return self.apply("atanh", (tensor,), name=name)

    def modulo(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """The remainder of primary / secondary rounded towards 0, for floats; it has primary's
        sign.
        """
        return self.apply("modulo", (primary, secondary), name=name)

    def floor_modulo(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary - ⌊primary / secondary⌋ · secondary, for floats; 0 where secondary is 0."""
        return self.apply("floor_modulo", (primary, secondary), name=name)

    def division_no_nan(
        self, primary: Tensor | float, secondary: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """primary / secondary, and 0 where secondary is 0; so are both gradients there."""
        is_zero = self.equal(secondary, 0.0)
        whole = self.division(primary, self.select(is_zero, 1.0, secondary))
        return self.select(is_zero, 0.0, whole, name=name)

    def logical_and(self, primary: Tensor, secondary: Tensor, *, name: str | None = None) -> Tensor:
        """Whether both are true, for bools."""
        return self.apply("logical_and", (primary, secondary), name=name)

    def logical_or(self, primary: Tensor, secondary: Tensor, *, name: str | None = None) -> Tensor:
        """Whether one or both are true, for bools."""
        return self.apply("logical_or", (primary, secondary), name=name)

    def logical_xor(self, primary: Tensor, secondary: Tensor, *, name: str | None = None) -> Tensor:
        """Whether exactly one is true, for bools."""
        return self.apply("logical_xor", (primary, secondary), name=name)

    def logical_not(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """The opposite, for bools."""
        return self.apply("logical_not", (tensor,), name=name)

    def logical_nand(
        self, primary: Tensor, secondary: Tensor, *, name: str | None = None
    ) -> Tensor:
        """Whether not both are true, for bools."""
        return self.logical_not(self.logical_and(primary, secondary), name=name)

    def logical_nor(self, primary: Tensor, secondary: Tensor, *, name: str | None = None) -> Tensor:
        """Whether neither is true, for bools."""
        return self.logical_not(self.logical_or(primary, secondary), name=name)

    def logical_xnor(
        self, primary: Tensor, secondary: Tensor, *, name: str | None = None
    ) -> Tensor:
        """Whether both or neither are true, for bools."""
        return self.logical_not(self.logical_xor(primary, secondary), name=name)

    def is_nan(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """Whether x is NaN: bool."""
        return self.apply("is_nan", (tensor,), name=name)

    def is_finite(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """Whether x is a finite number: bool."""
        return self.apply("is_finite", (tensor,), name=name)

    def is_infinite(self, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """Whether x is infinite: bool."""
        return self.apply("is_infinite", (tensor,), name=name)

    def clamp(
        self,
        tensor: Tensor,
        minimum: Tensor | float,
        maximum: Tensor | float,
        *,
        name: str | None = None,
    ) -> Tensor:
        """x limited to minimum and maximum; if they cross, maximum. At a bound, x gets the
        gradient.
        """
        label = label_of("clamp", name)
        self.check_fit(label, {"tensor": tensor, "minimum": minimum, "maximum": maximum})
        return self.minimum(self.maximum(tensor, minimum), maximum, name=name)

    def leaky_relu(
        self, tensor: Tensor, alpha: Tensor | float, *, name: str | None = None
    ) -> Tensor:
        """x where it is positive, otherwise alpha · x."""
        self.check_fit(label_of("leaky_relu", name), {"tensor": tensor, "alpha": alpha})
        positive = self.greater_than(tensor, 0.0)
        return self.select(positive, tensor, self.multiplication(tensor, alpha), name=name)

    def check_fit(self, label: str, operands: Mapping[str, Tensor | float]) -> None:
        """Check that types agree and shapes broadcast, for the whole operation, before adding its
        nodes.
        """
        given = {key: t for key, t in operands.items() if not is_number(t)}
        infos = [self.own(label, key, tensor).info for key, tensor in given.items()]
        require_same_type(label, list(given), infos)
        broadcast_shapes(label, list(given), [info.shape for info in infos])
