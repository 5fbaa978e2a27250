"""Cells from equations, as users write them: on every library, against what is known of them."""

from __future__ import annotations

import cProfile
import pickle

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import zstate as zs
import zstate.torch  # which cells are told to when they are made
from zstate import cells
from zstate.errors import DescriptorError, DTypeError, EquationError, OptionError, ShapeError

from .made_up import shapes_of_call

T, N, I, H = 5, 3, 4, 6


@cells.cell(gates="z r o", states="h")
def gru(x, R, h):
    """A GRU, by hand."""
    z = cells.sigmoid(x.z + R.z @ h)
    r = cells.sigmoid(x.r + R.r @ h)
    o = cells.tanh(x.o + R.o @ (r * h))
    return z * h + (1 - z) * o


def peeping_text(x, R, h, c, p_i, p_o):
    i = cells.sigmoid(x.i + R.i @ h + p_i * c)
    f = cells.sigmoid(x.f + R.f @ h)
    z = cells.tanh(x.z + R.z @ h)
    new = f * c + i * z
    return cells.sigmoid(x.o + R.o @ h + p_o * c) * cells.tanh(new), new


peeping_text.__name__ = "peeping"
peeping = cells.cell("i f z o", "h c", "p_i p_o")(peeping_text)


def drawn(cell, dtype="float64", directions=1, seed=0):
    """Random inputs of a call with everything that the cell takes."""
    rng = np.random.default_rng(seed)
    shapes = shapes_of_call(cell.definition, (T, N, I, H), directions)
    return {name: (rng.normal(size=s) / 2).astype(dtype) for name, s in shapes.items()}


def kinds():
    return ["float64", "float32", "float16", ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", kinds(), ids=str)
@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("directions", [1, 2])
def test_the_built_in_gru_and_lstm(dtype, backend, directions):
    """The same equations, the same numbers: to the bit where one engine computes both."""
    options = {"bidirectional": directions == 2, "training": True}
    given = drawn(gru, dtype, directions)
    out = gru(**given, **options, backend=backend)
    given["init_state"] = given.pop("init_h")
    built_in = zs.gru(**given, descriptor=zs.GRUDescriptor(**options), backend=backend)
    np.testing.assert_array_equal(out.h, built_in.state)

    given = drawn(peeping, dtype, directions)
    out = peeping(**given, **options, backend=backend)
    p_i, p_o = given.pop("p_i"), given.pop("p_o")
    rows = [p_i, np.zeros_like(p_i), np.zeros_like(p_i), p_o]
    by_direction = [
        np.concatenate([row.reshape(directions, H)[d] for row in rows]) for d in (0, 1)[:directions]
    ]
    given["peephole"] = np.stack(by_direction) if directions == 2 else by_direction[0]
    given["init_state"], given["init_cell"] = given.pop("init_h"), given.pop("init_c")
    built_in = zs.lstm(**given, descriptor=zs.LSTMDescriptor(**options), backend=backend)
    rounding = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-3}.get(str(np.dtype(dtype)), 1e-2)
    for found, wanted in ((out.h, built_in.state), (out.c, built_in.cell)):
        found, wanted = found.astype("float64"), wanted.astype("float64")
        np.testing.assert_allclose(found, wanted, rtol=rounding, atol=rounding)


def slstm_by_hand(x, R, W, b):
    """The published equations, with the first step as a case of its own."""
    h = c = n = np.zeros((N, H))
    m = None
    steps = []
    for t in range(len(x)):
        i, f, z, o = np.split(x[t] @ W.T + b + h @ R.T, 4, -1)
        a = None if m is None else -np.log1p(np.exp(-f)) + m
        m = i if a is None else np.maximum(a, i)
        keep = 0.0 if a is None else np.exp(a - m)
        c = keep * c + np.exp(i - m) * np.tanh(z)
        n = keep * n + np.exp(i - m)
        h = c / n / (1 + np.exp(-o))
        steps.append(h)
    return np.stack(steps)


