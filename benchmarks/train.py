"""Training with zstate's graph beside the same model in torch.nn and torch.optim, on the CPU.

The same weights, windows, clipping, Adam and learning rates, in one process, in alternating blocks,
so that whatever else the machine does falls on both. Prints the median ratio of characters a second
with its spread, and the validation loss of both at the end.

    python benchmarks/train.py --cell gru --steps 200
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import zstate as zs
from zstate.train import Run, Settings, default_text

# torch's gate order in zstate's: r, z, n for z, r, o.
_ORDER = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2), "rnn": (0,)}
_LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
_PAUSE = 0.1  # until the threads of the one before have stopped spinning


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
        values = {n: torch.tensor(a) for n, a in run.model.graph.variables().items()}

        def ordered(tensor: torch.Tensor) -> torch.Tensor:
            order = _ORDER[s.cell]
            gates = tensor.reshape(len(order), s.hidden, *tensor.shape[1:])
            return gates[list(order)].reshape(tensor.shape)

        with torch.no_grad():
            self.embedding.weight.copy_(values["embedding"])
            for k in range(s.layers):
                ours = f"layer{k}."
                for name, theirs in (
                    ("input_weight", "weight_ih"),
                    ("recurrent_weight", "weight_hh"),
                    ("bias", "bias_ih"),
                ):
                    getattr(self.layer, f"{theirs}_l{k}").copy_(ordered(values[ours + name]))
                getattr(self.layer, f"bias_hh_l{k}").zero_().requires_grad_(False)
            self.projection.weight.copy_(values["projection"].T)
            self.projection.bias.copy_(values["projection_bias"])

    def forward(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        h, state = self.layer(self.embedding(tokens), state)
        return self.projection(h), state


class TorchTrainer:
    """The training loop of a run in torch."""

    def __init__(self, run: Run) -> None:
        self.run, self.model, self.state, self.step = run, TorchModel(run), None, 0
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.trained, betas=(0.9, 0.99), eps=1e-8)

    def advance(self) -> float:
        s = self.run.settings
        tokens, targets = (torch.from_numpy(a).long() for a in self.run.windows[self.step])
        if self.step % self.run.windows.count == 0:
            self.state = None
        for group in self.optimizer.param_groups:
            group["lr"] = s.rate(self.step)
        logits, state = self.model(tokens, self.state)
        is_pair = isinstance(state, tuple)
        self.state = tuple(p.detach() for p in state) if is_pair else state.detach()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, s.clip)
        self.optimizer.step()
        self.step += 1
        return loss.item()

    @torch.no_grad()
    def validate(self) -> float:
        state, total, windows = None, 0.0, self.run.valid_windows
        for k in range(windows.count):
            tokens, targets = (torch.from_numpy(a).long() for a in windows[k])
            logits, state = self.model(tokens, state)
            total += torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten()
            ).item()
        return total / windows.count / np.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", default="lstm", choices=("lstm", "gru", "rnn"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--block", type=int, default=10, help="steps of each before the other")
    parser.add_argument("--hidden", type=int, default=Settings.hidden)
    parser.add_argument("--layers", type=int, default=Settings.layers)
    parser.add_argument("--batch", type=int, default=Settings.batch)
    parser.add_argument("--window", type=int, default=Settings.window)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    zs.set_num_threads(options.threads)
    settings = Settings(
        cell=options.cell,
        hidden=options.hidden,
        layers=options.layers,
        batch=options.batch,
        window=options.window,
        total=options.steps,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", settings, default_text(), None)
        theirs = TorchTrainer(run)
        ours = run.train(every=10**9)
        ratios, speeds = [], {"zstate": [], "torch": []}
        size = options.block * settings.batch * settings.window
        for _ in range(options.steps // options.block):
            time.sleep(_PAUSE)
            began = time.perf_counter()
            for _ in range(options.block):
                point = next(ours)
            mine = time.perf_counter() - began
            if point.valid_bits is not None:  # the last step of ours also validates and saves
                mine = point.seconds * options.block
            time.sleep(_PAUSE)
            began = time.perf_counter()
            for _ in range(options.block):
                loss = theirs.advance()
            other = time.perf_counter() - began
            ratios.append(other / mine)
            speeds["zstate"].append(size / mine)
            speeds["torch"].append(size / other)
        low, middle_ratio, high = statistics.quantiles(ratios, n=4)
        for name, values in speeds.items():
            print(f"{name:8} {statistics.median(values):10,.0f} characters/s")
        print(f"ratio    {middle_ratio:.2f} (quartiles {low:.2f} to {high:.2f})")
        print(f"training {point.bits:.4f} and {loss / np.log(2):.4f} bits/char")
        a, b = run.validate(), theirs.validate()
        print(f"valid    {a:.4f} and {b:.4f} bits/char, {100 * (a - b) / b:+.2f}%")


if __name__ == "__main__":
    main()
