"""Train a small tagger on several processes: GPUs of one machine, several machines, or CPU cores.

    torchrun --nproc-per-node=2 examples/ddp.py

Each process takes its share of every batch; DistributedDataParallel averages the gradients while
the backward pass is still running. The task needs memory: for every word, say whether it appeared
earlier in the sentence.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import zstate.torch as zt

WORDS = 20


class Tagger(torch.nn.Module):
    """Words [T,N] to the two classes of each word [T,N,2]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, 16)
        self.encoder = zt.LSTM(16, hidden, bidirectional=True)
        self.head = torch.nn.Linear(2 * hidden, 2)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        output, _ = self.encoder(self.embedding(words), lengths=lengths)
        classes: Tensor = self.head(output)
        return classes


def make_batch(generator: torch.Generator, size: int, steps: int = 12) -> tuple[Tensor, ...]:
    """Words [T,N], lengths [N], classes [T,N]; -100, which the loss ignores, past the end."""
    words = torch.randint(WORDS, (steps, size), generator=generator)
    lengths = torch.randint(4, steps + 1, (size,), generator=generator)
    before = torch.stack([(words[:t] == words[t]).any(0) for t in range(steps)])
    outside = torch.arange(steps)[:, None] >= lengths
    return words, lengths, before.long().masked_fill(outside, -100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="sum over all processes")
    parser.add_argument("--hidden", type=int, default=64)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("run it with torchrun --nproc-per-node=2 examples/ddp.py")

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)

    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger(options.hidden).to(device))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)  # different data in every process
    for step in range(options.steps):
        batch = make_batch(generator, options.batch // count)
        words, lengths, classes = (tensor.to(device) for tensor in batch)
        loss = torch.nn.functional.cross_entropy(
            model(words, lengths).flatten(0, 1), classes.flatten()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if rank == 0 and (step % 50 == 0 or step == options.steps - 1):
            print(f"step {step:4d}  loss {loss.item():.4f}  on {count} {device.type} process(es)")
    leave(on_gpu)


def leave(on_gpu: bool) -> None:
    """End the group and, with gloo, the process."""
    dist.barrier()
    dist.destroy_process_group()
    if not on_gpu:
        # gloo's threads outlive the group. One that still has work to release when the
        # interpreter ends aborts ("terminate called without an active exception"): exit first.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
