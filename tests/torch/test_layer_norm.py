"""Layer norm in the engine where it meets lengths, both directions, resets, compiled graphs,
zoneout and clipping: against the module's own sequences one by one, and by differences."""

from __future__ import annotations

import pytest
import torch

import zstate.torch as zt
from zstate import cells
from zstate.cells import MadeCell

CELLS = pytest.mark.parametrize(
    "cell",
    [cells.layer_norm_lstm, cells.layer_norm_gru, cells.block_gru],
    ids=lambda cell: cell.__name__,
)
LENGTHS = [5, 2, 4, 1]


def source() -> torch.Tensor:
    return torch.randn(5, 4, 3, dtype=torch.float64)


@CELLS
def test_lengths_in_both_directions(cell: MadeCell) -> None:
    layer = zt.Recurrent(cell, 3, 6, num_layers=2, bidirectional=True, dtype=torch.float64)
    x = source()
    output = layer(x, lengths=LENGTHS)[0]
    for row, length in enumerate(LENGTHS):
        alone = layer(x[:length, row : row + 1])[0]
        torch.testing.assert_close(output[:length, row : row + 1], alone, rtol=0, atol=1e-12)


@CELLS
def test_resets_and_a_compiled_graph(cell: MadeCell) -> None:
    layer, x = zt.Recurrent(cell, 3, 6, dtype=torch.float64), source()
    resets = torch.zeros(5, 4, dtype=torch.bool)
    resets[2] = True
    apart = torch.cat([layer(x[:2])[0], layer(x[2:])[0]])
    torch.testing.assert_close(layer(x, resets=resets)[0], apart, rtol=0, atol=1e-12)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x)[0], layer(x)[0], rtol=0, atol=1e-12)


@CELLS
def test_gradients_with_zoneout_and_clip(cell: MadeCell) -> None:
    layer = zt.Recurrent(cell, 3, 4, zoneout=0.3, clip=0.5, dtype=torch.float64).eval()
    x = source().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], (x,))
