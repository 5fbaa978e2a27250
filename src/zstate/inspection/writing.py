"""The page: its parts put together once, and the arrays of one or two models in it.

The HTML contains no user text: names and labels are in JSON, and the page's script shows them as
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..pages import filled, script_data
from .encoding import Blob, as_small_as, linear, logarithmic
from .views import LayerView, View

_PARTS = Path(__file__).with_name("page")
_SCRIPTS = ("data.js", "colours.js", "maps.js", "charts.js", "pane.js", "main.js")


def page(views: Sequence[View], megabytes: float, follow: str | None = None) -> bytes:
    """The HTML of a page with one model, or with two side by side.

    ``follow``: the version that a server gave the page, which then asks for newer ones.
    """
    values = sum(m.values.size for view in views for layer in view.layers for m in layer.maps)

    def write(blob: Blob, bits: int) -> dict[str, Any]:
        return {"models": [_model(view, blob, bits) for view in views]}

    said, blob, bits = as_small_as(megabytes, values, write)
    said |= {"version": __version__, "bits": bits, "follow": follow}
    parts = {
        "style": _read("uPlot.min.css") + _read("style.css"),
        "licence": _read("uPlot.LICENSE"),
        "library": _read("uPlot.iife.min.js"),
        "script": "\n".join(map(_read, _SCRIPTS)),
        "data": script_data(said),
        "blob": blob,
    }
    return filled(_read("index.html"), parts).encode()


def _read(name: str) -> str:
    return (_PARTS / name).read_text("utf-8")


def _model(view: View, blob: Blob, bits: int) -> dict[str, Any]:
    subject = view.subject
    said: dict[str, Any] = {
        "name": subject.name,
        "summary": subject.summary,
        "labels": list(subject.labels),
        "classes": None if subject.classes is None else list(subject.classes),
        "layers": [_layer(layer, blob, bits) for layer in view.layers],
        "losses": blob.add(view.losses, "i4"),
        "ofLoss": view.of_loss,
        "training": {
            name: [None if v is None else float(v) for v in curve]
            for name, curve in subject.training.items()
        },
    }
    if view.loss is not None and view.top is not None and subject.targets is not None:
        ids, probabilities = view.top
        said |= {
            "loss": blob.add(view.loss, "f4"),
            "targets": blob.add(subject.targets, "i4"),
            "topClasses": blob.add(ids, "i4"),
            "top": blob.add(probabilities, "f4"),
        }
    return said


def _layer(layer: LayerView, blob: Blob, bits: int) -> dict[str, Any]:
    return {
        "name": layer.name,
        "cell": layer.cell,
        "units": int(layer.maps[0].values.shape[1]),
        "maps": [
            {
                "name": each.name,
                "kind": each.kind,
                "function": each.function,
                "span": _span(each.values, each.function),
                "saturation": _saturation(each.values, each.function),
                **linear(blob, each.values, bits),
            }
            for each in layer.maps
        ],
        "memory": {state: blob.add(times, "f4") for state, times in layer.memory.items()},
        "orders": {name: blob.add(order, "i4") for name, order in layer.orders.items()},
        "flow": {state: logarithmic(blob, norms) for state, norms in layer.flow.items()},
    }


def _span(values: np.ndarray[Any, Any], function: str) -> list[float]:
    """The values at the ends of the colours: fixed for a gate; else without the last percent."""
    if function in ("sigmoid", "hard_sigmoid"):
        return [0.0, 1.0]
    if function == "tanh":
        return [-1.0, 1.0]
    reach = float(np.quantile(np.abs(values), 0.99)) or 1.0
    return [-reach, reach]


def _saturation(values: np.ndarray[Any, Any], function: str) -> list[float] | None:
    """The shares of a gate's values in the first and the last tenth of 0 to 1, of tanh -1 to 1."""
    if function in ("sigmoid", "hard_sigmoid"):
        return [float((values < 0.1).mean()), float((values > 0.9).mean())]
    if function == "tanh":
        return [float((values < -0.9).mean()), float((values > 0.9).mean())]
    return None