@pytest.mark.parametrize("backend", [None, "reference"])
def test_slstm(backend):
    given = drawn(cells.slstm)
    for name in ("init_h", "init_c", "init_n", "init_m", "mask"):
        del given[name]
    wanted = slstm_by_hand(
        *(given[n] for n in ("source", "recurrent_weight", "input_weight", "bias"))
    )
    np.testing.assert_allclose(cells.slstm(**given, backend=backend).h, wanted, rtol=1e-12)
    for dtype, bound in ((np.float32, 1e-5), (np.float16, 0.01), (ml_dtypes.bfloat16, 0.05)):
        short = {name: value.astype(dtype) for name, value in given.items()}
        out = cells.slstm(**short, training=True, backend=backend)
        np.testing.assert_allclose(out.h.astype("float64"), wanted, atol=bound)
        d = cells.slstm.gradients(
            short.pop("source"),
            short.pop("recurrent_weight"),
            out,
            {"h": out.h},
            **short,
            backend=backend,
        )
        assert d.init_m is None  # it was not passed, though the cell begins with -inf
        assert np.isfinite(d.recurrent_weight.astype("float64")).all()


CELLS = [gru, peeping, cells.mgu, cells.cifg, cells.slstm]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("way", [{}, {"reverse": True}, {"bidirectional": True}], ids=str)
def test_gradients_by_central_differences(cell, backend, way):
    given = drawn(cell, directions=2 if way.get("bidirectional") else 1)
    rng = np.random.default_rng(1)
    out = cell(**given, training=True, backend=backend, **way)
    states = [each.name for each in cell.definition.states][: 1 + rng.integers(4)]
    dy = {name: rng.normal(size=getattr(out, name).shape) for name in states}
    source, weight = given["source"], given["recurrent_weight"]
    others = {name: given[name] for name in given if name not in ("source", "recurrent_weight")}
    d = cell.gradients(source, weight, out, dy, **others, backend=backend, **way)
    for name in d._fields:
        along, step = rng.normal(size=given[name].shape), 1e-6
        up, down = (
            cell(**{**given, name: given[name] + sign * step * along}, backend=backend, **way)
            for sign in (1, -1)
        )
        wanted = sum(((getattr(up, s) - getattr(down, s)) * dy[s]).sum() for s in dy) / (2 * step)
        found = (getattr(d, name) * along).sum()
        assert abs(found - wanted) < 1e-6 * (1 + abs(wanted)), name


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
def test_torch_and_jax(cell):
    given = drawn(cell)
    out = cell(**given, training=True)
    rng = np.random.default_rng(2)
    dy = rng.normal(size=out.h.shape)
    source, weight = given["source"], given["recurrent_weight"]
    others = {name: given[name] for name in given if name not in ("source", "recurrent_weight")}
    wanted = cell.gradients(source, weight, out, {"h": dy}, **others)

    tensors = {
        name: torch.tensor(value, requires_grad=name != "mask") for name, value in given.items()
    }
    (cell(**tensors).h * torch.tensor(dy)).sum().backward()
    for name in wanted._fields:
        np.testing.assert_allclose(
            tensors[name].grad, getattr(wanted, name), rtol=1e-12, atol=1e-13
        )

    def loss(given):
        return (cell(**given).h * dy).sum()

    with jax.enable_x64(True):
        found = jax.jit(jax.grad(loss))({name: jnp.asarray(value) for name, value in given.items()})
        for name in wanted._fields:
            np.testing.assert_allclose(found[name], getattr(wanted, name), rtol=1e-12, atol=1e-13)


