"""Programs as C: compiled with every warning an error, stepped, and compared with the library."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zstate as zs
import zstate.convert as zc
from tests.prepared import drawn
from zstate import cells, cli
from zstate.cells import MadeCell
from zstate.errors import ZStateError
from zstate.graph import Executable, Tensor
from zstate.graph.c import to_c
from zstate.graph.c.words import number
from zstate.types import Array

FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"no {name}"))
    for name in ("gcc", "clang")
]
WRAPPER = """#include "{name}.h"
size_t size_of_state(void);
void reset(void *s);
void step(void *s{taken});
size_t size_of_state(void) {{ return sizeof({name}_state); }}
void reset(void *s) {{ {name}_reset(s); }}
void step(void *s{taken}) {{ {name}_step(s{given}); }}
"""


ARM = ("aarch64-linux-gnu-gcc", "qemu-aarch64")
STEPPING = """#include <stdio.h>
#include "model.h"
int main(void) {
  static model_state state;
  static float x[model_x_size], h[4096];
  model_reset(&state);
  while (fread(x, sizeof *x, model_x_size, stdin) == model_x_size) {
    model_step(&state, x, h);
    fwrite(h, sizeof *h, WIDTH, stdout);
  }
  return 0;
}
"""


class Compiled:
    """A header as a library; ``step`` is a call, on memory that held something else before."""

    def __init__(self, program: Executable, header: str, folder: Path, compiler: str) -> None:
        name = re.findall(r"(\w+)_state;", header)[0]
        (folder / f"{name}.h").write_text(header)
        counts = range(len(program.feeds) + len(program.targets))
        taken = "".join(f", void *a{k}" for k in counts)
        given = "".join(f", a{k}" for k in counts)
        (folder / "w.c").write_text(WRAPPER.format(name=name, taken=taken, given=given))
        library = folder / f"{name}.{compiler}.so"
        words = [compiler, *FLAGS, "-O1", "-shared", "-fPIC", "w.c", "-o", str(library), "-lm"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self._library = ctypes.CDLL(str(library))
        self._library.size_of_state.restype = ctypes.c_size_t
        self.size = self._library.size_of_state()
        self._state = ctypes.create_string_buffer(b"\x7f" * self.size, self.size)
        self._program = program
        self.reset()

    def reset(self) -> None:
        self._library.reset(self._state)

    def step(self, *arrays: Array) -> list[Array]:
        sizes = [[size or 0 for size in each.shape] for each in self._program.targets]
        kinds = [each.dtype for each in self._program.targets]
        found = [np.full(size, 77, kind) for size, kind in zip(sizes, kinds, strict=True)]
        given = [np.ascontiguousarray(each) for each in arrays]
        pointers = [each.ctypes.data_as(ctypes.c_void_p) for each in given + found]
        self._library.step(self._state, *pointers)
        return found


Compile = Callable[..., Compiled]


@pytest.fixture(params=COMPILERS)
def compiled(request: pytest.FixtureRequest, tmp_path: Path) -> Compile:
    def make(program: Executable, weights: str = "float32") -> Compiled:
        source = to_c(program, "model", weights)
        found = Compiled(program, source.text, tmp_path, request.param)
        assert source.ram <= found.size <= source.ram + 7
        return found

    return make


def program_of(
    layers: Sequence[zc.Layer],
    states: list[list[Array]] | None = None,
    steps: int = 1,
    head: Callable[[zs.Graph, Tensor], Tensor] | None = None,
) -> Executable:
    """Layers that feed each other; the states of every step's end are targets too."""
    graph = zs.Graph()
    inputs = layers[0].tensors.get("input_weight", np.zeros((1, 1))).shape[-1]
    x = graph.placeholder(shape=(steps, 1, inputs), name="x")
    value, targets = x, []
    for number_, each in enumerate(layers):
        tensors = dict(each.tensors)
        if states is not None:
            pairs = zip(each.operation.cell.states, states[number_], strict=True)
            tensors |= {one.initial: state for one, state in pairs}
        stored = {name: graph.variable(array, name=name) for name, array in tensors.items()}
        options = each.descriptor
        if isinstance(each.cell, MadeCell):
            found = graph.recurrent(each.cell, value, heads=options.heads, **stored)
        else:
            found = getattr(graph, each.cell)(value, descriptor=options, **stored)
        value = found[0]
        targets = [*targets, value]
    if head is not None:
        targets = [head(graph, value)]
    return graph.compile({x: ((steps, 1, inputs), "float32")}, targets)


