"""Programs that live on a GPU: captured runs, what cannot be captured, and the graph's kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
from tests.graph.torch_kernels import TorchKernels
from zstate.backends.cuda.graph_kernels import graph_kernels
from zstate.train import Run, Settings
from zstate.train.model import Model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
CUDA = torch.device("cuda", 0)
KINDS = (torch.float32, torch.bfloat16, torch.float16)
CHARACTERS = 11
SMALL = Settings(hidden=40, embedding=12, window=20, batch=6, layers=2, learning_rate=0.02)


def windows(settings: Settings, count: int, device: Any = None) -> list[list[Any]]:
    rng = np.random.default_rng(5)
    shape = (settings.window, settings.batch)
    found = []
    for k in range(count):
        arrays = [rng.integers(0, CHARACTERS, shape).astype(np.int32) for _ in range(2)]
        arrays += [np.asarray(np.float32(x)) for x in (k % 5 != 0, settings.rate(k))]
        found.append(arrays if device is None else [torch.tensor(a, device=device) for a in arrays])
    return found


def trained(settings: Settings, feeds: list[list[Any]], plain: bool) -> tuple[Any, Any, Model]:
    """The losses and norms, the program and the model, after these steps on the GPU."""
    model = Model(settings, CHARACTERS, "cuda")
    program: Any = model.training_program()
    if plain:
        program._live.why_plain = "the test"
    losses = torch.stack([torch.stack(program.run(each)) for each in feeds])
    if not plain:
        assert program.why_plain is None and program._live._captured is not None
    return losses, program, model


@pytest.mark.parametrize("kind", ["float32", "tf32", "bfloat16", "float16"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_captured_runs_have_the_bits_of_plain_runs(cell: str, kind: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    stored = "float32" if kind == "tf32" else kind
    settings = Settings(**{**SMALL.as_dict(), "cell": cell, "type": stored})
    feeds = windows(settings, 12, CUDA)
    captured, _, model = trained(settings, feeds, plain=False)
    plain, _, other = trained(settings, feeds, plain=True)
    assert torch.equal(captured, plain)
    assert len(set(captured[:, 0].tolist())) == 12
    theirs = other.graph.variables()
    for name, value in model.graph.variables().items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_dropout_is_captured(kind: str) -> None:
    """A new mask in every run, the CPU's."""
    settings = Settings(**{**SMALL.as_dict(), "dropout": 0.3, "type": kind})
    feeds = windows(settings, 10, CUDA)
    captured, _, model = trained(settings, feeds, plain=False)
    plain, _, other = trained(settings, feeds, plain=True)
    assert torch.equal(captured, plain)
    theirs = other.graph.variables()
    for name, value in model.graph.variables().items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)
    reference = Model(settings, CHARACTERS)
    program = reference.training_program()
    expected = np.array([program.run(each) for each in windows(settings, 10)], np.float64)
    if kind == "float32":
        np.testing.assert_allclose(captured.cpu().numpy(), expected, rtol=2e-4)
    state = reference.graph.variables()["dropout.state"]
    np.testing.assert_array_equal(theirs["dropout.state"], state)


