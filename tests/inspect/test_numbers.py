"""The numbers on the page: those of the operations, whatever the model came as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.cells as cells
import zstate.convert as zc
import zstate.torch as zt
from zstate.inspection.views import clustered
from zstate.types import Array

from .pages import Read, read

STEPS, INPUTS, UNITS = 9, 3, 4


def _layer(cell: Any, gates: int, seed: int = 0, inputs: int = INPUTS) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "cell": cell,
        "recurrent_weight": rng.normal(size=(gates * UNITS, UNITS)),
        "input_weight": rng.normal(size=(gates * UNITS, inputs)),
        "bias": rng.normal(size=gates * UNITS),
    }


def _source() -> Array:
    return np.random.default_rng(7).normal(size=(STEPS, INPUTS))


def _page(tmp_path: Path, *args: Any, **options: Any) -> Read:
    return read(zs.inspect(*args, path=tmp_path / "page.html", **options))


def _assert_map(page: Read, name: str, expected: Array, layer: int = 0) -> None:
    found, off = page.map(name, layer)
    np.testing.assert_allclose(found, expected, rtol=0, atol=off + 1e-12)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def test_gates_and_states_are_those_of_the_operation(tmp_path: Path) -> None:
    layer, x = _layer("lstm", 4), _source()
    weights = {name: value for name, value in layer.items() if name != "cell"}
    h, c, z = zs.lstm(x[:, None], **weights, descriptor=zs.LSTMDescriptor(training=True))
    page = _page(tmp_path, layer, x)
    assert page.said["bits"] == 16
    for k, name in enumerate("ifzo"):
        _assert_map(page, name, z[:, 0, k * UNITS : (k + 1) * UNITS])
    _assert_map(page, "h", h[:, 0])
    _assert_map(page, "c", c[:, 0])


def test_gates_lie_in_the_order_of_the_descriptor(tmp_path: Path) -> None:
    d = zs.LSTMDescriptor(forget_gate_last=True, training=True)
    layer, x = _layer("lstm", 4) | {"descriptor": d}, _source()
    weights = {name: v for name, v in layer.items() if name not in ("cell", "descriptor")}
    z = zs.lstm(x[:, None], **weights, descriptor=d).training_state[:, 0]
    page = _page(tmp_path, layer, x)
    assert [each["name"] for each in page.layer()["maps"]] == ["i", "z", "f", "o", "h", "c"]
    _assert_map(page, "f", z[:, 2 * UNITS : 3 * UNITS])


@pytest.mark.parametrize(
    ("cell", "gates"), [(cells.cifg, 3), (cells.mgu, 2), (cells.slstm, 4), (cells.diagonal_gru, 3)]
)
def test_cells_from_equations_show_what_their_functions_give(
    cell: Any, gates: int, tmp_path: Path
) -> None:
    layer, x = _layer(cell, gates), _source()
    out = cell(x[:, None], **{k: v for k, v in layer.items() if k != "cell"}, training=True)
    page = _page(tmp_path, layer, x)
    for state in (each.name for each in cell.definition.states):
        _assert_map(page, state, getattr(out, state)[:, 0])
    saved = out.training_state[:, 0].reshape(STEPS, gates, UNITS)
    if cell is cells.cifg:
        for k, (name, function) in enumerate({"f": _sigmoid, "z": np.tanh, "o": _sigmoid}.items()):
            _assert_map(page, name, function(saved[:, k]))
            assert page.layer()["maps"][k]["function"] in ("sigmoid", "tanh")
    if cell is cells.slstm:  # i goes into two functions: it is shown before them
        _assert_map(page, "i", saved[:, 0])
        assert page.layer()["maps"][0]["function"] == ""


def test_memory_follows_from_the_gate_that_keeps(tmp_path: Path) -> None:
    def steps(kept: Array) -> Array:
        return -1 / np.log(kept[1:]).mean(axis=0)

    def memory(layer: dict[str, Any], state: str) -> tuple[Array, Read]:
        page = _page(tmp_path, layer, _source())
        return page.array(page.layer()["memory"][state]), page

    found, page = memory(_layer("lstm", 4), "c")
    np.testing.assert_allclose(found, steps(page.map("f")[0]), rtol=1e-3)
    assert list(page.layer()["memory"]) == ["c"]  # h is kept through R alone
    found, page = memory(_layer("gru", 3), "h")
    np.testing.assert_allclose(found, steps(page.map("z")[0]), rtol=1e-3)
    flipped = _layer("gru", 3) | {"descriptor": zs.GRUDescriptor(flip_z=True, reset_after=True)}
    found, page = memory(flipped, "h")
    np.testing.assert_allclose(found, steps(1 - page.map("z")[0]), rtol=1e-3)
    found, page = memory(_layer(cells.mgu, 2), "h")
    np.testing.assert_allclose(found, steps(1 - page.map("f")[0]), rtol=1e-3)


def test_a_cell_that_keeps_nothing_by_itself_has_no_memory(tmp_path: Path) -> None:
    assert _page(tmp_path, _layer("rnn", 1), _source()).layer()["memory"] == {}


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn", cells.mgu, cells.slstm])
def test_gradient_flow_is_that_of_the_gradient_operation(cell: Any, tmp_path: Path) -> None:
    """dL[t]/ds[k] is the gradient of the initial state of a sequence that begins behind k."""
    gates = {"lstm": 4, "gru": 3, "rnn": 1}.get(cell) or len(cell.definition.gates)
    layer, x = _layer(cell, gates), _source()[:, None]
    weights = {name: value for name, value in layer.items() if name != "cell"}
    rng = np.random.default_rng(1)
    readout, targets = rng.normal(size=(5, UNITS)), rng.integers(0, 5, STEPS)
    page = _page(tmp_path, layer, x, readout=readout, targets=targets)
    whole = _forward(cell, x, weights, {})
    names = list(page.layer()["flow"])
    output = whole[0][:, 0]
    p = np.exp(output @ readout.T)
    p /= p.sum(axis=1, keepdims=True)
    seeds = (p - np.eye(5)[targets]) @ readout
    loss = -np.log2(p[np.arange(STEPS), targets])
    np.testing.assert_allclose(page.array(page.said["models"][0]["loss"]), loss, rtol=1e-5)
    for t in range(STEPS):
        for k in range(t):
            start = dict(zip(names, (state[k] for state in whole), strict=False))
            found = _initial_gradients(cell, x[k + 1 : t + 1], weights, start, seeds[t])
            for name in names:
                norm = page.flow(name)[t, k]
                np.testing.assert_allclose(norm, np.linalg.norm(found[name]), rtol=5e-3, atol=1e-9)
        np.testing.assert_allclose(page.flow(names[0])[t, t], np.linalg.norm(seeds[t]), rtol=5e-3)
        assert not page.flow(names[0])[t, t + 1 :].any()


_BUILT_IN = {
    "lstm": (zs.lstm, zs.lstm_gradients, zs.LSTMDescriptor(training=True)),
    "gru": (zs.gru, zs.gru_gradients, zs.GRUDescriptor(training=True)),
    "rnn": (
        zs.single_gate_rnn,
        zs.single_gate_rnn_gradients,
        zs.SingleGateRNNDescriptor(training=True),
    ),
}


def _start(cell: Any, states: dict[str, Array]) -> dict[str, Array]:
    if not isinstance(cell, str):
        return {f"init_{name}": value for name, value in states.items()}
    names = {"h": "init_state", "c": "init_cell"}
    return {names[name]: value for name, value in states.items()}


def _forward(cell: Any, x: Array, weights: Any, states: dict[str, Array]) -> Any:
    start = _start(cell, states)
    if isinstance(cell, str):
        run, _, descriptor = _BUILT_IN[cell]
        return run(x, **weights, **start, descriptor=descriptor)
    return cell(x, **weights, **start, training=True)


def _initial_gradients(
    cell: Any, x: Array, weights: Any, states: dict[str, Array], seed: Array
) -> dict[str, Array]:
    out, start = _forward(cell, x, weights, states), _start(cell, states)
    d = np.zeros_like(out[0])
    d[-1, 0] = seed
    if not isinstance(cell, str):
        found = cell.gradients(x, out=out, state_gradients={"h": d}, **weights, **start)
        return {name: getattr(found, f"init_{name}") for name in states}
    _, gradients, _ = _BUILT_IN[cell]
    saved = {"lstm": {"cell_output_fwd": out[1]}, "gru": {"output_fwd": out[0]}}.get(cell, {})
    found = gradients(x, source_gradient=d, z_state=out.training_state, **saved, **weights, **start)
    return {"h": found.init_state} | ({"c": found.init_cell} if cell == "lstm" else {})


def test_gradient_flow_through_layers_and_directions(tmp_path: Path) -> None:
    """Against central differences: a state is changed behind its step, and the loss measured."""
    torch.manual_seed(3)
    module = zt.LSTM(INPUTS, UNITS, num_layers=2, bidirectional=True, dtype=torch.float64)
    x = _source()
    page = _page(tmp_path, module, torch.tensor(x))
    layers = _by_direction(module)

    def output(changed: tuple[int, int, int, int, Array] | None = None) -> Array:
        source = x
        for k, directions in enumerate(layers):
            found = []
            for d, weights in enumerate(directions):
                change = changed[2:] if changed is not None and changed[:2] == (k, d) else None
                found.append(_lstm(source[::-1] if d else source, weights, change, bool(d)))
            source = np.concatenate(found, axis=1)
        return source

    np.testing.assert_allclose(output(), module(torch.tensor(x))[0].detach().numpy(), atol=1e-12)
    eps, t = 1e-5, 5
    for k, d, s, step in [
        (0, 0, 0, 2),
        (0, 0, 1, 2),
        (0, 1, 0, 7),
        (0, 1, 1, 3),
        (1, 0, 1, 1),
        (1, 1, 0, 6),
    ]:
        slopes = []
        for unit in range(UNITS):
            change = eps * np.eye(UNITS)[unit]
            up, down = (np.linalg.norm(output((k, d, s, step, w * change))[t]) for w in (1, -1))
            slopes.append((up - down) / (2 * eps))
        norm = page.flow("hc"[s], layer=2 * k + d)[t, step]
        np.testing.assert_allclose(norm, np.linalg.norm(slopes), rtol=5e-3, atol=1e-9)


def _by_direction(module: Any) -> list[list[dict[str, Array]]]:
    def of(layer: int, end: str) -> dict[str, Array]:
        names = {"input_weight": "weight_ih", "recurrent_weight": "weight_hh"}
        found = {
            n: getattr(module, f"{m}_l{layer}{end}").detach().numpy() for n, m in names.items()
        }
        biases = (getattr(module, f"bias_{m}_l{layer}{end}") for m in ("ih", "hh"))
        return found | {"bias": sum(biases).detach().numpy()}  # type: ignore[union-attr]

    return [[of(layer, ""), of(layer, "_reverse")] for layer in range(2)]


def _lstm(source: Array, weights: Any, change: Any, backwards: bool) -> Array:
    """h [T,H] of one direction in the sequence's own order; a state is changed behind one step."""
    keep = zs.LSTMDescriptor(produce_cell=True)
    if change is None:
        h = zs.lstm(source[:, None].copy(), **weights, descriptor=keep).state[:, 0]
        return h[::-1] if backwards else h
    state, step, by = change
    cut = (len(source) - step) if backwards else step + 1
    first = zs.lstm(source[:cut, None].copy(), **weights, descriptor=keep)
    h, c = first.state.copy(), first.cell.copy()
    (h if state == 0 else c)[-1] += by
    found = [h[:, 0]]
    if cut < len(source):
        rest = source[cut:, None].copy()
        start = {"init_state": h[-1], "init_cell": c[-1]}
        found.append(zs.lstm(rest, **weights, **start, descriptor=keep).state[:, 0])
    h = np.concatenate(found)
    return h[::-1] if backwards else h


