"""What a prepared model takes and refuses, and what it says about itself."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.convert as zc
from tests.prepared import drawn
from tests.prepared.drawn import same
from tests.prepared.test_streams import flat, model_of, pickled, x_of
from zstate import cells
from zstate.backends import native
from zstate.types import Array


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_tensors_give_tensors(weights: str) -> None:
    model, x = model_of(weights=weights), x_of(5, 3, 7)
    wanted, states = model(x)
    found, ends = model(torch.from_numpy(x))
    assert isinstance(found, torch.Tensor) and isinstance(ends[0].cell, torch.Tensor)
    assert found.numpy().tobytes() == wanted.tobytes() and flat(ends) == flat(states)
    again, _ = model(torch.from_numpy(x), ends)
    assert again.numpy().tobytes() == model(x, states)[0].tobytes()


def test_tensors_that_are_negated_or_zero() -> None:
    model, x = model_of(), x_of(5, 3, 7)
    negated = torch.complex(torch.zeros(5, 3, 7), torch.from_numpy(-x)).conj().imag
    assert negated.is_neg()
    assert model(negated)[0].numpy().tobytes() == model(x)[0].tobytes()
    zero = torch._efficientzerotensor((5, 3, 7))
    assert model(zero)[0].numpy().tobytes() == model(np.zeros_like(x))[0].tobytes()


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_states_go_on(backend: str) -> None:
    """Two halves of a sequence give what the whole does; int8 to the bit."""
    model, x = model_of(backend), x_of(8, 3, 7)
    wanted, last = model(x)
    first, states = model(x[:3])
    second, states = model(x[3:], states)
    assert np.concatenate([first, second]).tobytes() == wanted.tobytes()
    assert flat(states) == flat(last)
    some = [(None, states[0].cell), None]
    zeros = [(np.zeros((3, 20), np.float32), states[0].cell), None]
    assert model(x, some)[0].tobytes() == model(x, zeros)[0].tobytes()


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_empty_calls(backend: str) -> None:
    model = model_of(backend)
    for steps, batch in ((0, 2), (3, 0), (0, 0)):
        output, states = model(np.zeros((steps, batch, 7), np.float32))
        assert output.shape == (steps, batch, 9) and states[0].cell.shape == (batch, 20)
    output, states = model(x_of(4, 2, 7), None, [0, 0])
    assert not output.any() and np.isneginf(states[1].m).all()


def test_without_the_engine_numpy_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "unavailable", lambda: "it was not built")
    model = model_of(backend=None)  # type: ignore[arg-type]
    assert model.backend == "reference" and model(x_of(2, 1, 7))[0].shape == (2, 1, 9)
    with pytest.raises(zs.OptionError, match="it was not built"):
        model_of("native")


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ((np.zeros((2, 3, 7)),), zs.DTypeError, "x: expected float32, got float64"),
        (
            (np.zeros((2, 3, 6), np.float32),),
            zs.ShapeError,
            r"x: expected \[T,N,7\], got \[2,3,6\]",
        ),
        ((x_of(3, 7),), zs.ShapeError, r"x: expected \[T,N,7\], got \[3,7\]"),
        (("x",), zs.DTypeError, "x: expected a NumPy array or a torch tensor on the CPU"),
        ((x_of(2, 3, 7), [None]), zs.DTypeError, "states: expected a list of 2, one per layer"),
        ((x_of(2, 3, 7), [(None,), None]), zs.DTypeError, "expected a tuple of state, cell"),
        (
            (x_of(2, 3, 7), [(np.zeros((2, 20), np.float32), None), None]),
            zs.ShapeError,
            r"state: expected \[N,20\] = \[3,20\], got \[2,20\]",
        ),
        (
            (x_of(2, 3, 7), None, [1, 2]),
            zs.ShapeError,
            r"lengths: expected \[N\] = \[3\]",
        ),
        ((x_of(2, 3, 7), None, [1, 2, 3]), zs.OptionError, "lengths: expected 0 to T = 2, got 3"),
        ((x_of(2, 3, 7), None, [1.0, 2, 1]), zs.DTypeError, "lengths: expected integers"),
        (
            (torch.ones(2, 3, 7).to_sparse(),),
            zs.DTypeError,
            "x: expected a NumPy array or a torch tensor on the CPU, got float32, sparse_coo, on",
        ),
        (
            (torch.ones(2, 3, 7).bfloat16(),),
            zs.DTypeError,
            "x: expected a NumPy array or a torch tensor on the CPU, got bfloat16, strided, on cpu",
        ),
        (
            (x_of(2, 3, 7), None, torch.tensor([1, 2, 1]).to_sparse()),
            zs.DTypeError,
            "lengths: expected integers, got int64, sparse_coo, on cpu",
        ),
        (
            (x_of(2, 3, 7), None, torch.ones(3, dtype=torch.int64, device="meta")),
            zs.DTypeError,
            "lengths: expected integers, got int64, strided, on meta",
        ),
    ],
)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_what_a_call_refuses(backend: str, given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        model_of(backend)(*given)


def test_what_cannot_be_prepared() -> None:
    rng = np.random.default_rng(0)
    lstm, gru = drawn.layer(rng, "lstm", 4, 5), drawn.layer(rng, "gru", 6, 5)
    for given, error, text in (
        ([], zs.OptionError, "layers: expected at least one layer, got none"),
        ([lstm, gru], zs.ShapeError, "layer 1: expected 5 inputs, which layer 0 gives, got 6"),
        ("lstm", zs.DTypeError, "layers: expected a zstate.convert.Layer or a list of them"),
        ([lstm, 1], zs.DTypeError, "layers: expected a zstate.convert.Layer"),
    ):
        with pytest.raises(error, match=text):
            zs.prepare(given)  # type: ignore[arg-type]
    with pytest.raises(zs.OptionError, match="one of 'float32', 'bfloat16', 'int8', got 'int4'"):
        zs.prepare(lstm, "int4")
    with pytest.raises(zs.OptionError, match="backend"):
        zs.prepare(lstm, backend="cuda")

    @cells.cell("a", "h", steps="k")
    def stepped(x, R, h, k):  # type: ignore[no-untyped-def]
        return cells.tanh(x.a + R.a @ h) * k

    tensors = {"recurrent_weight": rng.normal(size=(6, 3)), "input_weight": rng.normal(size=(6, 2))}
    with pytest.raises(zs.OptionError, match="stepped: expected a cell without values per step"):
        zs.prepare(zc.Layer(stepped, None, tensors))  # type: ignore[arg-type]


def test_weights_are_copied() -> None:
    rng = np.random.default_rng(0)
    layer = drawn.layer(rng, "gru", 4, 5)
    for weights in ("float32", "bfloat16", "int8"):
        model, x = zs.prepare(layer, weights), x_of(3, 2, 4)
        before = model(x)[0].tobytes()
        kept = {name: array.copy() for name, array in layer.tensors.items()}
        for array in layer.tensors.values():
            array[...] = 7.0
        assert model(x)[0].tobytes() == before
        for name, array in layer.tensors.items():
            array[...] = kept[name]


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_copies_and_pickles(weights: str) -> None:
    rng = np.random.default_rng(8)
    layers = [
        drawn.layer(rng, "lstm", 6, 5, bidirectional=True),
        drawn.layer(rng, cells.slstm, 10, 4),
    ]
    model, x = zs.prepare(layers, weights), x_of(7, 3, 6)
    wanted, last = model(x)
    largest = model.report(x).largest
    for layer in layers:
        for array in layer.tensors.values():
            array *= 3  # the model has its own
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model):
        output, states = again(x)
        assert np.array_equal(output, wanted) and again.report(x).largest == largest
        assert flat(states) == flat(last)


def test_the_report_is_of_this_data() -> None:
    rng = np.random.default_rng(7)
    layer = drawn.layer(rng, "lstm", 6, 40)
    x = x_of(20, 4, 6)
    exact = zs.prepare(layer)(x)[0].astype(np.float64)
    projection = rng.normal(size=(9, 40)).astype(np.float32)
    bias = rng.normal(size=9).astype(np.float32)
    for weights in ("bfloat16", "int8"):
        model = zs.prepare(layer, weights)
        error = np.abs(model(x)[0] - exact)
        report = model.report(x, (projection, bias))
        assert report.largest == error.max() and abs(report.mean - error.mean()) < 1e-12
        assert 0 < report.mean < report.largest < (0.1 if weights == "int8" else 0.01)
        best = [(each @ projection.T + bias).argmax(-1) for each in (exact, model(x)[0])]
        assert report.agreement == (best[0] == best[1]).mean()
        assert f"{weights} against float32 over 80 steps" in str(report)
        assert model.report(x).agreement is None
    assert zs.prepare(layer).report(x).largest == 0
    with pytest.raises(zs.ShapeError, match=r"projection: expected \[classes,40\], got \[9,39\]"):
        model.report(x, projection[:, 1:])


def test_what_it_says_about_itself() -> None:
    rng = np.random.default_rng(0)
    layer = zc.Layer(
        "lstm",
        zs.LSTMDescriptor(),
        {"recurrent_weight": rng.normal(size=(32, 8)), "input_weight": rng.normal(size=(32, 4))},
    )
    sizes = {"float32": 1536, "bfloat16": 768, "int8": 384 + 2 * 32 * 4}
    for weights, size in sizes.items():
        model = zs.prepare(layer, weights)
        assert model.weight_bytes == size
        assert repr(model) == f"<Prepared lstm 4→8; {weights}, {size:,} bytes, {model.backend}>"
        assert "2 rows over <Prepared" in repr(model.stream(2))


def _memmap(array: Array) -> Any:
    made: Any = array.view(np.memmap)
    return made


@pytest.mark.parametrize("other", [pickled, _memmap])
def test_arrays_of_types_of_their_own(other: Any) -> None:
    """What was pickled has a copy of NumPy's float32."""
    model, x = model_of(weights="float32"), x_of(5, 3, 7)
    wanted, ends = model(x)
    own, states = other(x), [tuple(map(other, each)) for each in ends]
    assert own.dtype is not x.dtype or type(own) is not np.ndarray
    assert model(own)[0].tobytes() == wanted.tobytes()
    for lengths in (None, [4, 0, 2]):
        want = model(x, ends, lengths)
        found = model(own, states, lengths)
        assert found[0].tobytes() == want[0].tobytes() and flat(found[1]) == flat(want[1])
    stream = model.stream(3)
    stream.states = states
    want, _ = model(x, ends)
    same(np.concatenate([stream.step(own[0])[None], stream.run(own[1:])]), want, 2e-5)


def test_memory_that_is_not_aligned() -> None:
    """As np.frombuffer gives it behind a header of an odd size."""

    def shifted(array: Array) -> Array:
        memory = np.frombuffer(b"." + array.tobytes(), np.uint8)[1:]
        return memory.view(array.dtype).reshape(array.shape)

    rng = np.random.default_rng(0)
    tensors = {"recurrent_weight": rng.normal(size=(8, 2)), "input_weight": rng.normal(size=(8, 3))}
    model = zs.prepare(zc.Layer("lstm", zs.LSTMDescriptor(), tensors))
    x = rng.normal(size=(5, 2, 3)).astype(np.float32)
    _, states = model(x)
    assert not shifted(x).flags.aligned
    wanted, _ = model(x, states)
    found, _ = model(shifted(x), tuple(map(shifted, states)))
    assert found.tobytes() == wanted.tobytes()
    stream = model.stream(2)
    stream.states = tuple(map(shifted, states))
    steps = [stream.step(shifted(step)) for step in x]
    np.testing.assert_allclose(np.stack(steps), wanted, rtol=1e-5, atol=1e-6)