@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16", "float16"])
def test_uniform_numbers_are_captured_with_the_bits_of_numpy(kind: str) -> None:
    def build(device: str) -> tuple[zs.Graph, Any]:
        g = zs.Graph()
        state = g.random_philox_state(seed=3, name="state")
        drawn, after = g.random_uniform((7, 301), state, minimum=-0.3, maximum=0.9, dtype=kind)
        kept, after = g.dropout(g.constant(1.0, shape=(77,), dtype=kind), 0.4, after)
        results = [g.cast(each, "float64") for each in (drawn, kept)]
        return g, g.compile({}, results, [g.assign(state, after)], device=device)

    graph, program = build("cuda")
    reference, expected = build("cpu")
    masks = set()
    for k in range(6):
        torch.cuda.set_sync_debug_mode("error" if k in (3, 5) else "default")
        try:
            found = program.run([])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for one, wanted in zip(found, expected.run([]), strict=True):
            np.testing.assert_array_equal(one.cpu().numpy(), wanted)
        masks.add(tuple(found[1].tolist()))
        if k == 3:  # a state that comes from outside is drawn from next
            state = np.array([1, -2, -3, -1, -1, 4])
            graph.set_variables({"state": state})
            reference.set_variables({"state": state})
    assert program.why_plain is None and program._live._captured is not None
    assert len(masks) == 6
    np.testing.assert_array_equal(graph.variables()["state"], reference.variables()["state"])


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_the_losses_and_weights_are_the_cpus(cell: str) -> None:
    settings = Settings(**{**SMALL.as_dict(), "cell": cell})
    found, _, model = trained(settings, windows(settings, 10, CUDA), plain=False)
    reference = Model(settings, CHARACTERS)
    program = reference.training_program()
    expected = [program.run(each) for each in windows(settings, 10)]
    np.testing.assert_allclose(found.cpu().numpy(), np.array(expected, np.float64), rtol=2e-4)
    theirs = reference.graph.variables()
    for name, value in model.graph.variables().items():
        np.testing.assert_allclose(value, theirs[name], rtol=2e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_sixteen_bits_learn_as_float32_does(kind: str) -> None:
    text = np.tile(np.arange(SMALL.window + 1) % 7, (SMALL.batch, 1)).T.astype(np.int32)
    rates = [SMALL.rate(k) for k in range(60)]
    ends = {}
    for stored in ("float32", kind):
        model = Model(Settings(**{**SMALL.as_dict(), "type": stored}), CHARACTERS, "cuda")
        program = model.training_program()
        for rate in rates:
            feeds = [text[:-1], text[1:], np.asarray(np.float32(0)), np.asarray(np.float32(rate))]
            loss, _ = program.run([torch.tensor(feed) for feed in feeds])
        ends[stored] = float(loss)
    assert ends["float32"] < 0.5
    assert abs(ends[kind] - ends["float32"]) < 0.05 + 0.1 * ends["float32"]


def adding() -> tuple[zs.Graph, Any, Any]:
    """v += x; gives (v before, x, tanh of the sum)."""
    g = zs.Graph()
    x = g.placeholder(shape=(3,), dtype="float32", name="x")
    v = g.variable(np.array([1, 2, 3], np.float32), name="v")
    total = v + x
    feeds = {x: ((3,), "float32")}
    return g, v, g.compile(feeds, [v, x, g.tanh(total)], [g.assign(v, total)], device="cuda")


def test_results_of_earlier_runs_stay() -> None:
    _, _, program = adding()
    feeds = [torch.full((3,), float(k), device=CUDA) for k in range(6)]
    results = [program.run([feed]) for feed in feeds]
    total = np.array([1.0, 2.0, 3.0])
    for k, (before, x, end) in enumerate(results):
        assert before.tolist() == total.tolist() and x.tolist() == [k] * 3
        total = total + k
        np.testing.assert_allclose(end.cpu(), np.tanh(total), rtol=1e-6)
    assert program.variables["v"].tolist() == total.tolist()


def test_feeds_from_anywhere() -> None:
    _, _, program = adding()
    for feed in (
        np.ones(3, np.float32),
        torch.ones(3),
        torch.ones(3, device=CUDA),
        torch.ones(6, device=CUDA)[::2],
    ):
        before, _, _ = program.run([feed])
        assert isinstance(before, np.ndarray) == isinstance(feed, np.ndarray)
    assert program.variables["v"].tolist() == [5, 6, 7]


def test_values_given_between_captured_runs_are_used() -> None:
    g, v, program = adding()
    one = torch.ones(3, device=CUDA)
    for _ in range(3):
        program.run([one])
    g.set_variables({"v": np.array([10, 20, 30], np.float32)})
    assert program.run([one])[0].tolist() == [10, 20, 30]
    after = g.assign(v, v * 2.0)
    g.run({}, [after])  # on the host
    assert program.run([one])[0].tolist() == [22, 42, 62]
    other = g.compile({}, [v + 0.5], device="cuda")
    assert [other.run([])[0].tolist() for _ in range(3)] == [[23.5, 43.5, 63.5]] * 3


def test_bad_feeds_leave_a_captured_program_usable() -> None:
    _, _, program = adding()
    one = torch.ones(3, device=CUDA)
    for _ in range(3):
        program.run([one])
    with pytest.raises(zs.ShapeError, match=r"feed 'x': expected \[3\], got \[4\]"):
        program.run([torch.ones(4, device=CUDA)])
    with pytest.raises(zs.DTypeError):
        program.run([one.double()])
    assert program.run([one])[0].tolist() == [4, 5, 6]
    assert program.why_plain is None


@pytest.mark.parametrize("runs", [0, 1, 3])
def test_an_index_outside_is_told_of_and_changes_nothing(runs: int) -> None:
    model = Model(SMALL, CHARACTERS, "cuda")
    program = model.training_program()
    feeds = windows(SMALL, runs + 3, CUDA)
    for k in range(runs):
        program.run(feeds[k])
    before = model.graph.variables()
    bad = [each.clone() for each in feeds[runs]]
    bad[0][3, 2] = CHARACTERS
    loss, _ = program.run(bad)
    assert torch.isnan(loss)
    for name, value in model.graph.variables().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    with pytest.raises(zs.OptionError, match=f"expected 0 to {CHARACTERS - 1}, got an index"):
        program.run(feeds[runs])
    assert bool(torch.isfinite(program.run(feeds[runs])[0]))
    assert program.variables["step"] == runs + 1
    _, _, reference = trained(SMALL, feeds[: runs + 1], plain=True)
    for name, value in model.graph.variables().items():
        np.testing.assert_array_equal(value, reference.graph.variables()[name], err_msg=name)


def test_the_callers_own_capture() -> None:
    settings = SMALL
    feeds = windows(settings, 8, CUDA)
    expected, _, reference = trained(settings, feeds, plain=True)
    model = Model(settings, CHARACTERS, "cuda")
    program = model.training_program()
    static = [each.clone() for each in feeds[0]]
    refused = pytest.raises(zs.GraphError, match="expected a run before a CUDA graph")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        program.run(static)
    found = [torch.stack(program.run(each)) for each in feeds[:2]]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = program.run(static)
    for each in feeds[2:6]:
        for to, value in zip(static, each, strict=True):
            to.copy_(value)
        graph.replay()
        found.append(torch.stack(results))
    found += [torch.stack(program.run(each)) for each in feeds[6:]]  # and back again
    assert torch.equal(torch.stack(found), expected)
    for name, value in model.graph.variables().items():
        np.testing.assert_array_equal(value, reference.graph.variables()[name], err_msg=name)


def test_a_callers_capture_with_arrays_is_refused() -> None:
    _, _, program = adding()
    program.run([torch.ones(3, device=CUDA)])
    words = "since a CUDA graph is being captured, got a NumPy"
    with pytest.raises(zs.GraphError, match=words), torch.cuda.graph(torch.cuda.CUDAGraph()):
        program.run([np.ones(3, np.float32)])
    assert program.run([torch.ones(3, device=CUDA)])[0].tolist() == [2, 3, 4]


def test_what_cannot_be_captured_is_named_and_runs_plainly() -> None:
    g = zs.Graph()
    state = g.random_philox_state(seed=3)
    noise, after = g.random_normal((4,), state)
    even, after = g.random_uniform((4,), after)
    program = g.compile({}, [noise * even], [g.assign(state, after)], device="cuda")
    again = zs.Graph()
    state = again.random_philox_state(seed=3)
    noise, after = again.random_normal((4,), state)
    even, after = again.random_uniform((4,), after)
    advance = again.assign(state, after)
    for _ in range(4):
        (found,) = program.run([])
        expected = again.run({}, [noise * even], [advance])
        np.testing.assert_allclose(found.cpu(), next(iter(expected.values())), rtol=1e-6)
    assert program.why_plain is not None and "random_tensor" in program.why_plain


def test_other_settings_of_torch_make_another_graph() -> None:
    rng = np.random.default_rng(1)
    g = zs.Graph()
    a = g.variable(rng.normal(size=(256, 256)).astype(np.float32), name="a")
    x = g.placeholder(shape=(256, 256), dtype="float32", name="x")
    program = g.compile({x: ((256, 256), "float32")}, [x @ a], device="cuda")
    feed = torch.tensor(rng.normal(size=(256, 256)).astype(np.float32), device=CUDA)
    weight = torch.tensor(g.variables()["a"], device=CUDA)
    for tf32 in (False, True, False):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for _ in range(3):
            assert torch.equal(program.run([feed])[0], feed @ weight)


def test_another_stream_waits_for_the_last() -> None:
    _, _, program = adding()
    one = torch.ones(3, device=CUDA)
    streams: list[Any] = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for k in range(30):
        with torch.cuda.stream(streams[k % 3]):
            results.append(program.run([one])[0])
    torch.cuda.synchronize()
    assert [each[0].item() for each in results] == [float(k) for k in range(1, 31)]


def test_memory_does_not_grow() -> None:
    model = Model(SMALL, CHARACTERS, "cuda")
    program = model.training_program()
    feeds = windows(SMALL, 4, CUDA)
    for each in feeds * 3:
        program.run(each)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(500):
        for each in feeds:
            program.run(each)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


def test_a_captured_run_does_not_wait() -> None:
    _, _, program = adding()
    one = torch.ones(3, device=CUDA)
    for _ in range(3):
        program.run([one])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [program.run([one]) for _ in range(5)] + [program.run([torch.ones(3)])]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert results[-1][0].tolist() == [9, 10, 11]


def test_a_run_is_that_of_the_cpu_and_resumes_to_the_bit(tmp_path: Path) -> None:
    text = "the cat sat on the mat. the dog ate the cat.\n" * 100
    settings = Settings(**{**SMALL.as_dict(), "total": 40, "batch": 4})
    on_host = [point.bits for point in Run.create(tmp_path / "h", settings, text).train(100)]
    whole = Run.create(tmp_path / "w", settings, text, device="cuda")
    points = list(whole.train(20))
    assert [point.step for point in points] == list(range(1, 41))
    assert [point.valid_bits is not None for point in points] == [
        k in (20, 40) for k in range(1, 41)
    ]
    np.testing.assert_allclose([point.bits for point in points], on_host, rtol=2e-3)
    pytest.importorskip("safetensors")
    half = Run.create(tmp_path / "r", settings, text, device="cuda")
    for point in half.train(20):
        if point.step == 20:
            break
    again = Run.resume(tmp_path / "r", text, device="cuda")
    list(again.train(20))
    assert again.history == whole.history
    for name, value in whole.model.graph.variables().items():
        np.testing.assert_array_equal(again.model.graph.variables()[name], value, err_msg=name)


# ---- the kernels ----


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device=CUDA).manual_seed(seed)
    return torch.randn(shape, device=CUDA, generator=generator)


