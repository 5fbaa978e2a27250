"""What ``load`` takes: mappings, and the layer objects of each framework, read without importing
any: by their methods and the names of their classes.

Every reader gives the arrays of a layer by name, and the facts that the object tells.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from ..descriptors import Descriptor
from ..errors import DTypeError, OptionError, refusal
from ..layout import describe, is_torch_tensor
from ..types import FLOAT_NAMES, Array, float_dtype
from .table import FRAMEWORKS, GRU, LSTM, RNN
from .weights import Weights


@dataclass
class Piece:
    """Arrays that belong together, and what is known of them."""

    weights: dict[str, Array]
    facts: dict[str, Any] = field(default_factory=dict)
    cell: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # fields of the descriptor


def pieces(source: str, weights: Any) -> list[Piece]:
    """The layers of whatever ``load`` was given."""
    if isinstance(weights, Piece):
        return [weights]
    if isinstance(weights, list | tuple):
        return [piece for each in weights for piece in pieces(source, each)]
    if isinstance(weights, Weights):
        separator = FRAMEWORKS[source].separator
        return [
            Piece(flat(own, separator), told.facts, told.cell)
            for told, own in weights.parts(source)
        ]
    # A module of MLX is a mapping too.
    if isinstance(weights, Mapping) and not callable(getattr(weights, "parameters", None)):
        if source == "flax":
            weights = _without_rngs(weights)
        return [Piece(flat(weights, FRAMEWORKS[source].separator))]
    if isinstance(weights, str | PathLike):
        expected = "a layer or its arrays (`zstate convert` reads files)"
        raise DTypeError(refusal("load", "weights", expected, repr(str(weights))))
    found = _READERS[source](weights) if source in _READERS else None
    if found is None:
        expected = f"a mapping of names to arrays, or a layer of {FRAMEWORKS[source].title}"
        raise DTypeError(refusal("load", "weights", expected, describe(weights)))
    return found


def flat(weights: Mapping[str, Any], separator: str) -> dict[str, Array]:
    """A nested mapping as one of paths to arrays."""
    return {name: as_array(name, value) for name, value in by_path(weights, separator).items()}


def by_path(weights: Any, separator: str) -> dict[str, Any]:
    """What a nested mapping holds, by the path to it; lists count their entries."""
    found: dict[str, Any] = {}
    for name, value in _leaves(weights, separator, ""):
        if name in found:
            raise OptionError(f"[load] {name}: duplicate array name")
        found[name] = value
    return found


def _leaves(nested: Any, separator: str, path: str) -> Iterator[tuple[str, Any]]:
    for key, value in nested.items() if isinstance(nested, Mapping) else enumerate(nested):
        if isinstance(value, Mapping | list | tuple):
            yield from _leaves(value, separator, f"{path}{key}{separator}")
        else:
            yield f"{path}{key}", value


def as_array(name: str, value: Any) -> Array:
    """A copy of any framework's array, as NumPy's."""
    if is_torch_tensor(value):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # NumPy cannot read it
            bits = value.contiguous().view(sys.modules["torch"].int16).numpy()
            return np.array(bits).view(float_dtype("bfloat16"))
    if not isinstance(value, np.ndarray) and callable(getattr(value, "numpy", None)):
        value = value.numpy()
    try:
        array = np.array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DTypeError(refusal("load", name, "an array", describe(value))) from error
    if array.dtype.name not in FLOAT_NAMES:
        one_of = "one of " + ", ".join(FLOAT_NAMES)
        raise DTypeError(refusal("load", name, one_of, array.dtype.name))
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _class_of(layer: Any, *packages: str) -> str:
    """The name of a layer's class, with its module if that is none of these packages'.

    A class of the same name elsewhere, or one derived, may compute something else.
    """
    kind = type(layer)
    if kind.__module__.split(".")[0] in packages:
        return kind.__name__
    return f"{kind.__module__}.{kind.__name__}"


# Fields of a descriptor that say how a call runs and how its arrays lie, not what a layer computes.
_NOT_THE_LAYERS = frozenset(
    "reverse bidirectional training produce_cell forget_gate_last reset_gate_first".split()
)

# What torch, MLX and ONNX call the cells.
CELLS = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}
_TORCH = CELLS | {f"{name}Cell": cell for name, cell in CELLS.items()}


def _torch(module: Any) -> list[Piece] | None:
    """Modules of torch.nn and zstate.torch, alone or inside others that have no parameters."""
    if not callable(getattr(module, "named_modules", None)):
        return None
    found = []
    for path, part in module.named_modules():
        ours = type(part).__module__.startswith("zstate.torch.")
        known = ours or type(part).__module__.startswith("torch.nn.modules.")
        kind = _TORCH.get(type(part).__name__) if known else None
        where = f"{path or 'the model'} ({type(part).__name__})"
        # Of zstate's own, packed layers have no parameters.
        if kind is None and (part._parameters or ours or type(part).__name__ in _TORCH):
            expected = "only recurrent modules of torch.nn or zstate.torch"
            raise OptionError(refusal("load", "weights", expected, where))
        if kind is None:
            continue
        if getattr(part, "changes", None) is not None:
            expected = "layers without zoneout and clip, which no other format has"
            raise OptionError(refusal("load", "weights", expected, where))
        facts, options = {}, {}
        told = getattr(part, "descriptor", getattr(part, "_descriptor", None))
        if isinstance(told, Descriptor):  # zstate.torch's own options
            names = {each.name for each in fields(told)} - _NOT_THE_LAYERS  # type: ignore[arg-type]
            options = {name: getattr(told, name) for name in names}
        elif kind == RNN:
            facts["nonlinearity"] = part.nonlinearity
        found.append(Piece(flat(part.state_dict(), "."), facts, kind, options))
    if not found:
        expected = "recurrent modules of torch.nn or zstate.torch"
        raise OptionError(refusal("load", "weights", expected, f"none in {type(module).__name__}"))
    return found


# PeepholeLSTMCell is an experimental cell of Keras 2.
KERAS_CELLS = {"SimpleRNN": RNN, "LSTM": LSTM, "PeepholeLSTM": LSTM, "GRU": GRU}
_KERAS_PACKAGES = ("keras", "tf_keras", "tensorflow")
_KERAS_FACTS = ("activation", "recurrent_activation", "use_bias", "reset_after", "go_backwards")
_Known = tuple[str, dict[str, Any]]  # a cell and its facts


def keras_facts(class_name: str, config: Mapping[str, Any]) -> _Known:
    """The cell and the facts of a Keras layer's configuration."""
    cell = KERAS_CELLS.get(class_name.removesuffix("Cell"))
    if cell is None:
        expected = "SimpleRNN, LSTM, GRU, one of their cells, or Bidirectional"
        raise OptionError(refusal("load", "weights", expected, class_name))
    known = {name: config[name] for name in _KERAS_FACTS if name in config}
    return cell, known


