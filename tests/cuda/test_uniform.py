"""The kernel that draws uniform numbers, compiled for the CPU: the bits of NumPy's generator."""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
from tests.cuda.emulated import COMPILER, HERE, built
from tests.graph.torch_kernels import TorchKernels
from zstate.backends.cuda.graph_kernels import GraphKernels, text
from zstate.graph.compiling import compile_graph
from zstate.graph.on_device import DeviceExecutable
from zstate.graph.ops.random import first_state

if COMPILER is None:
    pytest.skip("there is no C++ compiler", allow_module_level=True)

KINDS = ("float64", "float32", "bfloat16", "float16")
SHAPES = [(), (0,), (3, 0), (1,), (3,), (4,), (5,), (8,), (9,), (7, 11), (2047,), (2048,), (2049,)]
SHAPES += [(70_001,), (3, 5, 4370)]
# 1/3 rounds in every type; the sum of the last two rounds twice where nothing is fused.
BOUNDS = [(0.0, 1.0), (-1.0, 3.0), (1 / 3, 1 / 7), (-1e-3, 1e5), (1e-30, 3e-39)]


class EmulatedKernels(GraphKernels):
    """Launches on the CPU, one thread after the other."""

    def __init__(self, folder: Path) -> None:
        parts = [HERE / "emulated_graph.h", text(), HERE / "emulated_graph.cu"]
        whole = "\n".join(part if isinstance(part, str) else part.read_text() for part in parts)
        self._library = built(whole, folder)

    def _launch(self, name: str, blocks: int, words: list[int], *_: Any) -> None:
        assert name == "uniform"
        self._library.run_uniform((ctypes.c_int64 * len(words))(*words), blocks)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> EmulatedKernels:
    return EmulatedKernels(tmp_path_factory.mktemp("uniform"))


def bits(values: torch.Tensor) -> bytes:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.itemsize]
    return values.view(integer).numpy().tobytes()


def check(
    kernels: EmulatedKernels, state: Any, shape: tuple[int, ...], kind: str, *bounds: float
) -> None:
    """The numbers and the state after them are the reference's; the state given stays."""
    given = torch.tensor(state)
    found, after = kernels.uniform(given, shape, getattr(torch, kind), *bounds)
    expected, _ = TorchKernels().uniform(given, shape, getattr(torch, kind), *bounds)
    assert found.dtype == expected.dtype and found.shape == shape
    assert bits(found) == bits(expected), (shape, bounds)
    assert after.tolist() == [*state[:5], state[5] + 1]
    assert given.tolist() == state


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_numpys(kernels: EmulatedKernels, kind: str) -> None:
    rng = np.random.default_rng(0)
    for k, shape in enumerate(SHAPES * 2):
        state = rng.integers(-(2**63), 2**63, 6).tolist()
        check(kernels, state, shape, kind, *BOUNDS[k % len(BOUNDS)])


@pytest.mark.parametrize(
    "counter", [[-3, 0, 0, 0], [-2, -1, 5, 0], [-1, -1, -1, 7], [-9, -1, -1, -1]]
)
def test_the_counter_carries(kernels: EmulatedKernels, counter: list[int]) -> None:
    check(kernels, [11, -12, *counter], (100,), "float64", 0.0, 1.0)


def test_the_first_draw_is_that_of_a_new_generator(kernels: EmulatedKernels) -> None:
    """Without the graph's own function between the two."""
    key = np.random.SeedSequence(9).generate_state(2, np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key))
    found, _ = kernels.uniform(torch.from_numpy(first_state(9)), (33,), torch.float32, 0.0, 1.0)
    np.testing.assert_array_equal(found.numpy(), generator.random(33, np.float32))


class UniformKernels(TorchKernels):
    """Those by torch, but for the one that is tested here."""

    def __init__(self, emulated: EmulatedKernels) -> None:
        super().__init__()
        self._emulated = emulated

    def uniform(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.called.append("uniform")
        return self._emulated.uniform(*arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_draws_what_numpy_draws(kernels: EmulatedKernels, kind: str) -> None:
    """Two draws and a dropout per run, from one state; normal numbers are left to NumPy."""

    def build() -> tuple[zs.Graph, list[Any], list[Any]]:
        g = zs.Graph()
        state = g.random_philox_state(seed=5, name="state")
        drawn, after = g.random_uniform((3, 50), state, minimum=-0.3, maximum=0.9, dtype=kind)
        kept, after = g.dropout(g.constant(1.0, shape=(77,), dtype=kind), 0.4, after)
        normal, after = g.random_normal((5,), after, dtype=kind)
        return g, [drawn, kept, normal], [g.assign(state, after)]

    graph, targets, effects = build()
    expected = graph.compile({}, targets, effects)
    own = UniformKernels(kernels)
    on_cpu: Any = partial(DeviceExecutable, device=torch.device("cpu"), kernels=own)
    there, targets, effects = build()
    program = compile_graph(there, {}, targets, effects, on_cpu)
    masks = set()
    for _ in range(4):
        found = program.run([])
        for one, wanted in zip(found, expected.run([]), strict=True):
            assert bits(one) == np.asarray(wanted).tobytes()
        masks.add(bits(found[1]))
    assert len(masks) == 4 and own.called.count("uniform") == 8
    np.testing.assert_array_equal(there.variables()["state"], graph.variables()["state"])
