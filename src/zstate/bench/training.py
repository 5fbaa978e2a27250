"""Training steps of `zstate train`'s model beside the same model in torch.nn, on one device.

Both sides have the same weights, windows, clipping, Adam and learning rates, and all windows on
the device before the clock starts. torch.nn runs eagerly, compiled and, on a GPU, captured as a
CUDA graph; in 16 bits by autocast.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..convert import Layer, save
from ..train import Run, Settings, default_text
from ..train.losses import LN2
from ..train.model import DESCRIPTORS
from .timing import Call, Protocol, measure, together

MODELS = {
    "LSTM 1×256, T128 N32": Settings(),
    "LSTM 2×1024, T128 N64": Settings(layers=2, hidden=1024, batch=64, learning_rate=2e-3),
    "GRU 2×512, T256 N128": Settings(
        cell="gru", layers=2, hidden=512, window=256, batch=128, learning_rate=4e-3
    ),
}


class Batch(NamedTuple):
    """The feeds of a step, as tensors on the device."""

    tokens: Any
    targets: Any
    keep: Any
    rate: Any


class TorchModel(torch.nn.Module):
    """The model of a run in torch.nn, with its weights as they are now.

    torch adds two biases where zstate has one; the second stays zero.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        s, characters = run.settings, len(run.corpus.alphabet)
        kind = getattr(torch.nn, s.cell.upper())
        self.embedding = torch.nn.Embedding(characters, s.embedding)
        self.layer = kind(s.embedding, s.hidden, s.layers)
        self.projection = torch.nn.Linear(s.hidden, characters)
        values = {name: np.asarray(v) for name, v in run.model.graph.variables().items()}
        parts = ("input_weight", "recurrent_weight", "bias")
        layers = [
            Layer(
                s.definition.name,
                DESCRIPTORS[s.cell],
                {part: values[f"layer{k}.{part}"] for part in parts},
            )
            for k in range(s.layers)
        ]
        state = {f"layer.{name}": value for name, value in save(layers, target="torch").items()}
        state["embedding.weight"] = values["embedding"]
        state["projection.weight"] = values["projection"].T
        state["projection.bias"] = values["projection_bias"]
        self.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
        for name, parameter in self.layer.named_parameters():
            parameter.requires_grad_(not name.startswith("bias_hh"))

    def forward(self, tokens: Any, state: Any) -> tuple[Any, Any]:
        """(logits, the state after) from what torch's layer takes as a state; None: zeros."""
        h, after = self.layer(self.embedding(tokens), state)
        return self.projection(h), after


class TorchSteps:
    """The training step of a run in torch: a call gives the loss."""

    def __init__(self, run: Run, device: Any, compiled: bool = False) -> None:
        s = run.settings
        self.kind = getattr(torch, s.type)
        self.model, self.clip = TorchModel(run).to(device), s.clip
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        shape = (s.layers, s.batch, s.hidden)
        self.state = [torch.zeros(shape, device=device) for _ in range(1 + (s.cell == "lstm"))]
        # A tensor, so that a compiled or captured step takes another rate every time.
        self.rate, on_gpu = torch.tensor(0.0, device=device), device.type == "cuda"
        self.optimizer = torch.optim.Adam(
            *(self.trained, self.rate, (0.9, 0.99), 1e-8), fused=on_gpu, capturable=on_gpu
        )
        self.forward: Callable[..., Any] = torch.compile(self.loss) if compiled else self.loss

    def __call__(self, batch: Batch) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        state = tuple(part * batch.keep for part in self.state)
        loss, after = self.forward(batch.tokens, batch.targets, state)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, self.clip, foreach=True)
        self.rate.copy_(batch.rate)
        self.optimizer.step()
        with torch.no_grad():
            for part, value in zip(self.state, after, strict=True):
                part.copy_(value)
        return loss.detach()

    def loss(self, tokens: Any, targets: Any, state: Any) -> tuple[Any, Any]:
        """The loss, and the states after."""
        half = self.kind != torch.float32
        state = tuple(part.to(self.kind) for part in state)
        with torch.autocast(tokens.device.type, self.kind, enabled=half, cache_enabled=False):
            logits, after = self.model(tokens, state if len(state) > 1 else state[0])
        flat = logits.float().flatten(0, 1), targets.flatten().long()
        loss = torch.nn.functional.cross_entropy(*flat)
        return loss, after if isinstance(after, tuple) else (after,)


