"""What ``save`` returns: arrays by name, with the facts that go with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import OptionError, refusal
from ..types import Array


class Told(NamedTuple):
    """What the arrays of one layer do not say; their names begin with the prefix."""

    prefix: str
    cell: str
    facts: dict[str, Any]


class Weights(dict[str, Array]):
    """Arrays under a framework's names, and the facts that :func:`load` needs with them.

    Otherwise a ``dict``; ``dict(weights)`` loses the facts.

    Example:
        >>> import numpy as np, zstate as zs, zstate.convert as zc
        >>> tensors = {"recurrent_weight": np.ones((6, 2)), "input_weight": np.ones((6, 3))}
        >>> gru = zc.Layer("gru", zs.GRUDescriptor(reset_after=True), tensors)
        >>> weights = zc.save(gru, target="onnx")
        >>> weights.facts["linear_before_reset"]
        1
        >>> zc.load(weights, source="onnx").descriptor.reset_after
        True
    """

    def __init__(self, arrays: Mapping[str, Array], framework: str, layers: Iterable[Told]) -> None:
        super().__init__(arrays)
        self.framework = framework
        self.layers = list(layers)

    def copy(self) -> Weights:
        """Like a dict's, with the facts."""
        return Weights(self, self.framework, self.layers)

    @property
    def facts(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The facts of the layer, as from :func:`facts`, or a list of them, one per layer."""
        found = [dict(layer.facts) for layer in self.layers]
        return found[0] if len(found) == 1 else found

    def parts(self, source: str) -> list[tuple[Told, dict[str, Array]]]:
        """The arrays by prefix, without it, with their facts."""
        if self.framework != source:
            expected = f"weights of {self.framework!r}, as they were saved"
            raise OptionError(refusal("load", "source", expected, repr(source)))
        by_prefix = {layer.prefix: layer for layer in self.layers}
        found: dict[str, dict[str, Array]] = {prefix: {} for prefix in by_prefix}
        longest_first = sorted(by_prefix, key=len, reverse=True)
        for name, array in self.items():
            prefix = next((each for each in longest_first if name.startswith(each)), None)
            if prefix is None:
                expected = "the names that save gave them"
                raise OptionError(refusal("load", "weights", expected, repr(name)))
            found[prefix][name.removeprefix(prefix)] = array
        return [(told, found[prefix]) for prefix, told in by_prefix.items()]


# In a file: the metadata of a .safetensors, the comment of a .npz.


def to_text(weights: Weights, names: Mapping[str, str]) -> str:
    """The facts as a file holds them; ``names`` are those of the layers, by prefix."""
    layers = {layer.prefix: {"cell": layer.cell, "facts": layer.facts} for layer in weights.layers}
    told: dict[str, Any] = {"framework": weights.framework, "layers": layers}
    if any(names.values()):
        told["names"] = dict(names)
    return json.dumps(told)


def from_text(arrays: Mapping[str, Array], text: str) -> tuple[Weights, dict[str, str]]:
    """The inverse of ``to_text``; raises ValueError for any other text."""
    told = json.loads(text)
    try:
        layers = [
            Told(prefix, str(each["cell"]), dict(each["facts"]))
            for prefix, each in told["layers"].items()
        ]
        given = dict(told.get("names", {}))
        names = {layer.prefix: str(given.get(layer.prefix, "")) for layer in layers}
        return Weights(arrays, str(told["framework"]), layers), names
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"facts that zstate did not write: {error!r}") from error
