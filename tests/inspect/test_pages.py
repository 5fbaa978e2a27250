"""The file: what it holds, how large it is, what cannot break it, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.cells as cells
import zstate.torch as zt
from zstate.inspection import flow
from zstate.inspection.encoding import BITS, Blob, linear, logarithmic

from .pages import Read, read

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--",
    "{{blob}}",
    "\u2028",
    "\ud800",
    "'\"&",
    "語",
]


def _layer(units: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "cell": "lstm",
        "recurrent_weight": rng.normal(size=(4 * units, units), scale=0.1).astype(np.float32),
        "input_weight": rng.normal(size=(4 * units, 2)).astype(np.float32),
    }


def test_nothing_that_a_user_names_reaches_the_html(tmp_path: Path) -> None:
    plain = zs.inspect(_layer(), np.ones((7, 2)), path=tmp_path / "plain.html")
    path = zs.inspect(
        _layer(),
        np.ones((7, 2)),
        path=tmp_path / "page.html",
        name=HOSTILE[0],
        labels=HOSTILE,
        classes=HOSTILE,
        targets=list(range(7)),
        readout=np.ones((7, 3)),
    )
    said = read(path).said["models"][0]
    assert said["labels"] == said["classes"] == HOSTILE
    assert said["name"] == HOSTILE[0]
    html, usual = path.read_text(), plain.read_text()
    assert html.count("<script") == usual.count("<script") == 4
    assert html.count("</script") == usual.count("</script") == 4
    assert html.count("<!--") == usual.count("<!--")


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    html = zs.inspect(_layer(), np.ones((7, 2)), path=tmp_path / "page.html").read_text()
    ours = re.sub(r'<script type="text/plain".*?</script>', "", html, flags=re.S)
    assert not re.search(r"""(src|href)=|@import|url\(|https?://(?!github.com/leeoniya)""", ours)
    assert "Copyright (c) 2022 Leon Sorokin" in html  # uPlot's licence travels with it
    assert "default-src 'none'" in html


@pytest.mark.parametrize("bits", BITS)
def test_levels_are_within_half_a_step(bits: int) -> None:
    values = np.random.default_rng(0).normal(size=(11, 5))
    blob = Blob()
    blob.add(np.arange(3), "i4")  # so that what follows does not begin at 0
    said = linear(blob, values, bits)
    page = Read({}, b"".join(blob._parts))
    found = said["low"] + page.array(said).reshape(5, 11).T * said["step"]
    assert np.abs(found - values).max() <= said["step"] * 0.5000001
    assert said["step"] == pytest.approx((values.max() - values.min()) / (2**bits - 1))


def test_constant_maps_and_empty_flows_are_exact() -> None:
    blob = Blob()
    same = linear(blob, np.full((4, 2), 0.25), 8)
    nothing = logarithmic(blob, np.zeros((2, 3)))
    page = Read({}, b"".join(blob._parts))
    assert same["low"] == 0.25
    assert not page.array(same).any()
    assert not page.array(nothing).any()


def test_norms_of_any_size() -> None:
    norms = np.array([[0.0, 1e-9, 3e-5], [2.0, np.inf, np.nan]])
    blob = Blob()
    said = logarithmic(blob, norms)
    levels = Read({}, b"".join(blob._parts)).array(said)
    found = np.where(levels > 0, 10 ** (said["low"] + (levels - 1.0) * said["step"]), 0)
    np.testing.assert_allclose(found, [0, 1e-9, 3e-5, 2, 2, 2], rtol=4e-3)


def test_a_large_model_has_fewer_bits_and_stays_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    small = zs.inspect(_layer(24), x, path=tmp_path / "small.html", megabytes=0.01)
    exact = zs.inspect(_layer(24), x, path=tmp_path / "exact.html")
    assert read(small).said["bits"] < read(exact).said["bits"] == 16
    assert small.stat().st_size < exact.stat().st_size
    np.testing.assert_allclose(
        read(small).map("f")[0], read(exact).map("f")[0], atol=2 * read(small).map("f")[1]
    )


def test_more_losses_than_fit_are_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(flow.chosen_steps(512)) == list(range(512))
    many = flow.chosen_steps(2000)
    assert (len(many), many[0], many[-1]) == (2**18 // 2000, 0, 1999)
    x = np.random.default_rng(0).normal(size=(10, 2))
    every = read(zs.inspect(_layer(), x, path=tmp_path / "page.html")).flow("c")
    monkeypatch.setattr(flow, "_MOST", 40)
    page = read(zs.inspect(_layer(), x, path=tmp_path / "page.html"))
    losses = page.array(page.said["models"][0]["losses"])
    assert list(losses) == [0, 3, 6, 9]
    np.testing.assert_allclose(page.flow("c"), every[losses], rtol=0.01)


def test_one_step_is_enough(tmp_path: Path) -> None:
    page = read(zs.inspect(_layer(), np.ones((1, 2)), path=tmp_path / "page.html"))
    assert page.said["models"][0]["labels"] == ["0"]
    assert page.layer()["memory"] == {}


def _refused(*args: Any, **options: Any) -> str:
    with pytest.raises(zs.ZStateError) as error:
        zs.inspect(*args, path="never.html", **options)
    assert not Path("never.html").exists()
    return str(error.value)


def test_refusals_name_what_was_expected_and_what_came() -> None:
    x = np.ones((5, 2))
    assert "[inspect] model: expected the folder of a run" in _refused(3, x)
    assert "zstate.torch.replace makes" in _refused(torch.nn.LSTM(2, 3), x)
    assert "source: expected the input of the model, [T,I], got None" in _refused(_layer())
    assert "[inspect] source: expected [T,I] = [T,2], got [5,7]" in _refused(
        _layer(), np.ones((5, 7))
    )
    assert "one sequence, [T,I] or [T,1,I], got [5,2,2]" in _refused(_layer(), np.ones((5, 2, 2)))
    assert "at least one step, got [0,2]" in _refused(_layer(), np.ones((0, 2)))
    assert "labels: expected one per step, 5, got 2" in _refused(_layer(), x, labels="ab")
    both = "targets and readout: expected both or neither, got one of the two"
    assert both in _refused(_layer(), x, targets=[0] * 5)
    readout = np.ones((4, 3))
    said = _refused(_layer(), x, readout=readout, targets=[0, 1, 2, 3, 4])
    assert "targets: expected classes from 0 to 3, got 0 to 4" in said
    assert "targets: expected integers" in _refused(_layer(), x, readout=readout, targets=x[:, 0])
    said = _refused(_layer(), x, readout=np.ones((4, 9)), targets=[0] * 5)
    assert "readout: expected [V,3] and [V], got [4,9] and [4]" in said
    said = _refused(_layer(), x, readout=readout, targets=[0] * 5, classes=["a"])
    assert "classes: expected as many as readout has rows, 4, got 1" in said
    assert "prompt: expected None without a run's folder" in _refused(_layer(), x, prompt="a")
    assert "[inspect] cell: expected a cell of zstate.cells" in _refused({"cell": "mlp"}, x)
    assert "[inspect] wieght: expected one of recurrent_weight" in _refused(
        _layer() | {"wieght": x}, x
    )
    assert "mask: expected a layer without it" in _refused(_layer() | {"mask": np.ones(3)}, x)
    assert "without proj_size, got 2" in _refused(zt.LSTM(2, 3, proj_size=2), x)
    assert "readout: expected a weight [V,D·H], got [1,4,3]" in _refused(
        _layer(), x, readout=(readout,), targets=[0] * 5
    )
    assert "recurrent_weight: expected an array, got lists of different lengths" in _refused(
        {"cell": "lstm", "recurrent_weight": [[1.0], []]}, x
    )
    bad = _layer()
    bad["input_weight"] = np.full((12, 2), np.nan)
    assert "gate i: expected finite values, got nan in unit 0 at step 0" in _refused(bad, x)
    g = zs.Graph()
    plain = g.constant(x) + 1.0
    assert "expected a result of a recurrent node, such as graph.lstm gives" in _refused(plain, {})


def test_tensors_of_a_layer_that_do_not_fit_are_refused() -> None:
    for name, shape, wanted in (
        ("bias", (5, 12), "[4H] = [12], got [5,12]"),  # would broadcast, a row per step
        ("bias", (5,), "[4H] = [12], got [5]"),
        ("init_state", (3,), "[N,H] = [1,3], got [3]"),
        ("input_weight", (12,), "[4H,I] = [12,12], got [12]"),
        ("input_weight", (9, 2), "[4H,I] = [12,2], got [9,2]"),
    ):
        said = _refused(_layer() | {name: np.ones(shape)}, np.ones((5, 2)))
        assert said == f"[lstm] {name}: expected {wanted}"
    both = {"descriptor": zs.LSTMDescriptor(bidirectional=True), "bias": np.ones(23)}
    weights = {"recurrent_weight": np.ones((2, 12, 3)), "input_weight": np.ones((24, 2))}
    said = _refused({"cell": "lstm", **weights, **both}, np.ones((5, 2)))
    assert said == "[lstm] bias: expected [8H] = [24], got [23]"


def test_cells_with_values_per_step_are_refused() -> None:
    @cells.cell(gates="z", states="h", steps="k")
    def leaky(x: Any, R: Any, h: Any, k: Any) -> Any:
        return k * h + cells.tanh(x.z + R.z @ h)

    said = _refused({"cell": leaky, "recurrent_weight": np.eye(2)}, np.ones((5, 4)))
    assert "[inspect] cell: expected a cell without values per step, got leaky with k" in said


def test_importing_zstate_does_not_import_the_page() -> None:
    import subprocess
    import sys

    code = (
        "import sys, zstate; print([m for m in sys.modules if m.startswith('zstate.inspection')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['zstate.inspection']"