def weights_of(rng: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, Array]:
    return {
        name: (rng.normal(size=shape) * 0.4).astype(np.float32) for name, shape in shapes.items()
    }


def lstm(rng: np.random.Generator, inputs: int, hidden: int, **options: Any) -> zc.Layer:
    rows = 4 * hidden
    tensors = weights_of(
        rng,
        recurrent_weight=(rows, hidden),
        input_weight=(rows, inputs),
        bias=(rows,),
        peephole=(rows,),
    )
    return zc.Layer("lstm", zs.LSTMDescriptor(**options), tensors)


def gru(rng: np.random.Generator, inputs: int, hidden: int, **options: Any) -> zc.Layer:
    rows = 3 * hidden
    shapes = {"recurrent_weight": (rows, hidden), "input_weight": (rows, inputs), "bias": (rows,)}
    if options.get("reset_after"):
        shapes["secondary_bias"] = (hidden,)
    return zc.Layer("gru", zs.GRUDescriptor(**options), weights_of(rng, **shapes))


def rnn(rng: np.random.Generator, inputs: int, hidden: int, **options: Any) -> zc.Layer:
    shapes = {"recurrent_weight": (hidden, hidden), "input_weight": (hidden, inputs)}
    descriptor = zs.SingleGateRNNDescriptor(**options)
    return zc.Layer("single_gate_rnn", descriptor, weights_of(rng, **shapes))


def stepped(model: Compiled, x: Array) -> list[Array]:
    """The targets of every call, one per step, [T,…]."""
    found = [model.step(each[None]) for each in x]
    return [np.concatenate(values) for values in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lstm, {}),
        (lstm, {"peephole_on_new_cell": True, "forget_gate_last": True}),
        (lstm, {"cell_gate_activation": "hard_sigmoid", "output_gate_activation": "relu"}),
        (gru, {}),
        (gru, {"reset_after": True, "flip_z": True}),
        (gru, {"reset_gate_first": True}),
        (rnn, {"activation": "tanh"}),
        (rnn, {"activation": "sigmoid"}),
    ],
)
def test_steps_give_what_the_library_gives(
    make: Callable[..., zc.Layer], options: dict[str, Any], compiled: Compile
) -> None:
    rng = np.random.default_rng(7)
    layers = [make(rng, 3, 5, **options), make(rng, 5, 6, **options)]
    states = drawn.begin(rng, layers, 1)
    x = rng.normal(size=(9, 1, 3)).astype(np.float32)
    model = compiled(program_of(layers, states))
    wanted, _ = drawn.exact(layers, x, states)
    for _ in range(2):
        found = stepped(model, x)[-1]
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
        model.reset()


@pytest.mark.parametrize("seed", range(12))
def test_any_cells(seed: int, compiled: Compile) -> None:
    """Random cells from equations and of the library, with every option and heads."""
    rng = np.random.default_rng(seed)
    layers = drawn.stack(rng, 4, 2, both_ways=False)
    x = rng.normal(size=(6, 1, 4)).astype(np.float32)
    states = drawn.begin(rng, layers, 1) if seed % 2 else None
    wanted, _ = drawn.exact(layers, x, states)
    found = stepped(compiled(program_of(layers, states)), x)[-1]
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


