"""Names, numbers and arrays as C99 writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import DTypeError, OptionError, refusal, visible
from ...types import Array

LABEL = "to_c"
TYPES = {
    "float32": "float",
    "int32": "int32_t",
    "int64": "int64_t",
    "int8": "int8_t",
    "bool": "unsigned char",
}
_PER_LINE = 8
_RESERVED = (  # by C99, C23 or GNU C, and what a step calls its own values
    "alignas alignof asm auto bool break case char const constexpr continue default do double "
    "else enum extern false float for goto i386 if inline int linux long nullptr register "
    "restrict return short signed sizeof static static_assert struct switch thread_local true "
    "typedef typeof typeof_unqual union unix unsigned void volatile while s i j k t row asked step"
)
# Macros of the headers that are included.
_MACROS = re.compile(
    "NULL|NAN|INFINITY|DECIMAL_DIG|math_errhandling|HUGE_VAL[FL]?"
    "|(FLT|DBL|LDBL|FP|M|MATH)_[A-Z0-9_]+|(U?INT.*|SIZE|PTRDIFF|WCHAR|WINT|SIG_ATOMIC)_(MIN|MAX)"
)


def identifier(name: str) -> str:
    """The name in letters, digits and underscores, beginning with a letter."""
    text = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    return text if re.match(r"[A-Za-z]", text) else f"v{text}"


class Names:
    """Names that are given once: a second of the same text gets a number."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*_RESERVED.split(), *taken}

    def take(self, name: str) -> str:
        wanted = identifier(name)
        wanted = found = f"v{wanted}" if _MACROS.fullmatch(wanted) else wanted
        number = 1
        while found in self._taken:
            number += 1
            found = f"{wanted}_{number}"
        self._taken.add(found)
        return found


def type_of(label: str, name: str, dtype: str) -> str:
    """The C type of a tensor; refuses one that no header has."""
    if dtype not in TYPES:
        expected = "one of float32, int32, int64, bool (graph.cast makes it)"
        raise DTypeError(refusal(label, name, expected, dtype))
    return TYPES[dtype]


def number(value: float, dtype: str = "float32") -> str:
    """A literal that gives the same bits when it is read."""
    if dtype == "int64":
        low = -(2**63)
        return f"(-INT64_C({2**63 - 1}) - 1)" if value == low else f"INT64_C({int(value)})"
    if dtype != "float32":
        return "(-2147483647 - 1)" if value == -(2**31) else str(int(value))
    short = np.float32(value)
    if np.isnan(short):
        return "NAN"
    if np.isinf(short):
        return "INFINITY" if short > 0 else "-INFINITY"
    text = f"{float(short):.9g}"
    return f"{text}f" if re.search(r"[.e]", text) else f"{text}.0f"


def array(name: str, values: Array) -> str:
    """A constant array, row after row."""
    dtype = values.dtype.name
    texts = [number(each, dtype) for each in values.reshape(-1).tolist()]
    lines = [
        "  " + ", ".join(texts[k : k + _PER_LINE]) + "," for k in range(0, len(texts), _PER_LINE)
    ]
    body = "\n".join(lines)
    return f"static const {TYPES[dtype]} {name}[{len(texts)}] = {{\n{body}\n}};\n"


def comment(*lines: str) -> str:
    """A comment with texts, perhaps from a file, that cannot end it."""
    safe = [
        visible(line).replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
        for line in lines
    ]
    return "/* " + "\n   ".join(safe) + " */"


def loop(count: int, *body: str, index: str = "i") -> list[str]:
    """Lines for every index below a count."""
    if len(body) == 1:
        return [f"for (int {index} = 0; {index} < {count}; ++{index}) {body[0]}"]
    inner = [f"  {line}" for line in body]
    return [f"for (int {index} = 0; {index} < {count}; ++{index}) {{", *inner, "}"]


def broadcast_index(shape: Sequence[int], result: Sequence[int]) -> str:
    """Where element i of a result, by its flat index, lies in an array that is broadcast to it."""
    padded = [1] * (len(result) - len(shape)) + list(shape)
    if padded == list(result):
        return "i"
    terms, below, stride = [], 1, 1
    for size, full in zip(reversed(padded), reversed(result), strict=True):
        if size != 1:
            place = "i" if below == 1 else f"i / {below}"
            term = f"{place} % {full}"
            terms.append(term if stride == 1 else f"({term}) * {stride}")
            stride *= size
        below *= full
    return " + ".join(reversed(terms)) or "0"


@dataclass(frozen=True)
class Place:
    """An array, or what begins some places behind its start."""

    name: str
    offset: int = 0

    def __add__(self, places: int) -> Place:
        return Place(self.name, self.offset + places)

    def __str__(self) -> str:
        return f"{self.name} + {self.offset}" if self.offset else self.name

    def __getitem__(self, index: str) -> str:
        return f"{self.name}[{self.offset} + {index}]" if self.offset else f"{self.name}[{index}]"


def refuse(label: str, what: str, expected: str, got: str) -> OptionError:
    """What to raise where C, or one step, has no place for something."""
    return OptionError(refusal(label, what, expected, got))