def test_torch_transforms():
    given = {name: torch.tensor(value) for name, value in drawn(cells.cifg).items()}
    source, weight = given.pop("source"), given.pop("recurrent_weight").requires_grad_()

    def call(source, weight):
        return cells.cifg(source, weight, **given).h

    assert torch.autograd.gradgradcheck(call, (source, weight))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(source, weight), call(source, weight))
    many = torch.stack([source, 2 * source])
    together = torch.vmap(call, in_dims=(0, None))(many, weight)
    torch.testing.assert_close(together[1], call(2 * source, weight))


def test_cells_of_one_name():
    """Another cell of the same name is another cell, also where operators are known by name."""

    def make(sign):
        @cells.cell(gates="z")
        def same(x, R, h):
            return cells.tanh(x.z + R.z @ h) * sign

        return same

    plus, minus, again = make(1.0), make(-1.0), make(1.0)
    given = {n: torch.tensor(v) for n, v in drawn(plus).items()}
    for cell in (plus, minus, again):
        compiled = torch.compile(lambda g, cell=cell: cell(**g).h, backend="aot_eager")
        arrays = {n: v.numpy() for n, v in given.items()}
        wanted = cell(**arrays, backend="reference").h
        np.testing.assert_allclose(compiled(given), wanted, rtol=1e-12)
        with jax.enable_x64(True):
            on_jax = jax.jit(lambda g, cell=cell: cell(**g).h)(arrays)
        np.testing.assert_allclose(on_jax, wanted, rtol=1e-12)
    assert plus.definition.key == again.definition.key != minus.definition.key


def test_what_it_shows():
    assert str(gru).splitlines()[-1] == "h' = z·h + (1 - z)·o"
    assert "init_h" in str(cells.mgu.__signature__)
    assert gru.__doc__ == "A GRU, by hand."
    assert pickle.loads(pickle.dumps(cells.slstm)) is cells.slstm


def test_results_can_be_stored():
    out = peeping(**drawn(peeping))
    again = pickle.loads(pickle.dumps(out))
    assert type(again) is type(out)
    np.testing.assert_array_equal(again.c, out.c)


def test_results_can_be_exported_by_jax():
    allowed = [jax.export.DisabledSafetyCheck.custom_call("zstate_forward")]
    given = drawn(peeping, "float32")
    for cell in (cells.cell("i f z o", "h c", "p_i p_o")(peeping_text), peeping):  # equal ones
        exported = jax.export.export(jax.jit(cell), disabled_checks=allowed)(**given)
        out = jax.export.deserialize(exported.serialize()).call(**given)
        np.testing.assert_array_equal(out.c, cell(**given).c)


def test_names_and_numbers_of_any_kind():
    """A function without a name, NumPy's numbers."""
    text = cells.cell("z", parameters="a")
    cell = text(lambda x, R, h, a: cells.tanh(x.z * np.float32(0.5) + R.z @ h) * a + np.int64(1))
    given = drawn(cell)
    wanted = cell(**given, backend="reference").h
    np.testing.assert_allclose(cell(**given).h, wanted, rtol=1e-12)
    tensors = {name: torch.tensor(value) for name, value in given.items()}
    np.testing.assert_allclose(cell(**tensors).h, wanted, rtol=1e-12)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(cell)(**given).h, wanted, rtol=1e-12)


def test_a_cell_that_is_defined_under_a_profiler():
    def same(x, R, h):
        return cells.tanh(x.z + R.z @ h)

    with cProfile.Profile() as profile:
        cell = cells.cell(gates="z")(same)
    assert cell.definition.key == cells.cell(gates="z")(same).definition.key
    assert any(each.code is same.__code__ for each in profile.getstats())


