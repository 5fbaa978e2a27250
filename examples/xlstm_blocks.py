"""A model of the xlstm package whose sLSTM cells run on zstate, on the CPU or a GPU.

    pip install xlstm zstate
    python examples/xlstm_blocks.py

It builds the same blocks twice, once with the package's own plain backend, compares results and
gradients, and times a training step of both.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from xlstm import (
    FeedForwardConfig,
    sLSTMBlockConfig,
    sLSTMLayerConfig,
    xLSTMBlockStack,
    xLSTMBlockStackConfig,
)
from xlstm.blocks.slstm.cell import sLSTMCell_vanilla

from zstate import cells


def scan(cell: sLSTMCell_vanilla, _: bool, x: Tensor, states: Tensor) -> Tensor:
    """All states [4,T+1,N,H] of an sLSTM, from x [T,N,4H] and the states before [4,N,H]."""
    h, c, n, m = states
    # The package starts m at zero and ignores it in the first step. Here that is m = -inf.
    m = torch.where(n == 0, torch.full_like(m, -math.inf), m)
    out = cells.slstm(
        x,
        cell._recurrent_kernel,  # [heads,4·d,d]
        bias=cell._bias,
        heads=cell.config.num_heads,
        init_h=h,
        init_c=c,
        init_n=n,
        init_m=m,
    )
    after = torch.stack([out.h, out.c, out.n, out.m])
    return torch.cat([states[:, None], after], 1)


def use_zstate(model: nn.Module) -> nn.Module:
    """Make every sLSTM cell of a model run on zstate, with the parameters it has."""
    for module in model.modules():
        if isinstance(module, sLSTMCell_vanilla):
            module._impl = scan.__get__(module)
    return model


def make_model(width: int, heads: int, blocks: int, steps: int) -> nn.Module:
    layer = sLSTMLayerConfig(backend="vanilla", num_heads=heads, conv1d_kernel_size=4)
    block = sLSTMBlockConfig(slstm=layer, feedforward=FeedForwardConfig(proj_factor=1.3))
    config = xLSTMBlockStackConfig(
        slstm_block=block,
        slstm_at="all",
        num_blocks=blocks,
        embedding_dim=width,
        context_length=steps,
    )
    model: nn.Module = xLSTMBlockStack(config)
    return model


def gradients(model: nn.Module, x: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of all parameters and of the input."""
    inputs = [x.clone().requires_grad_(), *model.parameters()]
    output = model(inputs[0])
    loss = (output * weight).sum()
    return output.detach(), list(torch.autograd.grad(loss, inputs, allow_unused=True))


def seconds(step: Callable[[], Any], repeats: int) -> float:
    """The median time of a step."""
    step()
    found = []
    for _ in range(repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return sorted(found)[repeats // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in (("width", 256), ("heads", 4), ("blocks", 2), ("steps", 64)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    theirs = make_model(args.width, args.heads, args.blocks, args.steps).to(device)
    for parameter in theirs.parameters():  # some start at zero, which would hide a mistake
        nn.init.normal_(parameter, std=0.1)
    ours = use_zstate(copy.deepcopy(theirs))
    x = torch.randn(args.batch, args.steps, args.width, device=device)
    weight = torch.randn_like(x)
    wanted, wanted_gradients = gradients(theirs, x, weight)
    found, found_gradients = gradients(ours, x, weight)
    errors = [float((found - wanted).abs().max() / wanted.abs().max())]
    for mine, other in zip(found_gradients, wanted_gradients, strict=True):
        if other is not None:
            errors.append(float((mine - other).abs().max() / (other.abs().max() + 1e-6)))
    print(f"output differs by {errors[0]:.1e}, gradients by at most {max(errors[1:]):.1e}")
    assert max(errors) < 1e-4
    own = seconds(lambda: gradients(ours, x, weight), args.repeats)
    plain = seconds(lambda: gradients(theirs, x, weight), args.repeats)
    print(f"a training step: {own * 1e3:.1f} ms on zstate, {plain * 1e3:.1f} ms on xlstm")


if __name__ == "__main__":
    main()
