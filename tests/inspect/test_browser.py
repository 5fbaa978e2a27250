"""The page in a real browser: what is clicked there moves everything else, and the numbers that it
shows are those of the operations.

Needs a Chromium (on PATH, or $CHROMIUM) and Playwright's Python client; skipped without them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zstate as zs
import zstate.cells as cells
from zstate.train.loop import load_model
from zstate.types import Array

from .pages import TEXT, small_run

STEPS = 60


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    small_run(folder / "lstm", "lstm", 2)
    small_run(folder / "gru", "gru")
    zs.inspect(folder / "lstm", text=TEXT, steps=STEPS, path=folder / "one.html")
    zs.inspect(
        folder / "lstm", compare=folder / "gru", text=TEXT, steps=STEPS, path=folder / "two.html"
    )
    return folder


def _opened(tab: Any, path: Path, hash_: str = "") -> Any:
    tab.goto(path.as_uri() + hash_)
    tab.wait_for_selector("html[data-ready=yes]")
    return tab


def _lstm(runs: Path) -> tuple[dict[str, Array], Array]:
    """The last layer's gates and states, and its weights and source, from zs.lstm itself."""
    model, alphabet, _ = load_model(runs / "lstm")
    values = model.graph.variables()
    x = values["embedding"][alphabet.encode(TEXT[:STEPS])][:, None]
    train = zs.LSTMDescriptor(training=True)
    for k in range(2):
        parts = ("input_weight", "recurrent_weight", "bias")
        weights = {name: values[f"layer{k}.{name}"] for name in parts}
        h, c, z = zs.lstm(x, **weights, descriptor=train)
        inputs, x = x, h
    gates = dict(zip("ifzo", np.split(z[:, 0], 4, 1), strict=True))
    found = {**gates, "h": h[:, 0], "c": c[:, 0]}
    seeds = np.exp(h[:, 0] @ values["projection"] + values["projection_bias"])
    seeds /= seeds.sum(axis=1, keepdims=True)
    targets = alphabet.encode(TEXT[1 : STEPS + 1])
    seeds -= np.eye(seeds.shape[1])[targets]
    return found | {"seeds": seeds @ values["projection"].T, "inputs": inputs, **weights}, z


def _map(tab: Any, name: str) -> Any:
    return tab.locator(f".map[data-map='{name}']").first


def _value(tab: Any, name: str) -> float:
    return float(_map(tab, name).locator(".value").text_content())


def _picture(tab: Any, name: str) -> str:
    return str(_map(tab, name).locator("canvas").evaluate("canvas => canvas.toDataURL()"))


def test_choosing_a_character_moves_the_maps(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "one.html")
    numbers, _ = _lstm(runs)
    tab.locator(".unit").fill("5")
    tab.locator(".unit").press("Enter")
    places = []
    for step in (7, 31):
        tab.locator(f".text span[data-step='{step}']").click()
        assert tab.locator(".text .chosen").get_attribute("data-step") == str(step)
        assert f"step {step}" in tab.locator(".read").text_content()
        places.append(_map(tab, "f").locator(".at-step").evaluate("line => line.offsetLeft"))
        for name in "ifzohc":
            assert _value(tab, name) == pytest.approx(numbers[name][step, 5], abs=2e-4)
    assert places[1] > places[0]


def test_every_number_is_that_of_the_operation(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "one.html")
    numbers, _ = _lstm(runs)
    for name in "ifzohc":
        found = tab.evaluate(
            """name => { const map = page.models[0].layers[1].map(name);
                         return Array.from({length: map.steps}, (_, t) =>
                           Array.from({length: 12}, (_, u) => map.at(t, u))); }""",
            name,
        )
        np.testing.assert_allclose(found, numbers[name], atol=1e-4)


def test_gradient_flow_is_that_of_the_gradient_operation(tab: Any, runs: Path) -> None:
    """The page's curve for the chosen step, against zs.lstm_gradients from every step before it."""
    _opened(tab, runs / "one.html", "#step=20")
    numbers, z = _lstm(runs)
    weights = {name: numbers[name] for name in ("input_weight", "recurrent_weight", "bias")}
    h, c, x = numbers["h"][:, None], numbers["c"][:, None], numbers["inputs"]
    curves = tab.evaluate("page.panes[0].flowChart.plot.data.map(each => Array.from(each))")
    labels = tab.evaluate("page.panes[0].flowChart.plot.series.map(each => each.label)")
    assert labels == ["step", *(f"layer {k} dL/d{s}" for k in (1, 2) for s in "hc")]
    for k in range(20):
        window = slice(k + 1, 21)
        d = np.zeros_like(h[window])
        d[-1, 0] = numbers["seeds"][20]
        found = zs.lstm_gradients(
            *(x[window], weights["recurrent_weight"], d, z[window], c[window]),
            input_weight=weights["input_weight"],
            bias=weights["bias"],
            init_state=h[k],
            init_cell=c[k],
        )
        assert curves[3][k] == pytest.approx(np.linalg.norm(found.init_state), rel=6e-3)
        assert curves[4][k] == pytest.approx(np.linalg.norm(found.init_cell), rel=6e-3)
    assert curves[3][21] is None  # a loss depends on nothing behind it


