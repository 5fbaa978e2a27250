"""The native engine is right: the common test body over instruction sets, float types, options and
sizes around every blocking boundary; the same bits on every run and for every number of threads."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zstate as zs
from tests import oracle
from tests.cases import (
    CELLS,
    DIRECTIONS,
    FLAGS,
    Case,
    Tolerance,
    all_inputs,
    cases,
    check_case,
    make_cotangents,
    make_tensors,
    run_forward,
    run_gradients,
)
from tests.covering import covering
from zstate.backends import native

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)
SIZES = (1, 7, 8, 15, 16, 17, 31, 33, 64, 65, 255, 257)
# Against float64: float32 by its rounding over a few steps, the 16-bit types by theirs in storage.
TOLERANCES = {
    "float64": Tolerance(),
    "float32": Tolerance(1e-5, 1e-5),
    "float16": Tolerance(4e-3, 8e-3),
    "bfloat16": Tolerance(3e-2, 6e-2),
}
OPCODES = [] if native.unavailable() else native._native.opcodes()


def full(cell: str, **more: object) -> Case:
    """A case with everything in it."""
    flags = frozenset(FLAGS[cell]) - {"flip_z", "peephole_on_new_cell"}
    gradient = {"cell_gradient": "all"} if cell == "lstm" else {}
    base = Case(cell, flags=flags, inputs=all_inputs(cell), state_gradient="flat", **gradient)
    # Smooth and bounded, so that the size of a layer does not make its answers ill-conditioned.
    return replace(base, activations=(oracle.TANH,) if cell == "rnn" else (), **more)


@pytest.mark.parametrize("cell", CELLS)
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_common_body(isa: str, cell: str, data: st.DataObject) -> None:
    check_case(data.draw(cases(cell)), "native")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_every_float_type(isa: str, cell: str, direction: str, dtype: str) -> None:
    case = full(cell, direction=direction, dtype=dtype, T=6, N=5, I=9, H=19)
    check_case(case, "native", TOLERANCES[dtype])
    if cell == "gru":
        before = replace(case, flags=frozenset(), inputs=case.inputs - {"secondary_bias"})
        check_case(before, "native", TOLERANCES[dtype])
    if cell == "lstm":
        other = replace(case, flags=case.flags | {"peephole_on_new_cell"})
        check_case(other, "native", TOLERANCES[dtype])


@pytest.mark.parametrize(("cell", "hidden", "threads"), covering(CELLS, SIZES, (1, 2, 3)))
def test_hidden_sizes_around_the_blocks(isa: str, cell: str, hidden: int, threads: int) -> None:
    zs.set_num_threads(threads)
    for batch in (1, 9):
        case = full(cell, T=3, N=batch, I=5, H=hidden)
        check_case(case, "native")
        check_case(replace(case, dtype="float32"), "native", TOLERANCES["float32"])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cell", CELLS)
def test_batch_and_input_sizes_around_the_blocks(isa: str, cell: str, size: int) -> None:
    for batch, inputs in ((size, 6), (3, size)):
        case = full(cell, T=3, N=batch, I=inputs, H=18, dtype="float32")
        check_case(case, "native", TOLERANCES["float32"])


@pytest.mark.parametrize("steps", [1, 2, 1000])
@pytest.mark.parametrize("cell", CELLS)
def test_few_and_many_steps(cell: str, steps: int) -> None:
    case = full(cell, T=steps, N=2, I=3, H=6, direction="bidirectional")
    check_case(case, "native", Tolerance(1e-11, 1e-11))


def digest(case: Case) -> str:
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    result = run_forward(case, tensors, "native", training=True)
    gradients = run_gradients(case, tensors, cotangents, result, "native")
    hashed = hashlib.sha256()
    for array in (*result, *gradients):
        if array is not None:
            hashed.update(array.tobytes())
    return hashed.hexdigest()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("steps", "batch", "hidden"), [(1, 1, 64), (20, 1, 96), (9, 37, 70), (5, 130, 33)]
)
@pytest.mark.parametrize("cell", CELLS)
def test_the_same_bits_for_every_thread_count(
    cell: str, steps: int, batch: int, hidden: int, dtype: str
) -> None:
    before = zs.get_num_threads()
    for direction in ("forward", "bidirectional"):
        case = full(cell, direction=direction, dtype=dtype, T=steps, N=batch, I=40, H=hidden)
        found = set()
        try:
            for count in (1, 2, 3, 2, 1):
                zs.set_num_threads(count)
                found.add(digest(case))
        finally:
            zs.set_num_threads(before)
        assert len(found) == 1


def test_eight_threads_at_once() -> None:
    """Each caller gets its own right answer, whoever else is computing."""
    todo = [
        full(cell, T=7, N=n, I=11, H=h, seed=n) for cell in CELLS for n, h in ((1, 40), (13, 21))
    ]
    wanted = [digest(case) for case in todo]
    wrong: list[str] = []

    def work(offset: int) -> None:
        for round_ in range(20):
            k = (offset + round_) % len(todo)
            if digest(todo[k]) != wanted[k]:
                wrong.append(str(todo[k]))

    before = zs.get_num_threads()
    zs.set_num_threads(2)
    try:
        callers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        zs.set_num_threads(before)
    assert not wrong


@pytest.mark.parametrize("kind", [zs.Activation.TANH, zs.Activation.SIGMOID])
@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 2.6), (np.float64, 2.6)])
def test_activations_are_accurate(isa: str, kind: zs.Activation, dtype: type, bound: float) -> None:
    """Units in the last place, against long double (x86) or double."""
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [rng.normal(size=20000) * scale for scale in (1e-4, 1e-2, 1, 5, 30)]
        + [np.linspace(-20, 20, 20001)]
    ).astype(dtype)
    wide = x.astype(np.longdouble)
    exact = np.tanh(wide) if kind is zs.Activation.TANH else 1 / (1 + np.exp(-wide))
    out = np.empty_like(x)
    native._native.function(OPCODES.index(kind.name.lower()), np.dtype(dtype).name, x, out)
    normal = np.abs(exact) >= np.finfo(dtype).tiny
    spacing = np.spacing(np.abs(exact[normal]).astype(dtype)).astype(np.longdouble)
    errors = np.abs(out[normal].astype(np.longdouble) - exact[normal]) / spacing
    assert errors.max() < bound


@pytest.mark.parametrize("kind", list(zs.Activation))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_at_the_ends(isa: str, kind: zs.Activation, dtype: type) -> None:
    x = np.array([-np.inf, -1e4, -0.0, 0.0, 1e4, np.inf, np.nan, -2.5, 2.5], dtype)
    out = np.empty_like(x)
    with np.errstate(over="ignore"):
        native._native.function(OPCODES.index(kind.name.lower()), np.dtype(dtype).name, x, out)
        sigmoid = 1 / (1 + np.exp(-x))
    wanted = {
        zs.Activation.NONE: x,
        zs.Activation.RELU: np.maximum(x, 0),
        zs.Activation.TANH: np.tanh(x),
        zs.Activation.SIGMOID: sigmoid,
        zs.Activation.HARD_SIGMOID: np.clip(0.2 * x + 0.5, 0, 1),
    }[kind]
    np.testing.assert_allclose(out, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, r"\[set_num_threads\] expected at least 1, got 0"),
        (True, r"\[set_num_threads\] expected an integer, got bool True"),
        (2.0, r"\[set_num_threads\] expected an integer, got float 2.0"),
    ],
)
def test_a_bad_number_of_threads(value: object, message: str) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        zs.set_num_threads(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cell", CELLS)
def test_any_memory_layout(cell: str, dtype: str) -> None:
    """Strided, negative, broadcast, misaligned: the same bits as packed arrays."""
    case = full(cell, T=5, N=4, I=6, H=9, dtype=dtype, direction="bidirectional")
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    wanted = digest(case)

    def spaced(array: np.ndarray) -> np.ndarray:
        wide = np.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]

    def turned(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array[::-1])[::-1]

    def shifted(array: np.ndarray) -> np.ndarray:
        raw = np.empty(array.nbytes + 1, np.uint8)[1:]
        view = raw.view(array.dtype).reshape(array.shape)
        view[...] = array
        return view

    for change in (spaced, turned, shifted, np.asfortranarray):
        given_ = {name: change(array) for name, array in tensors.items()}
        result = run_forward(case, given_, "native", training=True)
        incoming = {name: change(array) for name, array in cotangents.items()}
        back = run_gradients(case, given_, incoming, result, "native")
        hashed = hashlib.sha256()
        for array in (*result, *back):
            if array is not None:
                hashed.update(array.tobytes())
        assert hashed.hexdigest() == wanted, change.__name__


def test_empty_arrays_with_strange_strides() -> None:
    x = np.empty((0, 3, 8), np.float32)[::-1]
    R = np.ones((8, 2), np.float32)
    assert zs.lstm(x, R, backend="native").state.shape == (0, 3, 2)


def test_without_the_module_the_reference_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_REASON", "no compiler")
    x, R = np.ones((2, 3, 9)), np.ones((9, 9))
    assert zs.single_gate_rnn(x[..., :9], R).state.shape == (2, 3, 9)
    with pytest.raises(
        zs.BackendError, match="backend 'native' cannot serve this call: no compiler"
    ):
        zs.single_gate_rnn(np.ones((2, 4, 9)), R, backend="native")
    assert zs.get_num_threads() == 1
    zs.set_num_threads(2)


def test_a_module_of_another_interface_is_not_used() -> None:
    assert native._stale(native._native) is None
    expected = f"interface None, not {native._native.interface}: rebuild the package"
    assert expected in str(native._stale(object()))
