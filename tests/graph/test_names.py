"""Names of the caller's choice keep to their place in every text that a graph is written as."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import zstate as zs
from zstate import cli
from zstate.errors import visible
from zstate.mpsgraph.report import _table

SVG = "{http://www.w3.org/2000/svg}"
NASTY = [
    "«NAME»",
    "«FEEDS»",
    "«LINES»",
    "«TARGETS»",
    '"), evil("',
    "\\(evil)",
    "a\nb",
    "a\rb",
    "a\u2028b",
    "\x00\x07\x1b[2J",
    "</title><script>alert(1)</script>",
    "]]>",
    "<!--",
    "&amp;",
    "*/",
    "a|b",
    "`[link](http://x)`",
    "[bold]x[/]",
    "\\",
    "\\n",
    "\u202egnp.exe",
    "\ufffe\uffff",
    "\ud800",
    "x" * 5000,
    "",
]
NAMES = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=40),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "Zl", "Zp", "Zs"]), max_size=5),
)


def _graph(first: str, second: str) -> tuple[zs.Graph, list[zs.Tensor]]:
    g = zs.Graph()
    x = g.placeholder(shape=(1, 2, 3), name=first)
    w = g.variable(np.arange(9, dtype=np.float32).reshape(3, 3), name=second)
    (h,) = g.single_gate_rnn(x, recurrent_weight=w, name=first)
    return g, [g.tanh(h, name=second), g.assign(w, w + 1.0, name=first)]


@given(NAMES, NAMES)
@example("«TARGETS»", "x")
@example("a\nb", "\ud800")
def test_text(first: str, second: str) -> None:
    """One line per node, nothing in it that a terminal acts on or a file cannot hold."""
    g, tensors = _graph(first, second)
    for line, node in zip(str(g).splitlines()[1:], g.nodes, strict=True):
        assert visible(node.name) in line
    for text in (str(g), *map(repr, (g, *tensors))):
        text.encode()
        assert not [c for c in text if unicodedata.category(c)[0] == "C" and c != "\n"]


@given(NAMES, NAMES, st.booleans())
def test_svg(first: str, second: str, fold: bool) -> None:
    """The picture parses as XML, has the same elements whatever the names, and holds them."""
    g, _ = _graph(first, second)
    root = ElementTree.fromstring(g.to_svg(fold).encode())
    plain = ElementTree.fromstring(_graph("x", "y")[0].to_svg(fold))
    if first and second:
        assert [e.tag for e in root.iter()] == [e.tag for e in plain.iter()]
    titles = "\n".join(e.text or "" for e in root.iter(f"{SVG}title"))
    for node in g.nodes:
        assert f"{node.op.name} {visible(node.name)}" in titles


@given(NAMES, NAMES)
def test_dot(first: str, second: str) -> None:
    """Every line is a statement whose strings are closed where they should be."""
    g, _ = _graph(first, second)
    head, style, *lines, end = g.to_dot(False).split("\n")
    assert (head, end) == ("digraph zstate {", "}") and style.startswith("  node [")
    string = r'"(?:[^"\\]|\\.)*"'
    for line in lines:
        assert re.fullmatch(
            rf"  n\d+ (\[label={string}, fillcolor={string}\]|-> n\d+( \[label={string}\])?);", line
        )
        line.encode()


@given(NAMES, NAMES)
def test_markdown(first: str, second: str) -> None:
    """A row stays a row: as many bars as the head has."""
    *_, row = lines = _table(("a", "b"), [(first, second)]).split("\n")
    assert len(lines) == 3 and len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3
    assert not re.search(r"(?<!\\)(?:\\\\)*[<`\[&]", row)
    row.encode()


def test_a_node_called_as_a_saved_result_is_an_output() -> None:
    """Only what a loss or a layer keeps for its gradient is left out, not what is called so."""
    g = zs.Graph()
    x = g.placeholder(shape=(2,), name="x")
    g.tanh(x, name="soft_max")
    g.sigmoid(x, name="a:training_state")
    text = g.to_swift("Model")
    assert '("soft_max", soft_max)' in text and '("a:training_state", ' in text


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    g, _ = _graph("\ud800\x1b[2J", "a\nb")
    g.save("g.safetensors")
    assert cli.main(["graph", "g.safetensors"]) == 0
    assert cli.main(["graph", "g.safetensors", "--svg=g.svg", "--dot=g.dot"]) == 0
    assert cli.main(["graph", "g.safetensors", "--swift=g.swift"]) == 2
    printed, refused = capsys.readouterr()
    assert "\\ud800\\x1b[2J" in printed and "\x1b" not in printed + refused
    assert "lone surrogates" in refused and refused.count("\n") == 1
    ElementTree.parse("g.svg")
