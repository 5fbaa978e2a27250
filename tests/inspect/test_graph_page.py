"""The page of `zstate graph` in a real browser; skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate import cli
from zstate.graph.drawing import boxes_of, program_of
from zstate.graph.placing import _by_dagre, has_dagre, picture_of
from zstate.train.loop import programs_of

from .pages import small_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    small_run(folder / "run")
    assert cli.main(["graph", str(folder / "run"), "--html", str(folder / "page.html")]) == 0
    return folder / "page.html"


def _opened(tab: Any, path: Path) -> None:
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready=yes]")


def _titles(tab: Any, which: str = ".box") -> list[str]:
    found = tab.locator(f"{which} text:first-of-type").all_text_contents()
    return [str(text) for text in found]


def test_programs_and_folding(tab: Any, page: Path) -> None:
    _opened(tab, page)
    assert "adam × 6" in _titles(tab) and "lstm_gradients" in _titles(tab)
    folded = len(_titles(tab))
    tab.locator("#all").check()
    assert _titles(tab).count("adam") == 6 and len(_titles(tab)) > 3 * folded
    tab.locator("#program").select_option("sampling")
    assert "adam" not in _titles(tab) and "lstm" in _titles(tab)
    lines = tab.locator(".line")
    assert lines.count() > 8
    assert lines.first.get_attribute("marker-end") == "url(#arrow)"


def test_hovering_search_and_zoom(tab: Any, page: Path) -> None:
    _opened(tab, page)
    tab.locator("#program").select_option("validation")
    (layer,) = [box for box in tab.locator(".box").all() if "lstm" in box.text_content()]
    layer.locator("rect").hover()
    assert "lstm" in _titles(tab, ".box.near")
    assert 3 <= len(_titles(tab, ".box.near")) < len(_titles(tab))
    assert tab.locator(".line.near").count() >= 3
    tab.mouse.move(2, 2)
    assert _titles(tab, ".box.near") == []
    tab.locator("#find").fill("projection_bias")
    assert _titles(tab, ".box.near") == ["addition"]
    assert tab.locator("#found").text_content() == "1 found"
    tab.locator("#find").press("Enter")
    place = tab.locator(".box.near").bounding_box()
    assert abs(place["x"] + place["width"] / 2 - 640) < 5
    before = tab.evaluate("view.width")
    tab.locator("#in").click()
    tab.mouse.move(500, 500)
    tab.mouse.wheel(0, -200)
    assert tab.evaluate("view.width") < 0.6 * before
    left = tab.evaluate("view.x")
    tab.mouse.down()
    tab.mouse.move(400, 500)
    tab.mouse.up()
    assert tab.evaluate("view.x") > left


@pytest.mark.skipif(not has_dagre(), reason="quickjs is not installed")
def test_still_pictures_have_the_same_layout(tab: Any, page: Path) -> None:
    _opened(tab, page)
    program = programs_of(page.parent / "run")["training"]
    places = _by_dagre(picture_of(boxes_of(program_of(program), None)))
    np.testing.assert_allclose(tab.evaluate("places.at"), places.at, atol=1e-6)
    for shown, drawn in zip(tab.evaluate("places.lines"), places.lines, strict=True):
        np.testing.assert_allclose(shown["points"], drawn, atol=1e-6)


def test_names_are_text(tab: Any, tmp_path: Path) -> None:
    g = zs.Graph()
    names = [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "a\"'`${1}",
        "\ud800",
    ]
    for name in names:
        g.tanh(g.placeholder(shape=(2,), name=name), name=name)
    (tmp_path / "page.html").write_text(g.to_html(), "utf-8")
    _opened(tab, tmp_path / "page.html")
    text = tab.locator("#boxes").text_content()
    assert all(name in text for name in (*names[1:3], "</script><script>", "\\ud800"))
    assert tab.locator("img").count() == 0
