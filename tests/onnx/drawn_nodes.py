"""Random models of one node, for every operator that zstate.onnx reads but Scan and Loop.

Types come from the operator's own schema at the opset drawn, sizes are 0 to 4, values include
infinities, NaN and the ends of the integer types. A few cases are wrong on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.onnx.common import GATES
from zstate.types import Array

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24)
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NAMES = {f"tensor({'float' if n == 'float32' else 'double' if n == 'float64' else n})": n
          for n in (*FLOATS, *INTEGERS, "bool")}  # fmt: skip


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass
class Case:
    """One node: its inputs in order (None: absent), which of them are fed, and its attributes."""

    kind: str
    opset: int
    inputs: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    constant: tuple[int, ...] = ()  # places of the inputs that are initialisers
    other: tuple[int, int] = (0, 0)  # a size, and what a second run has in its place

    @property
    def fed(self) -> list[int]:
        return [k for k, a in enumerate(self.inputs) if a is not None and k not in self.constant]

    @property
    def feeds(self) -> dict[str, Array]:
        return {f"x{k}": self.inputs[k] for k in self.fed}  # type: ignore[misc]

    def resized(self) -> Case:
        """The same node and constants with one size changed in all that is fed."""
        old, new = self.other
        inputs = list(self.inputs)
        for k, array in self.feeds.items():
            shape = [new if size == old else size for size in array.shape]
            # Without elements there is nothing to repeat.
            source = array if array.size else np.ones((), array.dtype)
            inputs[int(k[1:])] = np.resize(source, shape)
        return replace(self, inputs=inputs, other=(0, 0))

    def model(self, sizes: str = "known") -> Any:
        """``sizes``: "known", "unknown", or "named": unknown, with one name for equal sizes."""
        names = ["" if a is None else f"x{k}" for k, a in enumerate(self.inputs)]
        out = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.kind, names, out, "node", **self.attributes)

        def declared(k: int) -> Any:
            array = self.inputs[k]
            assert array is not None
            shape: Any = {
                "known": list(array.shape),
                "unknown": [None] * array.ndim,
                "named": [f"n{size}" for size in array.shape],
            }[sizes]
            return helper.make_tensor_value_info(names[k], _number(array), shape)

        constants = [
            _tensor(self.inputs[k], names[k]) for k in self.constant if self.inputs[k] is not None
        ]
        graph = helper.make_graph(
            [node],
            "one",
            [declared(k) for k in self.fed],
            [helper.make_empty_tensor_value_info(n) for n in out],
            constants,
        )
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, ir_version=8, opset_imports=[opset])

    def __str__(self) -> str:
        parts = [
            "-" if a is None else f"{a.dtype}{list(a.shape)}{'!' if k in self.constant else ''}"
            for k, a in enumerate(self.inputs)
        ]
        return f"{self.kind}-{self.opset}({', '.join(parts)}) {self.attributes}"


def _number(array: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def _tensor(array: Any, name: str) -> Any:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


class Draw:
    """Draws what cases are made of."""

    def __init__(self, rng: np.random.Generator, kind: str) -> None:
        self.rng, self.kind = rng, kind
        newest = onnx.defs.get_schema(kind)
        schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.name == kind]
        first = min(s.since_version for s in schemas if s.domain == newest.domain)
        self.opset = int(rng.choice([v for v in OPSETS if v >= first] or [first]))
        self.schema = onnx.defs.get_schema(kind, self.opset)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def number(self, low: int, high: int) -> int:
        """low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def types(self, place: int = 0) -> list[str]:
        """The types that the schema allows for an input."""
        allowed = self.schema.inputs[min(place, len(self.schema.inputs) - 1)].types
        return [_NAMES[name] for name in sorted(allowed) if name in _NAMES]

    def dtype(self, place: int = 0) -> str:
        found = self.types(place)
        if "float32" in found and self.chance(0.5):
            return "float32"
        return str(self.pick(*found))

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        rank = self.number(low, high)
        return tuple(int(k) for k in self.rng.choice([0, 1, 1, 2, 2, 3, 3, 4], rank))

    def array(self, shape: Sequence[int], dtype: str, special: float | None = None) -> Array:
        """Ordinary values, in three cases of ten with special ones among them."""
        shape = tuple(shape)
        kind = dtype_of(dtype)
        is_special = self.chance(0.3 if special is None else special)
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype in FLOATS:
            found = self.rng.normal(size=shape) * self.pick(1, 1, 3, 30)
            if self.chance(0.3):
                found = np.round(found)
            most = float(ml_dtypes.finfo(kind).max)
            odd = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, *self.ends(most)]
        else:
            low, high = np.iinfo(kind).min, np.iinfo(kind).max
            found = self.rng.integers(max(low, -6), 7, shape)
            odd = [low, low + 1, high, high - 1, 0, 1]
        whole = np.asarray(found).astype(kind)
        if is_special:
            flat = whole.reshape(-1)
            for place in range(flat.size):
                if self.chance(0.4):
                    flat[place] = self.pick(*odd)
            whole = flat.reshape(shape)
        return whole

    def ends(self, most: float) -> list[float]:
        """The ends of a float type, where nothing is added up: the order would decide."""
        return [most, -most, 1 / most] if self.kind in _AT_THE_ENDS else []

    def broadcast(self, count: int) -> list[tuple[int, ...]]:
        """Shapes that broadcast with each other; one time in thirty, any."""
        whole = self.shape()
        found = []
        for _ in range(count):
            part = tuple(1 if self.chance(0.25) else size for size in whole)
            found.append(part[self.number(0, len(part)) if self.chance(0.3) else 0 :])
        if self.chance(0.03):
            found[-1] = self.shape()
        return found

    def axis(self, rank: int) -> int:
        """Mostly one of the axes, from the front or the back."""
        if self.chance(0.03):
            return self.number(-rank - 2, rank + 1)
        return self.number(-rank, rank - 1) if rank else 0

    def axes(self, rank: int) -> list[int]:
        count = self.number(1, rank) if rank else 0
        found = self.rng.permutation(rank)[:count]
        return [int(a) - (rank if self.chance(0.3) else 0) for a in found]

    def case(self, inputs: Sequence[Array | None], **rest: Any) -> Case:
        return Case(self.kind, self.opset, list(inputs), **rest)


