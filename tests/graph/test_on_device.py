"""Programs that live on a device, on torch's CPU device: all but the capture and the kernels."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
from tests.graph.torch_kernels import TorchKernels
from zstate.graph import on_device
from zstate.graph.compiling import compile_graph
from zstate.graph.on_device import DeviceExecutable, namespace
from zstate.train.model import Model, Settings

CPU = torch.device("cpu")
SMALL = Settings(hidden=12, embedding=5, window=7, batch=3, layers=2, learning_rate=0.05)
CHARACTERS = 9
PARAMETERS = {"p": [0.1, 2, -3], "q": [0.5, -1, 4]}


def on_cpu(
    graph: zs.Graph, feeds: Any, targets: Any, operations: Any = (), kernels: Any = None
) -> Any:
    """graph.compile for torch's CPU device."""
    made = partial(DeviceExecutable, device=CPU, kernels=kernels)
    return compile_graph(graph, feeds, targets, operations, made)


@pytest.fixture(params=[None, TorchKernels])
def kernels(request: pytest.FixtureRequest) -> Any:
    return request.param and request.param()


def training(settings: Settings, device: str | None = None) -> tuple[Model, Any]:
    """A model and its training program."""
    model = Model(settings, CHARACTERS, device)
    return model, model.training_program()


def windows(count: int) -> list[list[Any]]:
    rng = np.random.default_rng(3)
    shape = (SMALL.window, SMALL.batch)
    return [
        [
            *(rng.integers(0, CHARACTERS, shape).astype(np.int32) for _ in range(2)),
            np.asarray(np.float32(k % 3 != 0)),
            np.asarray(np.float32(SMALL.rate(k))),
        ]
        for k in range(count)
    ]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_training_gives_the_losses_and_weights_of_numpy(
    cell: str, kind: str, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_device, "device_named", lambda *_: (CPU, kernels))
    settings = Settings(**{**SMALL.as_dict(), "cell": cell, "type": kind})
    expected, program = training(settings)
    found, there = training(settings, "cuda")
    rounding = {"float32": 2e-7, "bfloat16": 4e-3, "float16": 5e-4}[kind]
    for feeds in windows(6):
        wanted = program.run(feeds)
        got = there.run([torch.from_numpy(feed) for feed in feeds])
        assert all(isinstance(each, torch.Tensor) for each in got)
        np.testing.assert_allclose([float(each) for each in got], wanted, rtol=100 * rounding)
    ours, theirs = found.graph.variables(), expected.graph.variables()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        # Adam's first steps are as large for a small gradient as for a large one.
        atol = 2 * SMALL.learning_rate * 6 if kind != "float32" else 2e-6
        np.testing.assert_allclose(ours[name], value, rtol=1000 * rounding, atol=atol)
    if kernels is not None:  # once per run, not once per parameter
        for name in ("adam", "squares", "store", "cross_entropy", "cross_entropy_gradient"):
            assert kernels.called.count(name) == 6, name
        assert kernels.called.count("scalars") == (18 if kind == "float16" else 6)
        assert kernels.called.count("narrow") == (0 if kind == "float32" else 6)


def test_dropout_draws_numpys_masks(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "device_named", lambda *_: (CPU, kernels))
    settings = Settings(**{**SMALL.as_dict(), "dropout": 0.4})
    expected, program = training(settings)
    found, there = training(settings, "cuda")
    for feeds in windows(4):
        got = there.run([torch.from_numpy(feed) for feed in feeds])
        np.testing.assert_allclose([float(x) for x in got], program.run(feeds), rtol=2e-5)
    state = expected.graph.variables()["dropout.state"]
    np.testing.assert_array_equal(found.graph.variables()["dropout.state"], state)
    assert kernels is None or kernels.called.count("uniform") == 4 * SMALL.layers