def test_hovering_shows_what_the_model_expected(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "one.html")
    tab.locator(".text span[data-step='3']").hover()
    tip = tab.locator("#tip")
    assert tip.is_visible()
    text = tip.text_content()
    parts = [float(p) for p in re.findall(r"([\d.]+)%", text)]
    assert len(parts) == 5
    assert parts == sorted(parts, reverse=True)
    assert "actual next c" in text  # "the cat": after the space comes a c
    numbers, _ = _lstm(runs)
    assert _value(tab, "f") == pytest.approx(numbers["f"][3, _unit(tab)], abs=2e-4)
    tab.mouse.move(2, 2)
    assert not tip.is_visible()


def _unit(tab: Any) -> int:
    return int(tab.locator(".unit").first.input_value())


def test_sorting_moves_all_maps_alike(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "one.html")
    names = tab.locator(".order option").all_text_contents()
    assert names == ["as they are", "activity", "similarity", "memory"]
    before = {name: _picture(tab, name) for name in "fc"}
    tab.locator(".order").select_option("memory")
    assert all(_picture(tab, name) != before[name] for name in "fc")
    orders = tab.evaluate("page.panes[0].maps.map(map => Array.from(map.order))")
    assert all(order == orders[0] for order in orders)
    f = _lstm(runs)[0]["f"].astype(np.float64)
    kept = np.log(f[1:]).mean(axis=0)
    assert orders[0] == list(np.argsort(-kept))


def test_units_like_one(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "one.html", "#unit=3")
    tab.get_by_role("button", name="Units like this one").click()
    assert tab.locator(".order").input_value() == "like unit 3"
    order = tab.evaluate("Array.from(page.panes[0].order)")
    near = np.corrcoef(_lstm(runs)[0]["h"].T)[3]
    assert order[0] == 3
    np.testing.assert_allclose(near[order], np.sort(near)[::-1], atol=1e-3)