Recipe = Callable[[Draw], Case]


def _elementwise(**attributes: Callable[[Draw], Any]) -> Recipe:
    def recipe(d: Draw) -> Case:
        dtype = d.dtype()
        shapes = d.broadcast(d.schema.min_input)
        if d.kind == "Softsign":  # of which the reference evaluator has no scalars
            shapes = [shape or (2,) for shape in shapes]
        given = {name: draw(d) for name, draw in attributes.items() if d.chance(0.7)}
        return d.case([d.array(shape, dtype) for shape in shapes], attributes=given)

    return recipe


def _variadic(d: Draw) -> Case:
    dtype = d.dtype()
    shapes = d.broadcast(d.number(1, 3))
    # Shapes broadcast since opset 8; of float64's Mean the reference evaluator has not all.
    if d.opset < 8 or (d.kind == "Mean" and dtype == "float64"):
        shapes = [shapes[0]] * len(shapes)
    return d.case([d.array(shape, dtype) for shape in shapes])


def _positive(d: Draw) -> float:
    return float(d.pick(0.01, 0.2, 0.5, 1.0, 2.0))


def _switch(d: Draw) -> int:
    return d.number(0, 1)


def _any_number(d: Draw) -> float:
    return float(d.pick(-1.5, -0.1, 0.0, 0.2, 0.5, 1.0, 3.0))


def _cast(d: Draw) -> Case:
    x = d.array(d.shape(), d.dtype())
    wanted = [n for n in d.types() if n in (*FLOATS, *INTEGERS, "bool")]
    to = str(d.pick(*wanted))
    if x.dtype.kind not in "iub" and to in INTEGERS:  # other values have no meaning
        x = np.where(np.isfinite(x.astype(np.float64)), x, 0).astype(x.dtype)
        if to.startswith("u"):
            x = abs(x)
        if to == "int8" or to == "uint8":
            x = np.clip(x.astype(np.float64), -100, 100).astype(x.dtype)
    if d.kind == "CastLike":
        return d.case([x, d.array((), to)])
    return d.case([x], attributes={"to": helper.np_dtype_to_tensor_dtype(dtype_of(to))})


def _clip(d: Draw) -> Case:
    dtype = d.dtype()
    x = d.array(d.shape(), dtype)
    if d.opset < 11:
        given = {name: _any_number(d) for name in ("min", "max") if d.chance(0.7)}
        return d.case([x], attributes=given)
    bounds = [d.array((), dtype) if d.chance(0.7) else None for _ in range(2)]
    return d.case([x, *bounds], constant=(1, 2) if d.chance(0.5) else ())


def _dropout(d: Draw) -> Case:
    # Before opset 12 nothing says what the mask is; ONNX Runtime gives zeros.
    outputs = d.number(1, 2) if d.opset >= 12 else 1
    x = d.array(d.shape(), d.dtype())
    if d.opset < 12:
        return d.case([x], attributes={"ratio": 0.3} if d.chance(0.5) else {})
    ratio, training = (each if d.chance(0.5) else None for each in (np.float32(0.3), np.False_))
    more = [None if each is None else np.array(each) for each in (ratio, training)]
    given = {"seed": 3} if d.chance(0.3) else {}
    return d.case([x, *more], attributes=given, outputs=outputs, constant=(1, 2))