def counter(kernels: Any) -> tuple[zs.Graph, Any, Any]:
    """v += x, giving (v before, x): a target that is a variable, and one that is a feed."""
    g = zs.Graph()
    x = g.placeholder(shape=(2,), dtype="float32", name="x")
    v = g.variable(np.array([1, 2], np.float32), name="v")
    program = on_cpu(g, {x: ((2,), "float32")}, [v, x], [g.assign(v, v + x)], kernels)
    return g, v, program


def test_results_belong_to_the_caller(kernels: Any) -> None:
    _, _, program = counter(kernels)
    results = [program.run([torch.tensor([k, 10.0 * k])]) for k in (1.0, 2.0, 3.0)]
    assert [before.tolist() for before, _ in results] == [[1, 2], [2, 12], [4, 32]]
    assert [x.tolist() for _, x in results] == [[1, 10], [2, 20], [3, 30]]
    results[0][0].fill_(99)
    assert program.variables["v"].tolist() == [7, 62]


def test_numpy_fed_gives_numpy_and_a_mixture_gives_tensors() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), dtype="float32", name="x")
    y = g.placeholder(shape=(), dtype="int64", name="y")
    program = on_cpu(g, {x: ((2,), "float32"), y: ((), "int64")}, [x + 1.0, y + 1])
    one, two = program.run([np.array([1, 2], np.float32), np.array(2**40)])
    assert type(one) is np.ndarray and one.tolist() == [2, 3] and two == 2**40 + 1
    one, two = program.run([torch.tensor([5.0, 6.0]), np.array(-1)])
    assert isinstance(one, torch.Tensor) and one.tolist() == [6, 7] and int(two) == 0


def test_storage_types_come_in_whole() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(3,), dtype="bfloat16", name="x")
    program = on_cpu(g, {x: ((3,), "bfloat16")}, [g.cast(x, "float32")])
    values = torch.tensor([1.5, -0.0078125, 3e38]).bfloat16()
    from zstate.arrays import NUMPY

    (found,) = program.run([NUMPY.asarray(values)])
    assert found.tolist() == values.float().tolist()


def test_the_graph_sees_the_devices_values_and_gives_it_others(kernels: Any) -> None:
    g, v, program = counter(kernels)
    program.run([torch.tensor([1.0, 1.0])])
    assert g.variables()["v"].tolist() == [2, 3]
    kept = g.variables()["v"]
    g.set_variables({"v": np.array([50, 60], np.float32)})
    program.run([torch.tensor([1.0, 1.0])])
    assert g.variables()["v"].tolist() == [51, 61]
    assert kept.tolist() == [2, 3]
    # A plain run on the same graph reads the device's value and gives it a new one.
    after = g.assign(v, v * 2.0)
    assert g.run({}, [after])[after].tolist() == [102, 122]
    assert program.run([torch.tensor([1.0, 1.0])])[0].tolist() == [102, 122]


def test_two_programs_share_a_graphs_variables(kernels: Any) -> None:
    g, v, program = counter(kernels)
    double = on_cpu(g, {}, [v * 2.0], kernels=kernels)
    program.run([torch.tensor([4.0, 5.0])])
    (found,) = double.run([])
    assert found.tolist() == [10, 14]


def test_variables_that_take_each_others_values(kernels: Any) -> None:
    g = zs.Graph()
    a, b, c = (
        g.variable(np.arange(k, k + 6, dtype=np.float32).reshape(2, 3)[:, :2], name=f"v{k}")
        for k in (0, 10, 20)
    )
    turned = g.transpose(c, [1, 0])
    program = on_cpu(g, {}, [a], [g.assign(a, b), g.assign(b, a), g.assign(c, turned)], kernels)
    for _ in range(3):
        program.run([])
    values = g.variables()
    assert values["v0"].tolist() == [[10, 11], [13, 14]]
    assert values["v10"].tolist() == [[0, 1], [3, 4]]
    assert values["v20"].tolist() == [[20, 23], [21, 24]]


