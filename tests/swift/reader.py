"""Reads a Swift file that zstate wrote, with tree-sitter's grammar of Swift.

Every call is held against the table of published signatures: the method, its labels in their
order, the kinds of its arguments, nil only where the table says so. The file's initialiser is then
carried out on ``zstate.pyobjc``, by the selectors of the same table, so that its graph can be run.
Nothing here knows how the file was written.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tree_sitter
import tree_sitter_swift

from zstate import pyobjc
from zstate.mpsgraph.published import Method, methods, methods_of

from .absent import METHODS

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))
# Swift's and Foundation's own, which the table lacks.
PLAIN_CALLS = {
    *(
        "[Float]",
        "Data",
        "URL",
        "Safetensors",
        "print",
        "feed",
        "reduce",
        "reversed",
        "subdata",
        "map",
    ),
    *("dropFirst", "deletingLastPathComponent", "appendingPathComponent", "jsonObject", "prefix"),
    *(
        "data",
        "shape",
        "step",
        "Int",
        "[String: Range<Int>]",
        "[String: [Int]]",
        "UInt64",
        "missing",
        "wrongSize",
        "MTLCreateSystemDefaultDevice",
    ),
}
ENUMERATIONS = (
    *("MPSDataType", "MPSGraphRNNActivation", "MPSGraphLossReductionType", "MPSGraphPaddingMode"),
    "MPSGraphScatterMode",
)
OWNERS = {row.owner for row in methods()}


class Swift:
    """A file, parsed and checked; ``calls`` counts the published methods that it uses."""

    def __init__(self, text: str) -> None:
        self.root = PARSER.parse(text.encode()).root_node
        self.calls: Counter[str] = Counter()
        self._structs = {
            _child(n, "type_identifier"): n
            for n in self.root.children
            if n.type == "class_declaration"
        }
        assert not self.root.has_error, [n.text for n in _all(self.root, "ERROR")]
        assert next(iter(self._structs)) == "Safetensors" and len(self._structs) == 2

    def check_calls(self) -> None:
        """That every call of the file, in the initialiser or not, is of something that exists."""
        for node in _all(self.root, "call_expression"):
            self._check_name(node)

    def build(self, arrays: Mapping[str, bytes]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """The facade's graph, the placeholders by their names in Swift, and all that is known at
        the end of the initialiser."""
        name, struct = list(self._structs.items())[1]
        assert name and name[0].isupper()
        self._arrays = arrays
        graph = pyobjc.MPSGraph.alloc().init()
        (init,) = _all(struct, "init_declaration")
        self._members = {
            _text(_one(node, "pattern")): _text(_one(node, "type_annotation")).removeprefix(": ")
            for node in struct.child_by_field_name("body").named_children
            if node.type == "property_declaration" and _all(node, "type_annotation")
        }
        self._known: dict[str, tuple[str, Any]] = {"graph": ("MPSGraph", graph)}
        for statement in _one(init, "statements").named_children:
            if statement.type != "comment":
                self._do(statement)
        assert set(self._members) <= set(self._known), "a member is not set"
        values = {key: value for key, (_, value) in self._known.items()}
        fed = {key: values[key] for key, kind in self._members.items() if kind == "MPSGraphTensor"}
        return graph, fed, values

    # Statements of the initialiser

    def _do(self, statement: Any) -> None:
        if statement.type == "property_declaration":
            name = _text(statement.child_by_field_name("name"))
            assert name not in self._known and name not in self._members, f"{name} again"
            self._known[name] = self._value(statement.child_by_field_name("value"))
            return
        assert statement.type == "assignment", statement
        (target,) = statement.child_by_field_name("target").named_children
        result = statement.child_by_field_name("result")
        if target.type == "simple_identifier":
            name = _text(target)
            kind = self._members[name]
            assert name not in self._known
            self._known[name] = self._member(kind, result)
        else:
            self._set(target, result)

    def _member(self, kind: str, result: Any) -> tuple[str, Any]:
        if kind == "MPSGraphTensor":
            found = self._value(result)
            assert found[0] == kind
            return found
        parts = [self._part(node) for node in _elements(result)]
        wanted = "MPSGraphOperation" if "Operation" in kind else "MPSGraphTensor"
        assert all(found[0] == wanted for _, found in parts)
        return kind, [(name, value) for name, (_, value) in parts]

    def _part(self, node: Any) -> tuple[str, tuple[str, Any]]:
        if node.type != "tuple_expression":
            return "", self._value(node)
        name, tensor = node.named_children
        return literal(name), self._value(tensor)

    def _set(self, target: Any, result: Any) -> None:
        """A property of a descriptor."""
        owner, item = self._known[_text(target.child_by_field_name("target"))]
        name = _text(target.child_by_field_name("suffix")).removeprefix(".")
        rows = [row for row in methods_of(owner) if row.swift == f"var {name}: {row.returns}"]
        (row,) = [row for row in rows if row.selector.startswith("set")]
        assert row.returns in ("Bool", *ENUMERATIONS)
        value = self._argument(row.returns, False, result)
        getattr(item, row.pyobjc)(value)
        self.calls[f"{owner}.{name}"] += 1

    # Expressions: (type, value)

    def _value(self, node: Any) -> tuple[str, Any]:
        if node.type == "try_expression":
            return self._value(node.child_by_field_name("expr"))
        if node.type == "simple_identifier":
            assert _text(node) in self._known, f"{_text(node)} before it is made"
            return self._known[_text(node)]
        assert node.type == "call_expression", node
        callee, suffix = node.named_children
        if callee.type == "simple_identifier":
            name = _text(callee)
            if name in self._known:  # list[0], which the grammar calls a call
                kind, value = self._known[name]
                assert kind.startswith("[") and _text(suffix).startswith("["), node.text
                return kind[1:-1], value[int(_text(suffix)[1:-1])]
            assert name in OWNERS and _text(suffix) == "()"
            assert any(row.swift == "init()" for row in methods_of(name)), name
            return name, getattr(pyobjc, name).alloc().init()
        target = _text(callee.child_by_field_name("target"))
        name = _text(callee.child_by_field_name("suffix")).removeprefix(".")
        if (target, name) == ("weights", "data"):
            (_, first), (label, count) = _arguments(suffix)
            assert label == "count"
            data = self._arrays[literal(first)]
            assert len(data) == int(_text(count))
            return "Data", data
        assert target == "graph", node.text
        return self._call(name, _arguments(suffix))

    def _call(self, name: str, given: Sequence[tuple[str, Any]]) -> tuple[str, Any]:
        labels = tuple(label for label, _ in given)
        problems = []
        for row in methods_of("MPSGraph"):
            if row.swift_name.strip("`") == name and _labels(row) == labels:
                try:
                    values = [
                        self._argument(p.type, p.optional, node)
                        for p, (_, node) in zip(row.parameters, given, strict=True)
                    ]
                except AssertionError as problem:
                    problems.append(problem)
                    continue
                self.calls[row.selector] += 1
                _, graph = self._known["graph"]
                if row.selector in METHODS:
                    return row.returns, METHODS[row.selector](graph, *values)
                return row.returns, getattr(graph, row.pyobjc)(*values)
        raise AssertionError(f"no published method {name}{labels}: {problems}")

    def _argument(self, kind: str, optional: bool, node: Any) -> Any:
        """The value of an argument that must be of this kind."""
        if node.type == "nil_literal":
            assert optional, f"nil for {kind}"
            return None
        if kind in ENUMERATIONS:
            assert node.type == "prefix_expression" and _text(node).startswith("."), node.text
            case = _text(node)[1:]
            return getattr(pyobjc, kind + case[:1].upper() + case[1:])
        if kind == "Bool":
            return {"true": True, "false": False}[_text(node)]
        if kind in ("Int", "UInt32"):
            assert re.fullmatch(r"-?\d+" if kind == "Int" else r"\d+", _text(node)), node.text
            return int(_text(node))
        if kind == "Double":
            named = {".nan": math.nan, ".infinity": math.inf, "-.infinity": -math.inf}
            text = _text(node)
            assert text in named or re.fullmatch(r"-?\d+\.?\d*(e[-+]?\d+)?", text), text
            return named[text] if text in named else float(text)
        if kind == "String":
            return literal(node)
        if kind == "[NSNumber]":
            return [self._argument("Int", False, item) for item in _elements(node)]
        if kind == "[MPSGraphTensor]":
            return [self._argument("MPSGraphTensor", False, item) for item in _elements(node)]
        found, value = self._value(node)
        assert found == kind, f"{found} for {kind}: {node.text}"
        return value

    def _check_name(self, node: Any) -> None:
        """That what is called exists and has these labels."""
        callee, suffix = node.named_children[0], node.named_children[-1]
        if callee.type == "navigation_expression":
            callee = callee.child_by_field_name("suffix").named_children[-1]
        name = _text(callee).rpartition(" ")[2]  # the grammar takes `8 + Int(x)` for one call
        if not _text(suffix).startswith("(") or name in {*PLAIN_CALLS, *self._structs}:
            return
        labels = tuple(label for label, _ in _arguments(suffix))
        wanted = [row for row in methods() if row.swift_name.strip("`") == name]
        if name in OWNERS:
            wanted = [row for row in methods_of(name) if row.swift_name == "init"]
        assert any(_labels(row) == labels for row in wanted), (name, labels)
        for row in wanted:
            if _labels(row) == labels:
                for parameter, (_, value) in zip(row.parameters, _arguments(suffix), strict=True):
                    assert parameter.optional or value.type != "nil_literal", (name, parameter)


def _labels(row: Method) -> tuple[str, ...]:
    return tuple(parameter.label for parameter in row.parameters)


def _text(node: Any) -> str:
    return node.text.decode()


def _all(node: Any, kind: str) -> list[Any]:
    found = [node] if node.type == kind else []
    for child in node.children:
        found += _all(child, kind)
    return found


def _one(node: Any, kind: str) -> Any:
    return _all(node, kind)[0]


def _child(node: Any, kind: str) -> str:
    return _text(next(child for child in node.children if child.type == kind))


def _elements(node: Any) -> list[Any]:
    assert node.type == "array_literal", node.text
    return [child for child in node.named_children if child.type != "comment"]


def _arguments(suffix: Any) -> list[tuple[str, Any]]:
    found = []
    for argument in _all(suffix, "value_arguments")[0].named_children if suffix.children else ():
        if argument.type == "value_argument":
            label = argument.child_by_field_name("name")
            value = argument.child_by_field_name("value")
            found.append((_text(label) if label is not None else "", value))
    return found


def literal(node: Any) -> str:
    """The string that a literal stands for."""
    assert node.type == "line_string_literal" and not _all(node, "interpolated_expression")
    return unescaped(_text(node))


def unescaped(text: str) -> str:
    short = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
    return re.sub(
        r"\\(?:u\{([0-9a-f]+)\}|(.))",
        lambda m: chr(int(m[1], 16)) if m[1] else short[m[2]],
        text[1:-1],
    )
