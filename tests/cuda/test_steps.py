"""A scan in single steps: its products and launches in their order, around launches on the CPU that
check the product before them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.cuda.forms import plain, scan
from tests.cuda.pretended import CHIP, PretendedScan, pretend
from tests.cuda.test_prepared import H, I, N, T, make_call
from tests.gpu import checked
from zstate import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from zstate.backends import cuda
from zstate.backends.cuda import engine, launch
from zstate.backends.cuda.launch import Kernel
from zstate.backends.cuda.options import constants
from zstate.backends.cuda.passes import Options
from zstate.backends.cuda.placement import STEPS, Chip, Placement, Scan
from zstate.backends.cuda.placements import placements

CELLS: dict[str, tuple[str, Any]] = {
    "rnn": ("single_gate_rnn", SingleGateRNNDescriptor),
    "lstm": ("lstm", LSTMDescriptor),
    "gru": ("gru", GRUDescriptor),
    "gru after": ("gru", lambda **both: GRUDescriptor(reset_after=True, **both)),
}
# The rows of R that each product of a step has to do with, in multiples of H.
ROWS = {"rnn": [(0, 1)], "lstm": [(0, 4)], "gru": [(0, 2), (2, 3)], "gru after": [(0, 3)]}
BACKWARD_ROWS = {**ROWS, "gru": [(2, 3), (0, 2)]}


class Stepped(PretendedScan):
    """Launches that check the product they are given and make up the next operand."""

    def __init__(
        self, scan: Scan, options: Options, plan: Placement, rows: list[tuple[int, int]]
    ) -> None:
        super().__init__(scan, options, plan)
        self.rows, self.rng = rows, np.random.default_rng(0)
        self.order: list[tuple[int, int]] = []  # phase (-1: before the first) and index
        self.sums = 0.0

    def step_launches(self) -> list[SteppedLaunch]:
        return [SteppedLaunch(self, phase) for phase in range(-1, len(self.rows))]

    def run(self, phase: int, words: dict[str, int]) -> None:
        scan = self.scan
        self.order.append((phase, words["index"]))
        weight = at(words["weight"], (scan.directions, scan.gates * H, H))
        if phase >= 0:
            begin, end = (H * row for row in self.rows[phase])
            part = (
                weight[:, begin:end] if scan.backward else weight[:, begin:end].transpose(0, 2, 1)
            )
            parts = self.placement.parts(scan)[phase]
            product = at(words["product"], (scan.directions, parts, N, part.shape[2]))
            assert np.allclose(product.sum(1), self.operand @ part, rtol=1e-4, atol=1e-4)
        following = (phase + 1) % len(self.rows)
        begin, end = self.rows[following] if scan.backward else (0, 1)
        operand = at(words["operand"], (scan.directions, N, (end - begin) * H))
        self.operand = self.rng.normal(size=operand.shape).astype(np.float32)
        operand[:] = self.operand
        if scan.states:
            assert words["kept"] % 256 == words["operand"] % 256
        if scan.backward:  # one group of rows after the other
            groups = self.placement.tile_groups(N)
            sums = at(words["sum_bias"], (groups - 1) * words["sum_stride"] + self.width)
            self.sums += 1
            sums[:: words["sum_stride"]] = self.sums  # the first bias of each group

    @property
    def width(self) -> int:
        return self.scan.directions * self.scan.gates * H


class SteppedLaunch(NamedTuple):
    """As launch.Launch: once, or repeated with another number at one place."""

    scan: Stepped
    phase: int

    def __call__(self, stream: int, words: Sequence[int]) -> None:
        self.scan.run(self.phase, dict(zip(self.scan.words, words, strict=True)))

    def repeated(self, stream: int, words: Sequence[int], place: int) -> Callable[[int], None]:
        return lambda number: self(stream, [*words[:place], number, *words[place + 1 :]])


def at(address: int, shape: Any) -> Any:
    size = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * size).from_address(address)).reshape(shape)


@pytest.fixture
def tf32() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("backward", "pieces"), [(False, 1), (True, 1), (True, 2)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_a_product_before_every_launch(
    cell: str,
    backward: bool,
    pieces: int,
    turned: bool,
    both: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each direction's operand and the rows of R that belong to the phase.

    Backward it may consist of two pieces, or R be turned.
    """
    pretend(monkeypatch)
    monkeypatch.setattr(engine, "FEW_STEPS", 1 if turned else T + 1)
    monkeypatch.setattr(engine, "turned", lambda matrix, memory: matrix.t().contiguous().t())
    made: list[Stepped] = []
    rows = (BACKWARD_ROWS if backward else ROWS)[cell]

    def kernel_of(scan: Scan, options: Options, device: Any, in_steps: bool) -> Any:
        plan = next(p for p in placements(scan, CHIP, in_steps) if p.mode == STEPS)
        plan = plan._replace(pieces=pieces)  # the launches here are in float32
        assert plan.tile_groups(N) == 3
        made.append(Stepped(scan, options, plan, rows))
        return made[-1]

    monkeypatch.setattr(engine, "kernel_of", kernel_of)
    operation, descriptor = CELLS[cell]
    name = operation + "_gradients" * backward
    call = make_call(name, descriptor(bidirectional=both))
    found = checked.by_name(call, cuda.prepare(call.layout)(call.values))  # type: ignore[arg-type]
    (only,) = made
    steps = [(phase, index) for index in range(T) for phase in range(len(rows))]
    assert only.order == [(-1, 0), *steps]
    if backward:
        assert found["bias"][0] == 3 * only.sums
        assert found["source"].shape == (T, N, I)