def test_adam_that_something_else_reads_is_not_done_in_place() -> None:
    def built() -> tuple[zs.Graph, Any, Any, Any]:
        g = zs.Graph()
        x = g.placeholder(shape=(3,), dtype="float32", name="x")
        p, m, v, most = (
            g.variable(np.array(value, np.float32), name=name)
            for name, value in {
                "p": [1, 2, 3],
                "m": [0.1, 0, 0],
                "v": [1, 2, 3],
                "s": [2, 2, 2],
            }.items()
        )
        new = g.adam(
            learning_rate=0.1, beta1=0.9, beta2=0.99, epsilon=1e-3, beta1_power=0.9,
            beta2_power=0.99, values=p, momentum=m, velocity=v, gradient=x * 0.5,
            maximum_velocity=most,
        )  # fmt: skip
        effects = [g.assign(a, b) for a, b in zip((p, m, v, most), new, strict=True)]
        return g, x, new[0] - p, effects

    feed = np.array([0.5, -4, 30], np.float32)
    for reads_change in (False, True):
        expected, x, change, effects = built()
        targets = [change] if reads_change else []
        wanted = expected.compile({x: ((3,), "float32")}, targets, effects).run([feed])
        kernels = TorchKernels()
        found, x, change, effects = built()
        targets = [change] if reads_change else []
        got = on_cpu(found, {x: ((3,), "float32")}, targets, effects, kernels).run([feed])
        assert ("adam" in kernels.called) is not reads_change
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
        for name, value in expected.variables().items():
            np.testing.assert_allclose(found.variables()[name], value, rtol=1e-6)


def test_adam_reads_what_another_step_of_it_changes(kernels: Any) -> None:
    """A gradient that is another step's variable, and a rate that is a part of one."""

    def built() -> tuple[zs.Graph, list[Any]]:
        g = zs.Graph()
        p, q = (g.variable(np.array(v, np.float32), name=n) for n, v in PARAMETERS.items())
        effects, rate = [], g.reshape(g.slice_tensor(p, 0, 0, 1), ())
        for values, gradient in ((p, q), (q, g.reshape(p, (3,)))):
            name = f"{values.name} of "
            state = [g.variable(np.full(3, 0.25, np.float32), name=name + n) for n in "mv"]
            new = g.adam(
                learning_rate=rate, beta1=0.9, beta2=0.99, epsilon=1e-3, beta1_power=0.9,
                beta2_power=0.99, values=values, momentum=state[0], velocity=state[1],
                gradient=gradient,
            )  # fmt: skip
            effects += [g.assign(a, b) for a, b in zip((values, *state), new, strict=True)]
        return g, effects

    expected, effects = built()
    numpys = expected.compile({}, [], effects)
    found, effects = built()
    there = on_cpu(found, {}, [], effects, kernels)
    for _ in range(3):
        numpys.run([])
        there.run([])
    assert kernels is None or kernels.called == ["adam"] * 3
    for name, value in expected.variables().items():
        np.testing.assert_allclose(found.variables()[name], value, rtol=1e-5)


def looking_up(kernels: Any) -> tuple[zs.Graph, Any]:
    g = zs.Graph()
    places = g.placeholder(shape=(3,), dtype="int32", name="places")
    table = g.variable(np.arange(8, dtype=np.float32).reshape(4, 2), name="table")
    picked = g.gather(table, places)
    count = g.variable(0.0, name="count")
    effects = [g.assign(count, count + 1.0), g.assign(table, table + 1.0)]
    return g, on_cpu(g, {places: ((3,), "int32")}, [picked], effects, kernels)


