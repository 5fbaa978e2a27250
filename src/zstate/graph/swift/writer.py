"""The calls that build a graph, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from ...arrays import NUMPY
from ...descriptors import Activation, AnyDescriptor
from ...errors import OptionError, ShapeError, ZStateError, refusal, within
from ...layout import brackets
from ...mpsgraph.published import ACTIVATIONS, Method, methods_for_op
from ...operations import OPERATIONS
from ..ops import ASSIGN, CONSTANT, PLACEHOLDER, READ, VARIABLE
from ..ops.recurrent import FORWARD, refuse_extensions, title_of
from ..tensor import Node, Tensor, result_name
from .rows import ROWS
from .words import (
    INDENT,
    LABEL,
    Call,
    axes_text,
    axis_text,
    call,
    call_of,
    camel,
    data_type,
    identifier,
    name_text,
    number_text,
    shape_text,
    snake,
    wrapped,
)


class Writer:
    """The lines of the initialiser, and what each tensor is called in them."""

    def __init__(
        self, taken: set[str], stored: Mapping[Node, str], twins: Mapping[Node, Node]
    ) -> None:
        self.lines: list[str] = []
        self.updates: list[str] = []
        self.names: dict[Tensor, str] = {}
        self._taken = taken
        self._stored = stored
        self._twins = twins
        self.since: tuple[int, ...] = (11, 0)  # the version of macOS that has all that was called
        self._descriptors: dict[AnyDescriptor, str] = {}
        self._numbers: dict[object, str] = {}

    def write(self, node: Node) -> None:
        """Add a node's calls; a refusal names it."""
        try:
            for tensor in node.results:
                data_type(tensor.dtype)
            if node.op in (PLACEHOLDER, CONSTANT, VARIABLE):
                self._given(node)
            elif node.op is ASSIGN:  # the tensor stands for the variable's new value
                self.names[node.results[0]] = self.value(node.inputs[1])
            elif node.op is READ and node.inputs[0].node.op is ASSIGN:
                self.names[node.results[0]] = self.value(node.inputs[0])
            elif node.op.name in OPERATIONS:
                self._recurrent(node)
            else:
                self._row(node)
        except ZStateError as error:
            raise within(f"[{LABEL}] node {node.name!r} ({node.op.name})", error) from error

    def assign(self, name: str, variable: Node, tensor: Tensor) -> None:
        values = (self.names[variable.results[0]], self.value(tensor))
        made = call("assign(_:tensor:name:)", *values, name_text(name, "assign"))
        self.updates.append(self.new_name(name))
        self.add(f"let {self.updates[-1]} = ", made)

    def value(self, tensor: Tensor) -> str:
        """What a tensor is called; the softmax of a loss is computed when something reads it."""
        if tensor not in self.names and tensor.node.op.name == "soft_max_cross_entropy":
            source = tensor.node.inputs[0]
            arguments = (self.value(source), axis_text(tensor.node), "nil")
            name = self.names[tensor] = self.new_name(tensor.name)
            self.add(f"let {name} = ", call("softMax(with:axis:name:)", *arguments), tensor)
        return self.names[tensor]

    def new_name(self, name: str) -> str:
        """A name that Swift allows and that nothing else has."""
        start = identifier(name)
        found, number = start, 1
        while found in self._taken:
            number += 1
            found = f"{start}_{number}"
        self._taken.add(found)
        return found

    def add(self, start: str, made: Call, *results: Tensor) -> None:
        """A statement, in several lines where it is long, with types and shapes of its results."""
        self.since = max(self.since, made.since)
        infos = [f"{tensor.dtype}{brackets(tensor.shape)}" for tensor in results]
        if made.gives_list:
            infos = [f"{result_name(t)} {info}" for t, info in zip(results, infos, strict=True)]
        self.lines += wrapped(start, made, f"// {', '.join(infos)}" if infos else "")

    def _given(self, node: Node) -> None:
        (tensor,) = node.results
        shape, kind = shape_text(tensor.shape), data_type(tensor.dtype)
        label = name_text(node.name, node.op.name)
        if node.op is PLACEHOLDER:
            name = self.names[tensor] = self.new_name(node.name)
            made = call("placeholder(shape:dataType:name:)", shape, kind, label)
            self.add(f"{name} = ", made)
            return
        array = NUMPY.asarray(node.attributes["store"].value)
        number = number_text(array) if node.op is CONSTANT else None
        if number is not None:
            key = (number, tensor.shape, tensor.dtype)
            if key not in self._numbers:  # the same number is one constant
                made = call("constant(_:shape:dataType:)", number, shape, kind)
                if not tensor.shape:
                    made = call("constant(_:dataType:)", number, kind)
                self._numbers[key] = self.new_name(node.name)
                self.add(f"let {self._numbers[key]} = ", made)
            self.names[tensor] = self._numbers[key]
            return
        data = f'weights.data("{self._stored[node]}", count: {array.nbytes})'
        made = call("constant(_:shape:dataType:)", data, shape, kind)
        if node.op is VARIABLE:
            made = call("variable(with:shape:dataType:name:)", data, shape, kind, label)
        name = self.names[tensor] = self.new_name(node.name)
        self.add(f"let {name} = try ", made)

    def _row(self, node: Node) -> None:
        row = ROWS.get(node.op.name, Writer._plain)
        made = row(self, node, name_text(node.name, node.op.name))
        self._name_results(node.name, node.results, made)

    def _plain(self, node: Node, name: str) -> Call:
        """A method of the table that takes the node's tensors in their order, its axis or axes if
        it has them, and a name."""
        tensors = [self.value(tensor) for tensor in node.inputs]
        known = {"axis": ("Int", axis_text), "axes": ("[NSNumber]", axes_text)}
        for method in methods_for_op(node.op.name):
            kinds = [p.type for p in method.parameters]
            said = [known[key] for key in node.attributes if key in known]
            wanted = ["MPSGraphTensor"] * len(tensors) + [kind for kind, _ in said] + ["String"]
            if kinds == wanted and len(said) == len(node.attributes):
                return call_of(method, *tensors, *(text(node) for _, text in said), name)
        advice = ""
        if node.op.lower is not None:
            advice = "; it stands for unknown sizes: give the placeholders sizes (`zstate graph "
            advice += "--shape`), or compile the graph and write the program"
        raise OptionError(f"MPSGraph has no {title_of(node)}{advice}")

    def _recurrent(self, node: Node) -> None:
        twin = self._twins.get(node, node)
        if twin.results[0] not in self.names:  # else it was written for another
            self._write_recurrent(node, twin)
        by_name = {result_name(tensor): self.names[tensor] for tensor in twin.results}
        self.names.update((tensor, by_name[result_name(tensor)]) for tensor in node.results)

    def _write_recurrent(self, node: Node, twin: Node) -> None:
        operation, descriptor = OPERATIONS[node.op.name], twin.attributes["descriptor"]
        tensors = dict(zip(node.attributes["names"], node.inputs, strict=True))
        refuse_extensions(node, "MPSGraph")
        if getattr(descriptor, "peephole_on_new_cell", False):
            expected = "peepholes that see c[t-1], as MPSGraph's do"
            raise OptionError(refusal(node.op.name, "peephole_on_new_cell", expected, "True"))
        for name in descriptor.activation_fields:
            kind = getattr(descriptor, name)
            if kind not in ACTIVATIONS:
                expected = f"one of MPSGraph's activations, {', '.join(ACTIVATIONS.values())}"
                raise OptionError(refusal(node.op.name, name, expected, kind.name.lower()))
        if operation.is_gradient:
            _check_last_gradient(node, tensors)
            tensors["source"] = _source(tensors["source"])
        said = {name: self.value(tensor) for name, tensor in tensors.items()}
        said["descriptor"] = self._descriptor(node.name, descriptor)
        said["name"] = name_text(node.name, node.op.name)
        method = _overload(node.op.name, said)
        arguments = [said.get(snake(p.label) or "source", "nil") for p in method.parameters]
        self._name_results(node.name, twin.results, call_of(method, *arguments))

    def _descriptor(self, owner: str, descriptor: AnyDescriptor) -> str:
        """The descriptor's name; its properties are set where they differ from the default."""
        if descriptor not in self._descriptors:
            name = self._descriptors[descriptor] = self.new_name(f"{owner}_descriptor")
            self.lines.append(f"{INDENT}let {name} = MPSGraph{type(descriptor).__name__}()")
            for field in fields(descriptor):
                said, default = map(_property, (getattr(descriptor, field.name), field.default))
                if said != default:
                    start = f"{INDENT}{name}.{camel(field.name)} = {said}"
                    self.lines.append(f"{start}  // default {default}")
        return self._descriptors[descriptor]

    def _name_results(self, node_name: str, results: Sequence[Tensor], made: Call) -> None:
        name = self.new_name(node_name)
        if made.gives_list:
            self.names.update((tensor, f"{name}[{k}]") for k, tensor in enumerate(results))
        else:
            results = results[:1]
            self.names[results[0]] = name
        self.add(f"let {name} = ", made, *results)