def test_variables_that_change_later():
    """A cell keeps the numbers that its function saw when it was defined."""
    rate = 0.25
    runs = []

    @cells.cell(gates="z", states="h")
    def leaky(x, R, h):
        runs.append(rate)
        return (1 - rate) * h + rate * cells.tanh(x.z + R.z @ h)

    rate = 0.75
    rng = np.random.default_rng(0)
    x, R, m, h = (rng.normal(size=s) for s in ((2, N, H), (H, H), (2, N, H), (N, H)))
    resets = np.zeros((2, N), bool)
    first = 0.75 * h + 0.25 * np.tanh(x[0] + (h * m[0]) @ R.T)
    new = [first, 0.75 * first + 0.25 * np.tanh(x[1] + (first * m[1]) @ R.T)]
    for further in ({}, {"training": True}, {"resets": resets}, {"backend": "reference"}):
        np.testing.assert_allclose(leaky(x, R, init_h=h, mask=m, **further).h, new, rtol=1e-12)
    out = leaky(x[:1], R, init_h=h, mask=m[:1], training=True)
    found = leaky.gradients(x[:1], R, out, {"h": x[1:]}, init_h=h, mask=m[:1])
    slope = 1 - np.tanh(x[0] + (h * m[0]) @ R.T) ** 2
    np.testing.assert_allclose(found.source[0], 0.25 * slope * x[1], rtol=1e-12, atol=1e-14)
    assert runs == [0.25]


def _if(x, R, h):
    return h if h > 0 else x.z + R.z @ h


def _equal(x, R, h):
    return h if h == 0 else x.z + R.z @ h


def _among(x, R, h):
    return h if h in (0, x.z) else x.z + R.z @ h


def _numpy(x, R, h):
    return np.tanh(x.z + R.z @ h)


def _torch(x, R, h):
    return torch.tanh(x.z + R.z @ h)


def _deep(x, R, h):
    return R.z @ (x.z + R.z @ (R.z @ h))


def _unused(x, R, h):
    return cells.tanh(h)


def _other_name(x, R, s):
    return x.z + R.z @ s


def _gate(x, R, h):
    return x.q + R.z @ h


