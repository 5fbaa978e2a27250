"""What the functional interface, the functions on jax arrays and the graph's methods take: the same
by the table of operations, when they run and for type checkers."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate import keywords
from zstate.operations import OPERATIONS, Operation

FORWARD = [each for each in OPERATIONS.values() if not each.is_gradient]
every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=repr)
SHORT = {"single_gate_rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}


def expected(
    operation: Operation, *further: str, placed: tuple[str, ...]
) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of every argument, as docs and help list them."""
    keyword, either = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    required = [
        (name, either if name in placed else keyword, inspect.Parameter.empty)
        for name in operation.required
    ]
    optional = [(name, keyword, None) for name in operation.optional]
    rest = [(name, keyword, None) for name in ("descriptor", *further)]
    return [*required, *optional, ("heads", keyword, 1), *rest]


def taken(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters]


@every_operation
def test_arrays(operation: Operation) -> None:
    function = getattr(zs, operation.name)
    assert taken(function) == expected(operation, "backend", placed=operation.required)
    hints = typing.get_type_hints(function)
    assert hints["descriptor"] == operation.cell.descriptor | None
    assert hints["return"] is operation.result


@every_operation
def test_jax(operation: Operation) -> None:
    pytest.importorskip("jax")
    import zstate.jax as zj

    function, plain = getattr(zj, operation.name), getattr(zs, operation.name)
    further = () if operation.is_gradient else ("lengths",)
    assert taken(function) == expected(operation, "backend", *further, placed=operation.required)
    hints = typing.get_type_hints(function)
    assert hints == typing.get_type_hints(plain) | dict.fromkeys(further, Any | None)
    assert function.__doc__.splitlines()[0] == plain.__doc__.splitlines()[0]


@every_operation
def test_graph(operation: Operation) -> None:
    method = getattr(zs.Graph(), operation.name)
    assert taken(method) == expected(operation, "name", placed=("source",))
    hints = typing.get_type_hints(method)
    assert hints["source"] is hints["recurrent_weight"] is zs.Tensor
    assert hints["bias"] == zs.Tensor | None
    assert hints["descriptor"] == operation.cell.descriptor | None
    assert hints["return"] == list[zs.Tensor]
    assert method.__doc__


@every_operation
def test_keywords_of_type_checkers(operation: Operation) -> None:
    suffix = "Gradients" * operation.is_gradient
    kind: Any = getattr(keywords, f"Graph{SHORT[operation.cell.name]}{suffix}")
    names = {*operation.inputs, "heads", "descriptor", "name"} - {"source"}
    assert kind.__required_keys__ | kind.__optional_keys__ == names
    assert kind.__required_keys__ == set(operation.required) - {"source"}
    if not operation.is_gradient:
        kind = getattr(keywords, f"Jax{SHORT[operation.cell.name]}")
        names = {*operation.optional, "heads", "descriptor", "backend", "lengths"}
        assert kind.__required_keys__ | kind.__optional_keys__ == names
        assert not kind.__required_keys__


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, r"lstm\(\) missing a required.* argument: 'recurrent_weight'"),
        ((None,), {}, r"Recurrent.lstm\(\) takes 2 positional"),
        ((), {"bis": None}, r"lstm\(\) .*argument"),
        ((), {"recurrent_weight": None, "bis": None}, r"lstm\(\) .*unexpected keyword.* 'bis'"),
    ],
)
def test_a_graph_refuses_other_arguments(
    arguments: Any, options: dict[str, Any], message: str
) -> None:
    g = zs.Graph()
    x = g.constant(np.zeros((2, 1, 8)))
    with pytest.raises(TypeError, match=f"^{message}"):
        g.lstm(x, *arguments, **options)
