"""Streams: the states between steps, chunks, resets, threads; what they refuse."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import zstate as zs
import zstate.convert as zc
from tests.prepared import drawn
from tests.prepared.drawn import same
from tests.prepared.test_floats import rng_of
from zstate import cells

BACKENDS = ("native", "reference")


def model_of(backend: str = "native", weights: str = "int8", inputs: int = 7) -> zs.Prepared:
    rng = np.random.default_rng(2)
    layers = [drawn.layer(rng, "lstm", inputs, 20), drawn.layer(rng, cells.slstm, 20, 9)]
    return zs.prepare(layers, weights, backend=backend)


def x_of(*shape: int) -> Any:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def flat(states: Any) -> bytes:
    return b"".join(np.ascontiguousarray(each).tobytes() for layer in states for each in layer)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("part", range(4))
def test_steps_and_chunks_are_one_call(pytestconfig: pytest.Config, isa: str, part: int) -> None:
    """Of every kind of weights; int8 to the bit."""
    rng = rng_of(pytestconfig, part, 10)
    for weights in ("float32", "bfloat16", "int8"):
        T, N, I = int(rng.integers(4, 12)), int(rng.integers(1, 5)), int(rng.integers(1, 40))
        layers = drawn.stack(rng, I, 2, both_ways=False)
        x = rng.normal(size=(T, N, I)).astype(np.float32)
        model = zs.prepare(layers, weights, backend="native")
        wanted, last = model(x)
        stream = model.stream(batch=N)
        cut = int(rng.integers(1, T - 1))
        found = np.concatenate(
            [stream.run(x[:cut]), stream.step(x[cut])[None], stream.run(x[cut + 1 :])]
        )
        ends = [found, *(each for layer in stream.states for each in layer)]
        wants = [wanted, *(each for layer in last for each in layer)]
        for end, want in zip(ends, wants, strict=True):
            if weights == "int8":  # infinite ones too
                np.testing.assert_array_equal(end, want)
            elif not drawn.amplifies(wanted, last):
                same(end, want, 2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_can_be_read_set_and_reset(backend: str) -> None:
    model, x = model_of(backend), x_of(6, 3, 7)
    stream = model.stream(3)
    first = flat(stream.states)
    assert np.isneginf(stream.states[1].m).all()  # how that cell begins
    stream.run(x[:2])
    kept = stream.states
    wanted = stream.run(x[2:])
    stream.states = kept
    assert stream.run(x[2:]).tobytes() == wanted.tobytes()
    stream.reset(rows=[0, -1])
    new = stream.states
    for layer, begins in zip(new, model.stream(3).states, strict=True):
        for each, start in zip(layer, begins, strict=True):
            assert (each[[0, 2]] == start[[0, 2]]).all() and (each[1] != start[1]).all()
    stream.reset(rows=np.array([False, True, False]))
    assert flat(stream.states) == first
    stream.step(x[0])
    stream.reset()
    assert flat(stream.states) == first
    stream.states[0].state[:] = 5.0  # a copy
    assert flat(stream.states) == first


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("backend", BACKENDS)
def test_copies_go_on_by_themselves(backend: str, copied: Any) -> None:
    model, x = model_of(backend, "float32"), x_of(6, 3, 7)
    stream = model.stream(3)
    stream.run(x[:2])
    twin = copied(stream)
    twin.run(-x)  # which the stream must not see
    again = copied(stream)
    wanted, _ = model(x)
    for each in (stream, again):
        same(each.run(x[2:]), wanted[2:], 2e-5)


def test_a_step_takes_any_layout_and_gives_a_new_array() -> None:
    stream, again = (model_of().stream(4) for _ in range(2))
    x = x_of(4, 14)
    wanted = stream.step(np.ascontiguousarray(x[:, ::2]))
    found = again.step(x[:, ::2])
    assert found.tobytes() == wanted.tobytes()
    assert not np.shares_memory(found, again.step(x[:, ::2]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (np.zeros((2, 7), np.float32), zs.ShapeError, r"x_t: expected \[3,7\], got \[2,7\]"),
        (np.zeros((3, 6), np.float32), zs.ShapeError, r"x_t: expected \[N,7\], got \[3,6\]"),
        (np.zeros((1, 3, 7), np.float32), zs.ShapeError, r"x_t: expected \[N,7\], got \[1,3,7\]"),
        (np.zeros((3, 7)), zs.DTypeError, "x_t: expected float32, got float64"),
        ([[0.0] * 7] * 3, zs.DTypeError, "x_t: expected a NumPy array, got list"),
        (None, zs.DTypeError, "x_t: expected a NumPy array, got None"),
    ],
)
def test_a_wrong_step_is_refused_in_words(
    backend: str, wrong: Any, error: type[Exception], text: str
) -> None:
    stream = model_of(backend).stream(3)
    stream.step(x_of(3, 7))
    before = flat(stream.states)
    with pytest.raises(error, match=text):
        stream.step(wrong)
    assert flat(stream.states) == before


def test_what_a_stream_refuses() -> None:
    model = model_of()
    stream = model.stream(2)
    for batch, error in ((0, zs.OptionError), (-1, zs.OptionError), (1.5, zs.DTypeError)):
        with pytest.raises(error, match=r"\[stream\] batch"):
            model.stream(batch)  # type: ignore[arg-type]
    with pytest.raises(zs.ShapeError, match=r"x: expected \[T,2,7\], got \[5,3,7\]"):
        stream.run(x_of(5, 3, 7))
    with pytest.raises(zs.OptionError, match="rows: expected rows below N = 2, got 2"):
        stream.reset(rows=2)
    with pytest.raises(zs.DTypeError, match="rows: expected integers"):
        stream.reset(rows=[0.5])
    with pytest.raises(zs.DTypeError, match="rows: expected a row's number or several, got list"):
        stream.reset(rows=[[0], [1, 0]])  # type: ignore[list-item]
    with pytest.raises(zs.ShapeError, match=r"state: expected \[N,20\] = \[2,20\], got \[3,20\]"):
        stream.states = model.stream(3).states
    rng = np.random.default_rng(0)
    for ways in ({"reverse": True}, {"bidirectional": True}):
        backwards = zs.prepare(drawn.layer(rng, "gru", 4, 5, **ways))
        with pytest.raises(zs.OptionError, match="one direction that reads forward"):
            backwards.stream()


def test_streams_in_threads() -> None:
    """Each with its own states, all over one model, some of them large enough to share the pool."""
    model = model_of(weights="float32", inputs=300)
    x = x_of(30, 12, 300)
    alone = model.stream(12)
    wanted = [alone.step(each) for each in x]
    wrong: list[int] = []

    def work(number: int) -> None:
        stream = model.stream(12)
        for each, want in zip(x, wanted, strict=True):
            if stream.step(each).tobytes() != want.tobytes():
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert not wrong


def test_one_stream_in_two_threads_is_refused() -> None:
    """Its states would be of neither."""
    rng = np.random.default_rng(1)
    stream = zs.prepare(drawn.layer(rng, "lstm", 64, 512), "float32").stream(64)
    chunk = x_of(60, 64, 64)
    running = threading.Event()

    def work() -> None:
        running.set()
        stream.run(chunk)

    worker = threading.Thread(target=work)
    worker.start()
    running.wait()
    refused = 0
    while worker.is_alive():
        try:
            stream.step(chunk[0])
        except RuntimeError as error:
            refused += "one thread at a time" in str(error)
    worker.join()
    assert refused


def test_a_layer_with_its_own_states_and_mask() -> None:
    rng = np.random.default_rng(5)
    layer = drawn.layer(rng, "lstm", 6, 10)
    h, c = (rng.normal(size=(3, 10)).astype(np.float32) for _ in range(2))
    mask = (rng.random((1, 3, 10)) < 0.5).astype(np.float32)
    tensors = {**layer.tensors, "init_state": h, "init_cell": c, "mask": mask}
    model = zs.prepare(zc.Layer("lstm", layer.descriptor, tensors), "float32")
    x = x_of(5, 3, 6)
    wanted = zs.lstm(x, **tensors, descriptor=layer.descriptor, backend="reference").state
    stream = model.stream(3)
    same(np.stack([stream.step(each) for each in x]), wanted, 2e-5)
    same(model(x)[0], wanted, 2e-5)
    with pytest.raises(zs.ShapeError, match=r"init_state: expected \[N,10\] with the layer's own"):
        model.stream(2)
