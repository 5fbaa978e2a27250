"""Training steps of `zstate train`'s model beside the same model in torch.nn, on one device.

Both sides have the same weights, windows, clipping, Adam and learning rates, and all windows on
the device before the clock starts. torch.nn runs eagerly, compiled, or captured as a CUDA graph.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..train import Run, Settings, default_text
from ..train.losses import LN2

# torch's gate order in zstate's: r, z, n for z, r, o.
_ORDER = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2), "rnn": (0,)}
_LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
_NAMES = (
    ("input_weight", "weight_ih"),
    ("recurrent_weight", "weight_hh"),
    ("bias", "bias_ih"),
)
WAYS = ("eager", "compiled", "captured")

MODELS = {
    "LSTM 1×256, T128 N32": Settings(),
    "LSTM 2×1024, T128 N64": Settings(layers=2, hidden=1024, batch=64, learning_rate=2e-3),
    "GRU 2×512, T256 N128": Settings(
        cell="gru", layers=2, hidden=512, window=256, batch=128, learning_rate=4e-3
    ),
}


class Batch(NamedTuple):
    """What a step is fed with, as tensors on the device."""

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
        self.embedding = torch.nn.Embedding(characters, s.embedding)
        self.layer = _LAYERS[s.cell](s.embedding, s.hidden, s.layers)
        self.projection = torch.nn.Linear(s.hidden, characters)
        values = {name: torch.tensor(a) for name, a in run.model.graph.variables().items()}

        def ordered(tensor: torch.Tensor) -> torch.Tensor:
            order = _ORDER[s.cell]
            gates = tensor.reshape(len(order), s.hidden, *tensor.shape[1:])
            return gates[list(order)].reshape(tensor.shape)

        with torch.no_grad():
            self.embedding.weight.copy_(values["embedding"])
            for k in range(s.layers):
                for name, theirs in _NAMES:
                    weight = ordered(values[f"layer{k}.{name}"])
                    getattr(self.layer, f"{theirs}_l{k}").copy_(weight)
                getattr(self.layer, f"bias_hh_l{k}").zero_().requires_grad_(False)
            self.projection.weight.copy_(values["projection"].T)
            self.projection.bias.copy_(values["projection_bias"])

    def forward(self, tokens: Any, state: Any) -> tuple[Any, Any]:
        """(logits, the state after) from what torch's layer takes as a state; None: zeros."""
        h, after = self.layer(self.embedding(tokens), state)
        return self.projection(h), after


class TorchSteps:
    """The training step of a run in torch: a call gives the loss."""

    def __init__(self, run: Run, device: Any, way: str) -> None:
        s, self._device = run.settings, device
        self.model, self._clip = TorchModel(run).to(device), s.clip
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        is_cuda = device.type == "cuda"
        self._kind = getattr(torch, s.type)
        states = 2 if s.cell == "lstm" else 1
        shape = (s.layers, s.batch, s.hidden)
        self._state = tuple(torch.zeros(shape, device=device) for _ in range(states))
        # A tensor, so that a captured step takes another rate every time.
        self._rate = torch.tensor(0.0, device=device)
        self._optimizer = torch.optim.Adam(
            self._trained,
            lr=self._rate if is_cuda else 0.0,
            betas=(0.9, 0.99),
            eps=1e-8,
            fused=is_cuda,
            capturable=is_cuda,
        )
        self._forward: Callable[..., Any] = self._loss
        if way == "compiled":
            self._forward = torch.compile(self._loss)
        self._graph: Any = None
        self._way, self._out = way, torch.zeros((), device=device)
        self._inputs: Batch | None = None

    def __call__(self, batch: Batch) -> Any:
        if self._way != "captured":
            return self._step(batch)
        if self._inputs is None:
            self._inputs = Batch(*(each.clone() for each in batch))
            self._capture()
        assert self._inputs is not None
        for to, value in zip(self._inputs, batch, strict=True):
            to.copy_(value)
        self._graph.replay()
        return self._out

    def _capture(self) -> None:
        """As torch's manual says: some steps on a stream of their own, then the capture. The steps
        leave no trace: everything is put back."""
        kept = [p.detach().clone() for p in self._trained]
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step(self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._out = self._step(self._inputs)
        with torch.no_grad():
            for parameter, value in zip(self._trained, kept, strict=True):
                parameter.copy_(value)
            for state in self._optimizer.state.values():
                for value in state.values():
                    value.zero_()
            for part in self._state:
                part.zero_()

    def _step(self, batch: Any) -> Any:
        self._optimizer.zero_grad(set_to_none=True)
        state = tuple(part * batch.keep for part in self._state)
        loss, after = self._forward(batch.tokens, batch.targets, state)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained, self._clip, foreach=True)
        if self._device.type == "cuda":
            self._rate.copy_(batch.rate)
        else:
            for group in self._optimizer.param_groups:
                group["lr"] = float(batch.rate)
        self._optimizer.step()
        with torch.no_grad():
            for part, value in zip(self._state, after, strict=True):
                part.copy_(value)
        return loss.detach()

    def _loss(self, tokens: Any, targets: Any, state: Any) -> tuple[Any, Any]:
        kind = self._kind
        wide = kind == torch.float32
        manner = (
            nullcontext()
            if wide
            else torch.autocast(self._device.type, dtype=kind, cache_enabled=False)
        )
        with manner:
            given = state if wide else tuple(part.to(kind) for part in state)
            logits, after = self.model(tokens, given if len(given) > 1 else given[0])
        after = after if isinstance(after, tuple) else (after,)
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten().long()
        )
        return loss, after


