"""Traced and exported layers run with other sizes than those they were recorded with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import zstate.torch as zt
from zstate import cells

from .modules import H, I, assert_same, flat

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]


@cells.cell(gates="z", steps="k")
def timed(x, R, h, k):
    return cells.tanh(x.z + R.z @ (h * k))


class Call(torch.nn.Module):
    """A layer, called with tensors in the order of ``names``."""

    def __init__(self, kind: str, names: str, **options: Any) -> None:
        super().__init__()
        self.names = names.split()
        made = zt.Recurrent(timed, I, H, **options) if kind == "timed" else None
        self.layer: Any = made or getattr(zt, kind)(I, H, **options)

    def forward(self, x: Tensor, *rest: Tensor) -> list[Tensor]:
        given = dict(zip(self.names, rest, strict=True))
        states = tuple(given.pop(name) for name in ("h", "c") if name in given)
        if "k" in given:
            given["steps"] = {"k": given.pop("k")}  # type: ignore[assignment]
        first = states if len(states) == 2 else states[0] if states else None
        return flat(self.layer(x, first, **given))

    def draw(self, steps: int, batch: int) -> tuple[Tensor, ...]:
        layer = self.layer
        rows = layer.num_layers * layer.directions
        made = {
            "x": torch.randn(steps, batch, I),
            "lengths": torch.randint(0, steps + 1, (batch,)),
            "resets": torch.rand(steps, batch) < 0.4,
            "k": torch.rand(steps, batch, H),
            "h": torch.randn(rows, batch, layer.proj_size or H),
            "c": torch.randn(rows, batch, H),
        }
        found = [made[name] for name in ("x", *self.names)]
        if layer.batch_first:
            found = [
                tensor.transpose(0, 1) if name in ("x", "resets", "k") else tensor
                for name, tensor in zip(("x", *self.names), found, strict=True)
            ]
        return tuple(found)

    def sizes(self) -> tuple[Any, ...]:
        """The axes that torch.export is to leave open."""
        steps, batch = torch.export.Dim("T", min=2), torch.export.Dim("N", min=2)
        both = {0: batch, 1: steps} if self.layer.batch_first else {0: steps, 1: batch}
        axes = {"lengths": {0: batch}, "h": {1: batch}, "c": {1: batch}}
        rest = tuple(axes.get(name, both) for name in self.names)
        return (both, rest) if rest else (both,)


CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("RNN", "lengths resets", {}),
    ("GRU", "lengths resets h", {"bidirectional": True}),
    ("LSTM", "lengths resets", {"num_layers": 2, "batch_first": True}),
    ("GRU", "resets", {"bidirectional": True}),
    ("LSTM", "lengths resets h c", {"bidirectional": True, "proj_size": 2}),
    ("LSTM", "h c", {"proj_size": 2}),
    ("timed", "lengths k", {}),
    ("timed", "lengths resets k h", {"bidirectional": True}),
    ("timed", "lengths k", {"num_layers": 2, "clip": 0.5}),
    ("GRU", "lengths h", {"clip": 0.5}),
]
EACH = pytest.mark.parametrize(("kind", "names", "options"), CALLS, ids=str)


def made(kind: str, names: str, options: dict[str, Any]) -> Call:
    torch.manual_seed(5)
    return Call(kind, names, **options).eval().requires_grad_(False)


@pytest.mark.parametrize("steps", [1, 5])
@EACH
def test_traces(kind: str, names: str, options: dict[str, Any], steps: int) -> None:
    model = made(kind, names, options)
    example = model.draw(steps, 1 if steps == 1 else 2)
    traced: Any = torch.jit.trace(model, example, check_trace=False)  # type: ignore[no-untyped-call]
    for size in ((7, 3), (1, 2), (2, 1)):
        given = model.draw(*size)
        assert_same(flat(traced(*given)), model(*given), 1e-5)


@pytest.mark.parametrize("strict", [False, True])
@EACH
def test_exported_programs(kind: str, names: str, options: dict[str, Any], strict: bool) -> None:
    model = made(kind, names, options)
    program = torch.export.export(
        model, model.draw(5, 3), dynamic_shapes=model.sizes(), strict=strict
    )
    for size in ((7, 4), (2, 2)):
        given = model.draw(*size)
        assert_same(flat(program.module()(*given)), model(*given), 1e-5)


def test_a_trace_of_one_sequence_alone() -> None:
    model = made("timed", "lengths k", {})

    def call(x: Tensor, length: Tensor, k: Tensor) -> list[Tensor]:
        return flat(model.layer(x, lengths=length, steps={"k": k}))

    def drawn(steps: int) -> tuple[Tensor, ...]:
        return torch.randn(steps, I), torch.tensor(steps), torch.rand(steps, H)

    traced: Any = torch.jit.trace(call, drawn(1), check_trace=False)  # type: ignore[no-untyped-call]
    given = drawn(5)
    assert_same(traced(*given), call(*given), 1e-5)


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_trace_of_packed_sequences(batch_first: bool) -> None:
    model = made("timed", "lengths resets k h", {"batch_first": batch_first})

    def call(x: Tensor, lengths: Tensor, resets: Tensor, k: Tensor, h: Tensor) -> list[Tensor]:
        packed = pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        return flat(model.layer(packed, h, resets=resets, steps={"k": k}))

    def drawn(steps: int, batch: int) -> tuple[Tensor, ...]:
        x, _, *rest = model.draw(steps, batch)
        return x, torch.arange(steps - batch + 1, steps + 1), *rest

    traced: Any = torch.jit.trace(call, drawn(4, 2), check_trace=False)  # type: ignore[no-untyped-call]
    for size in ((7, 3), (5, 2), (3, 1)):
        given = drawn(*size)
        assert_same(traced(*given), call(*given), 1e-5)