def _division(d: Draw) -> Case:
    """Of the least integer by -1 it ends ONNX Runtime's process."""
    case = _elementwise()(d)
    above, below = case.inputs
    assert above is not None and below is not None
    if above.dtype.kind in "iu":
        if d.chance(0.8):
            below[below == 0] = 3
        if above.dtype.kind == "i":
            above[above == np.iinfo(above.dtype).min] = 5
    return case


def _modulo(d: Draw) -> Case:
    """Integers by 0 end ONNX Runtime's process too."""
    case = _division(d)
    above, below = case.inputs
    assert above is not None and below is not None
    if below.dtype.kind in "iu":
        below[below == 0] = 3
    # Of floats it has to be 1 until opset 24; of 64 bits ONNX Runtime computes it in float64.
    is_fmod = above.dtype.kind not in "iu" or (above.itemsize < 8 and d.chance(0.5))
    return replace(case, attributes={"fmod": 1} if is_fmod else {})


def _power(d: Draw) -> Case:
    base = d.dtype()
    other = base if d.opset < 12 else d.dtype(1)
    shapes = d.broadcast(2)
    a = d.array(shapes[0], base)
    b = d.array(shapes[1], other, special=0.1)
    if base in INTEGERS:
        a = np.clip(a, np.array(0 if base[0] == "u" else -3, a.dtype), np.array(3, a.dtype))
        b = np.clip(b.astype(np.float64), 0, 4).round().astype(b.dtype)
        b = np.where(np.isnan(b.astype(np.float64)), 2, b).astype(b.dtype)
    return d.case([a, b])


def _prelu(d: Draw) -> Case:
    dtype, whole = d.dtype(), d.shape()
    part = tuple(1 if d.chance(0.4) else size for size in whole)
    slope = part[d.number(0, len(part)) if d.chance(0.5) else 0 :]
    if d.chance(0.05):
        slope = d.shape()
    return d.case([d.array(whole, dtype), d.array(slope, dtype)])


def _where(d: Draw) -> Case:
    dtype = d.dtype(1)
    shapes = d.broadcast(3)
    return d.case([d.array(shapes[0], "bool"), *(d.array(s, dtype) for s in shapes[1:])])


def _gelu(d: Draw) -> Case:
    return d.case([d.array(d.shape(), d.dtype())], attributes={"approximate": "tanh"})


# products


def _matmul(d: Draw) -> Case:
    dtype = d.dtype()
    n, k, m = (d.pick(0, 1, 2, 3, 4) for _ in range(3))
    lead = d.broadcast(2)
    a = (k,) if d.chance(0.15) else (*lead[0][:2], n, k)
    b = (k,) if d.chance(0.15) else (*lead[1][:2], k, m)
    if d.chance(0.03):
        b = d.shape(1, 3)
    special = 0.1 if dtype in FLOATS else None
    return d.case([d.array(a, dtype, special), d.array(b, dtype, special)])


def _gemm(d: Draw) -> Case:
    dtype = d.dtype()
    n, k, m = (d.pick(0, 1, 2, 3, 4) for _ in range(3))
    given: dict[str, Any] = {name: d.number(0, 1) for name in ("transA", "transB")}
    for name in ("alpha", "beta"):
        if d.chance(0.6):
            given[name] = float(d.pick(0.0, 0.5, 1.0, -2.0))
    a = (k, n) if given["transA"] else (n, k)
    b = (m, k) if given["transB"] else (k, m)
    c = d.pick((n, m), (1, m), (m,), (n, 1), (1, 1), (1,), ())
    if d.chance(0.05):
        c = d.shape(0, 3)
    inputs: list[Any] = [d.array(a, dtype, 0.1), d.array(b, dtype, 0.1)]
    if d.opset < 11 or d.chance(0.8):
        inputs.append(d.array(c, dtype))
    return d.case(inputs, attributes=given)


