"""A recurrent node as a function of its own: one step of one direction."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...cells.program import Leaf, program
from ...convert.layer import Layer
from ...errors import DTypeError, refusal
from ...layout import brackets
from ...prepared.parts import Part, parts_of
from ...types import Array
from ..ops.recurrent import title_of
from ..tensor import Node, Tensor, result_name
from .equations import Surroundings, step
from .matrices import Rows
from .rows import shape_of
from .words import LABEL, Place, broadcast_index, comment, identifier, loop, refuse

if TYPE_CHECKING:
    from .writer import Writer


def write(writer: Writer, node: Node) -> None:
    """The node's function, its states, and the calls for the steps of its source."""
    _Recurrent(writer, node).write()


class _Recurrent:
    def __init__(self, writer: Writer, node: Node) -> None:
        self._writer, self._node = writer, node
        self._inputs = dict(zip(node.attributes["names"], node.inputs, strict=True))
        _check(node, self._inputs)
        self._initial = {
            each: tensor for each, tensor in self._inputs.items() if each.startswith("init_")
        }
        self._part = self._read_part()
        self._own = [each.name for each in self._part.cell.own if each.name in self._part.tensors]
        self._order = self._part.cell.gate_order(self._part.descriptor)
        self._name = identifier(node.name)
        self._states: list[Place] = []

    def _read_part(self) -> Part:
        """The layer with what is stored; states and the mask may come from anywhere."""
        stored: dict[str, Array] = {}
        for name, tensor in self._inputs.items():
            if name in ("source", "mask", *self._initial):
                continue
            if tensor not in self._writer.known:
                raise refuse(LABEL, name, "a stored tensor", "one that is computed")
            stored[name] = self._writer.known[tensor]
        cell = self._node.attributes.get("cell", self._node.op.name)
        (part,) = parts_of(Layer(cell, self._node.attributes["descriptor"], stored))
        return part

    def write(self) -> None:
        writer, part = self._writer, self._part
        steps = shape_of(self._inputs["source"])[0]
        self._keep_states()
        body = self._body()
        function = writer.name(f"{self._name} step")
        has_mask = "mask" in self._inputs
        text = part.cell.equations_of(part.descriptor, self._own, has_mask)
        mask = ", const float *mask" if has_mask else ""
        lines = [
            comment(f"{title_of(self._node)}:", *text.splitlines()),
            f"static inline void {function}({writer.prefix}_state *s, const float *x{mask})",
            "{",
            *(f"  {line}" for line in body),
            "}\n",
        ]
        writer.functions.append("\n".join(lines))
        self._call(function, steps)

    def _keep_states(self) -> None:
        """In the struct: what the caller, or another node, gives is copied there on each step."""
        writer, part = self._writer, self._part
        defaults = part.first_states(1)
        for each, default in zip(part.cell.states, defaults, strict=True):
            given = self._initial.get(each.initial)
            name = f"{self._name} {each.name}"
            if given is not None and given not in writer.known:
                pointer = writer.field(name, "float32", part.hidden)
                here = writer.pointer(given)
                writer.lines += loop(part.hidden, f"{pointer['i']} = {here['i']};")
            else:
                first = default if given is None else writer.known[given]
                pointer = writer.keep(name, "float32", first)
            self._states.append(pointer)

    def _body(self) -> list[str]:
        writer, part = self._writer, self._part
        has_mask = "mask" in self._inputs
        trace = part.cell.forward(part.descriptor, frozenset(self._own), has_mask)
        text = program(trace.states)
        lines, gates = self._project()
        leaves = self._leaves(gates, trace.names, text.inputs)
        around = Surroundings(
            writer.prefix,
            lambda leaf: leaves[leaf],
            self._multiply(),
            self._order,
            self._states,
            part.hidden,
            writer.helpers,
        )
        printed = step(text, around)
        if printed.work:
            lines.insert(0, f"float *const work = {writer.shared('work', printed.work)};")
        lines += printed.lines
        read = set(re.findall(r"\w+", " ".join(lines)))
        given = ["s", "x", "mask"] if has_mask else ["s", "x"]
        return [f"(void){text};" for text in given if text not in read] + lines

    def _project(self) -> tuple[list[str], Place]:
        """Lines that give x W^T + b, and where it is."""
        writer, part = self._writer, self._part
        rows, bias = len(self._order) * part.hidden, part.tensors.get("bias")
        if "input_weight" not in part.tensors and bias is None:
            return [], Place("x")
        gates = writer.shared("gates", rows)
        lines = loop(rows, f"{gates['j']} = x[j];", index="j")
        if "input_weight" in part.tensors:
            weight = part.tensors["input_weight"].reshape(rows, -1)
            matrix = writer.matrix(f"{self._name} input weight", "input_weight", weight)
            lines = matrix.lines("x", [Rows(0, rows, gates)])
        if bias is not None:
            stored = writer.array(f"{self._name} bias", bias.reshape(-1))
            lines += loop(rows, f"{gates['j']} += {stored}[j];", index="j")
        return lines, gates

    def _multiply(self) -> Callable[[Sequence[str], Place, Place], list[str]]:
        """Lines for products with R: rows that lie beside each other in one call."""
        hidden = self._part.hidden
        weight = self._part.tensors["recurrent_weight"].reshape(-1, hidden)
        matrix = self._writer.matrix(f"{self._name} recurrent weight", "recurrent_weight", weight)

        def multiply(gates: Sequence[str], operand: Place, result: Place) -> list[str]:
            products: list[Rows] = []
            for k, gate in enumerate(gates):
                first = self._order.index(gate) * hidden
                if products and products[-1].first + products[-1].height == first:
                    products[-1] = products[-1]._replace(height=products[-1].height + hidden)
                else:
                    products.append(Rows(first, hidden, result + k * hidden))
            return matrix.lines(operand, products)

        return multiply

    def _leaves(
        self, gates: Place, states: Sequence[str], read: Sequence[Leaf]
    ) -> dict[Leaf, Place]:
        """Where a step's inputs are; parameters that it does not read are not stored."""
        part, hidden = self._part, self._part.hidden
        found: dict[Leaf, Place] = {("mask",): Place("mask")}
        for k, gate in enumerate(self._order):
            found["x", gate] = gates + k * hidden
        for state, pointer in zip(states, self._states, strict=True):
            found["before", state] = pointer
        for each in part.cell.own:
            if each.name not in [leaf[1] for leaf in read if leaf[0] == "own"]:
                continue
            stored = Place(self._writer.array(f"{self._name} {each.name}", part.tensors[each.name]))
            found["own", each.name] = stored
            if each.by_gate:
                for k, gate in enumerate(self._order):
                    found["own", each.name, gate] = stored + k * hidden
        return found

    def _call(self, function: str, steps: int) -> None:
        """The function on every step of the source, and what other nodes read of it."""
        writer, hidden = self._writer, self._part.hidden
        source = writer.pointer(self._inputs["source"])
        width = shape_of(self._inputs["source"])[-1]
        names = [each.name for each in self._part.cell.states]
        read = {
            result_name(tensor): tensor for tensor in self._node.results if tensor in writer.used
        }
        for name in read:
            if name not in names:
                raise refuse(LABEL, name, "a result for inference", "one that is for gradients")
        pointers = dict(zip(names, self._states, strict=True))
        if steps == 1:
            writer.lines.append(f"{function}(s, {source}{self._mask(1)});")
            for name, tensor in read.items():
                writer.alias(tensor, pointers[name])
            return
        body = [f"{function}(s, {source} + t * {width}{self._mask(steps)});"]
        for name, tensor in read.items():
            target = writer.room(tensor)
            copied = f"{target[f't * {hidden} + j']} = {pointers[name]['j']};"
            body += loop(hidden, copied, index="j")
        writer.lines += [f"for (int t = 0; t < {steps}; ++t) {{", *(f"  {x}" for x in body), "}"]

    def _mask(self, steps: int) -> str:
        """The mask of a step, with what is before it in a call."""
        tensor = self._inputs.get("mask")
        if tensor is None:
            return ""
        pointer, shape = self._writer.pointer(tensor), shape_of(tensor)
        result = (steps, 1, self._part.hidden)
        writer = self._writer
        if shape == (1, 1, self._part.hidden)[-len(shape) :] or shape == result:
            varies = len(shape) == 3 and shape[0] == steps and steps > 1
            return f", {pointer} + t * {self._part.hidden}" if varies else f", {pointer}"
        whole = writer.field(f"{self._name} mask", "float32", steps * self._part.hidden)
        index = broadcast_index(shape, result)
        writer.lines += loop(steps * self._part.hidden, f"{whole['i']} = {pointer[index]};")
        return f", {whole} + t * {self._part.hidden}" if steps > 1 else f", {whole}"


def _check(node: Node, inputs: Mapping[str, Tensor]) -> None:
    """Refuse what a step of one row cannot say."""
    descriptor, title = node.attributes["descriptor"], title_of(node)
    for name in ("bidirectional", "reverse"):
        if getattr(descriptor, name):
            raise refuse(title, name, "a layer that reads forward", "one that needs later steps")
    if "resets" in inputs:
        raise refuse(title, "resets", "none (call the reset function)", "some")
    _, batch, _ = shape_of(inputs["source"])
    if batch != 1:
        raise refuse(title, "source", "[T,1,I]: one row per step", brackets(inputs["source"].shape))
    for name, tensor in inputs.items():
        if tensor.dtype != "float32":
            raise DTypeError(refusal(title, name, "float32", tensor.dtype))
