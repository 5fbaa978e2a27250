"""What ``load`` takes: mappings, and the layer objects of each framework, read without importing
any: by their methods and the names of their classes.

Every reader gives the arrays of a layer by name, and the facts that the object tells.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..descriptors import Descriptor
from ..errors import DTypeError, OptionError, refusal
from ..layout import describe, is_torch_tensor
from ..types import FLOAT_NAMES, Array, float_dtype
from .table import FRAMEWORKS, GRU, LSTM, RNN


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
    # A module of MLX is a mapping too.
    if isinstance(weights, Mapping) and not callable(getattr(weights, "parameters", None)):
        return [Piece(flat(weights, FRAMEWORKS[source].separator))]
    found = _READERS.get(source, _nothing)(weights)
    if found is None:
        expected = f"a mapping of names to arrays, or a layer of {FRAMEWORKS[source].title}"
        raise DTypeError(refusal("load", "weights", expected, describe(weights)))
    return found


def flat(weights: Mapping[str, Any], separator: str, path: str = "") -> dict[str, Array]:
    """A nested mapping as one of paths to arrays."""
    found: dict[str, Array] = {}
    for key, value in weights.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, separator, f"{name}{separator}")
        elif isinstance(value, list | tuple):
            numbered = {str(number): each for number, each in enumerate(value)}
            found |= flat(numbered, separator, f"{name}{separator}")
        else:
            found[name] = as_array(name, value)
    return found


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
    return array


def _nothing(layer: Any) -> None:
    return None


def _class_of(layer: Any, *packages: str) -> str:
    """The name of a layer's class, with its module if that is none of these packages'.

    A class of the same name elsewhere, or one derived, may compute something else.
    """
    kind = type(layer)
    if kind.__module__.split(".")[0] in packages:
        return kind.__name__
    return f"{kind.__module__}.{kind.__name__}"


# Fields of a descriptor that say how a call runs and how its arrays lie, not what a layer computes.
_NOT_THE_LAYERS = {
    *("reverse", "bidirectional", "training", "produce_cell"),
    *("forget_gate_last", "reset_gate_first"),
}

_TORCH = {
    "RNN": RNN,
    "LSTM": LSTM,
    "GRU": GRU,
    "RNNCell": RNN,
    "LSTMCell": LSTM,
    "GRUCell": GRU,
}


def _torch(module: Any) -> list[Piece] | None:
    """Modules of torch.nn and zstate.torch, alone or inside others that have no parameters."""
    if not callable(getattr(module, "named_modules", None)):
        return None
    found = []
    for path, part in module.named_modules():
        known = type(part).__module__.startswith(("torch.nn.modules.", "zstate.torch."))
        kind = _TORCH.get(type(part).__name__) if known else None
        if kind is None and (part._parameters or type(part).__name__ in _TORCH):
            where = f"{path or 'the model'} ({type(part).__name__})"
            expected = "recurrent modules of torch.nn or zstate.torch only"
            raise OptionError(refusal("load", "weights", expected, where))
        if kind is None:
            continue
        facts, options = {}, {}
        ours = getattr(part, "descriptor", getattr(part, "_descriptor", None))
        if isinstance(ours, Descriptor):  # zstate.torch's own options
            names = {each.name for each in fields(ours)} - _NOT_THE_LAYERS  # type: ignore[arg-type]
            options = {name: getattr(ours, name) for name in names}
        elif kind == RNN:
            facts["nonlinearity"] = part.nonlinearity
        found.append(Piece(flat(part.state_dict(), "."), facts, kind, options))
    return found


# PeepholeLSTMCell is an experimental cell of Keras 2.
_KERAS = {"SimpleRNN": RNN, "LSTM": LSTM, "PeepholeLSTM": LSTM, "GRU": GRU}
_KERAS_PACKAGES = ("keras", "tf_keras", "tensorflow")
_KERAS_FACTS = ("activation", "recurrent_activation", "use_bias", "reset_after", "go_backwards")


def keras_facts(class_name: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The cell and the facts of a Keras layer's configuration."""
    cell = _KERAS.get(class_name.removesuffix("Cell"))
    if cell is None:
        expected = "SimpleRNN, LSTM, GRU, one of their cells, or Bidirectional"
        raise OptionError(refusal("load", "weights", expected, class_name))
    known = {name: config[name] for name in _KERAS_FACTS if name in config}
    return cell, known


