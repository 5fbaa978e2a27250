"""What the selectors do that are not a single method of the graph.

Each function takes the graph and the selector's arguments, as ``operations.py`` names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import OptionError, ShapeError, refusal
from ..graph import Graph, Tensor
from ..graph.methods.core import whole_number, whole_numbers
from ..graph.ops import CONSTANT
from ..graph.ops.base import agree, axis_of, check_size
from ..graph.ops.random import first_state
from ..layout import TensorInfo, brackets
from .base import one_of
from .constants import DISTRIBUTIONS, type_name
from .descriptors import MPSGraphRandomOpDescriptor

Build = Callable[..., Any]

TENSORS = ("tensor", "gradient", "source", "mean", "variance", "labels")  # looked at here


def concat_two(g: Graph, first: Tensor, second: Tensor, axis: int, name: str | None) -> Tensor:
    return g.concat_tensors([first, second], axis=axis, name=name)


def concat_interleaved(
    g: Graph, tensors: Sequence[Tensor], axis: int, interleave: bool, name: str | None
) -> Tensor:
    if interleave:
        raise OptionError(refusal("concatTensors", "interleave", "False", "True"))
    return g.concat_tensors(tensors, axis=axis, name=name)


def masked_slice(
    g: Graph,
    tensor: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int],
    start_mask: int,
    end_mask: int,
    squeeze_mask: int,
    name: str | None,
) -> Tensor:
    """Bit k of a mask: start or end of axis k is that of the tensor; axis k, of one entry, goes."""
    axes = range(len(tensor.shape))
    for word, values in {"starts": starts, "ends": ends, "strides": strides}.items():
        if len(values) != len(axes):
            expected = f"one number for each of {len(axes)} dimensions"
            raise ShapeError(refusal("sliceTensor", word, expected, brackets(values)))
    lows = [0 if start_mask >> axis & 1 else starts[axis] for axis in axes]
    highs = [None if end_mask >> axis & 1 else ends[axis] for axis in axes]
    squeezed = [axis for axis in axes if squeeze_mask >> axis & 1]
    for axis in squeezed:
        highs[axis] = lows[axis] + 1 or None
    found = g.strided_slice(tensor, lows, highs, strides)
    return g.squeeze(found, axes=squeezed, name=name) if squeezed else g.identity(found, name=name)


def reshape_to(g: Graph, tensor: Tensor, shape: Tensor, name: str | None) -> Tensor:
    return g.identity(_to_sizes(g, "reshape", tensor, shape), name=name)


def broadcast_to(g: Graph, tensor: Tensor, shape: Tensor, name: str | None) -> Tensor:
    return g.identity(_to_sizes(g, "broadcast", tensor, shape), name=name)


def _to_sizes(g: Graph, op: str, tensor: Tensor, shape: Tensor) -> Tensor:
    """To sizes that are a constant or the shape of a tensor: no shape depends on values here."""
    node = g.own(op, "shapeTensor", shape).node
    source = node.inputs[0].node if node.op.name == "cast" else node
    if source.op is CONSTANT and len(shape.shape) == 1 and shape.dtype.startswith("int"):
        sizes = [int(size) for size in source.attributes["store"].value]
        return g.reshape(tensor, sizes) if op == "reshape" else g.broadcast(tensor, sizes)
    if source.op.name == "sizes":  # shapeOf, of what is not known yet
        return g.add_node_named(f"{op}_to", (tensor, *source.inputs), source.attributes)
    expected = "a constant [rank] of integers, or the result of shapeOf"
    raise OptionError(refusal(op, "shapeTensor", expected, repr(shape)))


def flatten(g: Graph, tensor: Tensor, axis: int, name: str | None) -> Tensor:
    """[the sizes before an axis multiplied, the rest multiplied]."""
    rank, place = len(tensor.shape), whole_number("flatten2D", "axis", axis)
    if not -rank <= place <= rank:
        raise ShapeError(refusal("flatten2D", "axis", f"an axis of {rank} dimensions", str(axis)))
    place = place + rank if place < 0 else place
    parts = tensor.shape[:place], tensor.shape[place:]
    sizes = [-1 if None in part else math.prod(size or 0 for size in part) for part in parts]
    return g.reshape(tensor, sizes, name=name)


def coordinate(g: Graph, axis: int, shape: Sequence[int], name: str | None) -> Tensor:
    """The place of each element along an axis: int32."""
    place = whole_number("coordinate", "axis", axis)
    place = place + len(shape) if place < 0 else place
    if not 0 <= place < len(shape) or any(size < 0 for size in shape):
        expected = "an axis of a shape of known sizes"
        raise ShapeError(refusal("coordinate", "axis", expected, f"{axis} of {brackets(shape)}"))
    check_size("coordinate", TensorInfo(tuple(shape), "int32"))
    along = np.arange(shape[place], dtype=np.int32)
    along = along.reshape([-1 if each == place else 1 for each in range(len(shape))])
    return g.identity(g.constant(np.broadcast_to(along, tuple(shape))), name=name)


def gather(
    g: Graph, updates: Tensor, indices: Tensor, axis: int, batch_dimensions: int, name: str | None
) -> Tensor:
    if batch_dimensions != 0:
        raise OptionError(refusal("gather", "batchDimensions", "0", repr(batch_dimensions)))
    return g.gather(updates, indices, axis=axis, name=name)


def _scattered(method: str) -> Build:
    """A method of the graph for Apple's interface, which takes the whole shape of the result."""

    def build(
        g: Graph,
        updates: Tensor,
        indices: Tensor,
        shape: Sequence[int],
        axis: int,
        mode: str,  # "add"
        name: str | None,
    ) -> Tensor:
        size = shape[axis_of("scatter", "axis", axis, len(shape))]
        found: Tensor = getattr(g, method)(updates, indices, size, axis, name=name)
        if list(found.shape) != list(shape):
            raise ShapeError(refusal(method, "shape", brackets(found.shape), brackets(shape)))
        return found

    build.__name__ = method
    return build