@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1])
def test_an_index_outside_is_told_of_and_changes_nothing(kernels: Any, wrong: int) -> None:
    g, program = looking_up(kernels)
    before = g.variables()
    bad = np.array([0, wrong, 1], np.int32)
    with pytest.raises(zs.OptionError, match=r"\[gather\] indices: expected 0 to 3, got an index"):
        program.run([bad])  # the caller waits for the result, so it is told at once
    # Tensors: the result says so, and the next call.
    (found,) = program.run([torch.from_numpy(bad)])
    assert torch.isnan(found).all()
    assert g.variables()["count"] == before["count"] == 0
    with pytest.raises(zs.OptionError, match="0 to 3"):
        program.run([torch.tensor([0, 1, 2], dtype=torch.int32)])
    (found,) = program.run([torch.tensor([3, 0, 1], dtype=torch.int32)])
    assert found.tolist() == [[6, 7], [0, 1], [2, 3]]
    assert program.variables["count"] == 1


def test_variables_tell_of_an_index_outside(kernels: Any) -> None:
    _, program = looking_up(kernels)
    program.run([torch.tensor([0, 9, 2], dtype=torch.int32)])
    with pytest.raises(zs.OptionError, match="0 to 3"):
        _ = program.variables
    assert program.variables["count"] == 0


def test_bad_feeds_are_refused_as_everywhere_and_leave_the_program_usable(kernels: Any) -> None:
    _, _, program = counter(kernels)
    with pytest.raises(zs.ShapeError, match=r"\[run\] feed 'x': expected \[2\], got \[3\]"):
        program.run([torch.zeros(3)])
    with pytest.raises(zs.DTypeError, match=r"feed 'x': expected float32, got float64"):
        program.run([torch.zeros(2, dtype=torch.float64)])
    with pytest.raises(zs.GraphError, match="expected a list of 1 array"):
        program.run([])
    assert program.run([torch.ones(2)])[0].tolist() == [1, 2]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_have_variables_of_their_own(kernels: Any, copied: Any) -> None:
    _, _, program = counter(kernels)
    program.run([torch.ones(2)])
    other = copied(program)
    other.run([torch.ones(2)])
    assert other.variables["v"].tolist() == [3, 4]
    assert program.variables["v"].tolist() == [2, 3]
    program.run([torch.ones(2) * 5])
    assert other.variables["v"].tolist() == [3, 4]


def test_a_saved_program_has_the_devices_values(tmp_path: Any) -> None:
    g, _, program = counter(None)
    program.run([torch.ones(2)])
    program.save(tmp_path / "program")
    g.save(tmp_path / "graph")
    loaded = zs.Executable.load(tmp_path / "program")
    assert loaded.run([np.ones(2, np.float32)])[0].tolist() == [2, 3]
    assert zs.Graph.load(tmp_path / "graph").variables()["v"].tolist() == [2, 3]


def test_a_graph_with_sums_of_squares_that_wait_for_each_other(kernels: Any) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(3,), dtype="float32", name="x")
    first = g.reduction_sum(g.square(x))
    second = g.reduction_sum(g.square(x * first))
    program = on_cpu(g, {x: ((3,), "float32")}, [first, second], kernels=kernels)
    first_value, second_value = program.run([np.array([1, 2, 2], np.float32)])
    assert first_value == 9 and second_value == 729


