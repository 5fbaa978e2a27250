"""The Backend interface of the onnx package, by which its own tests run a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.backend.base import Backend as _Backend
from onnx.backend.base import BackendRep as _Rep
from onnx.backend.base import namedtupledict

from ..types import Array
from .loading import NeedsValueError, load
from .model import Model


class Prepared(_Rep):
    """A model that can be run. Inputs that shapes depend on are fixed when their values come."""

    def __init__(self, proto: Any) -> None:
        self._proto = proto
        self._names = [value.name for value in proto.graph.output]
        initialised = {tensor.name for tensor in proto.graph.initializer}
        self._inputs = [v.name for v in proto.graph.input if v.name not in initialised]
        self._model: Model | None = None
        try:
            self._model = load(proto)
        except NeedsValueError as error:
            if not error.names:
                raise

    def run(self, inputs: Sequence[Array], **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in the model's order."""
        feeds = dict(zip(self._inputs, map(np.asarray, inputs), strict=False))
        model = self._model or self.fixed(feeds)
        found = model.run({name: feeds[name] for name in model.inputs})
        return namedtupledict("Outputs", self._names)(*[found[name] for name in self._names])

    def fixed(self, feeds: dict[str, Array]) -> Model:
        """The model with the inputs that have to be known fixed at these values."""
        fixed: dict[str, Array] = {}
        while True:
            try:
                return load(self._proto, constants=fixed)
            except NeedsValueError as error:
                if not error.names:
                    raise
                fixed |= {name: feeds[name] for name in error.names}


class Backend(_Backend):
    """zstate as a backend of the onnx package, on the CPU."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.upper() == "CPU"

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Prepared:
        super().prepare(model, device, **kwargs)
        return Prepared(model)
