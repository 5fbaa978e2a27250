"""Turns a run, a module, a graph's node or arrays into the calls that a page shows.

T steps, I input features, D directions, H units, V classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..cells.decorator import MadeCell
from ..convert.layer import Layer
from ..errors import DTypeError, OptionError, ShapeError, ZStateError, refusal, within
from ..graph.ops.recurrent import FORWARD, operation_of
from ..graph.tensor import Tensor
from ..layout import brackets, check_descriptor, describe, is_jax_array, is_torch_tensor
from ..operations import OPERATIONS, operations_of
from ..types import Array
from .scans import Call

_SHORT = {"rnn": "single_gate_rnn"}


@dataclass(eq=False)
class Subject:
    """A model and the one sequence that it reads; what is None is not on the page."""

    name: str
    summary: str
    layers: list[Call]
    source: Array  # [T,I]
    labels: Sequence[str]  # of the steps
    readout: tuple[Array, Array] | None = None  # weight [V,D·H] and bias [V]
    targets: Array | None = None  # [T], the class that was right
    classes: Sequence[str] | None = None  # their names
    training: dict[str, list[float | None]] = field(default_factory=dict)  # curves over its steps


def of_run(folder: Path, text: str | None, prompt: str | None, steps: int) -> Subject:
    """A run of `zstate train` on the start of a text, or on what it writes after a prompt."""
    from ..train.about import read_about
    from ..train.loop import Sampler, load_model

    about = read_about(folder)
    model, alphabet, _ = load_model(folder)
    settings = about["settings"]
    if prompt is not None:
        alphabet.encode(prompt, "inspect", "prompt")
        more = max(steps + 1 - len(prompt), 1)
        text = Sampler(model, alphabet).write(more, prompt, 0.7, settings.seed)
    elif text is None:
        text = _text_of(about, steps)
    ids = alphabet.encode(text[: steps + 1], "inspect", "text")
    if len(ids) < 2:
        raise OptionError(
            refusal("inspect", "text", "at least 2 characters", f"{len(ids)} characters")
        )
    values = model.graph.variables()
    start = [model.graph.constant(0.0, shape=(1, settings.hidden))] * len(
        settings.definition.states
    )
    x = model.graph.gather(model.embedding, model.graph.constant(ids[:-1, None]))
    first, layers = x, []
    for k in range(settings.layers):
        found = model.recurrent(k, x, start, None)
        x = found["state"]
        layers.append(_call_of_node(x, {}))
    history = about["history"]
    weights = sum(values[tensor.name].size for tensor in model.parameters)
    return Subject(
        name=str(folder),
        summary=f"{settings.layers} × {settings.cell} of {settings.hidden}, {weights:,} weights, "
        f"step {len(history)} of {settings.total}",
        layers=layers,
        source=model.graph.run({}, [first])[first][:, 0],
        labels=list(alphabet.decode(ids[:-1])),
        readout=(values["projection"].T, values["projection_bias"]),
        targets=ids[1:],
        classes=list(alphabet.alphabet),
        training={
            "training": [bits for _, bits, _ in history],
            "validation": [bits for _, _, bits in history],
            "gradient norm": about["gradient_norms"],
            "learning rate": [settings.rate(step - 1) for step, _, _ in history],
        },
    )


def _text_of(about: Mapping[str, Any], steps: int) -> str:
    """The middle of the part of a run's own text that it did not train on."""
    from ..train.data import read_text, split

    try:
        text = read_text(about["text"], about["options"]["encoding"])
    except ZStateError as error:
        raise within("[inspect] the run's own text (pass another with --text)", error) from error
    unseen = text[split(len(text)) :]
    return unseen[max((len(unseen) - steps - 1) // 2, 0) :]


def of_model(
    model: Any,
    source: Any,
    labels: Sequence[str] | None,
    targets: Any,
    readout: Any,
    classes: Sequence[str] | None,
    name: str | None,
) -> Subject:
    """A module of zstate.torch, a tensor of a graph's recurrent node, or layers as arrays."""
    if isinstance(model, Tensor):
        layers, x = [_call_of_node(model, source)], _source_of_node(model, source)
    else:
        layers = _calls(model)
        batch_first = getattr(model, "batch_first", False)
        x = _sequence("source", source, batch_first)
    kind = layers[0].tensors["recurrent_weight"].dtype
    steps = len(x)
    if not steps:
        raise ShapeError(refusal("inspect", "source", "at least one step", brackets(x.shape)))
    if any("input_weight" not in layer.tensors for layer in layers[1:]):
        raise OptionError(
            refusal("inspect", "input_weight", "one in every layer but the first", "none")
        )
    shown = [str(k) for k in range(steps)] if labels is None else list(map(str, labels))
    _check_count("labels", len(shown), steps)
    output = _readout(readout, kind)
    if (targets is None) != (output is None):
        raise OptionError(
            refusal("inspect", "targets and readout", "both or neither", "one of the two")
        )
    chosen = None if targets is None else _targets(targets, steps, output)
    if classes is not None and output is not None:
        _check_count("classes", len(classes), len(output[0]), "as many as readout has rows, ")
    return Subject(
        name=name or _title(model),
        summary=", ".join(f"{c.operation.cell.short} of {_units(c)}" for c in layers),
        layers=layers,
        source=x.astype(kind),
        labels=shown,
        readout=output,
        targets=chosen,
        classes=None if classes is None else list(map(str, classes)),
    )


def _check_count(name: str, got: int, wanted: int, text: str = "one per step, ") -> None:
    if got != wanted:
        raise ShapeError(refusal("inspect", name, f"{text}{wanted}", str(got)))


def _targets(given: Any, steps: int, readout: tuple[Array, Array] | None) -> Array:
    array = _array("targets", given).reshape(-1)
    if array.dtype.kind not in "iu":
        raise DTypeError(refusal("inspect", "targets", "integers", str(array.dtype)))
    _check_count("targets", len(array), steps)
    most = len(readout[0]) if readout is not None else 0
    if array.min() < 0 or array.max() >= most:
        expected = f"classes from 0 to {most - 1}"
        raise OptionError(
            refusal("inspect", "targets", expected, f"{array.min()} to {array.max()}")
        )
    return array.astype(np.int32)


def _readout(given: Any, kind: Any) -> tuple[Array, Array] | None:
    """The weight and the bias of a linear map from the output to one number per class."""
    if given is None:
        return None
    if hasattr(given, "weight"):  # torch.nn.Linear
        given = (given.weight, given.bias)
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    weight, bias = given if is_pair else (given, None)
    matrix = _array("readout", weight).astype(kind)
    if matrix.ndim != 2:
        raise ShapeError(refusal("inspect", "readout", "a weight [V,D·H]", brackets(matrix.shape)))
    zeros = np.zeros(len(matrix), kind)
    return matrix, zeros if bias is None else _array("readout", bias).astype(kind)


def _title(model: Any) -> str:
    return model.node.name if isinstance(model, Tensor) else type(model).__name__


def _units(call: Call) -> int:
    weight = call.tensors["recurrent_weight"]
    return int(weight.shape[-1]) * (call.descriptor.heads if weight.ndim > 2 else 1)


def _array(name: str, value: Any) -> Array:
    """A NumPy array from any library's; floats become float32 or stay float64."""
    if is_torch_tensor(value):
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() and value.itemsize < 4 else value
    elif not is_jax_array(value) and not isinstance(value, np.ndarray | list | tuple):
        raise DTypeError(refusal("inspect", name, "an array", describe(value)))
    try:
        array = np.asarray(value)
    except ValueError:
        got = "lists of different lengths"
        raise DTypeError(refusal("inspect", name, "an array", got)) from None
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind not in "fV":
        raise DTypeError(refusal("inspect", name, "an array of numbers", str(array.dtype)))
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _sequence(name: str, value: Any, batch_first: bool) -> Array:
    """[T,I] of one sequence: [T,I], [T,1,I] or, with batch_first, [1,T,I]."""
    if value is None:
        raise DTypeError(refusal("inspect", name, "the input of the model, [T,I]", "None"))
    array = _array(name, value)
    batch = 0 if batch_first else 1
    if array.ndim == 3 and array.shape[batch] == 1:
        array = array.squeeze(batch)
    if array.ndim != 2:
        expected = "one sequence, [T,I] or " + ("[1,T,I]" if batch_first else "[T,1,I]")
        raise ShapeError(refusal("inspect", name, expected, brackets(array.shape)))
    return array


def _calls(model: Any) -> list[Call]:
    """The layers of a module, of arrays, or of converted weights."""
    if hasattr(model, "layer_parameters") and hasattr(model, "joined"):
        return _calls_of_module(model)
    layers = [model] if isinstance(model, Layer | Mapping) else model
    if isinstance(layers, list | tuple) and layers:
        return [_call_of_arrays(layer) for layer in layers]
    expected = (
        "the folder of a run, a module of zstate.torch, a result of a graph's recurrent node, or "
        'layers as {"cell": …, "recurrent_weight": …}'
    )
    if type(model).__module__.startswith("torch.nn"):
        expected += "; zstate.torch.replace makes modules of torch.nn's"
    raise DTypeError(refusal("inspect", "model", expected, describe(model)))


def _calls_of_module(module: Any) -> list[Call]:
    if module.proj_size:
        expected = "a module without proj_size"
        raise OptionError(refusal("inspect", "model", expected, str(module.proj_size)))
    operation = module.computed_in(training=False)  # nothing is drawn, as there is no dropout
    calls = []
    for k in range(module.num_layers):
        weights = module.joined(module.layer_parameters(k))
        own = {e.name: a for e, a in zip(operation.cell.own, weights.own, strict=False)}
        tensors = {
            "recurrent_weight": weights.recurrent,
            "input_weight": weights.input,
            "bias": weights.bias,
            **own,
        }
        calls.append(_call(operation, module.descriptor, tensors))
    return calls


def _call_of_arrays(layer: Any) -> Call:
    if isinstance(layer, Layer):
        return _call(layer.operation, layer.descriptor, layer.tensors)
    if not isinstance(layer, Mapping):
        expected = 'a layer as {"cell": …, "recurrent_weight": …}'
        raise DTypeError(refusal("inspect", "model", expected, describe(layer)))
    tensors = {**layer}
    cell, descriptor = tensors.pop("cell", None), tensors.pop("descriptor", None)
    if isinstance(cell, MadeCell):
        operation = operations_of(cell.definition)[0]
    else:
        name = _SHORT.get(str(cell), cell)
        if name not in OPERATIONS or OPERATIONS[name].is_gradient:
            expected = "a cell of zstate.cells, or one of lstm, gru, single_gate_rnn"
            raise OptionError(refusal("inspect", "cell", expected, describe(cell)))
        operation = OPERATIONS[name]
    for each in tensors:
        if each not in operation.inputs or each == "source":
            known = ", ".join(n for n in operation.inputs if n != "source")
            raise OptionError(refusal("inspect", each, f"one of {known}", "another name"))
    if tensors.get("recurrent_weight") is None:
        raise OptionError(refusal("inspect", "recurrent_weight", "an array", "none"))
    return _call(operation, check_descriptor(operation, descriptor, "inspect"), tensors)


def _call_of_node(tensor: Tensor, feeds: Any) -> Call:
    """The call that a recurrent node makes; what it reads is computed from the feeds."""
    node = tensor.node
    if node.op.name not in FORWARD:
        expected = "a result of a recurrent node, such as graph.lstm gives"
        raise OptionError(refusal("inspect", repr(tensor.name), expected, node.op.name))
    found = tensor.graph.run({} if feeds is None else feeds, node.inputs)
    pairs = zip(node.attributes["names"], node.inputs, strict=True)
    tensors = {name: found[each] for name, each in pairs if name != "source"}
    operation = operation_of(node.op.name, node.attributes)
    return _call(operation, node.attributes["descriptor"], tensors)


def _source_of_node(tensor: Tensor, feeds: Any) -> Array:
    place = tensor.node.attributes["names"].index("source")
    source = tensor.node.inputs[place]
    found = tensor.graph.run({} if feeds is None else feeds, [source])
    return _sequence(repr(source.name), found[source], False)


def _call(operation: Any, descriptor: Any, tensors: Mapping[str, Any]) -> Call:
    given = {name: _array(name, value) for name, value in tensors.items() if value is not None}
    kind = given["recurrent_weight"].dtype
    return Call(operation, descriptor, {name: a.astype(kind) for name, a in given.items()})


def bits(nats: Array) -> Array:
    return nats / math.log(2)