def _keras3(layer: Any) -> list[Piece] | None:
    return _keras(layer, 3)


def _keras2(layer: Any) -> list[Piece] | None:
    return _keras(layer, 2)


def _keras(layer: Any, version: int) -> list[Piece] | None:
    if not callable(getattr(layer, "get_config", None)):
        return None
    if not layer.weights:
        raise OptionError(refusal("load", "weights", "a layer that is built", "one that is not"))
    # Their hard sigmoids differ, so the two must not be taken for each other.
    found = 3 if hasattr(layer.weights[0], "path") else 2
    if found != version:
        other = "keras" if found == 3 else "tensorflow"
        got = f"one of Keras {found}, which is source={other!r}"
        raise OptionError(refusal("load", "weights", f"a layer of Keras {version}", got))
    name = _class_of(layer, *_KERAS_PACKAGES)
    if name == "Bidirectional":
        both = [layer.forward_layer, layer.backward_layer]
        weights: dict[str, Array] = {}
        told = []
        for mark, each in zip(("forward", "backward"), both, strict=True):
            cell, facts = keras_facts(_class_of(each, *_KERAS_PACKAGES), each.get_config())
            facts.pop("go_backwards", None)
            told.append((cell, facts))
            weights |= {f"{mark}/{key}": value for key, value in _keras_arrays(each).items()}
        if told[0] != told[1]:
            expected = "the same options in both directions"
            raise OptionError(refusal("load", "backward_layer", expected, str(told[1][1])))
        cell, facts = told[0]
        return [Piece(weights, facts | {"merge_mode": layer.merge_mode}, cell)]
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
    cell = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}.get(name)
    if cell is None:
        raise OptionError(refusal("load", "weights", "nn.RNN, nn.LSTM or nn.GRU", name))
    facts = {"nonlinearity": module.nonlinearity} if cell == RNN else {}
    return [Piece(flat(module.parameters(), "."), facts, cell)]


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


_ONNX = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}
_ONNX_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


def _onnx(model: Any) -> list[Piece] | None:
    """Every RNN, LSTM and GRU node of a model or a graph, with its initialisers."""
    graph = getattr(model, "graph", model)
    if not hasattr(graph, "node") or not hasattr(graph, "initializer"):
        return None
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    tensors[node.output[0]] = attribute.t
    found = []
    for node in graph.node:
        for attribute in node.attribute:
            if any(inner.op_type in _ONNX for inner in attribute.g.node):
                expected = "recurrent nodes of the graph itself"
                got = f"one inside {node.op_type} {node.name!r}"
                raise OptionError(refusal("load", "weights", expected, got))
        if node.op_type not in _ONNX or node.domain not in ("", "ai.onnx"):
            continue
        where = node.name or node.output[0]
        arrays = {}
        for role, name in zip(_ONNX_INPUTS, node.input, strict=False):
            if name in tensors and role != "X":
                arrays[role] = _onnx_array(where, tensors[name])
            elif name and role in ("W", "R", "B", "P"):
                expected = f"an initialiser for node {where!r}"
                raise OptionError(refusal("load", role, expected, f"{name!r}, which is computed"))
        facts = {each.name: _onnx_attribute(each) for each in node.attribute}
        found.append(Piece(arrays, facts, _ONNX[node.op_type]))
    if not found:
        raise OptionError(refusal("load", "weights", "a model with RNN, LSTM or GRU nodes", "none"))
    return found


def _onnx_array(where: str, tensor: Any) -> Array:
    if tensor.data_location == 1:
        expected = f"data in the model for node {where!r} (onnx.load reads external data)"
        raise OptionError(refusal("load", tensor.name, expected, "external data"))
    helper = sys.modules["onnx"].numpy_helper  # there, since somebody made the model
    return np.array(helper.to_array(tensor))


def _onnx_attribute(attribute: Any) -> Any:
    """An attribute's value by its type's number: float, int, string, and lists of these."""
    member = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}[attribute.type]
    value = getattr(attribute, member)
    return value if attribute.type < 6 else list(value)


_READERS: dict[str, Callable[[Any], list[Piece] | None]] = {
    "torch": _torch,
    "keras": _keras3,
    "tensorflow": _keras2,
    "mlx": _mlx,
    "coreml": _coreml,
    "onnx": _onnx,
}