def test_switching_a_gate_colours_the_text(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "one.html")
    span = tab.locator(".text span[data-step='9']")
    colours = [span.evaluate("each => each.style.backgroundColor")]
    assert tab.locator(".colour").input_value() == "loss"
    box = _map(tab, "c").locator(".plot").bounding_box()
    _map(tab, "c").locator(".plot").click(position={"x": box["width"] * 0.25, "y": 1})
    assert tab.locator(".colour").input_value() == "c"
    assert "chosen" in _map(tab, "c").get_attribute("class")
    assert tab.locator(".text .chosen").get_attribute("data-step") == str(STEPS // 4)
    assert _unit(tab) == tab.evaluate("page.panes[0].order[0]")
    colours.append(span.evaluate("each => each.style.backgroundColor"))
    tab.locator(".colour").select_option("i")
    assert "chosen" in _map(tab, "i").get_attribute("class")
    colours.append(span.evaluate("each => each.style.backgroundColor"))
    assert len(set(colours)) == 3


def test_layers_and_saturation(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "one.html")
    cells_ = tab.locator(".saturation tbody tr").nth(1).locator("td").all_text_contents()
    f = _lstm(runs)[0]["f"]
    unit = f[:, _unit(tab)]
    shares = [(f < 0.1).mean(), (f > 0.9).mean(), (unit < 0.1).mean(), (unit > 0.9).mean()]
    assert cells_[1:] == [f"{100 * share:.1f}%" for share in shares]
    before = _picture(tab, "f")
    tab.locator(".layer").select_option("0")
    assert _picture(tab, "f") != before


def test_keys(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "one.html", "#step=30&map=f")
    press = tab.keyboard.press
    press("ArrowRight")
    press("Shift+ArrowLeft")
    assert tab.locator(".text .chosen").get_attribute("data-step") == "21"
    first = _unit(tab)
    press("ArrowDown")
    assert _unit(tab) == tab.evaluate("page.panes[0].order[1]") != first
    press("]")
    assert "chosen" in _map(tab, "z").get_attribute("class")
    press("[")
    press("[")
    assert "chosen" in _map(tab, "i").get_attribute("class")
    press("+")
    assert tab.evaluate("page.zoom") == [6, 36]
    press("0")
    assert tab.evaluate("page.zoom") == [0, STEPS]
    for _ in range(3):
        press("Shift+ArrowLeft")
    assert tab.locator(".text .chosen").get_attribute("data-step") == "0"
    assert "step=0" in tab.url


def test_dragging_zooms_every_view(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "one.html")
    before = _picture(tab, "h")
    over = tab.locator(".unit-chart .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 30)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 30, steps=4)
    tab.mouse.up()
    low, high = tab.evaluate("page.zoom")
    assert STEPS * 0.2 < low < high < STEPS * 0.55
    assert _picture(tab, "h") != before


def test_two_runs_side_by_side(tab: Any, runs: Path) -> None:
    _opened(tab, runs / "two.html")
    panes = tab.locator(".pane")
    assert panes.count() == 2
    left, right = (panes.nth(k).bounding_box() for k in range(2))
    assert left["y"] == right["y"]
    assert right["x"] >= left["x"] + left["width"]
    panes.nth(1).locator(".text span[data-step='12']").click()
    chosen = tab.locator(".text .chosen")
    assert [chosen.nth(k).get_attribute("data-step") for k in range(2)] == ["12", "12"]
    assert panes.nth(1).locator(".map").count() == 4  # z, r, o and h
    labels = tab.locator("#training .u-legend .u-label").all_text_contents()
    assert len(labels) == 5
    assert any("gru" in label and "validation" in label for label in labels)
    tab.locator("#curve").select_option("gradient norm")
    about = tab.evaluate("page.models[1].training['gradient norm']")
    assert tab.evaluate("Array.from(page.training.plot.data[2])") == about


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(width: int, tab: Any, runs: Path) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    for name in ("one.html", "two.html"):
        _opened(tab, runs / name)
        assert not tab.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_light_and_dark(tab: Any, runs: Path) -> None:
    tab.emulate_media(color_scheme="dark")
    _opened(tab, runs / "one.html")
    back = "getComputedStyle(document.body).backgroundColor"
    assert tab.evaluate(back) == "rgb(18, 22, 27)"
    picture = _picture(tab, "c")
    tab.get_by_role("button", name="Light").click()
    assert tab.evaluate(back) == "rgb(255, 255, 255)"
    assert _picture(tab, "c") != picture


def test_made_up_cells_and_labels_of_any_kind(tab: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    hostile = "</script><img src=x onerror=document.title='broken'>"
    labels = [hostile, "語", "\n", "\u202e", "", "مرحبا", "🙂", " "]
    layer = {
        "cell": cells.slstm,
        "recurrent_weight": rng.normal(size=(20, 5)),
        "input_weight": rng.normal(size=(20, 2)),
    }
    path = zs.inspect(
        layer, rng.normal(size=(8, 2)), labels=labels, name=hostile, path=tmp_path / "page.html"
    )
    _opened(tab, path)
    assert tab.locator(".map h4 b").all_text_contents() == [*"ifzo", *"hcnm"]
    assert tab.locator(".pane img").count() == 0
    assert tab.locator(".text span").nth(0).text_content() == hostile
    assert tab.locator(".text span").nth(3).text_content() == "⟨202e⟩"
    assert hostile in tab.title()
    assert tab.locator(".state option").all_text_contents() == ["c", "n", "m"]
    tab.locator(".text span").nth(1).click()
    assert tab.locator(".read b").text_content() == "語"


def test_a_served_page_follows_the_training(tab: Any, runs: Path) -> None:
    import threading

    from zstate.inspection.serving import Server
    from zstate.inspection.views import run_views
    from zstate.inspection.writing import page

    now = ["1"]

    def make(version: str) -> bytes:
        return page(run_views(runs / "gru", None, TEXT, None, 20 + int(version)), 4.0, version)

    with Server(lambda: now[0], make) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.goto(server.address + "#step=4")
        tab.wait_for_selector("html[data-ready=yes]")
        assert tab.locator(".text span").count() == 21
        now[0] = "2"
        tab.wait_for_selector(".text span[data-step='21']")
        assert tab.locator(".text .chosen").get_attribute("data-step") == "4"
        tab.goto("about:blank")
        server.shutdown()