scatter = _scattered("scatter")
scatter_along_axis = _scattered("scatter_along_axis")


def adam_at_rate(g: Graph, learning_rate: Any, **others: Any) -> list[Tensor]:
    """The rate has its correction for the first steps already."""
    return g.adam(learning_rate=learning_rate, beta1_power=0.0, beta2_power=0.0, **others)


# random numbers


def random_with_state(
    g: Graph,
    shape: Sequence[int],
    descriptor: Any,
    state: Tensor,
    name: str | None,
) -> list[Tensor]:
    one_of("random_tensor", "descriptor", MPSGraphRandomOpDescriptor, descriptor)
    dtype = type_name("random_tensor", descriptor.dataType())
    if DISTRIBUTIONS[descriptor.distribution()] == "uniform":
        low, high = descriptor.min(), descriptor.max()
        return g.random_uniform(shape, state, minimum=low, maximum=high, dtype=dtype, name=name)
    mean, deviation = descriptor.mean(), descriptor.standardDeviation()
    return g.random_normal(
        shape, state, mean=mean, standard_deviation=deviation, dtype=dtype, name=name
    )


def _state(g: Graph, seed: int | None) -> Tensor:
    """The state to draw from: with a seed, the same in every run, as documented.

    Without one, a generator of its own, which advances with every run. It begins with the
    number of nodes before it: the same graph, built again, draws the same.
    """
    if seed is not None:
        number = whole_number("random", "seed", seed)
        if number < 0:
            raise OptionError(refusal("random", "seed", "at least 0", str(number)))
        return g.constant(first_state(number))
    state = g.random_philox_state(seed=len(g.nodes))
    # The last word counts the draws. As an input of the draw the assign is part of the run.
    return g.assign(state, g.addition(state, g.constant(np.array([0, 0, 0, 0, 0, 1], np.int64))))


def random_uniform_tensor(
    g: Graph, shape: Sequence[int], name: str | None, seed: int | None = None
) -> Tensor:
    return g.random_uniform(shape, _state(g, seed), name=name)[0]