@pytest.mark.parametrize(("rows", "inner", "columns"), [(9, 16, 13), (9, 13, 16), (5, 3, 1)])
def test_padded_products_are_the_same(
    rows: int, inner: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(8)
    monkeypatch.setattr(namespace, "_LARGE_PRODUCT", 0)
    # Whole numbers below 256, and their products and sums: exact in bfloat16.
    values = [rng.integers(-1, 2, s).astype(np.float32) for s in ((rows, inner), (inner, columns))]
    g = zs.Graph()
    a, b = (g.cast(g.constant(value), "bfloat16") for value in values)
    turned = g.transpose(g.transpose(b, [1, 0]) @ g.transpose(a, [1, 0]), [1, 0])
    for found in on_cpu(g, {}, [a @ b, turned]).run([]):
        assert found.is_contiguous()
        np.testing.assert_array_equal(found.float().numpy(), values[0] @ values[1])


def test_many_numbers_take_few_launches() -> None:
    """Chains of numbers, longer than one launch takes, with tensors that read them in between."""
    g = zs.Graph()
    x = g.placeholder(shape=(), dtype="float32", name="x")
    v = g.variable(np.array([[0.5]], np.float32), name="v")
    total, twice = v, v
    for k in range(60):
        total = total + g.reshape(x * float(k), (1, 1))
    for _ in range(5):
        twice = g.minimum(twice / 0.5, g.square_root(total))
    wide = g.constant(np.arange(3, dtype=np.float32)) * g.reshape(twice, ())
    last = g.maximum(twice - 1.0, x) * x
    kernels = TorchKernels()
    feeds = {x: ((), "float32")}
    program = on_cpu(g, feeds, [wide, last, total], [g.assign(v, twice)], kernels)
    total_is, v_is = 0.5, 0.5
    for value in (0.25, 3.0, 0.0):
        found = program.run([torch.tensor(value)])
        total_is = v_is + value * sum(range(60))
        for _ in range(5):
            v_is = min(v_is / 0.5, total_is**0.5)
        expected = np.arange(3) * v_is, [[max(v_is - 1, value) * value]], [[total_is]]
        for one, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.numpy(), wanted, rtol=1e-5)
        np.testing.assert_allclose(program.variables["v"], [[v_is]], rtol=1e-5)
    assert 3 * 3 <= kernels.called.count("scalars") <= 3 * 6


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_has_a_stream_of_the_programs_device(fails: bool) -> None:
    """Not of an earlier capture's device, which torch would take; the caller keeps theirs."""
    g = zs.Graph()
    x = g.placeholder(shape=(2,), dtype="float32", name="x")
    live = on_cpu(g, {x: ((2,), "float32")}, [x * 2.0])._live
    current, captured = ["caller's"], []

    @contextmanager
    def on_stream(stream: Any) -> Iterator[None]:
        before, current[0] = current[0], stream
        try:
            yield
        finally:
            current[0] = before

    @contextmanager
    def capture(graph: Any, stream: Any = None, **_: Any) -> Iterator[None]:
        captured.append(stream)
        before, current[0] = current[0], stream
        yield
        if fails:
            raise RuntimeError("operation failed due to a previous error during capture")
        current[0] = before

    cuda = SimpleNamespace(CUDAGraph=object, Stream=lambda device: device, graph=capture)
    cuda.stream, cuda.current_stream = on_stream, lambda device: current[0]
    live._torch = SimpleNamespace(cuda=cuda)
    live._capture(())
    assert captured == [CPU] and current == ["caller's"]
    assert ("previous error" in live.why_plain) is fails


def test_a_callers_capture_names_the_node_that_needs_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = zs.Graph()
    drawn, _ = g.random_normal((4,), g.random_philox_state(seed=3), name="noise")
    program = on_cpu(g, {}, [drawn])
    program.run([])
    live = program._live
    live._warm = ()
    monkeypatch.setattr(live.xp, "is_capturing", lambda: True)
    words = r"\[run\] program: expected nodes .*, got random_tensor 'noise.*': it computes on the"
    with pytest.raises(zs.GraphError, match=words):
        program.run([])
    monkeypatch.undo()
    assert program.run([])[0].shape == (4,)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:²", 3, ""])
def test_an_unknown_device_is_refused_by_name(device: Any) -> None:
    g = zs.Graph()
    with pytest.raises(zs.BackendError, match=r"\[compile\] device: expected None, 'cpu', 'cuda'"):
        g.compile({}, [], device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused_with_the_reason() -> None:
    with pytest.raises(zs.BackendError, match="'cuda': torch sees no CUDA device"):
        zs.Graph().compile({}, [], device="cuda")


def test_the_cpu_by_name_is_a_program_as_without_one() -> None:
    g = zs.Graph()
    assert type(g.compile({}, [], device="cpu")) is zs.Executable
    assert "torch" in sys.modules
