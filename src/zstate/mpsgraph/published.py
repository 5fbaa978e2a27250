"""The published signatures of MPSGraph and of the classes around it, from one table.

``published.tsv`` has a row per method or property: its class, its Objective-C selector, its Swift
declaration (parameter types with ``?`` for what may be nil, and the result), the op of
:class:`zstate.Graph` that it stands for, and the macOS version that introduced it. PyObjC's
spelling is the selector with ``_`` for every ``:``. A row is of one kind: ``offered`` (the facade
``zstate.pyobjc`` has it), ``refused`` (the facade raises and says why) or ``absent``.

The Swift declarations are those of developer.apple.com (:attr:`Method.source` is the page of the
class); selectors and versions are those of the SDK headers, as the metadata in the source
distributions of pyobjc-framework-MetalPerformanceShadersGraph, -MetalPerformanceShaders, -Metal and
-Cocoa 12.2.2 lists them. Rows without a Swift declaration are methods of Foundation, which Swift
replaces by its own types, and methods of MPSGraph that nothing here writes in Swift.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from ..descriptors import Activation

# MPSGraphRNNActivation's cases as Swift has them. Their numbers are those of Activation.
ACTIVATIONS = {
    Activation.NONE: "none",
    Activation.RELU: "relu",
    Activation.TANH: "tanh",
    Activation.SIGMOID: "sigmoid",
    Activation.HARD_SIGMOID: "hardSigmoid",
}

_FRAMEWORKS = {
    "MPSGraph": "metalperformanceshadersgraph",
    "MPS": "metalperformanceshaders",
    "MTL": "metal",
    "NS": "foundation",
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a Swift declaration: ``label`` is empty where Swift writes none."""

    label: str
    type: str  # without the ? of an optional
    optional: bool


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    kind: str  # offered, refused or absent
    owner: str  # the class or protocol
    selector: str
    class_method: bool
    swift: str  # "func reshape(_: MPSGraphTensor, …) -> MPSGraphTensor", "init(…)", "var x: T"
    op: str  # of zstate.Graph, or empty
    since: str  # the macOS version

    @property
    def pyobjc(self) -> str:
        """The name in Python."""
        return self.selector.replace(":", "_")

    @property
    def arguments(self) -> int:
        return self.selector.count(":")

    @property
    def keywords(self) -> tuple[str, ...] | None:
        """The keywords of PyObjC's constructor that calls this; None if it makes no object."""
        first, *rest = self.selector.split(":")
        prefix, with_, name = first.partition("With")
        if not with_ or not (self.class_method or prefix == "init"):
            return None
        if not name[1:2].isupper():
            name = name[:1].lower() + name[1:]
        return (name, *rest[:-1])

    @property
    def source(self) -> str:
        """The page of the class on developer.apple.com."""
        framework = next(
            page for prefix, page in _FRAMEWORKS.items() if self.owner.startswith(prefix)
        )
        return f"https://developer.apple.com/documentation/{framework}/{self.owner.lower()}"

    @property
    def is_property(self) -> bool:
        return self.swift.startswith("var ")

    @cached_property
    def swift_name(self) -> str:
        """The base name: ``reshape``, ``init``, or that of the property."""
        found = re.match(r"(?:class )?(?:func |var )?(`?\w+`?)", self.swift)
        return found[1] if found else ""

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What Swift passes, in order; empty for a property."""
        if self.is_property or "(" not in self.swift:
            return ()
        inside, _ = _split_call(self.swift)
        found = []
        for part in _commas(inside):
            label, kind = part.split(": ", 1)
            optional = kind.endswith("?")
            bare = kind.removesuffix("?")
            if optional and bare.startswith("("):
                bare = bare[1:-1]
            found.append(Parameter("" if label == "_" else label, bare, optional))
        return tuple(found)

    @cached_property
    def returns(self) -> str:
        """The type of the result or of the property, with its ``?``; Void without one."""
        if self.is_property:
            return self.swift.split(": ", 1)[1]
        if self.swift_name == "init":
            return self.owner
        if not self.swift:
            return ""
        _, rest = _split_call(self.swift)
        return rest.removeprefix(" -> ") or "Void"


def _split_call(swift: str) -> tuple[str, str]:
    """The text between the parentheses of a declaration, and the text after them."""
    start = swift.index("(") + 1
    depth = 1
    for index in range(start, len(swift)):
        depth += {"(": 1, ")": -1}.get(swift[index], 0)
        if depth == 0:
            return swift[start:index], swift[index + 1 :]
    raise ValueError(swift)


def _commas(text: str) -> list[str]:
    """The parts between commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == ">" and text[index - 1] != "-":
            depth -= 1
        if letter == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()] if text.strip() else []


@cache
def methods() -> tuple[Method, ...]:
    """Every row, in the order of the table."""
    rows = []
    text = files(__package__).joinpath("published.tsv").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        kind, owner, selector, swift, op, since = (line.split("\t") + [""] * 3)[:6]
        rows.append(Method(kind, owner, selector[1:], selector[0] == "+", swift, op, since))
    return tuple(rows)


@cache
def _by_owner() -> dict[tuple[str, str], Method]:
    return {(row.owner, row.selector): row for row in methods()}


def method(owner: str, selector: str) -> Method:
    """The row of a selector, with its colons; KeyError where Apple publishes none."""
    return _by_owner()[owner, selector]


def methods_of(owner: str) -> tuple[Method, ...]:
    """The rows of a class."""
    return tuple(row for row in methods() if row.owner == owner)


@cache
def published_names(owner: str) -> dict[str, Method]:
    """The rows of a class by their names in Python."""
    return {row.pyobjc: row for row in methods_of(owner)}


def methods_for_op(op: str) -> tuple[Method, ...]:
    """The methods of MPSGraph that make a node of an op, in the order of the table."""
    return tuple(row for row in methods() if row.owner == "MPSGraph" and row.op == op)
