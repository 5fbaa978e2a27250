"""What the tests of the page share: a page read back, and a small run."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zstate.train import Run, Settings
from zstate.types import Array

TEXT = "the cat (sat) on the mat. the dog [ate] the cat.\n" * 120


def lstm_in_torch(values: dict[str, Array], ids: Array) -> tuple[Array, Array]:
    """A run's LSTM, step by step: the last layer's gates i, f, z, o [T,4,H], and the norms
    [layers,T] of the derivatives of the last character's loss by every h[t]."""
    w = {name: torch.tensor(value) for name, value in values.items()}
    layers = sum(name.endswith("recurrent_weight") for name in w)
    units = len(w["projection"])
    states = [(torch.zeros(units), torch.zeros(units)) for _ in range(layers)]
    kept: list[list[Any]] = [[] for _ in range(layers)]
    gates = []
    for token in ids[:-1]:
        x = w["embedding"][int(token)].requires_grad_()
        for k in range(layers):
            h, c = states[k]
            into = w[f"layer{k}.input_weight"] @ x + w[f"layer{k}.bias"]
            i, f, z, o = (into + w[f"layer{k}.recurrent_weight"] @ h).chunk(4)
            i, f, z, o = i.sigmoid(), f.sigmoid(), z.tanh(), o.sigmoid()
            c = f * c + i * z
            x = o * c.tanh()
            x.retain_grad()
            kept[k].append(x)
            states[k] = x, c
        gates.append(torch.stack([i, f, z, o]).detach().numpy())
    logits = x @ w["projection"] + w["projection_bias"]
    torch.nn.functional.cross_entropy(logits[None], torch.tensor(ids[-1:]).long()).backward()
    return np.array(gates), np.array([[float(h.grad.norm()) for h in layer] for layer in kept])


def small_run(folder: Path, cell: str = "lstm", layers: int = 1, text: str = TEXT) -> Path:
    settings = Settings(cell, layers, hidden=12, embedding=6, window=16, batch=8, total=4)
    list(Run.create(folder, settings, text).train(2))
    return folder


@dataclass
class Read:
    """A page as its own script reads it: the JSON, and the arrays that it names."""

    said: dict[str, Any]
    blob: bytes

    def array(self, place: dict[str, Any]) -> Array:
        at, count, kind = place["at"], place["count"], place["type"]
        if kind == "u2 planes":
            high, low = np.frombuffer(self.blob, np.uint8, 2 * count, at).reshape(2, count)
            return high.astype(np.uint16) * 256 + low
        return np.frombuffer(self.blob, np.dtype(kind).newbyteorder("<"), count, at)

    def map(self, name: str, layer: int = 0, model: int = 0) -> tuple[Array, float]:
        """The values [T,H] of a gate or a state, and how far off they may be."""
        said = next(m for m in self.layer(layer, model)["maps"] if m["name"] == name)
        levels = self.array(said).reshape(self.layer(layer, model)["units"], -1)
        return said["low"] + levels.T * said["step"], said["step"] * 0.501

    def layer(self, layer: int = 0, model: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.said["models"][model]["layers"][layer]
        return found

    def flow(self, state: str, layer: int = 0, model: int = 0) -> Array:
        """Norms [losses,T]."""
        said = self.layer(layer, model)["flow"][state]
        levels = self.array(said).astype(np.float64)
        norms = np.where(levels > 0, 10 ** (said["low"] + (levels - 1) * said["step"]), 0)
        return norms.reshape(self.said["models"][model]["losses"]["count"], -1)


def read(path: Path) -> Read:
    html = path.read_text("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    (blob,) = re.findall(r'<script type="text/plain" id="blob">(.*?)</script>', html, re.S)
    return Read(json.loads(data), zlib.decompress(base64.b64decode(blob)))