def test_the_same_layer_as_anything_gives_the_same_page(tmp_path: Path) -> None:
    layer, x = _layer("gru", 3), _source()
    weights = {name: value for name, value in layer.items() if name != "cell"}
    g = zs.Graph()
    fed = g.placeholder(shape=(None, 1, INPUTS), dtype="float64", name="x")
    constants = {name: g.constant(value) for name, value in weights.items()}
    (state,) = g.gru(fed, **constants)
    ways: list[tuple[Any, Any]] = [
        (layer, x),
        ([layer], x[:, None]),
        (zc.Layer("gru", zs.GRUDescriptor(), weights), x),
        (layer | {name: torch.tensor(value) for name, value in weights.items()}, torch.tensor(x)),
        (state, {fed: x[:, None]}),
    ]
    pages = [_page(tmp_path, *way) for way in ways]
    for page in pages[1:]:
        for name in "zroh":
            np.testing.assert_array_equal(page.map(name)[0], pages[0].map(name)[0])
        np.testing.assert_array_equal(page.flow("h"), pages[0].flow("h"))


def test_jax_arrays(tmp_path: Path) -> None:
    jnp = pytest.importorskip("jax.numpy")
    layer, x = _layer("lstm", 4), _source()
    own = {name: v if name == "cell" else jnp.asarray(v) for name, v in layer.items()}
    page = _page(tmp_path, own, jnp.asarray(x))
    _assert_near = _page(tmp_path, layer, x).map("c")[0]
    np.testing.assert_allclose(page.map("c")[0], _assert_near, atol=1e-3)


