"""The table of published signatures, by itself and against the facade."""

import inspect
import runpy
from pathlib import Path

import pytest

import zstate.pyobjc as facade
from zstate.graph.ops import OPS
from zstate.mpsgraph import published
from zstate.pyobjc import base, metal

ROWS = published.methods()
OWNERS = sorted({row.owner for row in ROWS})


def facade_class(owner):
    return getattr(facade, owner, None) or getattr(metal, owner, None)


def public_names(kind):
    return {
        name for name in dir(kind) if not name.startswith("_") and name not in dir(base.NSObject)
    }


def test_rows_are_unique_and_of_a_known_kind():
    keys = [(row.owner, row.class_method, row.selector) for row in ROWS]
    assert len(set(keys)) == len(keys)
    assert {row.kind for row in ROWS} == {"offered", "refused", "absent"}


def test_a_row_is_read_as_it_is_published():
    row = published.method("MPSGraph", "reshapeTensor:withShape:name:")
    assert row.pyobjc == "reshapeTensor_withShape_name_"
    assert (row.swift_name, row.returns, row.op) == ("reshape", "MPSGraphTensor", "reshape")
    assert row.parameters == (
        published.Parameter("", "MPSGraphTensor", False),
        published.Parameter("shape", "[NSNumber]", False),
        published.Parameter("name", "String", True),
    )
    row = published.method("MPSGraphDevice", "metalDevice")
    assert (row.is_property, row.returns) == (True, "(any MTLDevice)?")
    row = published.method("MPSGraph", "gradientForPrimaryTensor:withTensors:name:")
    assert row.returns == "[MPSGraphTensor : MPSGraphTensor]"
    assert row.source.endswith("/metalperformanceshadersgraph/mpsgraph")


@pytest.mark.parametrize("owner", OWNERS)
def test_swift_and_selector_have_as_many_arguments(owner):
    for row in published.methods_of(owner):
        if row.swift and not row.is_property:
            assert len(row.parameters) == row.arguments, row.selector


def test_ops_are_those_of_the_graph():
    assert {row.op for row in ROWS} - {""} <= set(OPS)


def test_every_op_that_a_caller_makes_has_a_method():
    """The others come with gradients, or stand for sizes that are not known yet."""
    ours = {"put_slice", "pad_around", "sizes", "range_to", "reshape_to", "broadcast_to"}
    ours |= {"recurrent", "recurrent_gradients"}  # cells from equations
    ours |= {"mean_over_processes"}
    ours |= {"slice_to", "split_evenly", "expect_sizes", "expect_lengths", "integer_division"}
    gradients = {name for name in OPS if name.endswith(("_gradient", "_like"))}
    assert set(OPS) - ours - gradients == {row.op for row in ROWS} - {""}


@pytest.mark.parametrize("owner", OWNERS)
def test_what_is_offered_is_there_and_nothing_else_is(owner):
    kind = facade_class(owner)
    there = public_names(kind) if kind is not None else set()
    inherited = {
        row.pyobjc
        for base in getattr(kind, "__mro__", ())[1:]
        for row in published.methods_of(base.__name__)
    }
    rows = {row.pyobjc: row for row in published.methods_of(owner)}
    offered = {name for name, row in rows.items() if row.kind == "offered"}
    assert offered - {"init", "new"} <= there
    assert there - inherited <= offered


@pytest.mark.parametrize("owner", OWNERS)
def test_methods_take_as_many_arguments_as_the_selector_has(owner):
    kind = facade_class(owner)
    for row in published.methods_of(owner):
        if row.kind != "offered" or row.selector in ("init", "new"):
            continue
        method = getattr(kind() if not row.class_method else kind, row.pyobjc)
        taken = inspect.signature(method).parameters.values()
        if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in taken):
            with pytest.raises(TypeError, match=f"takes {row.arguments} arguments"):
                method(*[None] * (row.arguments + 1))
        else:
            assert len(taken) == row.arguments, row.selector


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.kind == "refused"], ids=lambda r: r.pyobjc
)
def test_what_is_refused_says_why(row):
    with pytest.raises(base.SelectorError, match=row.pyobjc + ": not available in zstate, "):
        getattr(facade_class(row.owner).alloc().init(), row.pyobjc)


def test_what_is_published_but_absent_is_told_from_a_typing_error():
    graph = facade.MPSGraph.alloc().init()
    absent = "convolution2DWithSourceTensor_weightsTensor_descriptor_name_"
    with pytest.raises(base.SelectorError, match="published by Apple, but not available here"):
        getattr(graph, absent)
    with pytest.raises(base.SelectorError, match="unknown selector"):
        getattr(graph, absent.replace("2D", "5D"))


def test_the_page_is_that_of_the_table():
    """python tools/mpsgraph_methods.py writes it."""
    root = Path(__file__).parents[2]
    page = runpy.run_path(str(root / "tools" / "mpsgraph_methods.py"))["page"]()
    assert (root / "docs" / "mpsgraph-methods.md").read_text(encoding="utf-8") == page