def _convolution(d: Draw) -> Case:
    dtype = d.dtype()
    count = d.pick(1, 1, 2, 2, 3)
    groups, inner, outer = d.number(1, 2), d.number(1, 2), d.number(1, 2)
    kernel = [d.number(1, 3) for _ in range(count)]
    given: dict[str, Any] = {"group": groups}
    if d.chance(0.5):
        given["strides"] = [d.number(1, 3) for _ in range(count)]
    if d.chance(0.4):
        given["dilations"] = [d.number(1, 2) for _ in range(count)]
    if d.chance(0.4):
        given["kernel_shape"] = kernel
    if d.chance(0.4):
        given["auto_pad"] = d.pick("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
        if given["auto_pad"].startswith("SAME"):  # which ONNX Runtime has without dilations only
            given.pop("dilations", None)
    if d.chance(0.4) and given.get("auto_pad", "NOTSET") == "NOTSET":
        given["pads"] = [d.number(0, 2) for _ in range(2 * count)]
    sizes = [d.number(1, 6 if count < 3 else 3) for _ in range(count)]
    channels = groups * inner + (d.chance(0.03))
    # The reference evaluator, which alone has float64, dilates a kernel with zeros: times infinity.
    special = 0.0 if dtype == "float64" and "dilations" in given else 0.1
    x = d.array((d.number(0, 2), channels, *sizes), dtype, special)
    weight = d.array((groups * outer, inner, *kernel), dtype, special)
    bias = [d.array((groups * outer,), dtype)] if d.chance(0.5) else []
    constant = () if d.chance(0.3) else (1, 2)[: 1 + len(bias)]
    return d.case([x, weight, *bias], attributes=given, constant=constant)


# reductions


def _reduction(d: Draw) -> Case:
    dtype = d.dtype()
    # A sum of integers that overflows has no meaning, and ONNX Runtime's are not exact.
    is_sum = dtype in INTEGERS and d.kind not in ("ReduceMax", "ReduceMin")
    x = d.array(d.shape(), dtype, 0.0 if is_sum else None)
    if dtype in INTEGERS and d.kind == "ReduceProd":
        x = np.sign(x)
    given: dict[str, Any] = {"keepdims": d.number(0, 1)} if d.chance(0.7) else {}
    axes = d.axes(x.ndim) if d.chance(0.8) and x.ndim else None
    if axes and d.chance(0.03):
        axes[0] = x.ndim + 1
    is_input = d.opset >= (13 if d.kind == "ReduceSum" else 18)
    if is_input and d.chance(0.2):
        given["noop_with_empty_axes"] = d.number(0, 1)
        axes = [] if d.chance(0.5) else axes
    if axes is None:
        return d.case([x], attributes=given)
    if is_input:
        return d.case([x, np.array(axes, np.int64)], attributes=given, constant=(1,))
    axes = [a % x.ndim if d.opset < 11 and a < 0 else a for a in axes]
    return d.case([x], attributes={**given, "axes": axes} if axes else given)


def _cumulative_sum(d: Draw) -> Case:
    x = d.array(d.shape(1), d.dtype())
    given = {name: d.pick(0, 1) for name in ("exclusive", "reverse") if d.chance(0.5)}
    axis = np.array(d.axis(x.ndim), d.pick(*d.types(1)))
    return d.case([x, axis], attributes=given, constant=(1,))


def _place(d: Draw) -> Case:
    x = d.array(d.shape(1), d.dtype())
    axis = d.axis(x.ndim)
    given: dict[str, Any] = {"axis": axis % x.ndim if d.opset < 11 else axis}
    if d.chance(0.6):
        given["keepdims"] = d.number(0, 1)
    if d.opset >= 12 and d.chance(0.5):
        given["select_last_index"] = d.number(0, 1)
    return d.case([x], attributes=given)


def _top_k(d: Draw) -> Case:
    x = d.array(d.shape(1), d.dtype())
    if x.dtype.kind not in "iu":  # where NaN comes is not said
        x = np.where(np.isnan(x.astype(np.float64)), np.array(3, x.dtype), x)
    axis = d.axis(x.ndim)
    if d.opset < 11:
        axis %= x.ndim
    size = x.shape[axis] if -x.ndim <= axis < x.ndim else 1
    count = d.number(0, size) if d.chance(0.95) else size + 1
    given: dict[str, Any] = {"axis": axis}
    if d.opset >= 11 and d.chance(0.5):
        given["largest"] = d.number(0, 1)
    if d.opset >= 11 and d.chance(0.2):
        given["sorted"] = 1
    if d.opset < 10:
        return d.case([x], attributes=given | {"k": max(count, 1)}, outputs=2)
    number = np.array([count], np.int64)
    return d.case([x, number], attributes=given, outputs=2, constant=(1,))


def _einsum(d: Draw) -> Case:
    sizes = {letter: d.pick(1, 2, 3) for letter in "abCde"}  # of none ONNX Runtime dies
    count, repeats = d.pick(1, 2, 2, 2, 3), d.chance(0.2)
    texts = ["".join(d.rng.choice(list(sizes), d.number(0, 3), repeats)) for _ in range(count)]
    every = sorted({*"".join(texts)})
    result = "".join(d.rng.permutation(every)[: d.number(0, len(every))])
    shapes = [[sizes[letter] for letter in text] for text in texts]
    if d.chance(0.3):  # axes without letters, which broadcast
        for k, more in enumerate(d.broadcast(count)):
            more = tuple(max(1, size) for size in more[:2])
            place = d.number(0, len(texts[k]))
            texts[k] = texts[k][:place] + "..." + texts[k][place:]
            shapes[k][place:place] = more
        place = d.number(0, len(result))
        result = result[:place] + "..." + result[place:]
    space = d.pick("", "", " ")
    equation = f"{space},".join(texts) + (f"{space}->{space}{result}" if d.chance(0.8) else "")
    dtype = d.pick("float32", "float32", "float64", "int32", "int64")
    return d.case(
        [d.array(shape, dtype, 0.0) for shape in shapes], attributes={"equation": equation}
    )


def _soft_max(d: Draw) -> Case:
    dtype = d.dtype()
    # At infinity ONNX Runtime's LogSoftmax of float64 is another than its own of float32.
    x = d.array(d.shape(1), dtype, 0.0 if dtype == "float64" else None)
    if d.chance(0.3):
        return d.case([x])
    axis = d.axis(x.ndim)
    return d.case([x], attributes={"axis": axis % x.ndim if d.opset < 11 else axis})


def _batch_normalization(d: Draw) -> Case:
    dtype = d.dtype()
    x = d.array(d.shape(2), dtype, 0.1)
    given: dict[str, Any] = {"epsilon": 0.25} if d.chance(0.5) else {}
    if d.opset < 9 and d.chance(0.5):
        given["spatial"] = d.number(0, 1)
    shape = x.shape[1:] if given.get("spatial", 1) == 0 else x.shape[1:2]
    if d.chance(0.05):
        shape = d.shape(1, 1)
    # Of finite numbers: ONNX Runtime multiplies them before x comes in.
    parts = [d.array(shape, dtype, 0.0) for _ in range(4)]
    parts[3] = abs(parts[3])
    return d.case([x, *parts], attributes=given)


def _normalization(d: Draw) -> Case:
    dtype = d.dtype()
    x = d.array(d.shape(1), dtype, 0.1)
    axis = d.axis(x.ndim)
    given: dict[str, Any] = {"axis": axis} if axis != -1 or d.chance(0.5) else {}
    if d.chance(0.5):
        given["epsilon"] = 0.25
    tail = x.shape[axis if -x.ndim <= axis < x.ndim else -1 :]
    scale = tuple(1 if d.chance(0.1) else k for k in tail)
    if d.chance(0.05):
        scale = d.shape(0, 2)
    inputs = [x, d.array(scale, dtype, 0.1)]
    outputs = 1
    if d.kind == "LayerNormalization":
        if d.chance(0.5):
            inputs.append(d.array(tail, dtype, 0.1))
        outputs = d.pick(1, 1, 2, 3) if x.size else 1
        if d.chance(0.2):
            given["stash_type"] = 1
    return d.case(inputs, attributes=given, outputs=outputs)


def _global_mean(d: Draw) -> Case:
    shape = [max(size, 1) for size in d.shape(3, 5)]  # ONNX Runtime has no empty ones
    return d.case([d.array(shape, d.dtype(), 0.1)])


# indices


def _gather(d: Draw) -> Case:
    x = d.array(d.shape(1), d.dtype())
    axis = d.axis(x.ndim)
    place = axis if -x.ndim <= axis < x.ndim else 0
    size = x.shape[place]
    shape = d.shape(0, 2)
    if d.kind == "GatherElements":
        shape = tuple(k if a != place % x.ndim else d.number(0, 4) for a, k in enumerate(x.shape))
    indices = d.rng.integers(-size, max(size, 1), shape)
    if d.opset < 11:
        axis, indices = axis % x.ndim, abs(indices)
        indices = np.minimum(indices, max(size - 1, 0))
    if d.chance(0.05) and indices.size:
        indices.reshape(-1)[0] = d.pick(size, -size - 1)
    kind = d.pick(np.int32, np.int64)
    constant = (1,) if d.chance(0.5) else ()
    return d.case([x, indices.astype(kind)], attributes={"axis": axis}, constant=constant)


def _one_hot(d: Draw) -> Case:
    depth, shape = d.number(1, 4), d.shape(0, 3)
    kinds, rank = ["int64", "int64", d.pick("float32", "int64")], d.pick(0, 1)
    is_any = d.chance(0.3)
    if is_any:  # most of these the reference evaluator alone has: no vectors, no bools
        kinds, rank = [d.pick(*(n for n in d.types(k) if n != "bool")) for k in range(3)], 0
    low = 0 if kinds[0][0] == "u" else -depth - 2
    indices = d.rng.integers(low, depth + 2, shape).astype(dtype_of(kinds[0]))
    values = d.array((2,), kinds[2], 0.0 if is_any else None)
    given = {"axis": d.axis(len(shape) + 1)} if d.chance(0.7) else {}
    as_array = np.array(depth, dtype_of(kinds[1])).reshape((1,) * rank)
    return d.case([indices, as_array, values], attributes=given, constant=(1,))


def _reverse_sequence(d: Draw) -> Case:
    x = d.array(d.shape(2), d.dtype())
    time = d.number(0, 1)
    lengths = d.rng.integers(0, x.shape[time] + 1, x.shape[1 - time]).astype(np.int64)
    if d.chance(0.1) and lengths.size:
        lengths[0] = d.pick(x.shape[time] + 1, -1)
    return d.case([x, lengths], attributes={"time_axis": time, "batch_axis": 1 - time})


# shapes


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def _concat(d: Draw) -> Case:
    shape, dtype = d.shape(1), d.dtype()
    axis = d.axis(len(shape))
    place = axis % len(shape)
    arrays = []
    for _ in range(d.number(1, 3)):
        own = tuple(d.number(0, 3) if a == place else k for a, k in enumerate(shape))
        arrays.append(d.array(own, dtype))
    if d.chance(0.03):
        arrays[-1] = d.array(d.shape(1), dtype)
    return d.case(arrays, attributes={"axis": place if d.opset < 11 else axis})


def _expand(d: Draw) -> Case:
    x, wanted = d.broadcast(2)
    return d.case([d.array(x, d.dtype()), _ints(*wanted)], constant=(1,))


def _flatten(d: Draw) -> Case:
    x = d.array(d.shape(), d.dtype())
    low = -x.ndim if d.opset >= 11 else 0
    given = {"axis": d.number(low, x.ndim)} if d.chance(0.8) else {}
    return d.case([x], attributes=given)


def _pad(d: Draw) -> Case:
    x = d.array(d.shape(1), d.dtype())
    pads = [d.number(0, 2) for _ in range(2 * x.ndim)]
    if d.chance(0.05):
        pads = [d.number(0, 2) for _ in range(2 * x.ndim + d.pick(-1, 1, 2))]
    given: dict[str, Any] = {"mode": str(d.pick("constant", "constant", "edge", "reflect"))}
    if d.opset < 11:
        if d.chance(0.5):
            given["value"] = _any_number(d)
        return d.case([x], attributes={**given, "pads": pads})
    value = d.array((), x.dtype.name) if d.chance(0.5) else None
    inputs: list[Any] = [x, _ints(*pads), value]
    if d.opset >= 18 and d.chance(0.3) and len(pads) == 2 * x.ndim:
        axes = d.axes(x.ndim)
        inputs = [x, _ints(*pads[: 2 * len(axes)]), value, _ints(*axes)]
    return d.case(inputs, attributes=given, constant=(1, 2, 3)[: len(inputs) - 1])


def _reshape(d: Draw) -> Case:
    x = d.array(d.shape(), d.dtype())
    left, wanted = x.size, []
    for _ in range(d.number(0, 3)):
        divisors = [k for k in range(1, max(left, 1) + 1) if left % k == 0]
        wanted.append(int(d.rng.choice(divisors)))
        left //= wanted[-1]
    wanted.append(left)
    d.rng.shuffle(wanted)
    if d.chance(0.4):
        wanted[d.number(0, len(wanted) - 1)] = -1
    if d.chance(0.2):
        wanted[d.number(0, len(wanted) - 1)] = 0
    given = {"allowzero": d.number(0, 1)} if d.opset >= 14 and d.chance(0.4) else {}
    return d.case([x, _ints(*wanted)], attributes=given, constant=(1,))


_FAR = (2**31 - 1, -(2**31) + 1, 2**63 - 1, -(2**63) + 1)


def _slice(d: Draw) -> Case:
    x = d.array(d.shape(1), d.dtype())
    axes = d.axes(x.ndim)
    starts, ends = (
        [d.pick(*_FAR) if d.chance(0.15) else d.number(-6, 6) for _ in axes] for _ in range(2)
    )
    if d.opset < 10:
        axes = [a % x.ndim for a in axes]
        return d.case([x], attributes={"starts": starts, "ends": ends, "axes": axes})
    steps = [d.pick(1, 1, 2, 3, -1, -1, -2, -3) for _ in axes]
    inputs: list[Any] = [x, _ints(*starts), _ints(*ends), _ints(*axes), _ints(*steps)]
    inputs = inputs[: 5 if d.chance(0.8) else 4]
    if d.chance(0.2):
        inputs[3] = None
    return d.case(inputs, constant=(1, 2, 3, 4)[: len(inputs) - 1])


def _split(d: Draw) -> Case:
    x = d.array(d.shape(1), d.dtype())
    axis = d.axis(x.ndim)
    if d.opset < 11:
        axis %= x.ndim
    size, count = x.shape[axis % x.ndim], d.number(1, 3)
    cuts = sorted(d.number(0, size) for _ in range(count - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    if d.chance(0.05):
        sizes[0] += 1
    given: dict[str, Any] = {"axis": axis}
    if d.chance(0.5):
        if d.opset >= 18:
            given["num_outputs"] = count
        return d.case([x], attributes=given, outputs=count)
    if d.opset < 13:
        return d.case([x], attributes={**given, "split": sizes}, outputs=count)
    return d.case([x, _ints(*sizes)], attributes=given, outputs=count, constant=(1,))


def _squeeze(d: Draw) -> Case:
    x = d.array(d.shape(), d.dtype())
    ones = [a for a, size in enumerate(x.shape) if size == 1]
    axes = [a - (x.ndim if d.chance(0.3) and d.opset >= 11 else 0) for a in ones if d.chance(0.7)]
    if d.chance(0.05) and x.ndim:
        axes = [d.number(0, x.ndim - 1)]
    if d.chance(0.2):
        return d.case([x])
    if d.opset < 13:
        return d.case([x], attributes={"axes": axes} if axes else {})
    return d.case([x, _ints(*axes)], constant=(1,))


def _unsqueeze(d: Draw) -> Case:
    x = d.array(d.shape(0, 3), d.dtype())
    count = d.number(1, 2)
    rank = x.ndim + count
    axes = [int(a) for a in d.rng.permutation(rank)[:count]]
    axes = [a - (rank if d.chance(0.3) and d.opset >= 11 else 0) for a in axes]
    if d.opset < 13:
        return d.case([x], attributes={"axes": axes})
    return d.case([x, _ints(*axes)], constant=(1,))


def _tile(d: Draw) -> Case:
    x = d.array(d.shape(1), d.dtype())
    repeats = [d.pick(0, 1, 1, 2, 3) for _ in range(x.ndim)]
    return d.case([x, _ints(*repeats)], constant=(1,))


def _transpose(d: Draw) -> Case:
    x = d.array(d.shape(), d.dtype())
    order = [int(a) for a in d.rng.permutation(x.ndim)]
    return d.case([x], attributes={"perm": order} if d.chance(0.8) and order else {})


def _shape(d: Draw) -> Case:
    x = d.array(d.shape(), d.dtype())
    given = {}
    if d.kind == "Shape" and d.opset >= 15:
        given = {name: d.number(-5, 5) for name in ("start", "end") if d.chance(0.4)}
    return d.case([x], attributes=given)


def _constant(d: Draw) -> Case:
    if d.opset >= 12 and d.chance(0.5):
        name, value = d.pick(
            ("value_float", -1.5), ("value_floats", [0.25, 3.0]), ("value_int", 7),
            ("value_ints", [-2, 2**62]), ("value_floats", [1.0]), ("value_ints", [5]),
        )  # fmt: skip
        return d.case([], attributes={name: value})
    array = d.array(d.shape(), d.pick(*FLOATS, *INTEGERS, "bool"))
    return d.case([], attributes={"value": _tensor(array, "value")})


def _constant_of_shape(d: Draw) -> Case:
    given = {}
    if d.chance(0.7):
        kinds = [_NAMES[name] for name in sorted(d.schema.outputs[0].types) if name in _NAMES]
        given["value"] = _tensor(d.array((1,), d.pick(*kinds)), "v")
    return d.case([_ints(*d.shape())], attributes=given, constant=(0,))


def _range(d: Draw) -> Case:
    dtype = d.pick("float32", "float64", "int16", "int32", "int64")
    start, limit = (d.number(-8, 8) for _ in range(2))
    step = d.pick(1, 2, 3, -1, -2) if dtype[0] == "i" else d.pick(0.5, 0.3, 1.25, -0.7)
    values = [np.array(v, dtype) for v in (start, limit, step)]
    return d.case(values, constant=(0, 1, 2))


# recurrent


def _recurrent(d: Draw) -> Case:
    # No steps, or no sequences, end ONNX Runtime's process.
    t, n, i, h = d.number(1, 4), d.number(1, 3), d.number(1, 3), d.number(1, 3)
    word = d.pick("forward", "reverse", "bidirectional")
    count = 2 if word == "bidirectional" else 1
    rows = GATES[d.kind] * h

    def small(*shape: int) -> Array:
        return (d.rng.normal(size=shape) * 0.4).astype(np.float32)

    def maybe(array: Array) -> Array | None:
        return array if d.chance(0.6) else None

    lengths = d.rng.integers(0, t + 1, n).astype(np.int32)
    if d.chance(0.15):
        lengths[0] = d.pick(-1, t + 1)
    inputs = [
        small(t, n, i),
        small(count, rows, i),
        small(count, rows, h),
        maybe(small(count, 2 * rows)),
        maybe(lengths) if d.chance(0.6) else None,
        maybe(small(count, n, h)),
    ]
    given: dict[str, Any] = {"hidden_size": h, "direction": word}
    outputs = 2
    if d.kind == "LSTM":
        inputs += [maybe(small(count, n, h)), maybe(small(count, 3 * h))]
        outputs = 3
        if d.chance(0.2):
            given["input_forget"] = d.number(0, 1)
    if d.kind == "GRU":
        given["linear_before_reset"] = d.number(0, 1)
    if d.chance(0.1):
        given["clip"] = float(d.pick(0.0, 0.05, 0.3, 5.0))
    if d.chance(0.4):
        places = {"RNN": 1, "LSTM": 3, "GRU": 2}[d.kind] * count
        words = [d.pick("Relu", "Tanh", "Sigmoid", "HardSigmoid", "Affine") for _ in range(places)]
        if d.kind != "RNN" and d.chance(0.3):  # whose words ONNX Runtime has in one case only
            words = [d.pick(word, word.lower()) for word in words]
        given["activations"] = words
        for k, name in enumerate(("alpha", "beta")):
            taken = [_ACTIVATIONS[word.lower()][k] for word in words]
            if numbers := [number for number in taken if number is not None]:
                given[f"activation_{name}"] = numbers
    constant = (1, 2, 3, 7)[: 3 + (outputs == 3)]
    if d.chance(0.3):
        constant = tuple(k for k in constant if d.chance(0.5))
    return d.case(inputs, attributes=given, outputs=outputs, constant=constant)


# Activations of recurrent nodes, and the alpha and beta that zstate computes with.
_ACTIVATIONS: dict[str, tuple[float | None, float | None]] = {
    **dict.fromkeys(("relu", "tanh", "sigmoid"), (None, None)),
    "hardsigmoid": (0.2, 0.5),
    "affine": (1.0, 0.0),
}


# What has no sum whose order would decide whether it is infinite.
_AT_THE_ENDS = (
    *("Abs", "Add", "ArgMax", "ArgMin", "Cast", "CastLike", "Clip", "Concat", "Div", "Elu"),
    *("Equal", "Exp", "Expand", "Gather", "Greater", "HardSigmoid", "Identity", "LeakyRelu"),
    *("Less", "Log", "LogSoftmax", "Max", "Min", "Mul", "Neg", "PRelu", "Pad", "Pow"),
    *("Reciprocal", "ReduceLogSumExp", "ReduceMax", "ReduceMin", "Relu", "Selu", "Sigmoid"),
    *("Sign", "Softmax", "Softplus", "Softsign", "Sqrt", "Sub", "Tanh", "ThresholdedRelu"),
    *("Celu", "TopK", "Where"),
)
_PLAIN = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos"),
    *("Cosh", "Equal", "Exp", "Floor", "Greater", "GreaterOrEqual", "HardSwish", "Identity"),
    *("IsNaN", "Less", "LessOrEqual", "Log", "Mish", "Mul", "Neg", "Not", "Or"),
    *("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign"),
    *("Sqrt", "Sub", "Tan", "Tanh", "Xor"),
)
_REDUCTIONS = (
    *("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"),
)
RECIPES: dict[str, Recipe] = {
    **dict.fromkeys(_PLAIN, _elementwise()),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _variadic),
    **{f"Reduce{name}": _reduction for name in _REDUCTIONS},
    **dict.fromkeys(("Celu", "Elu", "Swish"), _elementwise(alpha=_positive)),
    **dict.fromkeys(("LeakyRelu", "ThresholdedRelu"), _elementwise(alpha=_any_number)),
    "IsInf": _elementwise(detect_negative=_switch, detect_positive=_switch),
    "HardSigmoid": _elementwise(alpha=_positive, beta=_any_number),
    "Selu": _elementwise(alpha=_positive, gamma=_positive),
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "Div": _division,
    "Mod": _modulo,
    "Dropout": _dropout,
    "Gelu": _gelu,
    "PRelu": _prelu,
    "Pow": _power,
    "Where": _where,
    "Conv": _convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "ArgMax": _place,
    "ArgMin": _place,
    "Einsum": _einsum,
    "TopK": _top_k,
    "BatchNormalization": _batch_normalization,
    "GlobalAveragePool": _global_mean,
    "LayerNormalization": _normalization,
    "RMSNormalization": _normalization,
    "CumSum": _cumulative_sum,
    "LogSoftmax": _soft_max,
    "Softmax": _soft_max,
    "Gather": _gather,
    "GatherElements": _gather,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Shape": _shape,
    "Size": _shape,
    **dict.fromkeys(GATES, _recurrent),
}


# Whose empty tensors end ONNX Runtime's process, or keep it busy for ever (an empty kernel).
_NEVER_EMPTY = ("Conv", "Einsum", "GlobalAveragePool", *GATES)


def draw_case(rng: np.random.Generator, kind: str) -> Case:
    draw = Draw(rng, kind)
    case = RECIPES[kind](draw)
    sizes = sorted({size for array in case.feeds.values() for size in array.shape})
    new = [size for size in (0, 1, 2, 3, 4, 5) if size or kind not in _NEVER_EMPTY]
    return replace(case, other=(draw.pick(*sizes), draw.pick(*new))) if sizes else case
