"""How the layers of a Keras model are connected, from the configuration that a file holds.

A model is Sequential (one layer behind another) or functional (each layer lists the tensors that
it takes), and may be a layer of another model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .objects import KERAS_CELLS

RECURRENT = ("SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional")
_MODELS = ("Sequential", "Functional", "Model")
# These do nothing outside training.
_PASSIVE = (
    "Dropout SpatialDropout1D GaussianDropout GaussianNoise AlphaDropout ActivityRegularization "
    "Identity"
).split()
_PACKAGES = ("keras", "tf_keras", "tensorflow")


class Entry(NamedTuple):
    """One layer of a model."""

    path: tuple[str, ...]  # its name, after those of the models it is in
    kind: str  # its class; with its module if that is not Keras' own
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return "/".join(self.path)


@dataclass
class Topology:
    """The layers of a model in order, by what they mean for a stack."""

    recurrent: list[Entry] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    wiring: list[str] = field(default_factory=list)
    passive: list[str] = field(default_factory=list)


def topology(model: Mapping[str, Any]) -> Topology:
    """The layers of a saved model, also of the models inside it."""
    found = Topology()
    kind = _kind(model)
    if kind not in _MODELS:
        found.wiring.append(f"a custom model class ({kind})")
    for entry in _entries(model, (), found):
        strange = [each for each in _wrapped(entry) if each.removesuffix("Cell") not in KERAS_CELLS]
        if strange:
            found.others.append(f"{entry.name} ({entry.kind} of {strange[0]})")
        elif entry.kind in RECURRENT:
            found.recurrent.append(entry)
        elif entry.kind in _PASSIVE:
            found.passive.append(f"{entry.name} ({entry.kind}, nothing outside training)")
        elif entry.kind != "InputLayer":
            found.others.append(f"{entry.name} ({entry.kind})")
    _check_outputs(found)
    return found


def _wrapped(entry: Entry) -> list[str]:
    """The classes of the layers or the cell that a recurrent layer stands around."""
    inside = {"RNN": ("cell",), "Bidirectional": ("layer", "backward_layer")}.get(entry.kind, ())
    return [_kind(entry.config[each]) for each in inside if entry.config.get(each)]


def layer_config(entry: Entry) -> Mapping[str, Any]:
    """The options of the recurrent layer itself, which Bidirectional wraps."""
    if entry.kind == "Bidirectional":
        wrapped: Mapping[str, Any] = entry.config["layer"]["config"]
        return wrapped
    return entry.config


def _check_outputs(found: Topology) -> None:
    for number, entry in enumerate(found.recurrent):
        options = layer_config(entry)
        if not options.get("return_sequences", False):
            if number < len(found.recurrent) - 1:
                found.wiring.append(f"{entry.name} gives its last step only")
            else:
                found.passive.append(f"return_sequences=False of {entry.name}")
        if options.get("stateful", False):
            found.passive.append(f"stateful=True of {entry.name}")


def _kind(layer: Mapping[str, Any]) -> str:
    """The name of a class; one of another package may compute anything, whatever its name."""
    name, module = str(layer["class_name"]), layer.get("module")
    ours = module is None or str(module).split(".")[0] in _PACKAGES
    own = layer.get("registered_name")
    if ours and (own is None or own == name):
        return name
    return f"{module}.{name}" if module else str(own)


def _layers(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    config = model["config"]
    layers = config if isinstance(config, list) else config.get("layers", [])
    if _kind(model) in _MODELS:
        return list(layers)
    # A custom class may have anything in its configuration.
    known = isinstance(layers, list) and all("class_name" in each for each in layers)
    return list(layers) if known else []


def _name(layer: Mapping[str, Any]) -> str:
    return str(layer.get("name") or layer["config"]["name"])


def _entries(model: Mapping[str, Any], path: tuple[str, ...], found: Topology) -> Iterator[Entry]:
    layers = _layers(model)
    if _kind(model) in ("Functional", "Model"):
        _check_wires(model, layers, path, found)
    for layer in layers:
        where = (*path, _name(layer))
        kind = _kind(layer)
        if kind in _MODELS:
            yield from _entries(layer, where, found)
        else:
            yield Entry(where, kind, layer["config"])


def _check_wires(
    model: Mapping[str, Any],
    layers: list[Mapping[str, Any]],
    path: tuple[str, ...],
    found: Topology,
) -> None:
    """Add where a functional model is not one layer behind another, in the order of the list."""
    wiring = found.wiring
    front = "".join(f"{part}/" for part in path)
    before: str | None = None
    for layer in layers:
        name, calls = _name(layer), layer.get("inbound_nodes") or []
        if _kind(layer) in (*RECURRENT, *_PASSIVE, *_MODELS):
            told = dict.fromkeys(_options(calls))
            wiring += [f"{front}{name} is called with {each}" for each in told]
        if len(calls) > 1:
            wiring.append(f"{front}{name} is called {len(calls)} times")
            before = name
            continue
        taken = list(_references(calls))
        sources = [source for source, _ in taken]
        if before is not None and not sources:
            wiring.append(f"{front}{name} is one more input")
        elif before is not None and {*sources} != {before}:
            fed = " and ".join(f"{front}{each}" for each in dict.fromkeys(sources))
            wiring.append(f"{front}{name} takes {fed}, not {front}{before} alone")
        elif any(index != 0 for _, index in taken):
            wiring.append(f"{front}{name} takes a state of {front}{before}")
        elif len(taken) > 1:
            wiring.append(f"{front}{name} takes {front}{before} {len(taken)} times")
        before = name
    outputs = list(_references(model["config"]["output_layers"]))
    ends = list(dict.fromkeys(name for name, _ in outputs))
    if ends != [before]:
        wiring.append(f"the outputs are those of {' and '.join(front + each for each in ends)}")
    elif any(index != 0 for _, index in outputs):
        found.passive.append(f"the states of {front}{before} among the outputs")


def _options(calls: Any) -> Iterator[str]:
    """The arguments of calls other than the model's own tensors: training=True, a constant mask or
    state.

    Keras 3 has them as "kwargs", Keras 2 in the mapping at the end of each tensor's list.
    """
    if isinstance(calls, list):
        for each in calls:
            yield from _options(each)
    elif isinstance(calls, Mapping):
        for key, value in calls.get("kwargs", {} if "args" in calls else calls).items():
            if value not in (None, False) and not any(_references(value)):
                yield f"{key}={value}" if isinstance(value, bool | int | float) else str(key)


def _references(value: Any) -> Iterator[tuple[str, int]]:
    """The tensors that a call takes: the layer that makes each, and which of its outputs it is.

    Keras 3 writes {"class_name": "__keras_tensor__", "config": {"keras_history": [name, …]}},
    Keras 2 [name, call, output, options].
    """
    if isinstance(value, Mapping):
        if value.get("class_name") == "__keras_tensor__":
            yield from _references(value["config"]["keras_history"])
        else:
            for each in value.values():
                yield from _references(each)
    elif isinstance(value, list):
        if len(value) >= 3 and isinstance(value[0], str) and isinstance(value[1], int):
            yield value[0], value[2] if isinstance(value[2], int) else -1
            yield from _references(value[3:])
        else:
            for each in value:
                yield from _references(each)
