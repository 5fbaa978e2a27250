"""Cells as text: what is read is what was written, to the bit, and a hostile text is an error."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zstate import cells
from zstate.cells.text import LONGEST, read_cell, write_cell
from zstate.errors import EquationError

from .made_up import make_by_decorator, shapes_of_call

T, N, I, H = 3, 2, 3, 5


def drawn(cell, rng, directions):
    """Random inputs of a call with everything that the cell takes."""
    shapes = shapes_of_call(cell.definition, (T, N, I, H), directions)
    optional = {"mask", *(each.initial for each in cell.definition.states)}
    return {
        name: rng.normal(size=shape) / 2
        for name, shape in shapes.items()
        if name not in optional or rng.random() < 0.7
    }


def everything(cell, given, way, backend):
    """All results and all gradients of a call."""
    out = cell(**given, training=True, backend=backend, **way)
    states = {each.name: getattr(out, each.name) for each in cell.definition.states}
    others = {name: given[name] for name in given if name not in ("source", "recurrent_weight")}
    source, weight = given["source"], given["recurrent_weight"]
    d = cell.gradients(source, weight, out, states, **others, backend=backend, **way)
    return [array for array in (*out, *d) if array is not None]


@given(number=st.integers(0, 2**60))
def test_random_cells_come_back_to_the_bit(number):
    rng = np.random.default_rng(number)
    cell = make_by_decorator(rng)
    text = write_cell(cell)
    again = read_cell(text)
    assert again is not cell and again.definition.key == cell.definition.key
    assert write_cell(again) == text and str(again) == str(cell)
    assert (again.initial, again.__name__) == (cell.initial, "made_up")
    way = [{}, {"reverse": True}, {"bidirectional": True}][rng.integers(3)]
    inputs = drawn(cell, rng, 2 if way.get("bidirectional") else 1)
    for backend in (None, "reference"):
        wanted = everything(cell, inputs, way, backend)
        found = everything(again, inputs, way, backend)
        assert [array.tobytes() for array in found] == [array.tobytes() for array in wanted]


def test_the_text_is_what_people_would_write():
    assert write_cell(cells.mgu).splitlines() == [
        "cell: mgu",
        "gates: f z",
        "states: h",
        "f = sigmoid(x.f + R.f @ h)",
        "z = tanh(x.z + R.z @ (f * h))",
        "h' = (1 - f) * h + f * z",
    ]
    assert "initial: m = -inf" in write_cell(cells.slstm).splitlines()


def test_a_text_by_hand():
    cell = read_cell(
        "cell: leaky\ngates: z\nstates: h s\nparameters: alpha\ninitial: s = 1, h = -2.5\n\n"
        "  s' = maximum(minimum(s + .5*x.z, 3e0), -inf)  \n"
        "h' = where(s' <= alpha, --h, R.z @ -(s' * 2)) / (1 + 1 * abs(alpha))"
    )
    assert cell.initial == {"s": 1.0, "h": -2.5}
    x, R = np.array([[[0.5, -4.0]]]), np.array([[1.0, 2.0], [-1.0, 0.5]])
    out = cell(x, R, alpha=np.array([0.0, 3.0]))
    s = np.array([1.25, -1.0])
    np.testing.assert_allclose(out.s[0, 0], s)
    wanted = [(R @ (-2 * np.ones(2)))[0], -2.5 / 4]  # the product is of s' = (1.25, -1)
    wanted[0] = R[0] @ (-2 * s)
    np.testing.assert_allclose(out.h[0, 0], wanted)


def test_parentheses_keep_their_places():
    """a + (b + c) is another sum than (a + b) + c: it rounds differently."""

    @cells.cell(gates="a b", parameters="p")
    def odd(x, R, h, p):
        product = h * (p * (x.a - (p - h)))
        quotient = -(R.b @ h) * -2.0 / (h / (p * 3))
        return product / quotient + cells.where(h > -1e300, cells.maximum(h, -math.inf), x.b)

    text = write_cell(odd)
    assert "h * (p * (x.a - (p - h)))" in text
    assert read_cell(text).definition.key == odd.definition.key


def test_names_of_new_values_that_states_have():
    """A function may call a new value like a state; a text cannot, nor should it read so."""

    @cells.cell(gates="a b", parameters="v1")
    def same(x, R, h, v1):
        h = cells.tanh(x.a + R.a @ h)
        inf = cells.exp(h) + v1
        return cells.tanh(x.b + R.b @ h) * inf * inf

    lines = write_cell(same).splitlines()
    assert lines[4] == "h_2 = tanh(x.a + R.a @ h)"
    assert str(same).splitlines()[0] == "h_2 = tanh(x_a + R_a h)"
    names = [line.split(" = ")[0] for line in lines[4:]]
    assert len({*names, "h", "v1", "inf"}) == len(names) + 3
    assert read_cell("\n".join(lines)).definition.key == same.definition.key


def test_long_and_deep_equations():
    @cells.cell(gates="z")
    def long(x, R, h):
        value = R.z @ h
        for k in range(150):
            value = cells.tanh(value * (1 + k / 7) + x.z)
        return value

    text = write_cell(long)
    assert max(map(len, text.splitlines())) < 600
    assert read_cell(text).definition.key == long.definition.key

    def longer(x, R, h, p):
        return cells.tanh(x.z + R.z @ h) * p

    name, kind = "p" * LONGEST, inspect.Parameter.POSITIONAL_ONLY
    listed = [inspect.Parameter(each, kind) for each in ("x", "R", "h", name)]
    longer.__signature__ = inspect.Signature(listed)
    with pytest.raises(EquationError, match=rf"at most {LONGEST} characters"):
        write_cell(cells.cell(gates="z", parameters=name)(longer))


HEAD = "cell: odd\ngates: z\nstates: h\n"
REFUSED = {
    "": "line 1: expected “cell: …”",
    "cell: a\nstates: h": "line 2: expected “gates: …”",
    "cell: a\ngates: z\nh' = h": "line 3: expected “states: …”",
    "cell: \ngates: z\nstates: h\nh' = x.z": "letters, digits",
    "cell: __import__('os')\ngates: z\nstates: h\nh' = x.z": "letters, digits",
    "cell: a\ngates: z z\nstates: h\nh' = x.z": "different names",
    "cell: a\ngates: z\nstates: mask\nmask' = x.z": "already means another tensor",
    "cell: a\ngates: z\nstates: h h\nh' = x.z": "different names",
    "cell: a\ngates: z\nstates: h\nparameters: h\nh' = x.z": "names differ from the states",
    "cell: a\ngates: z\nstates: 1\nh' = x.z": "letters, digits",
    "cell: a\ngates: z\nstates: h\ninitial: m = 1\nh' = x.z": "names of h",
    "cell: a\ngates: z\nstates: h\ninitial: h = one\nh' = x.z": "state = number",
    "cell: a\ngates: z\nstates: h\ninitial: h = nan\nh' = x.z": "a number for h",
    HEAD: "an equation h' = …, got none",
    HEAD + "z = x.z": "an equation h' = …, got none",
    HEAD + "h' = x.z\nh' = h": "line 5: expected a new name",
    HEAD + "h = x.z\nh' = h": "line 4: expected a new name",
    HEAD + "c' = x.z\nh' = h": "line 4: expected a new name",
    HEAD + "inf = x.z\nh' = h": "line 4: expected a new name",
    HEAD + "h' = x.z + q": "line 4: .* got 'q'",
    HEAD + "h' = h'": 'line 4: .* got "h\'"',
    HEAD + "h' = x.q + h": "line 4: x.q: expected one of z",
    HEAD + "h' = x": "line 4: expected ., got",
    HEAD + "h' = R.z + h": "line 4: expected @",
    HEAD + "h' = R.z @ 2 + x.z": "line 4: R.z @: expected a value of the step",
    HEAD + "h' = x.z end": "line 4: expected the end of the line, got 'end'",
    HEAD + "h' = x.z +": "line 4: expected a name, got 'the end of the line'",
    HEAD + "h' = (x.z, h)": "one value",
    HEAD + "h' = tanh(x.z, h)": "1 argument for tanh, got '2'",
    HEAD + "h' = tanh()": "expected a name",
    HEAD + "h' = eval(x.z)": "got 'eval(…)'",
    HEAD + "h' = __import__(x.z)": "got '__import__(…)'",
    HEAD + "h' = x.__class__": "x.__class__: expected one of z",
    HEAD + "h' = h.book": "the end of the line, got '.'",
    HEAD + "h' = x.z ** 2": "expected a name",
    HEAD + "h' = x.z if h else h": "the end of the line, got 'if'",
    HEAD + 'h\' = "x.z"': "names, numbers and signs, got",
    HEAD + "h' = x.z; h": "names, numbers and signs, got ';'",
    HEAD + "h' = 2 + 3": "next to +, got 'two numbers'",
    HEAD + "h' = 2": "got 'a number'",
    HEAD + "h' = x.z > h": "state h: expected a value of the step, got a comparison",
    HEAD + "h' = x.z > h > h": "end of the line",
    HEAD + "h' = (x.z > h) + 1": "expected a value, got a comparison",
    HEAD + "h' = where(h, h, x.z)": "a comparison of values first",
    HEAD + "h' = tanh(h)": "gate z",
    HEAD + "h' = R.z @ (R.z @ (R.z @ h)) + x.z": "at most 2 deep",
    HEAD + "h' = " + "(" * 60 + "x.z" + ")" * 60: "at most 50 nested operations",
    HEAD + "h' = " + "tanh(" * 9000 + "x.z": "at most 50 nested operations",
    HEAD + "h' = " + "-" * 60000 + "x.z": "at most 50 nested operations",
    HEAD + "h' = " + "R.z @ " * 9000 + "h": "at most 50 nested operations",
    HEAD + "v0 = x.z\n" + "".join(f"v{k + 1} = tanh(v{k})\n" for k in range(2500)): "got none",
    HEAD + "a = x.z\n" * 9000: f"at most {LONGEST} characters",
    HEAD + "h' = x.z\n\x1b[2J": r"line 5: .*got '\\x1b'",
}


@pytest.mark.parametrize(("text", "says"), REFUSED.items(), ids=lambda text: text[-40:])
def test_what_is_no_cell_is_refused_in_words(text, says):
    pattern = re.escape(says).replace(r"\.\*", ".*").replace(r"expected\ \.,", r"expected '?\.'?,")
    with pytest.raises(EquationError, match=pattern) as found:
        read_cell(text)
    assert str(found.value).startswith("[") and "\x1b" not in str(found.value)
    assert len(str(found.value)) < 400


def test_a_chain_as_long_as_a_text_may_be():
    lines = "".join(f"v{k + 1} = tanh(v{k})\n" for k in range(2500))
    found = read_cell(f"{HEAD}v0 = x.z + R.z @ h\n{lines}h' = v2500")
    source, weight = np.random.default_rng(2).standard_normal((2, 3, 1, 2))
    h, weight = np.zeros((1, 2)), weight[:2, 0]
    for step in source:
        h = step + h @ weight.T
        for _ in range(2500):
            h = np.tanh(h)
    for backend in (None, "reference"):
        out = found(source, weight, training=True, backend=backend)
        np.testing.assert_allclose(out.h[-1], h, atol=1e-12)
        d = found.gradients(source, weight, out, {"h": np.ones_like(out.h)}, backend=backend)
        assert (d.source > 0).all()


def test_what_is_no_text():
    for other, kind in ((b"cell: a", "bytes"), (["cell: a"], "list")):
        with pytest.raises(EquationError, match=f"got {kind}"):
            read_cell(other)


@settings(max_examples=300)
@given(data=st.data())
def test_a_changed_text_is_a_cell_or_an_error(data):
    """Pieces taken out, doubled, exchanged: never another kind of error."""
    text = write_cell(data.draw(st.sampled_from([cells.slstm, cells.mgu, cells.cifg])))
    pieces = re.findall(r"\w+|\n|[^\w\n]", text)
    for _ in range(data.draw(st.integers(1, 3))):
        a, b = (data.draw(st.integers(0, len(pieces) - 1)) for _ in range(2))
        kind = data.draw(st.sampled_from(["drop", "copy", "swap", "letter"]))
        if kind == "drop":
            del pieces[a : a + 3]
        elif kind == "copy":
            pieces[a:a] = pieces[b : b + 3]
        elif kind == "swap":
            pieces[a], pieces[b] = pieces[b], pieces[a]
        else:
            pieces[a] = data.draw(st.text(max_size=2))
        if not pieces:
            break
    try:
        found = read_cell("".join(pieces))
    except EquationError:
        return
    assert write_cell(read_cell(write_cell(found))) == write_cell(found)


def test_pickles_and_copies():
    @cells.cell(gates="z", initial={"h": 0.5})
    def local(x, R, h):
        return cells.tanh(x.z + R.z @ h)

    again = pickle.loads(pickle.dumps(local))
    assert again.definition.key == local.definition.key and again.initial == {"h": 0.5}
    assert pickle.loads(pickle.dumps(again)) is again  # one cell per text
    assert pickle.loads(pickle.dumps(cells.slstm)) is cells.slstm  # by its name
    assert copy.deepcopy(local) is copy.copy(local) is local
    given = {"source": np.ones((2, 1, 3)), "recurrent_weight": np.eye(3)}
    np.testing.assert_array_equal(again(**given).h, local(**given).h)


def test_names_of_any_script():
    """Names go into torch's operators, kernels and files."""
    cell = cells.cell(gates="z")(lambda x, R, h: cells.tanh(x.z + R.z @ h))
    assert cell.__name__ == "cell" and cell(np.ones((2, 1, 3)), np.eye(3)).h.shape == (2, 1, 3)

    def größer(x, R, größe):
        return cells.tanh(x.z + R.z @ größe)

    cell = cells.cell(gates="z", states="größe")(größer)
    assert read_cell(write_cell(cell)).definition.key == cell.definition.key
    with pytest.raises(EquationError, match="states: expected names made of letters, digits and _"):
        cells.cell(gates="z", states="a-b")(lambda x, R, h: x.z)
    for name in ("self", "out", "name", "descriptor", "inf"):
        with pytest.raises(EquationError, match="already means another tensor"):
            cells.cell(gates="z", parameters=name)(lambda x, R, h: x.z)


@pytest.mark.parametrize("name", ["_1", "__", "_a", "_2b"])
def test_a_name_that_makes_no_title(name):
    cell = read_cell(f"cell: {name}\ngates: z\nstates: h\nh' = x.z + R.z @ h")
    assert cell(np.ones((2, 1, 3)), np.eye(3)).h.shape == (2, 1, 3)