@cells.cell(gates="z")
def means_of_means(x: Any, R: Any, h: Any) -> Any:
    a = x.z + R.z @ cells.mean(h)
    return cells.tanh(a - cells.mean(cells.mean(h), x.z)) + cells.variance(cells.mean(a), h)


@pytest.mark.parametrize(
    "cell", [cells.layer_norm_lstm, cells.layer_norm_gru, cells.slstm, means_of_means]
)
def test_cells_whose_units_need_each_other(cell: MadeCell, compiled: Compile) -> None:
    rng = np.random.default_rng(3)
    layers = [drawn.layer(rng, cell, 4, 12)]
    states = drawn.begin(rng, layers, 1)
    x = rng.normal(size=(6, 1, 4)).astype(np.float32)
    wanted, _ = drawn.exact(layers, x, states)
    found = stepped(compiled(program_of(layers, states)), x)[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("seed", range(6))
def test_int8_gives_what_prepared_layers_give(seed: int, compiled: Compile) -> None:
    """The same integers; a state whose last bit differs may be rounded to the next one."""
    rng = np.random.default_rng(seed)
    layers = drawn.stack(rng, 4, 2, both_ways=False)
    states = drawn.begin(rng, layers, 1)
    x = rng.normal(size=(6, 1, 4)).astype(np.float32)
    prepared = zs.prepare(layers, weights="int8", backend="reference")
    given = [tuple(each) for each in states]
    wanted, _ = prepared(x, given)
    found = stepped(compiled(program_of(layers, states), "int8"), x)[-1]
    np.testing.assert_allclose(found, wanted, atol=2e-3 * max(1, np.abs(wanted).max()))
    assert np.median(np.abs(found - wanted)) < 1e-5


def test_one_int8_product_has_the_bits_of_its_definition(compiled: Compile) -> None:
    rng = np.random.default_rng(5)
    layer = rnn(rng, 7, 4, activation="none")
    layer.tensors["recurrent_weight"][...] = 0
    model = compiled(program_of([layer]), "int8")
    prepared = zs.prepare([layer], weights="int8", backend="reference")
    for scale in (1.0, 1e-3, 1e-39, 0.0, np.inf, np.nan):
        x = (rng.normal(size=(1, 1, 7)) * 1).astype(np.float32)
        x[0, 0, 3] *= np.float32(scale)
        x = x * np.float32(scale) if scale < 1 else x
        model.reset()
        np.testing.assert_array_equal(model.step(x)[0], prepared(x)[0])


def test_chunks_of_steps(compiled: Compile) -> None:
    """A source of five steps: a call is five steps, the next one goes on."""
    rng = np.random.default_rng(8)
    layers = [lstm(rng, 3, 4, produce_cell=True), gru(rng, 4, 5)]
    x = rng.normal(size=(15, 1, 3)).astype(np.float32)
    model = compiled(program_of(layers, steps=5))
    wanted, _ = drawn.exact(layers, x)
    found = np.concatenate([model.step(part)[-1] for part in np.split(x, 3)])
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (5, 1, 1), (1, 1, 4), (5, 1, 4)])
@pytest.mark.parametrize("steps", [1, 5])
def test_masks(shape: tuple[int, ...], steps: int, compiled: Compile) -> None:
    """Stored or fed, whatever they are broadcast to."""
    if steps == 1 and shape[:1] == (5,):
        shape = (1, *shape[1:])
    rng = np.random.default_rng(4)
    layer = gru(rng, 3, 4)
    g = zs.Graph()
    x = g.placeholder(shape=(steps, 1, 3), name="x")
    fed = g.placeholder(shape=shape, name="step")
    stored = {name: g.variable(array) for name, array in layer.tensors.items()}
    (first,) = g.gru(x, mask=fed, **stored)
    stored["input_weight"] = g.variable(rng.normal(size=(12, 4)).astype(np.float32))
    mask = g.constant(rng.random(shape).astype(np.float32))
    (h,) = g.gru(first, mask=mask, **stored)
    feeds: dict[Any, Any] = {x: ((steps, 1, 3), "float32"), fed: (shape, "float32")}
    program = g.compile(feeds, [h])
    given = [rng.normal(size=(steps, 1, 3)), rng.random(shape)]
    arrays = [np.asarray(each, np.float32) for each in given]
    (wanted,) = program.run(arrays)
    np.testing.assert_allclose(compiled(program).step(*arrays)[0], wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_a_model_of_text(weights: str, compiled: Compile) -> None:
    """Embedding, layer, projection, softmax; the largest class among the results."""
    rng = np.random.default_rng(9)
    graph = zs.Graph()
    tokens = graph.placeholder(shape=(None, 1), dtype="int32", name="tokens")
    table = graph.variable(rng.normal(size=(11, 6)).astype(np.float32), name="table")
    layer = gru(rng, 6, 8, reset_after=True)
    stored = {name: graph.variable(array) for name, array in layer.tensors.items()}
    mask = graph.constant((rng.random((1, 1, 8)) > 0.3).astype(np.float32))
    (h,) = graph.gru(graph.gather(table, tokens), mask=mask, descriptor=layer.descriptor, **stored)
    projection, bias = (graph.variable(v) for v in weights_of(rng, P=(8, 11), b=(11,)).values())
    y = graph.soft_max(graph.reshape(h, (-1, 8)) @ projection + bias, axis=-1, name="y")
    ids = rng.integers(0, 11, (12, 1)).astype(np.int32)
    wanted = graph.run({tokens: ids}, [y])[y]
    model = compiled(graph.compile({tokens: ((1, 1), "int32")}, [y]), weights)
    found = np.concatenate([model.step(each[None])[0] for each in ids])
    limit = 2e-6 if weights == "float32" else 0.03
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=limit)


