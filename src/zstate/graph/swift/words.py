"""What things are called in Swift: names, numbers, types, shapes, calls."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from ...errors import DTypeError, OptionError, refusal
from ...mpsgraph.published import Method, methods_of
from ..ops.base import axes_of
from ..tensor import Node

LABEL = "to_swift"
_WIDTH = 110
INDENT = " " * 8
NAMES = (  # what the file itself calls something, and Swift's reserved words
    "graph weights returned stored step self init Safetensors "
    "as associatedtype break case catch class continue default defer "
    "deinit do else enum extension fallthrough false fileprivate for "
    "func guard if import in inout internal is let nil open "
    "operator precedencegroup private protocol public repeat rethrows "
    "return static struct subscript super switch throw throws true "
    "try typealias var where while Any Self _"
).split()
GLOBAL_NAMES = (  # what the file uses outside of the struct
    "here model given device feed results CommandLine Data Error "
    "Float Int JSONSerialization NSNumber Problem Range String UInt64 "
    "URL print"
).split()


class Call(NamedTuple):
    """A call of a method, its arguments with their labels."""

    method: str
    arguments: list[str]
    gives_list: bool
    since: tuple[int, ...]  # the version of macOS that has it

    def __str__(self) -> str:
        return f"graph.{self.method}({', '.join(self.arguments)})"


@cache
def published() -> dict[str, Method]:
    """MPSGraph's methods as Apple's pages name them: reshape(_:shape:name:)."""
    found: dict[str, Method] = {}
    for method in methods_of("MPSGraph"):
        labels = "".join(f"{parameter.label or '_'}:" for parameter in method.parameters)
        found.setdefault(f"{method.swift_name}({labels})", method)
    return found


def call(title: str, *arguments: object) -> Call:
    """A call of a method of the graph, by its published name with labels."""
    return call_of(published()[title], *arguments)


def call_of(method: Method, *arguments: object) -> Call:
    parts = []
    since = [tuple(map(int, (method.since or "11.0").split(".")))]
    since += [argument.since for argument in arguments if isinstance(argument, Call)]
    for parameter, argument in zip(method.parameters, map(str, arguments), strict=True):
        assert parameter.optional or argument != "nil", (method.swift, parameter.label)
        parts.append(f"{parameter.label}: {argument}" if parameter.label else argument)
    return Call(method.swift_name, parts, method.returns.startswith("["), max(since))


def identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return text if re.match(r"(?!MPS|MTL)[A-Za-z_]", text) else f"_{text}"


def camel(snake: str) -> str:
    first, *rest = snake.split("_")
    return first + "".join(word.capitalize() for word in rest)


def snake(camel: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", camel)


def name_text(name: str, op: str) -> str:
    """The name as a literal; nil for one that the graph has made up."""
    return "nil" if re.fullmatch(rf"{op}_\d+", name) else string_text(name)


def string_text(name: str) -> str:
    """A literal; Swift's strings hold no lone surrogates."""
    if re.search("[\ud800-\udfff]", name):
        expected = "names without lone surrogates, as Swift's strings have none"
        raise OptionError(refusal(LABEL, "name", expected, ascii(name)))
    escaped = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    letters = (escaped.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):x}}}") for c in name)
    return f'"{"".join(letters)}"'


def data_type(dtype: str) -> str:
    if dtype == "float64":
        raise DTypeError(refusal(LABEL, "dtype", "a type that MPSDataType has", dtype))
    return f".{dtype.replace('uint', 'uInt').replace('bfloat', 'bFloat')}"


def double_text(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else "-.infinity" if value < 0 else ".infinity"
    return repr(float(value))


def number_text(array: Any) -> str | None:
    """The number that fills an array, if it is one that a Double holds; None: it is data."""
    flat = array.reshape(-1)
    if not flat.size or flat.tobytes() != flat[:1].tobytes() * flat.size:
        return None
    number = float(flat[0])
    if array.dtype.name in ("float16", "float32"):
        number = float(str(flat[0]))  # the shortest that reads back as the same
    elif array.dtype.kind in "iu" and int(number) != int(flat[0]):
        return None
    return double_text(number)


def list_text(values: Sequence[object]) -> str:
    return f"[{', '.join(map(str, values))}]"


def shape_text(sizes: Sequence[int | None]) -> str:
    return list_text([-1 if size is None else size for size in sizes]) if sizes else "[1]"


def axes_text(node: Node) -> str:
    """All axes where the graph says None; a tensor without any has one of size 1 here."""
    rank = len(node.inputs[0].shape)
    return list_text(axes_of(LABEL, node.attributes["axes"], rank) if rank else (0,))


def axis_text(node: Node, more: int = 0) -> str:
    return str(node.attributes["axis"] % (len(node.inputs[0].shape) + more))


def wrapped(start: str, made: Call, comment: str) -> list[str]:
    """A statement in lines of at most 110 characters, broken between arguments."""
    line = f"{INDENT}{start}{made}"
    if len(line) + 2 + len(comment) <= _WIDTH:
        return [f"{line}  {comment}".rstrip()]
    before = [INDENT + comment] if comment else []
    if len(line) <= _WIDTH:
        return [*before, line]
    return [*before, f"{INDENT}{start}graph.{made.method}(", *filled(made.arguments, ")")]


def filled(parts: Sequence[str], end: str) -> list[str]:
    """Lines of parts with commas between them."""
    lines = [INDENT + "   "]
    for part in [*(f"{part}," for part in parts[:-1]), *(part + end for part in parts[-1:])]:
        if len(lines[-1]) + 1 + len(part) > _WIDTH and lines[-1].strip():
            lines.append(INDENT + "   ")
        lines[-1] += f" {part}"
    return lines
