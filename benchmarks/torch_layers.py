"""zstate.torch's layers against torch.nn's on the CPU: lengths, compiled models, cost of a call.

    python benchmarks/torch_layers.py [lengths] [compile] [call]

Everything is checked against torch.nn before it is timed, then timed as `zstate bench` does it.
Lengths are random between 1 and T, one of them T, so about half of the padded steps are real.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import zstate as zs
import zstate.torch as zt
from zstate.bench.contenders import CONTENDERS, OURS, Case
from zstate.bench.rows import Row, make_data
from zstate.bench.timing import Protocol, measure

TORCH = CONTENDERS["torch"]
THREADS = zs.get_num_threads()
PROTOCOL = Protocol(0.3, rounds=3)
LENGTHS = [
    ("LSTM", 64, 16, 128, False),
    ("LSTM", 64, 16, 128, True),
    ("LSTM", 128, 32, 256, False),
    ("GRU", 64, 16, 128, False),
    ("GRU", 128, 32, 256, False),
    ("RNN", 64, 16, 128, False),
    ("RNN", 128, 32, 256, False),
]


def trainer(layer: Any, source: Any, leaf: Tensor, dy: Tensor, **more: Any) -> Callable[[], Any]:
    """Forward and backward with all gradients; the output and them."""
    leaves = [leaf, *layer.parameters()]

    def train() -> list[Tensor]:
        for each in leaves:
            each.grad = None
        output = layer(source, **more)[0]
        output = output.data if isinstance(output, PackedSequence) else output
        output.backward(dy)
        return [output.detach(), *(torch.as_tensor(each.grad) for each in leaves)]

    return train


def agree(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def lengths() -> None:
    """Packed and padded sequences of different lengths, training."""
    print("| T×N×H | torch.nn packed ms | packed ms | ratio | lengths= ms | ratio | GFLOP/s |")
    print("|---|---|---|---|---|---|---|")
    for kind, T, N, H, both in LENGTHS:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(T, N, H, generator=generator)
        dy = torch.randn(T, N, 2 * H if both else H, generator=generator)
        known = torch.randint(1, T + 1, (N,), generator=generator)
        known[0] = T
        theirs = getattr(torch.nn, kind)(H, H, bidirectional=both)
        ours = getattr(zt, kind)(H, H, bidirectional=both)
        ours.load_state_dict(theirs.state_dict())
        packed = pack_padded_sequence(x, known, enforce_sorted=False)
        leaf = packed.data.clone().requires_grad_()
        source = PackedSequence(leaf, *packed[1:])
        dy_packed = pack_padded_sequence(dy, known, enforce_sorted=False).data.clone()
        padded = x.clone().requires_grad_()
        calls = {
            "torch.nn": trainer(theirs, source, leaf, dy_packed),
            "packed": trainer(ours, source, leaf, dy_packed),
            "lengths": trainer(ours, padded, padded, dy, lengths=known),
        }
        wanted = calls["torch.nn"]()
        agree(calls["packed"](), wanted)
        agree(calls["lengths"]()[2:], wanted[2:])
        ms = {name: each.seconds * 1e3 for name, each in measure(calls, PROTOCOL).items()}
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * (2 if both else 1)
        rate = 12.0 * int(known.sum()) * gates * H * H / ms["packed"] / 1e6
        ratios = [ms["torch.nn"] / ms[name] for name in ("packed", "lengths")]
        title = f"{kind} {T}×{N}×{H}{' both ways' if both else ''}"
        theirs_ms, packed_ms, lengths_ms = (f"{value:.3g}" for value in ms.values())
        cells = [theirs_ms, packed_ms, f"{ratios[0]:.2f}", lengths_ms, f"{ratios[1]:.2f}"]
        print(f"| {title} | {' | '.join(cells)} | {rate:.0f} |", flush=True)


class Tagger(torch.nn.Module):
    """Words [T,N] to classes [T,N,8]."""

    def __init__(self, package: Any) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 128)
        self.encoder = package.LSTM(128, 128, bidirectional=True)
        self.head = torch.nn.Linear(256, 8)

    def forward(self, words: Tensor) -> Tensor:
        classes: Tensor = self.head(self.encoder(self.embedding(words))[0])
        return classes


def compiled() -> None:
    """A tagger with torch.nn's LSTM and with ours, plain and compiled whole; training."""
    words, dy = torch.randint(1000, (64, 16)), torch.randn(64, 16, 8)
    theirs, ours = Tagger(torch.nn), Tagger(zt)
    ours.load_state_dict(theirs.state_dict())

    def step(model: Any) -> Callable[[], Any]:
        def train() -> Tensor:
            model.zero_grad(set_to_none=True)
            output: Tensor = model(words)
            output.backward(dy)
            return output

        return train

    calls = {"torch.nn": step(theirs), "zstate": step(ours)}
    calls["zstate compiled, one graph"] = step(torch.compile(ours, fullgraph=True))
    calls["torch.nn compiled"] = step(torch.compile(theirs))  # its LSTM breaks the graph
    for call in calls.values():
        torch.testing.assert_close(call(), calls["torch.nn"](), rtol=1e-3, atol=1e-4)
    for name, each in measure(calls, PROTOCOL).items():
        print(f"tagger {name}: {each.seconds * 1e3:.2f} ms")


def call() -> None:
    """What a call of a module costs over the function on NumPy arrays, µs."""
    for cell in ("LSTM", "GRU", "RNN"):
        for training in (False, True):
            row = Row(cell, 1, 1, 64)
            case, data = Case(row, training, threads=THREADS), make_data(row, 0)
            makers = {"numpy": OURS["numpy"], "module": OURS["torch"], "torch.nn": TORCH.make}
            calls: dict[str, Any] = {name: make(case, data) for name, make in makers.items()}
            us = {name: each.seconds * 1e6 for name, each in measure(calls, PROTOCOL).items()}
            text = ", ".join(f"{name} {value:.1f}" for name, value in us.items())
            mode = "training" if training else "inference"
            print(f"{cell} 1×1×64 {mode}: {text}; over numpy {us['module'] - us['numpy']:.1f}")


PARTS = {"lengths": lengths, "compile": compiled, "call": call}

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all if none")
    chosen = parser.parse_args().parts or list(PARTS)
    for part in chosen:
        if part not in PARTS:
            parser.error(f"expected some of {', '.join(PARTS)}, got {part!r}")
    for part in chosen:
        PARTS[part]()