def test_elementwise_operations_and_moves(compiled: Compile) -> None:
    rng = np.random.default_rng(10)
    g = zs.Graph()
    x = g.placeholder(shape=(2, 1, 6), name="x")
    k = g.placeholder(shape=(3,), dtype="int32", name="int")
    row = g.constant(rng.normal(size=(2, 1, 1)).astype(np.float32))
    a = g.maximum(g.tanh(x) * row, g.sigmoid(x)) + g.relu(-x)
    b = g.select(g.less_than(x, 0.0), g.exponent(x), g.square_root(g.absolute(x)))
    both = g.concat_tensors([a, b], axis=2)
    results = [
        both,
        g.transpose(both, [2, 1, 0]),
        g.reshape(both[1], (-1,))[2:9],
        g.cast(k * 2 - 1, "float32") / 3.0,
        g.cast(g.greater_than(k, 1), "bool"),
        g.leaky_relu(x, 0.1) - g.clamp(x, -0.5, 0.5),
        g.floor(x * 3.0) + g.sign(x) + g.square(x) ** 1.5,
    ]
    feeds: dict[Any, Any] = {x: ((2, 1, 6), "float32"), k: ((3,), "int32")}
    program = g.compile(feeds, results)
    given = [rng.normal(size=(2, 1, 6)).astype(np.float32), np.array([3, 0, 1], np.int32)]
    found = compiled(program).step(*given)
    for each, wanted in zip(found, program.run(given), strict=True):
        assert each.dtype == wanted.dtype
        np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-6)


