"""Training with zstate's graph against the same model in torch.nn and torch.optim, on the CPU.

The same weights, windows, clipping, Adam and learning rates, in one process, in alternating blocks,
so that other load on the machine affects both. Prints the median ratio of characters per second
with its spread, and the validation loss of both at the end.

    python benchmarks/train.py --cell gru --steps 200
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import zstate as zs
from zstate.bench import training
from zstate.train import Run, Settings, default_text

_PAUSE = 0.1  # until the threads of the one before have stopped spinning


class TorchTrainer:
    """The training loop of a run in torch."""

    def __init__(self, run: Run) -> None:
        self.run, self.step = run, 0
        self.device = torch.device("cpu")
        self.steps = training.TorchSteps(run, self.device)

    def advance(self) -> float:
        batch = training.batch_of(self.run, self.step, self.device)
        self.step += 1
        return float(self.steps(batch))

    @torch.no_grad()
    def validate(self) -> float:
        total, windows, state = 0.0, self.run.valid_windows, None
        for k in range(windows.count):
            tokens, targets = (torch.from_numpy(a).long() for a in windows[k])
            logits, state = self.steps.model(tokens, state)
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
    if options.steps < 2 * options.block:
        parser.error(f"--steps: expected at least two blocks of {options.block}")
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
