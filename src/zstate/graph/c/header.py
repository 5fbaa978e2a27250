"""A compiled program as C99: one header without dependencies, allocation or global state.

A call of ``NAME_step`` is one run of the program in which the states of recurrent layers go on from
the call before. The equations are printed from the cell's one text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...errors import DTypeError, GraphError, OptionError, refusal
from ...layout import describe
from ..executable import Executable
from ..tensor import Tensor
from .helpers import texts
from .rows import CALLED, shape_of, size_of
from .words import LABEL, Names, Place, comment, identifier, loop, type_of
from .writer import Field, Writer, bytes_of

WEIGHTS = ("float32", "int8")
_RANKS = {"int64": 0, "float32": 1, "int32": 2, "int8": 3, "bool": 4}  # no padding between fields
_LIBRARY = ("INT64_C", *CALLED)


class Source(NamedTuple):
    """The text of a header, the bytes of its arrays, and those of its struct."""

    text: str
    flash: int
    ram: int


def to_c(program: Executable, name: str, weights: str = "float32") -> Source:
    """A compiled program as a C99 header.

    Args:
        program: from ``Graph.compile``, with one row per step: its feeds and targets become the
            arguments of ``NAME_step``, in their order; its variables have the values of now.
        name: what every name in the header begins with.
        weights: "float32", or "int8" for matrices and tables as ``zstate.prepare`` has them.

    Example:
        >>> import numpy as np, zstate as zs
        >>> graph = zs.Graph()
        >>> x = graph.placeholder(shape=(1, 1, 3), name="x")
        >>> h, = graph.single_gate_rnn(x @ graph.constant(np.ones((3, 2), np.float32)),
        ...     recurrent_weight=graph.constant(np.ones((2, 2), np.float32)))
        >>> header = to_c(graph.compile({x: ((1, 1, 3), "float32")}, [h]), "model")
        >>> header.flash
        40
    """
    if not isinstance(program, Executable):
        expected = "a program, from Graph.compile or Executable.load"
        raise DTypeError(refusal(LABEL, "program", expected, describe(program)))
    if not isinstance(name, str) or identifier(name) != name or Names().take(name) != name:
        raise OptionError(refusal(LABEL, "name", "a name that C allows", repr(name)))
    if weights not in WEIGHTS:
        raise OptionError(refusal(LABEL, "weights", "one of float32, int8", repr(weights)))
    return _File(program, name, weights).source()


class _File:
    def __init__(self, program: Executable, name: str, weights: str) -> None:
        self._program, self._name = program, name
        self._guard = f"{name.upper()}_H"
        names = Names((*_LIBRARY, self._guard, f"{name}_state", f"{name}_step"))
        self._inputs = [(names.take(each.name), each) for each in program.feeds]
        pairs = zip(program.target_names, program.targets, strict=True)
        self._outputs = [(names.take(text), each) for text, each in pairs]
        sizes = [f"{text}_size" for text, _ in (*self._inputs, *self._outputs)]
        self._writer = Writer(program, name, weights, sizes)
        for each in (*program.feeds, *program.targets):
            type_of(LABEL, each.name, each.dtype)
            if size_of(each) == 0:
                raise OptionError(refusal(LABEL, each.name, "at least one value", "none"))

    def source(self) -> Source:
        writer = self._writer
        writer.write({tensor: Place(text) for text, tensor in self._inputs})
        step = [*writer.lines, *self._results(), *self._updates()]
        fields = sorted([*writer.fields, *writer.scratch()], key=lambda each: _RANKS[each.dtype])
        ram = bytes_of(fields)
        parts = [
            comment(f"written by zstate: {writer.flash} bytes of weights, {ram} bytes of state"),
            f"#ifndef {self._guard}\n#define {self._guard}\n",
            "#include <float.h>\n#include <math.h>\n#include <stddef.h>\n#include <stdint.h>\n",
            self._sizes(),
            *writer.arrays,
            self._struct(fields),
            *texts(self._name, writer.helpers),
            *writer.functions,
            self._function("reset", "", writer.resets),
            comment(f"{self._listed(self._inputs)} -> {self._listed(self._outputs)}"),
            self._function("step", self._arguments(), step),
            "#endif\n",
        ]
        return Source("\n".join(parts), writer.flash, ram)

    def _listed(self, named: list[tuple[str, Tensor]]) -> str:
        """Arguments with their sizes."""
        return ", ".join(
            f"{text} [{','.join(map(str, shape_of(tensor)))}]" for text, tensor in named
        )

    def _sizes(self) -> str:
        """How many values each argument has, for the caller's arrays."""
        sizes = [
            f"  {self._name}_{text}_size = {size_of(tensor)}"
            for text, tensor in (*self._inputs, *self._outputs)
        ]
        return "enum {\n" + ",\n".join(sizes) + "\n};\n"

    def _struct(self, fields: list[Field]) -> str:
        lines = [
            f"  {type_of(LABEL, each.name, each.dtype)} {each.name}[{each.size}];"
            + ("" if each.kept else "  /* while a step runs */")
            for each in fields
        ]
        body = "\n".join(lines or ["  char unused;"])
        return f"typedef struct {{\n{body}\n}} {self._name}_state;\n"

    def _arguments(self) -> str:
        given = [f", const {type_of(LABEL, t.name, t.dtype)} *{text}" for text, t in self._inputs]
        made = [f", {type_of(LABEL, t.name, t.dtype)} *{text}" for text, t in self._outputs]
        return "".join([*given, *made])

    def _function(self, name: str, arguments: str, body: list[str]) -> str:
        given = ["s", *(text for text, _ in self._inputs)] if arguments else ["s"]
        read = set(re.findall(r"\w+", " ".join(body)))
        unused = [f"(void){text};" for text in given if text not in read]
        lines = "\n".join(f"  {line}" for line in [*unused, *body])
        head = f"static inline void {self._name}_{name}({self._name}_state *s{arguments})"
        return f"{head}\n{{\n{lines}\n}}\n"

    def _results(self) -> list[str]:
        lines = []
        for text, tensor in self._outputs:
            here = self._writer.pointer(tensor)
            lines += loop(size_of(tensor), f"{text}[i] = {here['i']};")
        return lines

    def _updates(self) -> list[str]:
        """What the program assigns, once everything has been read."""
        lines = []
        kept = {self._writer.pointer(node.results[0]).name for node, _ in self._program.updates}
        for node, tensor in self._program.updates:
            target, here = self._writer.pointer(node.results[0]), self._writer.pointer(tensor)
            if here != target and here.name in kept:
                expected = "a value that is computed"
                raise GraphError(refusal(LABEL, f"assign to {node.name!r}", expected, "a variable"))
            lines += loop(size_of(tensor), f"{target['i']} = {here['i']};")
        return lines
