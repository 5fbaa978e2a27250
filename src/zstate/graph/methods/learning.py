"""What training needs: softmax and its loss, indices, random numbers, variables, their updates."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import GraphError, OptionError, refusal
from ..ops import VARIABLE
from ..ops.random import first_state
from ..tensor import Node, Tensor
from .arithmetic import Arithmetic
from .core import checked_dtype, exact_number, real_number, whole_number, whole_numbers


class Learning(Arithmetic):
    """Losses, indexing, random numbers, variables, optimisers."""

    def soft_max(self, tensor: Tensor, *, axis: int, name: str | None = None) -> Tensor:
        """exp(tensor) / Σ exp(tensor) along an axis."""
        attributes = {"axis": whole_number("soft_max", "axis", axis)}
        return self.apply("soft_max", (tensor,), attributes, name)

    def soft_max_cross_entropy(
        self,
        source: Tensor,
        labels: Tensor,
        *,
        axis: int,
        reduction: str = "mean",
        name: str | None = None,
    ) -> Tensor:
        """-Σ labels · log softmax(source) along an axis.

        Args:
            source: logits, […,C,…] with C at ``axis``.
            labels: probabilities or one-hot rows, of the same shape and type.
            axis: the axis of the classes.
            reduction: "none" gives the shape without that axis; "sum" and "mean" give a scalar [].
                The mean is over all positions.
            name: a name for messages and prints.
        """
        attributes = {
            "axis": whole_number("soft_max_cross_entropy", "axis", axis),
            "reduction": reduction,
        }
        return self.apply("soft_max_cross_entropy", (source, labels), attributes, name)

    def one_hot(
        self,
        indices: Tensor,
        depth: int,
        *,
        axis: int = -1,
        dtype: str = "float32",
        on_value: float = 1.0,
        off_value: float = 0.0,
        name: str | None = None,
    ) -> Tensor:
        """``on_value`` at the index along a new axis of size ``depth``, ``off_value`` elsewhere."""
        attributes = {
            "depth": whole_number("one_hot", "depth", depth),
            "axis": whole_number("one_hot", "axis", axis),
            "dtype": checked_dtype("one_hot", dtype),
            "on_value": exact_number("one_hot", "on_value", on_value),
            "off_value": exact_number("one_hot", "off_value", off_value),
        }
        return self.apply("one_hot", (indices,), attributes, name)

    def gather(
        self, updates: Tensor, indices: Tensor, *, axis: int = 0, name: str | None = None
    ) -> Tensor:
        """The entries of ``updates`` at ``indices``; the indices' shape replaces the axis."""
        attributes = {"axis": whole_number("gather", "axis", axis)}
        return self.apply("gather", (updates, indices), attributes, name)

    def scatter(
        self,
        updates: Tensor,
        indices: Tensor,
        size: int,
        axis: int = 0,
        *,
        name: str | None = None,
    ) -> Tensor:
        """Zeros with ``size`` entries along an axis, each update added at its index: the
        gradient of :meth:`gather`. The order of summation is fixed."""
        attributes = {
            "size": whole_number("scatter", "size", size),
            "axis": whole_number("scatter", "axis", axis),
        }
        return self.apply("scatter", (updates, indices), attributes, name)

    def gather_along_axis(
        self, updates: Tensor, indices: Tensor, axis: int, *, name: str | None = None
    ) -> Tensor:
        """result[…,k,…] = updates[…,indices[…,k,…],…] along an axis; the indices' shape."""
        attributes = {"axis": whole_number("gather_along_axis", "axis", axis)}
        return self.apply("gather_along_axis", (updates, indices), attributes, name)

    def scatter_along_axis(
        self,
        updates: Tensor,
        indices: Tensor,
        size: int,
        axis: int,
        *,
        name: str | None = None,
    ) -> Tensor:
        """Zeros with ``size`` entries along an axis, each update added at its index along it."""
        attributes = {
            "size": whole_number("scatter_along_axis", "size", size),
            "axis": whole_number("scatter_along_axis", "axis", axis),
        }
        return self.apply("scatter_along_axis", (updates, indices), attributes, name)

    def random_philox_state(self, *, seed: int, name: str | None = None) -> Tensor:
        """A variable int64 [6] that holds a generator's state; equal seeds give equal numbers."""
        value = whole_number("random_philox_state", "seed", seed)
        if value < 0:
            raise OptionError(refusal("random_philox_state", "seed", "at least 0", str(value)))
        return self.variable(first_state(value), name=name)

    def random_uniform(
        self,
        shape: Sequence[int],
        state: Tensor,
        *,
        minimum: float = 0.0,
        maximum: float = 1.0,
        dtype: str = "float32",
        name: str | None = None,
    ) -> list[Tensor]:
        """[numbers, the next state]: uniform in minimum ≤ number < maximum.

        Assign the next state to the generator's variable, or the next run draws the same numbers.
        """
        return self._random("uniform", shape, state, (minimum, maximum), dtype, name)

    def random_normal(
        self,
        shape: Sequence[int],
        state: Tensor,
        *,
        mean: float = 0.0,
        standard_deviation: float = 1.0,
        dtype: str = "float32",
        name: str | None = None,
    ) -> list[Tensor]:
        """[numbers, the next state]: normally distributed."""
        return self._random("normal", shape, state, (mean, standard_deviation), dtype, name)

    def dropout(
        self, tensor: Tensor, rate: float, state: Tensor, *, name: str | None = None
    ) -> list[Tensor]:
        """[the tensor with each element 0 with probability ``rate``, otherwise divided by 1 - rate;
        the generator's next state]. The tensor's shape must be known."""
        part = real_number("dropout", "rate", rate)
        if not 0 <= part < 1:
            raise OptionError(refusal("dropout", "rate", "at least 0 and below 1", str(part)))
        shape = self.own("dropout", "tensor", tensor).shape
        sizes = whole_numbers("dropout", "tensor with a known shape", shape)
        dtype = tensor.dtype
        drawn, after = self.random_uniform(sizes, state, dtype=dtype)
        kept = self.cast(self.greater_than_or_equal_to(drawn, part), dtype)
        return [self.multiplication(tensor, kept * (1 / (1 - part)), name=name), after]

    def _random(
        self,
        distribution: str,
        shape: Sequence[int],
        state: Tensor,
        numbers: tuple[float, float],
        dtype: str,
        name: str | None,
    ) -> list[Tensor]:
        label = f"random_{distribution}"
        attributes = {
            "shape": whole_numbers(label, "shape", shape),
            "distribution": distribution,
            "first": real_number(label, "distribution", numbers[0]),
            "second": real_number(label, "distribution", numbers[1]),
            "dtype": checked_dtype(label, dtype),
        }
        return self.apply_many("random_tensor", (state,), attributes, name)

    def mean_over_processes(
        self, tensors: Sequence[Tensor], *, name: str | None = None
    ) -> list[Tensor]:
        """The mean of each tensor over all processes of torch.distributed's default group, in one
        message; without a group, the tensors themselves."""
        return self.apply_many("mean_over_processes", tensors, name=name)

    def read(self, variable: Tensor, *, name: str | None = None) -> Tensor:
        """The variable's value after the latest assign added before this call; without one, its
        value at the start of the run. A run that includes the read includes that assign."""
        node = self._variable("read", variable)
        return self.apply("read", (self._assigned.get(node.node, variable),), name=name)

    def assign(self, variable: Tensor, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """Store this value in the variable at the end of every run that includes the result, as a
        target, an operation or an input. If there are several assigns, the last one added counts. A
        run that fails changes no variable."""
        self._variable("assign", variable)
        result = self.apply("assign", (variable, tensor), name=name)
        self.note_assign(variable.node, result)
        return result

    def note_assign(self, variable: Node, result: Tensor) -> None:
        """Reads added from now on see this assign."""
        self._assigned[variable] = result

    def _variable(self, label: str, tensor: Tensor) -> Tensor:
        if self.own(label, "variable", tensor).node.op is not VARIABLE:
            got = f"the result of {tensor.node.op.name}"
            raise GraphError(refusal(label, "variable", "a variable", got))
        return tensor

    def stochastic_gradient_descent(
        self,
        learning_rate: Tensor | float,
        values: Tensor,
        gradient: Tensor,
        *,
        name: str | None = None,
    ) -> Tensor:
        """values - learning_rate · gradient; assign it to the variable."""
        tensors = (learning_rate, values, gradient)
        return self.apply("stochastic_gradient_descent", tensors, name=name)

    def adam(
        self,
        *,
        learning_rate: Tensor | float,
        beta1: Tensor | float,
        beta2: Tensor | float,
        epsilon: Tensor | float,
        beta1_power: Tensor | float,
        beta2_power: Tensor | float,
        values: Tensor,
        momentum: Tensor,
        velocity: Tensor,
        gradient: Tensor,
        maximum_velocity: Tensor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """[values, momentum, velocity] after one step of Adam, and maximum_velocity if passed.

        m = β1·m + (1-β1)·g, v = β2·v + (1-β2)·g², values - lr·√(1-β2^t)/(1-β1^t) · m/(√v + ε).
        The powers are β1^t and β2^t of this step, t from 1; assign the results to the variables.
        """
        rates = (learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power)
        tensors: list[Tensor | float] = [*rates, values, momentum, velocity, gradient]
        if maximum_velocity is not None:
            tensors.append(maximum_velocity)
        return self.apply_many("adam", tensors, name=name)
