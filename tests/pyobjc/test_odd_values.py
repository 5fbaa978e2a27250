"""Values that no argument can be: every selector refuses them in words, and none asks an array for
its truth, runs out of stack or names a key, an index or an attribute of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import zstate as zs
from tests.pyobjc.test_objects import NAMES, objects
from tests.pyobjc.test_operations import CALLS, Call, call, constant, new_graph
from zstate import pyobjc

LOOP: list[Any] = []
LOOP.append(LOOP)
DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]
ODD: dict[str, Any] = {
    "an array": np.ones((2, 3), np.float32),
    "integers": np.array([1, 2]),
    "an empty array": np.zeros(0),
    "an array without dimensions": np.array(1),
    "text in an array": np.array(["a"]),
    "lone surrogates": "\ud83d",
    "a function": lambda: None,
    "a range": range(3),
    "objects": np.array([1, "a", None], dtype=object),
    "arrays of different lengths": [np.ones(2), np.ones(3)],
    "a list in itself": LOOP,
    "a deep list": DEEP,
    "nil": None,
    "an object": object(),
    "a type": int,
    "a large number": 2**70,
    "a number below zero": -3,
    "NaN": float("nan"),
    "a complex number": 1j,
    "NumPy's number": np.float32(2),
    "text": "x",
    "bytes": b"abc",
    "a dictionary": {},
    "a set": {1},
    "sizes": [1, 2],
    "sizes beyond memory": [2**40, 2**40],
    "sizes with nil": [1, None],
    "a list of an array": [1, np.ones(2)],
    "an MPSGraph": pyobjc.MPSGraph.alloc().init(),
}


def attempt(act: Callable[..., Any], arguments: Sequence[Any], what: str) -> None:
    """What a call does with odd values is its own affair, but for what it raises."""
    try:
        act(*arguments)
    except zs.ZStateError:
        pass
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.selector)
def test_operations(case: Call) -> None:
    graph = new_graph()
    arguments = [*(constant(graph, value) for value in case.arguments), None]
    for place, (name, odd) in ((p, each) for p in range(len(arguments)) for each in ODD.items()):
        changed = [odd if k == place else value for k, value in enumerate(arguments)]
        attempt(
            lambda *given: call(graph, case.selector, *given),
            changed,
            f"{case.selector} with {name} as argument {place}",
        )


@pytest.mark.parametrize("name", NAMES)
def test_objects(name: str) -> None:
    """All arguments but one are of one kind."""
    owner = objects()[name]
    for selector in dir(type(owner)):
        count = selector.count("_")
        if selector.startswith("_") or not selector.endswith("_"):
            continue
        act = getattr(owner, selector)
        for filler in (None, 1, [2], pyobjc.MPSDataTypeFloat32):
            for place, (odd, value) in ((p, each) for p in range(count) for each in ODD.items()):
                arguments = [value if k == place else filler for k in range(count)]
                attempt(act, arguments, f"[{name} {selector}] with {odd} as argument {place}")


def test_memory_that_there_is_not() -> None:
    device = pyobjc.MTLCreateSystemDefaultDevice()
    described = pyobjc.MPSNDArrayDescriptor.descriptorWithDataType_shape_
    huge = described(pyobjc.MPSDataTypeFloat32, [2**40, 2**40])
    attempts: list[Callable[[], Any]] = [
        lambda: device.newBufferWithLength_options_(2**62, 0),
        lambda: device.newBufferWithLength_options_(2**70, 0),
        lambda: pyobjc.MPSNDArray.alloc().initWithDevice_descriptor_(device, huge),
    ]
    for act in attempts:
        with pytest.raises(zs.ShapeError, match="expected a size that fits in memory"):
            act()
    buffer = device.newBufferWithLength_options_(16, 0)
    made = pyobjc.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_
    with pytest.raises(zs.ShapeError, match=r"expected at least .* bytes for float32"):
        made(buffer, [2**40, 2**40], pyobjc.MPSDataTypeFloat32)


def test_an_array_without_dimensions_is_no_shape() -> None:
    with pytest.raises(zs.DTypeError, match="shape: expected a list of sizes, got"):
        new_graph().placeholderWithShape_dataType_name_(
            np.array(3), pyobjc.MPSDataTypeFloat32, None
        )