def keras_both(forward: _Known, backward: _Known, merge_mode: Any) -> _Known:
    """The cell and the facts of a Bidirectional from those of its two layers."""
    if forward[1].pop("go_backwards", False) or not backward[1].pop("go_backwards", True):
        expected = "a forward layer that runs forward and a backward layer that runs backward"
        raise OptionError(refusal("load", "Bidirectional", expected, "go_backwards set otherwise"))
    if forward != backward:
        expected = "the same options in both directions"
        raise OptionError(refusal("load", "backward_layer", expected, str(backward[1])))
    return forward[0], forward[1] | {"merge_mode": merge_mode}


def _keras(version: int, layer: Any) -> list[Piece] | None:
    if not callable(getattr(layer, "get_config", None)):
        return None
    if not layer.weights:
        raise OptionError(refusal("load", "weights", "a built layer", "an unbuilt one"))
    # Their hard sigmoids differ, so the two must not be taken for each other.
    found = 3 if hasattr(layer.weights[0], "path") else 2
    if found != version:
        other = "keras" if found == 3 else "tensorflow"
        got = f"one from Keras {found}, which is source={other!r}"
        raise OptionError(refusal("load", "weights", f"a layer of Keras {version}", got))
    name = _class_of(layer, *_KERAS_PACKAGES)
    if hasattr(layer, "get_layer"):
        expected = "layers of a model: model.get_layer(…), or a list of them"
        raise OptionError(refusal("load", "weights", expected, f"the whole model ({name})"))
    if name == "Bidirectional":
        both = [layer.forward_layer, layer.backward_layer]
        weights: dict[str, Array] = {}
        told = []
        for mark, each in zip(("forward", "backward"), both, strict=True):
            told.append(keras_facts(_class_of(each, *_KERAS_PACKAGES), each.get_config()))
            weights |= {f"{mark}/{key}": value for key, value in _keras_arrays(each).items()}
        cell, facts = keras_both(told[0], told[1], layer.merge_mode)
        return [Piece(weights, facts, cell)]
    backwards = {}
    if name == "RNN":
        backwards = {"go_backwards": layer.get_config().get("go_backwards", False)}
        layer = layer.cell
    cell, facts = keras_facts(_class_of(layer, *_KERAS_PACKAGES), layer.get_config())
    return [Piece(_keras_arrays(layer), facts | backwards, cell)]