class CapturedSteps(TorchSteps):
    """The same, as a CUDA graph."""

    inputs: Batch | None = None

    def __call__(self, batch: Batch) -> Any:
        if self.inputs is None:
            self.inputs = Batch(*(each.clone() for each in batch))
            self.capture(self.inputs)
        for to, value in zip(self.inputs, batch, strict=True):
            to.copy_(value)
        self.graph.replay()
        return self.out

    def capture(self, inputs: Batch) -> None:
        """As torch's manual says: some steps on a side stream, then the capture. All that the steps
        changed is put back."""
        kept = [p.detach().clone() for p in self.trained]
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                super().__call__(inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = super().__call__(inputs)
        with torch.no_grad():
            for parameter, value in zip(self.trained, kept, strict=True):
                parameter.copy_(value)
            moments = (v for state in self.optimizer.state.values() for v in state.values())
            for value in (*moments, *self.state):
                value.zero_()


class OurSteps:
    """The training step of a run in zstate: a call gives the loss."""

    def __init__(self, run: Run) -> None:
        self.program, self._on_host = run.program, run.model.device is None

    def __call__(self, batch: Batch) -> Any:
        feeds = [each.numpy() for each in batch] if self._on_host else list(batch)
        return self.program.run(feeds)[0]


Step = Callable[[Batch], Any]
Way = Callable[[Run, Any], Step]
WAYS: dict[str, Way] = {
    "torch eager": TorchSteps,
    "torch compiled": partial(TorchSteps, compiled=True),
}
ON_GPU: dict[str, Way] = {"torch captured": CapturedSteps}  # and there only


def batch_of(run: Run, step: int, device: Any) -> Batch:
    """A step's feeds, on the device."""
    arrays = [np.asarray(feed) for feed in run.feeds(step)]
    return Batch(*(torch.from_numpy(array).to(device) for array in arrays))


def run_of(settings: Settings, device: str | None, folder: Path) -> Run:
    """A run of the default text."""
    return Run(folder, settings, default_text(), None, {}, device)


class Timed(NamedTuple):
    """Milliseconds per step in the best block, and bits per character after all steps."""

    milliseconds: float
    bits: float


def contest(
    settings: Settings, device: str, steps: int, ways: Mapping[str, Way] | None = None
) -> dict[str, Timed]:
    """{"zstate": …, and each way of torch.nn}: in turn, a block of steps each."""
    on_gpu = device == "cuda"
    block = max(size for size in range(1, 26) if steps % size == 0)
    place = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(settings, str(place) if on_gpu else None, Path(folder))
        fed = [batch_of(run, step, place) for step in range(steps)]
        sides: dict[str, Step] = {"zstate": OurSteps(run)}
        usual = WAYS | (ON_GPU if on_gpu else {})
        sides |= {name: way(run, place) for name, way in (ways or usual).items()}
        losses: dict[str, list[Any]] = {name: [] for name in sides}
        calls = {name: _next_step(step, fed, losses[name]) for name, step in sides.items()}
        protocol = Protocol(pause=0.0, rounds=steps // block, calls=block)
        found = measure(calls, protocol, _until_through if on_gpu else together)
    bits = {name: float(torch.stack(own[-block:]).mean()) / LN2 for name, own in losses.items()}
    return {name: Timed(found[name].seconds * 1e3, bits[name]) for name in sides}


def _next_step(step: Step, fed: list[Batch], losses: list[Any]) -> Call:
    """A call takes the next batch and keeps its loss: a clone, because a captured step gives the
    same tensor every time."""
    return lambda: losses.append(torch.as_tensor(step(fed[len(losses)])).clone())


def _until_through(call: Call, count: int) -> list[float]:
    """One sample: the mean of the calls, until the device has finished."""

    def block() -> None:
        together(call, count)
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    return [together(block, 1)[0] / count]