def withheld(value: int = 0) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int32, device=CUDA)


def test_adam() -> None:
    sizes = [1, 5, 4096, 4097, 100_003, *[7] * 90]  # more than one launch takes
    for has_largest in (False, True):
        for allowed in (None, torch.tensor(True, device=CUDA), torch.tensor(False, device=CUDA)):
            tensors, expected = [], []
            values = [
                torch.tensor(x, device=CUDA) for x in (0.01, 0.9, 0.99, 1e-4, 0.73, 0.97, 0.5)
            ]
            rate, beta1, beta2, epsilon, power1, power2, scale = (x.double() for x in values)
            for k, size in enumerate(sizes):
                p, m, g = (numbers(size, seed=5 * k + j) for j in range(3))
                g = g.to(KINDS[k % 3])
                v, most = (numbers(size, seed=5 * k + j).square() for j in (3, 4))
                tensors.append((p, m, v, most if has_largest else None, g))
                p2, m2, v2, most2, g2 = (t.double().clone() for t in (p, m, v, most, g))
                g2 *= scale
                m2 = m2 * beta1 + (1 - beta1) * g2
                v2 = v2 * beta2 + (1 - beta2) * g2 * g2
                below = torch.maximum(most2, v2) if has_largest else v2
                step = rate * (1 - power2).sqrt() / (1 - power1)
                new = (p2 - step * m2 / (below.sqrt() + epsilon), m2, v2, below)
                same = allowed is not None and not allowed
                expected.append((p.clone(), m.clone(), v.clone(), most.clone()) if same else new)
            graph_kernels(0).adam(tensors, [allowed, *values], withheld())
            for found, wanted in zip(tensors, expected, strict=True):
                for one, other in zip(found[: 4 if has_largest else 3], wanted, strict=False):
                    assert one is not None
                    torch.testing.assert_close(one.double(), other.double(), rtol=3e-6, atol=1e-6)