def test_sums_of_single_steps_stay_in_float32() -> None:
    """Also those of one group: every launch adds to them."""
    asked = scan("lstm", True, "bfloat16", 64, 1, 1)
    for plan in placements(asked, CHIP, in_steps=True):
        text = constants(asked, plain("lstm", True), plan)
        one_group = plan.mode != STEPS
        assert plan.tile_groups(1) == 1
        assert plan.sums_all(1) == one_group
        assert f"kOneGroup = {str(one_group).lower()};" in text


@pytest.mark.parametrize(
    ("kind", "streamed", "capability", "dependent", "count"),
    [
        ("tf32", False, (9, 0), True, 1),
        ("bfloat16", False, (9, 0), True, 0),
        ("bfloat16", True, (9, 0), True, 1),
        ("tf32", False, (9, 0), False, 0),
        ("bfloat16", True, (9, 0), False, 0),
        ("tf32", False, (8, 0), True, 0),
        ("tf32", False, (12, 0), True, 1),
    ],
)
def test_launches_overlap_where_the_chip_can(
    kind: str,
    streamed: bool,
    capability: tuple[int, int],
    dependent: bool,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All but the one before the first step, which reads what the products before it wrote."""
    pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(launch, "DEPENDENT", dependent)
    monkeypatch.setattr(launch, "chip_of", lambda device: Chip(132, 232448, capability))
    asked = scan("gru", False, kind, 256, 16, 1)
    kernel = object.__new__(Kernel)
    kernel.scan, kernel.device, kernel.words = asked, 0, ["T"]
    single = [p for p in placements(asked, CHIP, True) if p.mode == STEPS]
    kernel.placement = next(p for p in single if bool(p.split) == streamed)
    kernel.launches, kernel._functions = [(0, 8)], ["begin", "first", "last"]
    driver = launch.driver
    monkeypatch.setattr(
        launch,
        "driver",
        SimpleNamespace(
            CUlaunchConfig=SimpleNamespace,
            CUstream=int,
            CUlaunchAttribute=driver.CUlaunchAttribute,
            CUlaunchAttributeID=driver.CUlaunchAttributeID,
        ),
    )
    begin, *phases = (each.config(stream=0) for each in kernel.step_launches())
    assert begin.numAttrs == 0
    assert [each.numAttrs for each in phases] == [count, count]
    serial = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert all(attribute.id == serial for each in phases for attribute in each.attrs)