def test_states_that_the_caller_feeds_and_variables_that_the_program_updates(
    compiled: Compile,
) -> None:
    rng = np.random.default_rng(11)
    layer = rnn(rng, 3, 4, activation="tanh")
    g = zs.Graph()
    x, h0 = g.placeholder(shape=(1, 1, 3), name="x"), g.placeholder(shape=(1, 4), name="h")
    count = g.variable(np.float32(5), name="count")
    stored = {name: g.variable(array) for name, array in layer.tensors.items()}
    (h,) = g.single_gate_rnn(x, init_state=h0, descriptor=layer.descriptor, **stored)
    target = h * count
    feeds: dict[Any, Any] = {x: ((1, 1, 3), "float32"), h0: ((1, 4), "float32")}
    program = g.compile(feeds, [target], operations=[g.assign(count, count + 1.0)])
    model = compiled(program)
    for _ in range(3):
        given = weights_of(rng, x=(1, 1, 3), h=(1, 4)).values()
        (wanted,) = program.run(list(given))
        np.testing.assert_allclose(model.step(*given)[0], wanted, rtol=1e-5, atol=1e-6)


def test_numbers_keep_their_bits() -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 20_000, dtype=np.uint32)
    for value in bits.view(np.float32).tolist():
        if np.isfinite(value):
            assert np.float32(number(value).removesuffix("f")) == np.float32(value)
    found = [number(value) for value in (1, -0.0, np.inf, -np.inf, np.nan)]
    assert found == ["1.0f", "-0.0f", "INFINITY", "-INFINITY", "NAN"]


def _graph(make: Callable[[zs.Graph, Tensor], Tensor], kind: str = "float32") -> Executable:
    graph = zs.Graph()
    x = graph.placeholder(shape=(2, 1, 4), dtype=kind, name="x")
    return graph.compile({x: ((2, 1, 4), kind)}, [make(graph, x)])  # type: ignore[dict-item]


def _plain(g: zs.Graph, x: Tensor, **options: Any) -> Tensor:
    both = 2 if options.get("bidirectional") else 1
    weight = np.zeros((2, 2, 2) if both == 2 else (4, 4), np.float32)
    resets = options.pop("resets", None)
    descriptor = zs.SingleGateRNNDescriptor(**options)
    (found,) = g.single_gate_rnn(
        x, recurrent_weight=g.constant(weight), resets=resets, descriptor=descriptor
    )
    return found


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g, x: g.cumulative_sum(x, axis=0), "elementwise operations, got cumul"),
        (lambda g, x: g.reduction_sum(x), "elementwise operations, got reduction_sum"),
        (lambda g, x: _plain(g, x, reverse=True), "reverse: expected a layer that reads forward"),
        (lambda g, x: _plain(g, x, bidirectional=True), "bidirectional: expected a layer that rea"),
        (lambda g, x: _plain(g, g.transpose(x, [1, 0, 2])), "expected [T,1,I]: one row per step"),
        (lambda g, x: x @ g.transpose(x, [0, 2, 1]), "expected a stored weight [K,V], got one tha"),
        (
            lambda g, x: _plain(g, x, resets=g.constant(np.zeros((2, 1), "?"))),
            "resets: expected n",
        ),
        (
            lambda g, x: g.soft_max(x, axis=0),
            "axis: expected the last axis, in float32, got axis 0",
        ),
        (lambda g, x: g.cast(x, "float64"), "float64"),
    ],
)
def test_what_is_not_a_step_is_refused_by_name(
    make: Callable[[zs.Graph, Tensor], Tensor], message: str
) -> None:
    with pytest.raises(ZStateError, match=re.escape(message)) as caught:
        to_c(_graph(make), "model")
    assert "to_c" in str(caught.value) or "single_gate_rnn" in str(caught.value)


