"""Threads may share a graph and a program: running is safe, also while nodes are added."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import zstate as zs
from zstate import pyobjc


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(act: Callable[[int], None], threads: int = 6) -> None:
    """Run act(k) in each thread, all at once; the first exception of any is raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(threads)

    def run(k: int) -> None:
        try:
            start.wait()
            act(k)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(k,)) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def model() -> tuple[zs.Graph, zs.Tensor, zs.Tensor]:
    g = zs.Graph()
    rng = np.random.default_rng(0)
    x = g.placeholder(shape=(None, 2, 3), dtype="float64", name="x")
    R = g.variable(rng.normal(size=(4, 4)), name="R")
    W = g.variable(rng.normal(size=(4, 3)), name="W")
    (h,) = g.single_gate_rnn(x, recurrent_weight=R, input_weight=W)
    return g, x, g.soft_max(h * 2.0 + 1.0, axis=-1)


def test_one_graph_runs_in_many_threads_with_many_shapes() -> None:
    g, x, y = model()
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(T, 2, 3)) for T in range(1, 41)]  # more than run() keeps programs
    alone = model()
    wanted = [alone[0].run({alone[1]: a}, [alone[2]])[alone[2]] for a in arrays]

    def run(k: int) -> None:
        for step in range(120):
            place = (7 * step + 11 * k) % len(arrays)
            found = g.run({x: arrays[place]}, [y])[y]
            np.testing.assert_array_equal(found, wanted[place])

    together(run)


def test_a_new_program_is_bound_in_many_threads_to_both_libraries() -> None:
    g, x, y = model()
    for k in range(30):  # the more there is to bind, the longer another thread can see half of it
        y = y + g.variable(np.full(4, float(k)), name=f"v{k}")
    array = np.random.default_rng(2).normal(size=(5, 2, 3))
    wanted = g.run({x: array}, [y])[y]
    for _ in range(60):
        program = g.compile({x: (array.shape, "float64")}, [y])

        def run(k: int, program: zs.Executable = program) -> None:
            for step in range(3):
                is_torch = (k + step) % 2
                (found,) = program.run([torch.from_numpy(array) if is_torch else array])
                np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-12)

        together(run, 4)


def test_nodes_may_be_added_while_others_run() -> None:
    g, x, y = model()
    array = np.random.default_rng(3).normal(size=(5, 2, 3))
    wanted = g.run({x: array}, [y])[y]

    def act(k: int) -> None:
        for step in range(60):
            if k % 2:
                more = g.addition(y, float(step))
                np.testing.assert_array_equal(g.run({x: array}, [more])[more], wanted + step)
            else:
                np.testing.assert_array_equal(g.run({x: array}, [y])[y], wanted)

    together(act)
    names = [node.name for node in g.nodes]
    assert len(set(names)) == len(names)


def test_updates_of_a_variable_are_whole() -> None:
    g = zs.Graph()
    v = g.variable(np.zeros(500), name="v")
    step = g.assign(v, v + 1.0)
    program = g.compile({}, [v], operations=[step])

    def run(k: int) -> None:
        for _ in range(200):
            (found,) = program.run([])
            assert (found == found[0]).all()

    together(run)
    value = g.variables()["v"]
    assert (value == value[0]).all()
    # Updates at the same time may count once; a thread that was held up may even undo many.
    assert 1 <= value[0] <= 1200


def test_the_facade_gives_each_thread_the_same_tensors() -> None:
    for _ in range(40):
        graph = pyobjc.MPSGraph.alloc().init()
        inner = graph._graph
        x = inner.placeholder(shape=(2,), name="x")
        found = []
        together(lambda k, graph=graph, x=x, found=found: found.append(graph._wrap(x)))  # type: ignore[misc]
        assert len(set(map(id, found))) == 1