def _keras_arrays(layer: Any) -> dict[str, Array]:
    names = [weight.name.split("/")[-1].split(":")[0] for weight in layer.weights]
    return {
        name: as_array(name, value)
        for name, value in zip(names, layer.get_weights(), strict=True)
        if name != "seed_generator_state"
    }


def _mlx(module: Any) -> list[Piece] | None:
    if not callable(getattr(module, "parameters", None)):
        return None
    name = _class_of(module, "mlx")
    cell = CELLS.get(name)
    if cell is None:
        raise OptionError(refusal("load", "weights", "nn.RNN, nn.LSTM or nn.GRU", name))
    facts = {"nonlinearity": module.nonlinearity} if cell == RNN else {}
    return [Piece(flat(module.parameters(), "."), facts, cell)]


def _without_rngs(weights: Mapping[str, Any]) -> dict[str, Any]:
    """nnx.state of a model has its random streams among the parameters."""
    return {
        key: _without_rngs(value) if isinstance(value, Mapping) else value
        for key, value in weights.items()
        if key != "rngs"
    }


_FLAX = {"SimpleCell": RNN, "LSTMCell": LSTM, "OptimizedLSTMCell": LSTM, "GRUCell": GRU}
_FLAX_FACTS = ("activation_fn", "gate_fn", "residual")


def _flax(module: Any) -> list[Piece] | None:
    """A cell of flax.nnx, or its RNN or Bidirectional around cells; linen's hold no arrays."""
    if not type(module).__module__.startswith("flax.nnx."):
        return None
    kind = type(module).__name__
    if kind == "Bidirectional":
        parts = [_flax_cell(module.forward_rnn), _flax_cell(module.backward_rnn)]
        if getattr(module.merge_fn, "__name__", "") != "_concatenate":
            expected = "nnx's own, which concatenates the two directions"
            raise OptionError(refusal("load", "merge_fn", expected, describe(module.merge_fn)))
        if (parts[0].cell, parts[0].facts) != (parts[1].cell, parts[1].facts):
            expected = "the same options in both directions"
            raise OptionError(refusal("load", "backward_rnn", expected, str(parts[1].facts)))
        both = zip(("forward_rnn", "backward_rnn"), parts, strict=True)
        arrays = {f"{mark}/{k}": v for mark, part in both for k, v in part.weights.items()}
        return [Piece(arrays, parts[0].facts, parts[0].cell)]
    piece = _flax_cell(module)
    if kind == "RNN" and module.reverse:
        piece.facts |= {"reverse": True, "keep_order": module.keep_order}
    return [piece]


def _flax_cell(module: Any) -> Piece:
    cell = module.cell if type(module).__name__ == "RNN" else module
    kind = _FLAX.get(_class_of(cell, "flax"))
    if kind is None:
        expected = f"{', '.join(_FLAX)}, or RNN or Bidirectional around them"
        raise OptionError(refusal("load", "weights", expected, type(cell).__name__))
    arrays = {}
    for name in sorted(FRAMEWORKS["flax"].stems(kind)):
        layer, variable = name.split("/")
        value = getattr(getattr(cell, layer, None), variable, None)
        if value is not None:
            arrays[name] = as_array(name, value)
    facts = {name: getattr(cell, name) for name in _FLAX_FACTS if hasattr(cell, name)}
    return Piece(arrays, facts, kind)


_COREML = {"rnn": RNN, "lstm": LSTM, "gru": GRU}
_COREML_FACTS = ("direction", "activation", "recurrent_activation", "cell_activation", "clip")