def _property(value: Activation | bool) -> str:
    if isinstance(value, Activation):
        return f".{ACTIVATIONS[value]}"
    return "true" if value else "false"


def _overload(op: str, said: Mapping[str, str]) -> Method:
    """The shortest published method that has a parameter for everything that is to be said."""

    def labels(method: Method) -> set[str]:
        return {snake(parameter.label) or "source" for parameter in method.parameters}

    fitting = [method for method in methods_for_op(op) if set(said) <= labels(method)]
    if not fitting:  # a cell of zstate's own: the longest method of Apple's has every tensor
        raise OptionError(f"MPSGraph has no {op}")
    return min(fitting, key=lambda method: len(method.parameters))


def _source(tensor: Tensor) -> Tensor:
    """Where only the source's shape matters the graph passes zState; Apple's methods take the
    forward operation's source."""
    if tensor.node.op.name in FORWARD and tensor.name.endswith(":training_state"):
        names: tuple[str, ...] = tensor.node.attributes["names"]
        return tensor.node.inputs[names.index("source")]
    return tensor


def _check_last_gradient(node: Node, tensors: Mapping[str, Tensor]) -> None:
    """zstate also takes the gradient of every step's cell, MPSGraph that of the last one."""
    gradient = tensors.get("cell_gradient")
    if gradient is not None and len(gradient.shape) == 3 and gradient.shape[0] != 1:
        expected = "the gradient of the last step's cell"
        got = f"one of all steps, {brackets(gradient.shape)}"
        raise ShapeError(refusal(node.op.name, "cell_gradient", expected, got))
