"""A program gives what its graph gives, with fewer nodes, less memory, and lists in fixed order."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest
import torch

import zstate as zs


def names(program: zs.Executable) -> list[str]:
    return [node.op.name for node in program.nodes]


def test_feeds_and_results_are_in_the_order_given() -> None:
    g = zs.Graph()
    a = g.placeholder(shape=(None,), dtype="float64", name="a")
    b = g.placeholder(shape=(None,), dtype="float64", name="b")
    y, z = a - b, a + b
    program = g.compile(feeds={b: ((2,), "float64"), a: ((2,), "float64")}, targets=[z, y, z])
    found = program.run([np.array([1.0, 2]), np.array([10.0, 20])])
    assert [array.tolist() for array in found] == [[11, 22], [9, 18], [11, 22]]


def test_equal_nodes_are_merged_and_dead_ones_dropped() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(3,), dtype="float64")
    g.exponent(x)
    y = g.tanh(x * 2.0) + g.tanh(x * 2.0)
    program = g.compile({x: ((3,), "float64")}, [y])
    assert sorted(names(program)) == [
        "addition",
        "constant",
        "multiplication",
        "placeholder",
        "tanh",
    ]
    np.testing.assert_allclose(program.run([np.ones(3)])[0], 2 * np.tanh(2))


def test_constants_are_folded() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(3,), dtype="float64")
    c = g.exponent(g.constant(np.arange(3.0)) * 2.0)
    program = g.compile({x: ((3,), "float64")}, [x + c])
    assert sorted(names(program)) == ["addition", "constant", "placeholder"]
    np.testing.assert_allclose(program.run([np.zeros(3)])[0], np.exp([0, 2, 4]))


def test_folding_does_not_blow_constants_up() -> None:
    g = zs.Graph()
    big = g.broadcast(g.constant(0.0), (1000, 1000))
    program = g.compile({}, [g.reduction_sum(big)])
    assert program.memory.weights < 100
    assert program.run([])[0].tolist() == [[0.0]]


def test_layout_changes_that_cancel_cost_nothing() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2, 3), dtype="float64")
    y = g.transpose(g.transpose(x, [1, 0]), [1, 0])
    y = g.reshape(g.reshape(y, (6,)), (2, 3))
    program = g.compile({x: ((2, 3), "float64")}, [g.exponent(g.cast(y, "float64"))])
    assert names(program) == ["placeholder", "exponent"]


def test_variables_are_not_folded_and_reads_are_in_order() -> None:
    g = zs.Graph()
    v = g.variable(np.array([1.0, 2.0]), name="v")
    before = g.read(v)
    first = g.assign(v, v + 10.0)
    middle = g.read(v)
    second = g.assign(v, middle * 2.0)
    after = g.read(v)
    program = g.compile({}, [before, v, middle, after])
    assert [a.tolist() for a in program.run([])] == [[1, 2], [1, 2], [11, 12], [22, 24]]
    assert g.run({}, [v])[v].tolist() == [22, 24]
    assert [a.tolist() for a in program.run([])][3] == [64, 68]
    # A run does the assigns that it includes, and no others.
    assert g.run({}, [first])[first].tolist() == [74, 78]
    assert g.variables()["v"].tolist() == [74, 78]
    g.run({}, [before])
    assert g.variables()["v"].tolist() == [74, 78]
    g.run({}, [], operations=[second])
    assert g.variables()["v"].tolist() == [168, 176]


def test_an_assign_without_readers_is_kept_when_it_is_an_operation() -> None:
    g = zs.Graph()
    v = g.variable(0.0, dtype="float64", name="v")
    x = g.placeholder(shape=(), dtype="float64")
    update = g.assign(v, v + x)
    program = g.compile({x: ((), "float64")}, [], operations=[update])
    for _ in range(3):
        assert program.run([np.asarray(2.0)]) == []
    assert program.variables["v"] == 6 == g.variables()["v"]


def test_two_equal_assigns_are_two_assigns() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), dtype="float64")
    a, b = g.variable(np.zeros(2), name="a"), g.variable(np.zeros(2), name="b")
    g.run({x: np.ones(2)}, [], operations=[g.assign(a, x * 3.0), g.assign(b, x * 3.0)])
    values = g.variables()
    assert values["a"].tolist() == values["b"].tolist() == [3, 3]


def test_a_run_that_fails_changes_nothing() -> None:
    g = zs.Graph()
    v = g.variable(np.zeros(2), name="v")
    i = g.placeholder(shape=(2,), dtype="int64")
    done = g.assign(v, v + 1.0)
    looked_up = g.gather(g.constant(np.arange(3.0)), i)
    with pytest.raises(zs.OptionError, match="indices"):
        g.run({i: np.array([0, 7])}, [looked_up], operations=[done])
    assert g.variables()["v"].tolist() == [0, 0]
    g.run({i: np.array([0, 1])}, [looked_up], operations=[done])
    assert g.variables()["v"].tolist() == [1, 1]


def test_random_numbers_are_drawn_at_every_run() -> None:
    g = zs.Graph()
    state = g.random_philox_state(seed=5)
    first, after = g.random_uniform((4,), state)
    second, after = g.random_uniform((4,), after)
    program = g.compile({}, [first, second], operations=[g.assign(state, after)])
    assert names(program).count("random_tensor") == 2
    drawn = [array for _ in range(2) for array in program.run([])]
    assert len({array.tobytes() for array in drawn}) == 4


def test_results_belong_to_the_caller() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2, 2), dtype="float64")
    v = g.variable(np.ones((2, 2)), name="v")
    y = x * 2.0
    kept = g.assign(v, y)
    targets = [x, v, kept, y, g.transpose(y, [1, 0]), g.reshape(x, (4,))]
    program = g.compile({x: ((2, 2), "float64")}, targets)
    fed = np.arange(4.0).reshape(2, 2)
    first = program.run([fed])
    for k, array in enumerate(first):
        assert not np.shares_memory(array, fed)
        assert not any(np.shares_memory(array, other) for other in first[k + 1 :])
        array[...] = -7
    assert fed.tolist() == [[0, 1], [2, 3]]
    assert g.variables()["v"].tolist() == [[0, 2], [4, 6]]
    assert program.run([fed])[3].tolist() == [[0, 2], [4, 6]]


def test_a_fed_array_does_not_become_the_variable() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), dtype="float64")
    v = g.variable(np.zeros(2), name="v")
    fed = np.ones(2)
    g.run({x: fed}, [], operations=[g.assign(v, x)])
    fed[:] = 9
    assert g.variables()["v"].tolist() == [1, 1]


def chain(length: int, size: int) -> tuple[zs.Graph, zs.Tensor, zs.Tensor]:
    g = zs.Graph()
    x = g.placeholder(shape=(size,), dtype="float64")
    y = x
    for _ in range(length):
        y = g.tanh(y)
    return g, x, y


def test_buffers_are_freed_behind_their_last_reader() -> None:
    size = 100_000
    g, x, y = chain(20, size)
    program = g.compile({x: ((size,), "float64")}, [y])
    assert program.memory.peak == 2 * 8 * size
    assert program.memory.without_reuse == 20 * 8 * size
    assert program.memory.feeds == 8 * size
    array = np.ones(size)
    program.run([array])
    tracemalloc.start()
    program.run([array])
    measured = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.95 * program.memory.peak < measured < 1.05 * program.memory.peak


def test_a_view_keeps_its_buffer() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(100, 10), dtype="float64")
    y = g.exponent(x)
    part = g.slice_tensor(y, 0, 0, 1)
    z = g.tanh(g.tanh(x)) + part
    program = g.compile({x: ((100, 10), "float64")}, [z])
    assert program.memory.peak == 3 * 8000  # y behind its slice, tanh, and what comes next


def test_a_program_calls_little_beside_its_functions() -> None:
    """One function a node and next to nothing else; benchmarks/graph.py measures the time."""
    g, x, y = chain(2000, 4)
    program = g.compile({x: ((4,), "float64")}, [y])
    array = np.ones(4)
    program.run([array])
    names: list[str] = []

    def seen(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            names.append(event)

    sys.setprofile(seen)
    try:
        program.run([array])
    finally:
        sys.setprofile(None)
    assert len(names) < 2.5 * 2000


@pytest.mark.parametrize(
    ("feeds", "error", "message"),
    [
        ([], zs.GraphError, r"feeds: expected a list of 2 arrays \[a, b\], got 0 arrays, without"),
        ([np.ones(2)], zs.GraphError, "got 1 array, without 'b'"),
        ([np.ones(2)] * 3, zs.GraphError, "got 3 arrays, 1 too many"),
        ({"a": 1}, zs.GraphError, r"feeds: expected a list of 2 arrays \[a, b\], got dict"),
        ([np.ones(2), np.ones(3)], zs.ShapeError, r"feed 'b': expected \[2\], got \[3\]"),
        ([np.ones(2), np.ones(2, "f4")], zs.DTypeError, "feed 'b': expected float64, got float32"),
        ([np.ones(2), [1, 2]], zs.DTypeError, "feed 'b': expected a NumPy array .*, got list"),
        ([np.ones(2), torch.ones(2, dtype=torch.float64)], zs.DTypeError, "feed 'b': expected an"),
    ],
)
def test_wrong_feeds_are_named(feeds: object, error: type[Exception], message: str) -> None:
    g = zs.Graph()
    a = g.placeholder(shape=(None,), dtype="float64", name="a")
    b = g.placeholder(shape=(None,), dtype="float64", name="b")
    program = g.compile({a: ((2,), "float64"), b: ((2,), "float64")}, [a * b])
    with pytest.raises(error, match=message):
        program.run(feeds)  # type: ignore[arg-type]


def test_wrong_compiles_are_named() -> None:
    g = zs.Graph()
    a = g.placeholder(shape=(None, 3), dtype="float64", name="a")
    y = a * 2.0
    for feeds, message in [
        ({}, r"feed 'a': expected an array float64\[\?,3\], got nothing"),
        ({a: ((2, 4), "float64")}, r"feed 'a': expected \[\?,3\], got \[2,4\]"),
        ({a: ((None, 3), "float64")}, r"'a': expected a size for every dimension.*got \[\?,3\]"),
        ({a: (2, 3, 4)}, r"feed 'a': expected a pair \(shape, dtype\), got \(2, 3, 4\)"),
        ({a: ((2, 3), "float32")}, "feed 'a': expected float64, got float32"),
        ({a: 3}, r"feed 'a': expected a pair \(shape, dtype\), got int 3"),
        ({a: ((2, 3), "float64"), y: ((2, 3), "float64")}, "expected a placeholder, got the res"),
    ]:
        with pytest.raises(zs.ZStateError, match=message):
            g.compile(feeds, [y])  # type: ignore[arg-type]


def test_shapes_that_do_not_meet_are_refused_when_compiled() -> None:
    g = zs.Graph()
    a = g.placeholder(shape=(None,), dtype="float64", name="a")
    b = g.placeholder(shape=(None,), dtype="float64", name="b")
    y = g.addition(a, b, name="sum")
    with pytest.raises(zs.ShapeError, match=r"\[addition 'sum'\] secondary: expected a shape that"):
        g.compile({a: ((2,), "float64"), b: ((3,), "float64")}, [y])


def test_variables_move_between_numpy_and_torch() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), dtype="float64")
    v = g.variable(np.zeros(2), name="v")
    program = g.compile({x: ((2,), "float64")}, [g.assign(v, v + x)])
    program.run([np.ones(2)])
    found = program.run([torch.ones(2, dtype=torch.float64)])[0]
    assert isinstance(found, torch.Tensor)
    found[:] = 0
    assert program.run([np.ones(2)])[0].tolist() == [3, 3]


def test_set_variables() -> None:
    g = zs.Graph()
    v = g.variable(np.zeros(2), name="v")
    g.set_variables({"v": np.array([4.0, 5.0])})
    assert g.run({}, [v * 2.0]).popitem()[1].tolist() == [8, 10]
    with pytest.raises(zs.GraphError, match="expected the name of a variable, got 'w'"):
        g.set_variables({"w": np.zeros(2)})
    with pytest.raises(zs.ShapeError, match=r"v: expected float64\[2\], got float64\[3\]"):
        g.set_variables({"v": np.zeros(3)})
    with pytest.raises(zs.DTypeError, match=r"values: expected \{name: array\}, got list"):
        g.set_variables([np.zeros(2)])  # type: ignore[arg-type]


def test_print_names_what_there_is() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(None, 2, 3), dtype="float64", name="x")
    d = zs.SingleGateRNNDescriptor(activation=zs.Activation.TANH, reverse=True)
    (h,) = g.single_gate_rnn(x, recurrent_weight=g.constant(np.eye(3)), descriptor=d, name="enc")
    g.reduction_sum(h, axes=[0], name="total")
    text = str(g).splitlines()
    assert text[0] == "graph of 4 nodes"
    assert text[1] == "  x float64[?,2,3] = placeholder()"
    assert text[3] == (
        "  enc:state float64[?,2,3] = single_gate_rnn(source=x, recurrent_weight=constant_1, "
        "descriptor=SingleGateRNNDescriptor(reverse, activation=tanh))"
    )
    assert text[4] == "  total float64[1,2,3] = reduction_sum(enc:state, axes=(0,))"
    dot = g.to_dot()
    assert dot.startswith("digraph") and dot.count("->") == 2
    assert 'n0 -> n1 [label="source"]' in dot