def _coreml(operation: Any) -> list[Piece] | None:
    """An operation of a MIL program: its constant inputs are arrays and facts."""
    if not hasattr(operation, "op_type") or not hasattr(operation, "inputs"):
        return None
    cell = _COREML.get(operation.op_type)
    if cell is None:
        raise OptionError(refusal("load", "weights", "rnn, lstm or gru", operation.op_type))
    values = {name: getattr(var, "val", None) for name, var in operation.inputs.items()}
    known = {name: value for name, value in values.items() if value is not None}
    for name in ("initial_h", "initial_c"):
        if np.any(known.pop(name, 0)):
            raise OptionError(refusal("load", name, "zeros, or an input of the program", "values"))
    facts = {name: _plain(known[name]) for name in (*_COREML_FACTS, "reset_after") if name in known}
    rest = ("x", "output_sequence", *facts)
    arrays = {name: as_array(name, value) for name, value in known.items() if name not in rest}
    return [Piece(arrays, facts, cell)]


def _plain(value: Any) -> Any:
    """A NumPy scalar as Python's."""
    return value.item() if isinstance(value, np.generic) else value


ONNX_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


def is_recurrent(node: Any) -> bool:
    """Whether a node is ONNX's own RNN, LSTM or GRU."""
    return node.op_type in CELLS and node.domain in ("", "ai.onnx")


def onnx_constants(graph: Any) -> dict[str, Any]:
    """The tensors of a graph that are written down in it, by name."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value" and node.output:
                tensors[node.output[0]] = attribute.t
        same = node.op_type == "Identity" and node.domain in ("", "ai.onnx")
        if same and node.input and node.output and node.input[0] in tensors:
            tensors[node.output[0]] = tensors[node.input[0]]  # shared weights
    return tensors


def _onnx(model: Any) -> list[Piece] | None:
    """Every RNN, LSTM and GRU node of a model or a graph, with its initialisers."""
    graph = getattr(model, "graph", model)
    if not hasattr(graph, "node") or not hasattr(graph, "initializer"):
        return None
    tensors = onnx_constants(graph)
    found = []
    for node in graph.node:
        for attribute in node.attribute:
            if any(is_recurrent(inner) for inner in attribute.g.node):
                expected = "recurrent nodes of the graph itself"
                got = f"one inside {node.op_type} {node.name!r}"
                raise OptionError(refusal("load", "weights", expected, got))
        if not is_recurrent(node):
            continue
        found.append(onnx_piece(node, tensors, _onnx_array))
    if not found:
        raise OptionError(refusal("load", "weights", "a model with RNN, LSTM or GRU nodes", "none"))
    return found


def onnx_piece(
    node: Any, tensors: Mapping[str, Any], array_of: Callable[[str, Any], Array]
) -> Piece:
    """The arrays and attributes of a recurrent node."""
    where = node.name or node.output[0]
    arrays = {}
    for role, name in zip(ONNX_INPUTS, node.input, strict=False):
        if name in tensors and role != "X":
            arrays[role] = array_of(where, tensors[name])
        elif name and role in ("W", "R", "B", "P"):
            expected = f"an initialiser for node {where!r}"
            raise OptionError(refusal("load", role, expected, f"{name!r}, which is computed"))
    # Names that are no UTF-8 come as bytes.
    facts = {str(each.name): _onnx_attribute(each) for each in node.attribute}
    cell = CELLS[node.op_type]
    if cell == GRU:
        facts.setdefault("linear_before_reset", 0)  # what a node without it means
    return Piece(arrays, facts, cell)


def _onnx_array(where: str, tensor: Any) -> Array:
    if tensor.data_location == 1:
        expected = f"data in the model for node {where!r} (onnx.load reads external data)"
        raise OptionError(refusal("load", tensor.name, expected, "external data"))
    helper = sys.modules["onnx"].numpy_helper  # imported by whoever made the model
    return np.array(helper.to_array(tensor))


def _onnx_attribute(attribute: Any) -> Any:
    """An attribute's value by its type's number: float, int, string, and lists of these."""
    members = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}
    member = members.get(attribute.type)
    if member is None:
        expected = "a number, a word or a list of these"
        raise OptionError(refusal("load", attribute.name, expected, f"type {attribute.type}"))
    value = getattr(attribute, member)
    return value if attribute.type < 6 else list(value)


_READERS: dict[str, Callable[[Any], list[Piece] | None]] = {
    "torch": _torch,
    "keras": partial(_keras, 3),
    "tensorflow": partial(_keras, 2),
    "mlx": _mlx,
    "flax": _flax,
    "coreml": _coreml,
    "onnx": _onnx,
}