def test_a_withheld_step_changes_nothing() -> None:
    p, m, g = (numbers(1000, seed=k) for k in range(3))
    v = numbers(1000, seed=3).square()
    kept = [each.clone() for each in (p, m, v)]
    values = [torch.tensor(x, device=CUDA) for x in (0.01, 0.9, 0.99, 1e-4, 0.73, 0.97)]
    graph_kernels(0).adam([(p, m, v, None, g)], [None, *values, None], withheld(2))
    graph_kernels(0).store([(p, g)], withheld(1))
    assert all(torch.equal(a, b) for a, b in zip((p, m, v), kept, strict=True))
    graph_kernels(0).store([(p, g)], withheld())
    assert torch.equal(p, g)


def test_squares() -> None:
    sizes = (1, 31, 4096, 4100, 3_000_001, *[9] * 120)
    tensors = [numbers(size, seed=size).to(KINDS[k % 3]) for k, size in enumerate(sizes)]
    found = graph_kernels(0).squares(tensors)
    expected = torch.stack([each.double().square().sum() for each in tensors])
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=0)
    assert torch.equal(found, graph_kernels(0).squares(tensors))
    # The sum does not depend on what it is stored in.
    same = [each.float() for each in tensors]
    assert torch.equal(found, graph_kernels(0).squares(same))


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(8192, 1024, 103), (8192, 103, 1024)])
def test_large_products_of_odd_sizes(kind: str, rows: int, inner: int, columns: int) -> None:
    g = zs.Graph()
    stored = [numbers(*size).to(getattr(torch, kind)) for size in ((rows, inner), (inner, columns))]
    a, b = (g.placeholder(shape=tuple(x.shape), dtype=kind) for x in stored)
    program = g.compile({x: (x.shape, kind) for x in (a, b)}, [a @ b], device="cuda")
    exact = stored[0].double() @ stored[1].double()
    for _ in range(3):
        found = program.run(stored)[0]
        # Parts of a sum may be stored in 16 bits, as torch's settings allow.
        bound = 2 * torch.finfo(found.dtype).eps * exact.abs().clamp(min=32)
        assert bool(((found.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_narrow(kind: str) -> None:
    special = [0.0, -0.0, 1e-30, 1e-7, 65519.0, 65520.0, 3.39e38, float("inf"), -float("inf")]
    special += [1 + 2**-9, 1 + 3 * 2**-9, 1 + 2**-12, 1 + 3 * 2**-12, 2**-25, float("nan")]
    tensors = [numbers(size, seed=size) for size in (1, 4096, 100_003, *[5] * 200)]
    tensors += [torch.tensor(special, device=CUDA), numbers(3, 5).mul(1e4)]
    found = graph_kernels(0).narrow(tensors, kind)
    for one, value in zip(found, tensors, strict=True):
        expected = value.to(getattr(torch, kind))
        torch.testing.assert_close(one, expected, rtol=0, atol=0, equal_nan=True)


def test_scalars() -> None:
    special = [1.5, -2.25, 0.1, 0.0, float("nan"), float("inf"), 3e-39]
    inputs = [torch.tensor(x, device=CUDA) for x in special]
    functions: list[Any] = [torch.add, torch.sub, torch.mul, torch.div, torch.minimum]
    functions += [torch.maximum, lambda a, _: a.sqrt()]
    rng = np.random.default_rng(4)
    steps, values = [], list(inputs)
    for k in range(48):
        a, b = (int(x) for x in rng.integers(0, len(values), 2))
        steps.append((k % 7, a, b))
        values.append(functions[k % 7](values[a], values[b]))
    found = graph_kernels(0).scalars(inputs, steps)
    expected = torch.stack(values[len(inputs) :])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert bool(found.isfinite().any())


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_products_in_16_bits_are_rounded_once(kind: str) -> None:
    rng = np.random.default_rng(2)
    values = [rng.normal(size=s).astype(np.float32) for s in ((300, 70), (70, 90))]
    g = zs.Graph()
    a, b = (g.cast(g.variable(v, name=n), kind) for v, n in zip(values, "ab", strict=True))
    program = g.compile({}, [a @ b], device="cuda")
    stored = [torch.tensor(v, device=CUDA).to(getattr(torch, kind)) for v in values]
    exact = stored[0].double() @ stored[1].double()
    for _ in range(3):
        found = program.run([])[0]
        unit = torch.finfo(found.dtype).eps / 2
        assert found.dtype == stored[0].dtype
        assert bool(((found.double() - exact).abs() <= 1.01 * unit * exact.abs() + 2e-5).all())


@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (7, 3), (1000, 96), (33, 5000)])
def test_cross_entropy(rows: int, classes: int) -> None:
    source = 20 * numbers(rows, classes)
    labels = numbers(rows, classes, seed=1).abs()
    loss, soft_max = graph_kernels(0).cross_entropy(source, labels)
    wide = source.double()
    expected = -(labels.double() * wide.log_softmax(1)).sum(1)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(soft_max.double(), wide.softmax(1), rtol=1e-5, atol=1e-7)
    for factor in (torch.tensor(0.3, device=CUDA), numbers(rows, 1, seed=2)):
        found = graph_kernels(0).cross_entropy_gradient(factor, soft_max, labels)
        wanted = wide.softmax(1) * labels.double().sum(1, keepdim=True) - labels
        torch.testing.assert_close(found.double(), wanted * factor, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("count", "columns", "rows"),
    [(1, 1, 1), (100, 33, 7), (5000, 130, 96), (4096, 1024, 300), (900, 40, 1500)],
)
def test_add_rows(count: int, columns: int, rows: int, kind: torch.dtype) -> None:
    updates = numbers(count, columns).to(kind)
    generator = torch.Generator(device=CUDA).manual_seed(1)
    indices = torch.randint(0, rows, (count,), device=CUDA, generator=generator)
    found = graph_kernels(0).add_rows(updates, indices, rows)
    assert found is not None and found.dtype == kind
    exact = torch.zeros(rows, columns, dtype=torch.float64, device=CUDA)
    exact.index_add_(0, indices, updates.double())
    bound = 4e-6 * count**0.5 + exact.abs() * torch.finfo(kind).eps
    assert bool(((found.double() - exact).abs() <= bound).all())
    again = graph_kernels(0).add_rows(updates, indices, rows)
    assert again is not None and torch.equal(found, again)


def test_a_table_too_large_for_shared_memory_is_left_to_torch() -> None:
    indices = torch.zeros(3, dtype=torch.int64, device=CUDA)
    assert graph_kernels(0).add_rows(numbers(3, 4), indices, 10_000) is None


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_within(kind: torch.dtype) -> None:
    indices = torch.tensor([0, 4, 2**31 - 1, -1, -(2**31), 3] * 100, device=CUDA).to(kind)
    flag = withheld()
    found = graph_kernels(0).within(indices, 5, 7, flag)
    assert found.dtype == kind and torch.equal(found, indices.clamp(0, 4)) and int(flag) == 7
    flag = withheld()
    graph_kernels(0).within(found, 5, 7, flag)
    assert int(flag) == 0


@pytest.mark.parametrize("kind", [torch.float64, *KINDS])
def test_uniform(kind: torch.dtype) -> None:
    rng = np.random.default_rng(6)
    shapes: list[tuple[int, ...]] = [(), (0,), (1,), (9,), (2049,), (3, 5, 4370), (3_000_001,)]
    for shape in shapes:
        for counter in (rng.integers(-(2**63), 2**63, 4).tolist(), [-5, -1, -1, 0]):
            state = torch.tensor([*rng.integers(-(2**63), 2**63, 2).tolist(), *counter])
            for low, high in ((0.0, 1.0), (1 / 3, 1 / 7), (1e-30, 3e-39)):
                there = state.to(CUDA)
                found, after = graph_kernels(0).uniform(there, shape, kind, low, high)
                wanted, advanced = TorchKernels().uniform(state, shape, kind, low, high)
                assert found.dtype == kind and torch.equal(found.cpu(), wanted), (shape, low)
                assert torch.equal(after.cpu(), advanced) and torch.equal(there.cpu(), state)
