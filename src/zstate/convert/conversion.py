"""load, save and facts: a framework's layers to zstate's and back, using its row of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import DTypeError, OptionError, refusal
from ..layout import DESCRIPTORS, describe
from ..types import Array
from . import blocks, names
from .layer import Layer, joined
from .objects import pieces
from .options import as_number, cannot, options, told
from .table import CELLS, FRAMEWORKS, GRU, LSTM, RNN, Framework
from .weights import Told, Weights

_INITIAL = ("init_state", "init_cell")


def load(weights: Any, source: str, cell: str | None = None, **facts: Any) -> Layer | list[Layer]:
    """Load a framework's layers as zstate's.

    Args:
        weights: a mapping of names to arrays, nested or not (NumPy's, torch's, JAX's, …), the
            framework's layer object, an ONNX model, or a list of these.
        source: "torch", "keras", "onnx", "flax", "mlx", "coreml", "tensorflow" (tf.keras of
            Keras 2) or "tensorflow1".
        cell: "single_gate_rnn" (or "rnn"), "lstm" or "gru"; None finds out from names and shapes.
        facts: what the arrays do not say, under the framework's names: ``nonlinearity="relu"``,
            ``recurrent_activation="tanh"``, ``linear_before_reset=1``. A layer object and the
            result of :func:`save` have their own. Other facts get the framework's defaults, except
            that for a GRU whose arrays fit both forms you must say which one it is.

    Returns:
        One Layer, or a list of Layers if there are several. Gates are in zstate's default order.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> weights = {"kernel": rng.normal(size=(3, 8)),
        ...            "recurrent_kernel": rng.normal(size=(2, 8)), "bias": rng.normal(size=8)}
        >>> layer = load(weights, source="keras")
        >>> layer.kind, layer.tensors["input_weight"].shape
        ('lstm', (8, 3))
    """
    row = _row("load", "source", source)
    if isinstance(cell, str):
        cell = RNN if cell == "rnn" else cell
    if cell is not None and (not isinstance(cell, str) or cell not in CELLS):
        raise OptionError(refusal("load", "cell", " or ".join(map(repr, CELLS)), repr(cell)))
    layers = []
    for piece in pieces(source, weights):
        for group in names.groups(source, piece.weights):
            kind = names.cell_of(source, group, cell or piece.cell)
            layers.append(_layer(source, row, kind, group, piece.facts | facts, piece.options))
    return layers[0] if len(layers) == 1 else layers


def save(layer: Layer | Sequence[Layer], target: str) -> Weights:
    """The arrays of one layer or several, under a framework's names.

    An option that the framework cannot express raises an OptionError that names it. The options
    that go with the arrays are :func:`facts`. The result has them too, as ``.facts``, so that
    :func:`load` returns the same layer.

    Example:
        >>> import zstate as zs
        >>> tensors = {"recurrent_weight": np.ones((6, 2)), "input_weight": np.ones((6, 3))}
        >>> layer = Layer("gru", zs.GRUDescriptor(), tensors)
        >>> {name: array.shape for name, array in save(layer, target="keras").items()}
        {'kernel': (3, 6), 'recurrent_kernel': (2, 6)}
    """
    row = _row("save", "target", target)
    layers = list(layer) if isinstance(layer, Iterable) else [layer]
    if not layers:
        raise OptionError(refusal("save", "layer", "at least one layer", "none"))
    for each in layers:
        _check(row, each, "save")
    if row.number:
        _check_stack(row, layers)
    arrays: dict[str, Array] = {}
    described = []
    for index, each in enumerate(layers):
        directions = [_encoded(row, each, k) for k in range(each.directions)]
        arrays |= names.written(target, each.kind, directions, index, len(layers) == 1)
        prefix = names.prefix(row, index, len(layers) == 1)
        described.append(Told(prefix, each.kind, told(row, each)))
    return Weights(arrays, target, described)


def facts(layer: Layer, target: str) -> dict[str, Any]:
    """The arguments that the framework's constructor needs for a layer's arrays to mean the same.

    ``load(save(layer, target), source=target, **facts(layer, target))`` returns the same layer.

    Example:
        >>> import zstate as zs
        >>> tensors = {"recurrent_weight": np.ones((6, 2)), "input_weight": np.ones((6, 3))}
        >>> facts(Layer("gru", zs.GRUDescriptor(), tensors), target="onnx")
        ... # doctest: +NORMALIZE_WHITESPACE
        {'hidden_size': 2, 'direction': 'forward', 'activations': ['Sigmoid', 'Tanh'],
         'linear_before_reset': 0}
    """
    row = _row("facts", "target", target)
    _check(row, layer, "facts")
    return told(row, layer)


def _row(operation: str, argument: str, name: str) -> Framework:
    if not isinstance(name, str) or name not in FRAMEWORKS:
        expected = f"one of {', '.join(FRAMEWORKS)}"
        raise OptionError(refusal(operation, argument, expected, repr(name)))
    return FRAMEWORKS[name]


def _layer(
    source: str,
    row: Framework,
    cell: str,
    group: names.Group,
    facts: Mapping[str, Any],
    known: Mapping[str, Any],
) -> Layer:
    layout = as_number(facts.get("layout") or 0, "layout")
    if layout not in (0, 1):
        raise OptionError(refusal("load", "layout", "0 or 1", repr(facts["layout"])))
    types = sorted({array.dtype.name for arrays in group.arrays for array in arrays.values()})
    if len(types) > 1:
        expected, got = "one float type in a layer", ", ".join(types)
        raise DTypeError(refusal("load", group.path or "weights", expected, got))
    directions = names.roles(source, cell, group, layout == 1)
    if len(directions) == 2 and cell not in row.bidirectional:
        raise OptionError(refusal("load", "weights", f"one direction of {cell}", "two"))
    has_bias = "bias" in directions[0]
    rows = None
    if row.bias[cell] == "rows" and has_bias:
        rows = "second" in directions[0]
    fields = options(row, cell, facts, len(directions), has_bias, rows)
    if cell == GRU and len(row.reset_after) > 1 and rows is None and row.reset_fact not in facts:
        values = "0 or 1" if row.listed else "False or True"
        expected = f"{values}: the arrays fit both forms of a GRU, so you must say which"
        raise OptionError(refusal("load", row.reset_fact, expected, "nothing"))
    if "peephole" in directions[0]:
        fields |= blocks.peephole_options(row)
    descriptor = DESCRIPTORS[cell](**(fields | dict(known)))
    parts = []
    for arrays in directions:
        tensors = blocks.decode(row, cell, arrays, descriptor, f"load from {source}")
        if cell == LSTM and row.forget_bias is not None:
            added = as_number(facts.get("forget_bias", row.forget_bias), "forget_bias")
            tensors = _with_forget_bias(tensors, added)
        # Zeros are what a missing initial state means.
        tensors |= {name: arrays[name] for name in _INITIAL if np.any(arrays.get(name, 0))}
        parts.append(tensors)
    for name in _INITIAL:
        if any(name in part for part in parts):
            for part, arrays in zip(parts, directions, strict=True):
                part[name] = arrays[name]
    layer = Layer(cell, descriptor, joined(parts))
    if as_number(facts.get("hidden_size", layer.hidden), "hidden_size") != layer.hidden:
        got = str(facts["hidden_size"])
        raise OptionError(refusal("load", "hidden_size", f"{layer.hidden}, as in R", got))
    return layer


def _with_forget_bias(tensors: dict[str, Array], added: float) -> dict[str, Array]:
    """TensorFlow 1 adds a constant to the forget gate at every step; gates in default order."""
    if added == 0:
        return tensors
    width = tensors["recurrent_weight"].shape[1]
    bias = tensors["bias"].copy()
    bias[width : 2 * width] += bias.dtype.type(added)
    return tensors | {"bias": bias}


def _check(row: Framework, layer: Layer, operation: str) -> None:
    """Raise an error that names what a framework cannot express."""
    if not isinstance(layer, Layer):
        raise DTypeError(refusal(operation, "layer", "a zstate.convert.Layer", describe(layer)))
    descriptor, tensors = layer.descriptor, layer.tensors
    if layer.kind not in row.activations:
        cannot(row, "cell", f"one of {', '.join(row.activations)}", layer.kind)
    if "input_weight" not in tensors:
        cannot(row, "input_weight", "an input weight", "none: the source is already projected")
    if "mask" in tensors:
        cannot(row, "mask", "no mask", "one")
    for name in _INITIAL:
        if name in tensors and name not in row.names[layer.kind]:
            cannot(row, name, "no initial state among the weights", "one")
    if "peephole" in tensors:
        _check_peephole(row, layer)
    if layer.directions == 2 and layer.kind not in row.bidirectional:
        cannot(row, "bidirectional", f"one direction of {layer.kind}", "two")
    if layer.directions == 1 and descriptor.reverse and not row.reverse:
        expected = "no reverse layer whose outputs are in processing order"
        cannot(row, "reverse", expected, "one")
    if layer.kind == GRU:
        if getattr(descriptor, "flip_z", False) != row.flip_z:
            cannot(row, "flip_z", f"flip_z={row.flip_z}", f"flip_z={not row.flip_z}")
        after = getattr(descriptor, "reset_after", False)
        if after not in row.reset_after:
            extra = " with a second bias (secondary_bias)" if "secondary_bias" in tensors else ""
            cannot(row, "reset_after", f"reset_after={not after}", f"{after}{extra}")
    told(row, layer)


def _check_peephole(row: Framework, layer: Layer) -> None:
    if not row.peephole or row.peephole_cell == "c[t-1]":  # zstate.torch's, not torch.nn's
        cannot(row, "peephole", "no peephole", "one")
    used = {
        gate
        for gate in "zo"
        for index in range(layer.directions)
        if np.any(blocks.gate(layer, "peephole", index, gate))
    }
    for name, value in blocks.peephole_options(row).items():
        if "o" in used and getattr(layer.descriptor, name) != value:
            cannot(row, name, str(value), str(not value))
    if "z" in used and "z" not in row.peephole:
        cannot(row, "peephole", "none on the cell gate", "one that is not zero")


def _check_stack(row: Framework, layers: list[Layer]) -> None:
    """torch.nn's layers of one module: one cell, one size, one set of options."""
    first = layers[0]
    for number, layer in enumerate(layers[1:], 1):
        one = f"{first.kind}, H = {first.hidden}, like layer 0"
        expected = f"layers of one module ({one}; take others one by one: zstate convert --only)"
        same = (
            layer.kind == first.kind
            and layer.hidden == first.hidden
            and layer.directions == first.directions
            and layer.inputs == first.hidden * first.directions
            and layer.descriptor.activations == first.descriptor.activations
            and _biased(layer) == _biased(first)
        )
        if not same:
            got = f"{layer.kind}, H = {layer.hidden}, I = {layer.inputs}"
            cannot(row, f"layer {number}", expected, got)


def _biased(layer: Layer) -> bool:
    return bool({"bias", "secondary_bias"} & set(layer.tensors))


def _encoded(row: Framework, layer: Layer, index: int) -> dict[str, Array]:
    tensors = {}
    for name in layer.tensors:
        array = layer.direction(name, index)
        assert array is not None
        tensors[name] = array
    initial = {name: tensors.pop(name) for name in _INITIAL if name in tensors}
    one = replace(layer.descriptor, bidirectional=False)
    return blocks.encode(row, layer.kind, tensors, one) | initial