@pytest.mark.parametrize("name", ["int", "a b", "1st", "", "é"])
def test_names_that_c_has_no_place_for(name: str) -> None:
    with pytest.raises(ZStateError, match="name: expected a name that C allows"):
        to_c(_graph(lambda g, x: g.tanh(x)), name)
    with pytest.raises(ZStateError, match="weights: expected one of float32, int8"):
        to_c(_graph(lambda g, x: g.tanh(x)), "model", "int4")
    with pytest.raises(ZStateError, match="program: expected a program, from Graph.compile"):
        to_c(zs.Graph(), "model")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "names", [("while", "expf"), ("NULL", "MODEL_H"), ("INT32_MAX", "DBL_EPSILON")]
)
def test_odd_names_become_names_of_c(names: tuple[str, str], compiled: Compile) -> None:
    """Words of the language, and functions and macros of the headers."""
    g = zs.Graph()
    x, y = (g.placeholder(shape=(2,), name=name) for name in names)
    weight = g.constant(np.ones((2, 2), np.float32), name="multiply */ ??/")
    first = g.reshape(x, (1, 2)) @ weight
    (h2,) = g.single_gate_rnn(
        g.reshape(first, (1, 1, 2)), recurrent_weight=weight, name="state */ ??/ é"
    )
    feeds: dict[Any, Any] = {x: ((2,), "float32"), y: ((2,), "float32")}
    program = g.compile(feeds, [h2, g.identity(x, name="state"), g.exponent(x * y, name="_size")])
    given = [np.array([1, 2], np.float32), np.array([3, 4], np.float32)]
    for found, wanted in zip(compiled(program).step(*given), program.run(given), strict=True):
        np.testing.assert_allclose(found, wanted)


