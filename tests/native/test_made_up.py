"""Cells that nobody has written, on the native engine: every float type, instruction set, number of
threads, both directions, equal and different lengths, against the reference in float64; and the
engine's functions by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zstate as zs
import zstate.cells as cells
from tests.cells.made_up import PlainDescriptor, make
from tests.native import random_calls
from zstate import backends
from zstate.backends import native
from zstate.cells import Cell, MadeCell
from zstate.cells.definition import HIDDEN, state
from zstate.errors import BackendError
from zstate.extensions import extended
from zstate.operations import operations_of

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)


@pytest.mark.parametrize("threads", [1, 3])
def test_random_cells(isa: str, threads: int, pytestconfig: pytest.Config) -> None:
    seed = int(pytestconfig.option.hypothesis_seed) % 2**31
    for k in range(30):
        random_calls.check_made_up(seed + k, threads)


@given(number=st.integers(0, 2**60), threads=st.sampled_from([1, 2, 3]))
def test_random_cells_in_all_their_forms(number: int, threads: int) -> None:
    random_calls.check_made_up(number, threads)


def test_a_state_that_grows_unseen() -> None:
    """Of this cell's states only h is returned; another leaves float32's range, so none agree."""
    random_calls.check_made_up(648573458796189808, threads=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_give_the_same_bits(isa: str, dtype: str) -> None:
    for number in range(12):
        rng = np.random.default_rng(number)
        cell = make(rng, means=0.5 * (number % 3 == 0))
        forward, backward = operations_of(cell)
        d = random_calls.Draw(
            forward,
            PlainDescriptor(bidirectional=number % 2 == 1, training=True),
            dtype,
            (4, 9, 5, 37),
            frozenset(forward.inputs),
        )
        inputs = random_calls.make_inputs(rng, d)
        *_, inputs["resets"] = extended(forward, tuple(inputs.values()), d.descriptor, 1)[0]
        found: list[list[bytes]] = []
        before = zs.get_num_threads()
        for threads in (1, 2, 3):
            zs.set_num_threads(threads)
            results = call(forward, inputs, d.descriptor)
            fed = {name: results[result] for name, result in cell.fed_back.items()}
            incoming = dict.fromkeys(cell.incoming, results["state"])
            gradients = call(backward, {**inputs, **fed, **incoming}, d.descriptor)
            found.append([v.tobytes() for v in (*results.values(), *gradients.values())])
        zs.set_num_threads(before)
        assert found[0] == found[1] == found[2], number


def call(operation: Any, inputs: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    values = tuple(inputs.get(name) for name in operation.inputs)
    result = backends.prepare(operation, values, descriptor, "native").run(values)
    return {name: value for name, value in result._asdict().items() if value is not None}


# ---- bounds of the engine, in words ----


def refused(cell: Cell) -> str | None:
    forward, _ = operations_of(cell)
    G, H = len(cell.gates), 3
    shapes = {"source": (2, 1, 4), "recurrent_weight": (G * H, H), "input_weight": (G * H, 4)}
    values = tuple(np.zeros(shapes[name]) if name in shapes else None for name in forward.inputs)
    layout = backends.bind(forward, values, cell.descriptor())
    return native.refuses(layout)


@dataclass(frozen=True)
class Plain(PlainDescriptor):
    __hash__ = PlainDescriptor.__hash__


def test_cells_beyond_its_bounds_are_refused() -> None:
    def many_gates(at: Any, h: Any) -> Any:
        return sum((at.x[g] + at.R[g] @ h for g in "abcdefghi"), h)

    cell = Cell("wide", tuple("abcdefghi"), Plain, many_gates)
    assert refused(cell) == "it has room for 8 gates, not 9"

    def many_states(at: Any, *before: Any) -> Any:
        return tuple(value * 0.5 + at.x.a for value in before)

    states = (HIDDEN, *(state(f"s{k}") for k in range(8)))
    cell = Cell("deep", ("a",), Plain, many_states, states=states)
    assert refused(cell) == "it has room for 8 states, not 9"


def library_layout(cell: MadeCell, T: int, N: int, H: int, heads: int = 1) -> Any:
    definition = cell.definition
    forward, _ = operations_of(definition)
    G, units = len(definition.gates), H // heads
    shapes = {"source": (T, N, G * H), "recurrent_weight": (heads, G * units, units)}
    shapes |= {each.name: (H,) for each in definition.own}
    if heads == 1:
        shapes["recurrent_weight"] = (G * H, H)
    values = tuple(np.zeros(shapes[name]) if name in shapes else None for name in forward.inputs)
    return backends.bind(forward, values, definition.descriptor(heads=heads))


LAYER_NORMS = (cells.layer_norm_lstm, cells.layer_norm_gru, cells.block_gru)


@pytest.mark.parametrize("cell", LAYER_NORMS, ids=lambda cell: cell.__name__)
def test_layer_norms_are_computed_by_the_engine(cell: MadeCell) -> None:
    for heads in (1, 2, 6):
        assert native.refuses(library_layout(cell, 3, 2, 6, heads)) is None


def test_a_mean_in_what_r_multiplies() -> None:
    """The engine computes that forward; the gradient, which needs it of all steps, is refused."""

    @cells.cell(gates="a", states="h")
    def normed(x: Any, R: Any, h: Any) -> Any:
        return cells.tanh(x.a + R.a @ cells.layer_norm(h))

    rng = np.random.default_rng(0)
    x, R, h = (rng.normal(size=size) for size in ((4, 3, 5), (5, 5), (3, 5)))
    found = normed(x, R, init_h=h, training=True, backend="native")
    for value, wanted in zip(found, normed(x, R, init_h=h, training=True), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
    want = x[0] + (_normed(h) @ R.T)
    np.testing.assert_allclose(found.h[0], np.tanh(want), rtol=1e-12)
    with pytest.raises(BackendError, match="a mean in a value that R multiplies"):
        normed.gradients(x, R, found, {"h": x}, init_h=h, backend="native")
    gradients = normed.gradients(x, R, found, {"h": x}, init_h=h)
    step = 1e-6 * np.eye(1, 15, 7).reshape(3, 5)
    above, below = (normed(x, R, init_h=each).h for each in (h + step, h - step))
    slope = ((above - below) * x).sum() / 2e-6
    np.testing.assert_allclose(gradients.init_h[1, 2], slope, rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_mean_is_read_behind_a_later_product(threads: int, isa: str) -> None:
    """Threads share out rows for means and units for products, so who reads a mean may not be who
    computed it."""

    @cells.cell(gates="a b", states="h")
    def scaled(x: Any, R: Any, h: Any) -> Any:
        a = x.a + R.a @ h
        size = cells.mean(a * a)
        return 0.5 * h + cells.tanh(x.b + R.b @ (a * size)) * size

    @cells.cell(gates="a b c", states="h")
    def twice(x: Any, R: Any, h: Any) -> Any:
        size = cells.mean(x.a * h)
        r = cells.sigmoid(x.b + R.b @ h)
        return cells.layer_norm(x.c + R.c @ (r * h)) * size + (1 - size) * r * h

    rng = np.random.default_rng(1)
    before = zs.get_num_threads()
    zs.set_num_threads(threads)
    try:
        for cell, gates in ((scaled, 2), (twice, 3)):
            for N in (1, 2, 5):
                T, H = 4, 96
                x = rng.normal(size=(T, N, gates * H))
                R = rng.normal(size=(gates * H, H)) / H
                call = {"init_h": rng.normal(size=(N, H)), "training": True}
                found = cell(x, R, backend="native", **call)
                wanted = cell(x, R, backend="reference", **call)
                for value, want in zip(found, wanted, strict=True):
                    np.testing.assert_allclose(value, want, rtol=1e-10, atol=1e-10)
                if cell is scaled:  # whose gradient is the reference's
                    continue
                d = {"h": rng.normal(size=(T, N, H))}
                backs = (
                    cell.gradients(x, R, wanted, d, init_h=call["init_h"], backend=backend)
                    for backend in ("native", "reference")
                )
                for value, want in zip(*backs, strict=True):
                    if want is not None:
                        np.testing.assert_allclose(value, want, rtol=1e-10, atol=1e-10)
    finally:
        zs.set_num_threads(before)


def _normed(h: Any) -> Any:
    centred = h - h.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def test_a_function_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = native._TABLES
    assert tables is not None
    opcodes = {name: k for name, k in tables.opcodes.items() if name != "log"}
    monkeypatch.setattr(native, "_TABLES", replace(tables, opcodes=opcodes))
    cell = Cell(
        "logarithm",
        ("a",),
        Plain,
        lambda at, h: h.book.operation("log", at.x.a * at.x.a + h * h + 1),
    )
    assert refused(cell) == "it has no function 'log'"


# ---- functions ----

EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "softplus": lambda x: np.where(x > 0, x, 0) + np.log1p(np.exp(-np.abs(x))),
    "log_sigmoid": lambda x: -(np.where(x < 0, -x, 0) + np.log1p(np.exp(-np.abs(x)))),
    "slope_softplus": lambda y: -np.expm1(-y),
    "slope_log_sigmoid": lambda y: -np.expm1(y),
}


def on_engine(name: str, x: Any) -> Any:
    out = np.empty_like(x)
    native._native.function(native._native.opcodes().index(name), x.dtype.name, x, out)
    return out


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_are_accurate(isa: str, name: str, dtype: type) -> None:
    """Units in the last place, against long double (x86) or double."""
    rng = np.random.default_rng(5)
    x = np.concatenate(
        [rng.normal(size=5000) * scale for scale in (1e-6, 1e-3, 0.1, 1, 5, 30)]
        + [np.linspace(-80, 80, 20001), 1 + rng.normal(size=3000) * 1e-3]
    ).astype(dtype)
    x = np.clip(x, -80, 80)
    x = np.abs(x) if name in ("log", "sqrt", "slope_softplus") else x
    x = -np.abs(x) if name == "slope_log_sigmoid" else x
    x = x[x != 0] if name == "log" else x
    exact = EXACT[name](x.astype(np.longdouble))
    normal = np.abs(exact) >= np.finfo(dtype).tiny
    spacing = np.spacing(np.abs(exact[normal]).astype(dtype)).astype(np.longdouble)
    errors = np.abs(on_engine(name, x)[normal].astype(np.longdouble) - exact[normal]) / spacing
    assert errors.max() < 2.6


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_at_the_ends(isa: str, name: str, dtype: type) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([-np.inf, -1e4, -1.0, -0.0, 0.0, tiny, 1.0, 1e4, np.inf, np.nan], dtype)
    if name.startswith("slope"):  # of what the function gives
        x = np.where(x < 0, -x, x) if name == "slope_softplus" else np.where(x > 0, -x, x)
    with np.errstate(all="ignore"):
        wanted = EXACT[name](x.astype(np.longdouble)).astype(dtype)
    np.testing.assert_allclose(
        on_engine(name, x), wanted, rtol=1e-6 if dtype is np.float32 else 1e-14
    )