def random_tensor(
    g: Graph, shape: Sequence[int], descriptor: Any, name: str | None, seed: int | None = None
) -> Tensor:
    return random_with_state(g, shape, descriptor, _state(g, seed), name)[0]


def dropout(g: Graph, tensor: Tensor, rate: Tensor | float, name: str | None) -> Tensor:
    if not isinstance(rate, Tensor):
        return g.dropout(tensor, rate, _state(g, None), name=name)[0]
    g.check_fit("dropout", {"tensor": tensor, "rate": rate})
    sizes = whole_numbers("dropout", "tensor with a known shape", tensor.shape)
    drawn, _ = g.random_uniform(sizes, _state(g, None), dtype=tensor.dtype)
    kept = g.cast(g.greater_than_or_equal_to(drawn, rate), tensor.dtype)
    return g.multiplication(tensor, kept / (1.0 - rate), name=name)


# gradient operations


def gradient_of(label: str, function: Callable[..., Tensor]) -> Build:
    """The gradient of the source of a function of (graph, source, options), given its result's."""

    def build(
        g: Graph, gradient: Tensor, source: Tensor, name: str | None, **options: Any
    ) -> Tensor:
        # A node of its own, so that nothing but the function depends on it.
        point = g.identity(source)
        result = function(g, point, **options)
        if result.shape == () and gradient.shape == (1,):  # a scalar in another form
            gradient = g.reshape(gradient, ())
        if not agree(result.shape, gradient.shape):
            expected, got = brackets(result.shape), brackets(gradient.shape)
            raise ShapeError(refusal(label, "gradient", expected, got))
        found = g.gradients(g.reduction_sum(result * gradient), [point])[point]
        return g.identity(found, name=name)

    build.__name__ = label
    return build


relu_gradient = gradient_of("reLUGradient", Graph.relu)
sigmoid_gradient = gradient_of("sigmoidGradient", Graph.sigmoid)
soft_max_gradient = gradient_of("softMaxGradient", Graph.soft_max)
leaky_relu_gradient = gradient_of("leakyReLUGradient", Graph.leaky_relu)
soft_max_cross_entropy_gradient = gradient_of(
    "softMaxCrossEntropyGradient", Graph.soft_max_cross_entropy
)
top_k_gradient = gradient_of("topKGradient", lambda g, x, **options: g.top_k(x, **options)[0])


def normalization_gamma_gradient(
    g: Graph,
    gradient: Tensor,
    source: Tensor,
    mean: Tensor,
    variance: Tensor,
    axes: Sequence[int],
    epsilon: float,
    name: str | None,
) -> Tensor:
    g.check_fit("normalizationGammaGradient", {"source": source, "gradient": gradient})
    normal = g.normalization(source, mean, variance, epsilon=epsilon)
    return g.reduction_sum(gradient * normal, axes=axes, name=name)


def normalization_beta_gradient(
    g: Graph, gradient: Tensor, source: Tensor, axes: Sequence[int], name: str | None
) -> Tensor:
    g.check_fit("normalizationBetaGradient", {"source": source, "gradient": gradient})
    return g.reduction_sum(gradient, axes=axes, name=name)


def normalization_gradient(
    g: Graph,
    gradient: Tensor,
    source: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None,
    gamma_gradient: Tensor | None,
    beta_gradient: Tensor | None,
    axes: Sequence[int],
    epsilon: float,
    name: str | None,
) -> Tensor:
    """Through the mean and the variance too, which are the source's over the axes.

    The gradients of gamma and beta would save two sums, and only where gamma does not change
    along the axes: they are not used.
    """
    given = {"source": source, "gradient": gradient}
    g.check_fit("normalizationGradient", given | ({} if gamma is None else {"gamma": gamma}))
    normal = g.normalization(source, mean, variance, epsilon=epsilon)
    if gamma is not None:
        gradient = gradient * gamma
    rest = gradient - g.mean(gradient, axes=axes) - normal * g.mean(gradient * normal, axes=axes)
    return g.division(rest, g.square_root(variance + epsilon), name=name)