def test_values_taken_from_an_argument_of_any_name(compiled: Compile) -> None:
    """None is that of an index of a loop."""
    for name in "ijktsr":
        g = zs.Graph()
        x = g.placeholder(shape=(2, 3), name=name)
        taken = g.gather(x, g.constant(np.array([2, 0], np.int32)), axis=1)
        program = g.compile({x: ((2, 3), "float32")}, [taken])
        given = np.random.default_rng(2).normal(size=(2, 3)).astype(np.float32)
        np.testing.assert_array_equal(compiled(program).step(given)[0], given[:, [2, 0]])


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from zstate.train import Run, Settings

    monkeypatch.chdir(tmp_path)
    text = "the cat sat on the mat. the dog ate the cat.\n" * 60
    run = Run.create(tmp_path / "run", Settings("gru", 2, 8, 4, window=16, batch=4), text)
    run.save()
    for words in ([], ["--weights", "int8"]):
        assert cli.main(["graph", "run", "--c", "model.h", *words]) == 0
        out = capsys.readouterr().out
        assert re.fullmatch(r"wrote model_step in C to model.h: \d+ bytes of flash, \d+ .*\n", out)
        assert "const int32_t *character, float *logits" in Path("model.h").read_text()
    program = run.model.stepping_program()
    compiler = shutil.which("gcc") or shutil.which("cc") or pytest.skip("no C compiler")
    header = to_c(program, "model").text
    model = Compiled(program, header, tmp_path, Path(compiler).name)
    generator = run.model.generator_program(5)
    tokens = np.array([[1], [4], [2], [7], [1]], np.int32)
    zeros = np.zeros((1, 8), np.float32)
    wanted = generator.run([tokens, zeros, zeros])[0]
    found = np.concatenate([model.step(each[None])[0] for each in tokens])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    for words, message in (
        (["--weights", "int8"], "--weights needs --c"),
        (["--c", "model.c"], "--c: expected a name that ends in .h"),
        (["--c", "int.h"], "name: expected a name that C allows, got 'int'"),
    ):
        assert cli.main(["graph", "run", *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_on_arm(tmp_path: Path, weights: str) -> None:
    """In an emulator, step by step."""
    for name in ARM:
        if not shutil.which(name):
            pytest.skip(f"no {name}")
    for seed in range(4):
        rng = np.random.default_rng(seed)
        layers = drawn.stack(rng, 4, 2, both_ways=False)
        x = rng.normal(size=(6, 1, 4)).astype(np.float32)
        wanted, _ = zs.prepare(layers, weights=weights, backend="reference")(x)
        program = program_of(layers, head=lambda graph, value: value)
        (tmp_path / "model.h").write_text(to_c(program, "model", weights).text)
        (tmp_path / "main.c").write_text(STEPPING.replace("WIDTH", str(wanted.shape[-1])))
        words = [ARM[0], *FLAGS, "-O2", "-static", "main.c", "-o", "step", "-lm"]
        subprocess.run(words, cwd=tmp_path, check=True)
        run = [ARM[1], str(tmp_path / "step")]
        found = subprocess.run(run, input=x.tobytes(), capture_output=True, check=True).stdout
        values = np.frombuffer(found, np.float32).reshape(wanted.shape)
        bound = 1e-5 if weights == "float32" else 2e-3
        np.testing.assert_allclose(values, wanted, atol=bound * max(1, np.abs(wanted).max()))


def test_the_command_on_a_graph_with_unknown_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    g = zs.Graph()
    x = g.placeholder(shape=(None, None, 3), name="x")
    layer = lstm(np.random.default_rng(0), 3, 4)
    stored = {name: g.variable(array, name=name) for name, array in layer.tensors.items()}
    g.lstm(x, descriptor=layer.descriptor, **stored)
    g.save("g")
    assert cli.main(["graph", "g", "--c", "one.h"]) == 0
    assert "one_x_size = 3," in Path("one.h").read_text()
    assert cli.main(["graph", "g", "--c", "five.h", "--shape", "x=5,1,3"]) == 0
    assert "five_x_size = 15," in Path("five.h").read_text()
    first = Path("one.h").read_text()
    assert cli.main(["graph", "g", "--c", "one.h"]) == 0
    assert Path("one.h").read_text() == first


def test_an_onnx_model_whose_states_the_caller_feeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As voice detectors are exported: states in, states out, one frame per call."""
    parser = pytest.importorskip("onnx.parser")
    onnx = pytest.importorskip("onnx")
    compiler = shutil.which("gcc") or pytest.skip("no gcc")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(12)
    sizes = (16 * 3, 16 * 4, 32, 4)
    weights = (",".join(f"{v:.3f}" for v in rng.normal(size=n) * 0.5) for n in sizes)
    onnx.save(parser.parse_model(FED % tuple(weights)), "m.onnx")
    assert cli.main(["graph", "m.onnx", "--c", "m.h"]) == 0
    import zstate.onnx as zo

    model = zo.load("m.onnx")
    names = list(model.outputs)
    given = {each.name: each for each in model.graph.nodes if each.op.name == "placeholder"}
    shapes = {"x": (1, 1, 3), "h": (1, 1, 4), "c": (1, 1, 4)}
    feeds: dict[Any, Any] = {given[k].results[0]: (v, "float32") for k, v in shapes.items()}
    program = model.graph.compile(feeds, [model.outputs[name] for name in names])
    text = Path("m.h").read_text()
    assert "const float *x, const float *h, const float *c, float *y, float *hn, float *cn" in text
    header = Compiled(program, text, tmp_path, Path(compiler).name)
    states = [np.zeros((1, 1, 4), np.float32)] * 2
    for _ in range(4):
        x = rng.normal(size=(1, 1, 3)).astype(np.float32)
        wanted = model.run({"x": x, "h": states[0], "c": states[1]})
        found = header.step(x, *states)
        for value, name in zip(found, names, strict=True):
            np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-6)
        states = found[1:]


FED = """<ir_version: 8, opset_import: ["": 17]>
    m (float[T, 1, 3] x, float[1, 1, 4] h, float[1, 1, 4] c)
      => (float[T, 1, 1] y, float[1, 1, 4] hn, float[1, 1, 4] cn)
    <float[1, 16, 3] W = {%s}, float[1, 16, 4] R = {%s}, float[1, 32] B = {%s},
     float[4, 1] P = {%s}, int64[1] at = {1}>
    {
        all, hn, cn = LSTM <hidden_size = 4> (x, W, R, B, , h, c)
        s = Squeeze(all, at)
        p = MatMul(s, P)
        y = Sigmoid(p)
    }"""