def _two(x, R, h):
    return x.z + R.z @ h, h


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_if, "where(condition, a, b)"),
        (_equal, "where(condition, a, b)"),
        (_among, "where(condition, a, b)"),
        (_numpy, "functions of zstate.cells"),
        (_torch, "functions of zstate.cells"),
        (_deep, "at most 2 deep"),
        (_unused, "gate z"),
        (_other_name, r"arguments \(x, R, h\)"),
        (_gate, "x.q: expected one of z"),
        (_two, "expected 1 values"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_read(function, says):
    with pytest.raises(
        EquationError, match=says.replace("(c", r"\(c").replace("b)", r"b\)")
    ) as found:
        cells.cell(gates="z")(function)
    assert f"[{function.__name__}]" in str(found.value)
    if function is not _other_name:
        assert f"{__file__}:" in str(found.value)
    if function in (_if, _equal, _among, _numpy, _torch, _gate):
        assert str(found.value).endswith("return " + str(found.value).rpartition(": return ")[2])
        assert ": return " in str(found.value)


@pytest.mark.parametrize(
    "options",
    [
        {"gates": ""},
        {"gates": "z z"},
        {"gates": "1z"},
        {"gates": ("z",)},
        {"states": "source"},
        {"states": "h", "parameters": "mask"},
        {"parameters": "gates"},
        {"parameters": "h_gradient"},
        {"steps": "h_output_fwd"},
        {"states": "h h_gradient"},
        {"initial": {"c": 1.0}},
        {"initial": {"h": float("nan")}},
        {"initial": {"h": "0"}},
        {"initial": {"h": 10**400}},
        {"initial": [1.0]},
    ],
    ids=str,
)
def test_what_names_are_refused(options):
    def function(x, R, h):
        return x.z + R.z @ h

    with pytest.raises(EquationError, match=r"\[function\]"):
        cells.cell(**{"gates": "z", **options})(function)


def test_a_decorator_without_arguments_is_refused():
    with pytest.raises(EquationError, match=r'\[_if\] expected @cells.cell\(gates="…"\)'):
        cells.cell(_if)


def test_what_calls_are_refused():
    given = drawn(peeping)
    out = peeping(**given, training=True)
    source, weight = given.pop("source"), given.pop("recurrent_weight")
    with pytest.raises(OptionError, match="peephole"):
        peeping(source, weight, **given, peephole=weight)
    with pytest.raises(DTypeError, match="p_i: expected a parameter"):
        peeping(source, weight, **{**given, "p_i": None})
    with pytest.raises(ShapeError, match=r"\[peeping\] p_i: expected \[H\] = \[6\]"):
        peeping(source, weight, **{**given, "p_i": np.zeros(7)})
    with pytest.raises(DescriptorError, match="reverse"):
        peeping(source, weight, **given, reverse=1)
    with pytest.raises(OptionError, match="names of h, c"):
        peeping.gradients(source, weight, out, {"state": out.h}, **given)
    with pytest.raises(DTypeError, match="training=True"):
        peeping.gradients(source, weight, peeping(source, weight, **given), {"h": out.h}, **given)
    with pytest.raises(DTypeError, match="mapping"):
        peeping.gradients(source, weight, out, out.h, **given)
    with pytest.raises(DTypeError, match="the result of peeping"):
        peeping.gradients(source, weight, out.h, {"h": out.h}, **given)


@pytest.mark.parametrize("backend", [None, "reference"])
def test_refused_before_initial_states_are_made(backend):
    source, weight = np.zeros((T, N, 4 * H)), np.zeros((4 * H, H))
    with pytest.raises(ShapeError, match=r"\[slstm\] recurrent_weight: expected \[1000000000,4d"):
        cells.slstm(source, weight, heads=10**9, backend=backend)
    with pytest.raises(DTypeError, match=r"\[slstm\] source: expected one of float16"):
        cells.slstm(source.astype("U3"), weight, backend=backend)


def test_without_steps_or_rows():
    for steps, rows in ((0, 2), (3, 0)):
        x, R = np.zeros((steps, rows, 4 * H)), np.ones((4 * H, H))
        out = cells.slstm(x, R, training=True)
        assert out.m.shape == (steps, rows, H)
        d = cells.slstm.gradients(x, R, out, {"h": out.h})
        assert not d.recurrent_weight.any()


def _horner(tanh, mean, s):
    value = s
    for _ in range(400):
        value = value * s + 0.001
    return tanh(value)


def _sum(tanh, mean, s):
    total = s
    for k in range(600):
        total = total + tanh(s) * (0.001 * (k % 7))
    return total


def _logistic(tanh, mean, s):
    """Each value twice in the next one: 2^60 ways from the last to the first."""
    value = s
    for _ in range(60):
        value = value * (1 - value)
    return value - mean(value)


@pytest.mark.parametrize("text", [_horner, _sum, _logistic])
def test_long_equations(text):
    @cells.cell(gates="f", states="h")
    def long(x, R, h):
        return text(cells.tanh, cells.mean, cells.sigmoid(x.f + R.f @ h))

    def mean(value):
        return value.mean(-1, keepdims=True)

    def run(source):
        h = np.zeros((2, 3))
        for x in source:
            h = text(np.tanh, mean, 1 / (1 + np.exp(-(x + h @ weight.T))))
        return h

    rng = np.random.default_rng(9)
    source, weight, d, way = (
        rng.standard_normal(s) for s in ((2, 2, 3), (3, 3), *((2, 2, 3),) * 2)
    )
    d[0] = 0  # of the last state alone
    for backend in (None, "reference"):
        out = long(source, weight, training=True, backend=backend)
        np.testing.assert_allclose(out.h[-1], run(source), atol=1e-12)
        found = long.gradients(source, weight, out, {"h": d}, backend=backend).source
        change = run(source + 1e-6 * way) - run(source - 1e-6 * way)
        np.testing.assert_allclose((found * way).sum(), (d[-1] * change).sum() / 2e-6, rtol=1e-6)