class OurSteps:
    """The training step of a run in zstate: a call gives the loss."""

    def __init__(self, run: Run) -> None:
        self.program, self._on_host = run.program, run.model.device is None

    def __call__(self, batch: Batch) -> Any:
        feeds = [each.numpy() for each in batch] if self._on_host else list(batch)
        return self.program.run(feeds)[0]


def batches(run: Run, device: Any, count: int) -> list[Batch]:
    """The first steps' feeds, on the device."""
    return [batch_of(run, step, device) for step in range(count)]


def batch_of(run: Run, step: int, device: Any) -> Batch:
    """A step's feeds, on the device."""
    arrays = [np.asarray(feed) for feed in run.feeds(step)]
    return Batch(*(torch.from_numpy(array).to(device) for array in arrays))


class Timed(NamedTuple):
    """Milliseconds per step: the median of blocks; and bits per character after all steps."""

    milliseconds: float
    bits: float


@contextmanager
def precision(kind: str) -> Iterator[str]:
    """A type by its name, "tf32" among them, set in torch: the type that a run stores."""
    is_tf32 = kind == "tf32"
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before, matmul.allow_tf32 = matmul.allow_tf32, is_tf32
    kept = {name: getattr(cudnn, name) for name in ("enabled", "benchmark", "deterministic")}
    try:
        # Its own context manager: another library may have forbidden to set its flags.
        with cudnn.flags(**kept, allow_tf32=is_tf32):
            yield "float32" if is_tf32 else kind
    finally:
        matmul.allow_tf32 = before


def run_of(settings: Settings, device: str | None, folder: Path) -> Run:
    """A run of the default text; one with this name replaces the one before."""
    return Run(folder, settings, default_text(), None, {}, device)


def contest(
    settings: Settings, device: str, ways: tuple[str, ...], steps: int, block: int = 25
) -> dict[str, Timed]:
    """{"zstate": …, and each way of torch.nn}: in turn, a block of steps each."""
    place = torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", torch.cuda.current_device())
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(settings, str(place) if place.type == "cuda" else None, Path(folder))
        fed = batches(run, place, steps)
        sides: dict[str, Callable[[Batch], Any]] = {"zstate": OurSteps(run)}
        sides |= {f"torch {way}": TorchSteps(run, place, way) for way in ways}
        times: dict[str, list[float]] = {name: [] for name in sides}
        losses: dict[str, list[Any]] = {name: [] for name in sides}
        for begin in range(0, steps, block):
            part = fed[begin : begin + block]
            for name, step in sides.items():
                seconds, found = _block(step, part, place)
                losses[name] += found
                if begin:  # the first block compiles, warms up and captures
                    times[name].append(seconds / len(part) * 1e3)
    return {
        name: Timed(
            statistics.median(times[name]) if times[name] else float("nan"),
            float(torch.stack(losses[name][-block:]).mean()) / LN2,
        )
        for name in sides
    }


def _block(step: Callable[[Batch], Any], part: list[Batch], place: Any) -> tuple[float, list[Any]]:
    def wait() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    wait()
    began = time.perf_counter()
    # Clones: a captured step gives the same tensor every time.
    found = [torch.as_tensor(step(each)).clone() for each in part]
    wait()
    return time.perf_counter() - began, found