def test_modules_with_heads_peepholes_and_batch_first(tmp_path: Path) -> None:
    x = torch.randn(1, STEPS, INPUTS)
    heads = zt.Recurrent(cells.mgu, INPUTS, UNITS, heads=2, batch_first=True)
    found, off = _page(tmp_path, heads, x).map("h")
    np.testing.assert_allclose(found, heads(x)[0][0].detach(), atol=off + 1e-6)
    peephole = zt.LSTM(INPUTS, UNITS, peephole=True, batch_first=True, bidirectional=True)
    torch.nn.init.normal_(peephole.peephole_l0)
    page = _page(tmp_path, peephole, x, readout=torch.nn.Linear(2 * UNITS, 2), targets=[0] * STEPS)
    both = peephole(x)[0][0].detach()
    for layer, expected in enumerate(both.chunk(2, 1)):
        found, off = page.map("h", layer)
        np.testing.assert_allclose(found, expected, atol=off + 1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_modules_that_clip_and_zone_out_are_shown_as_in_evaluation(
    tmp_path: Path, training: bool
) -> None:
    x = torch.randn(STEPS, INPUTS)
    clipped = zt.LSTM(INPUTS, UNITS, num_layers=2, clip=0.05)
    zoned = zt.GRU(INPUTS, UNITS, zoneout=0.5)
    both = zt.Recurrent(cells.layer_norm_gru, INPUTS, UNITS, zoneout=0.3, clip=0.2)
    for module in (clipped, zoned, both):
        expected = module.eval()(x)[0].detach()
        page = _page(tmp_path, module.train(training), x)
        found, off = page.map("h", module.num_layers - 1)
        np.testing.assert_allclose(found, expected, atol=off + 1e-6)
        assert module.training is training


def test_units_that_move_alike_are_neighbours() -> None:
    rng = np.random.default_rng(0)
    sources = rng.normal(size=(200, 3))
    kinds = rng.permutation(np.repeat([0, 1, 2], 10))
    order = clustered(sources[:, kinds] + 0.1 * rng.normal(size=(200, 30)))
    assert sorted(order) == list(range(30))
    assert np.count_nonzero(np.diff(kinds[order])) == 2
    assert list(clustered(np.ones((5, 1)))) == [0]
    assert sorted(clustered(np.ones((5, 3)))) == [0, 1, 2]  # units that never move
