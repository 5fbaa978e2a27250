"""torch.onnx.export of models with zstate.torch's layers: a table of translations.

    torch.onnx.export(model, args, path, dynamo=True,
                      custom_translation_table=zstate.onnx.torch_translations())

An operator of zstate becomes what ``save`` makes of the graph's node: an RNN, LSTM, GRU or Scan. So
do the operators of cells from equations, if they were defined before the table was made.
Other states of all steps, which an LSTM node does not return, come from an extra Scan; the exporter
drops it if nothing reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..cells.decorator import defined_cells
from ..errors import OptionError, refusal
from ..graph.ops.recurrent import MADE
from ..layout import DESCRIPTORS
from ..operations import OPERATIONS, Operation, operations_of
from .emitter import Emitter
from .scan import scan
from .writing import native_words, recurrent


def torch_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """{operator of zstate: its translation} for ``torch.onnx.export(..., dynamo=True,
    custom_translation_table=...)``. Needs torch and onnxscript, as that exporter does."""
    import torch

    from .. import torch as _  # noqa: F401, which registers the operators

    operations = [OPERATIONS[cell] for cell in DESCRIPTORS]
    operations += [operations_of(cell)[0] for cell in defined_cells()]
    table = {}
    for each in operations:
        translation = _translation(each)
        table[getattr(torch.ops.zstate, each.key).default] = translation
        _IN_USE[translation] = each.key
    return table


# The translations of all tables still in use, as by torch while it exports with one, and their
# operations.
_IN_USE: WeakKeyDictionary[Callable[..., Any], str] = WeakKeyDictionary()


def has_table(key: str) -> bool:
    """Whether there is a table with a translation of an operation, for an export that needs one."""
    return key in _IN_USE.values()


def _translation(operation: Operation) -> Callable[..., Any]:
    """A function of an operator's arguments, which are the exporter's values."""
    from ..torch.descriptor_text import decode

    states = tuple(state.name for state in operation.cell.states)
    keeps_states = operation.cell.keeps_states if operation.key in OPERATIONS else None

    def translate(*arguments: Any) -> Any:
        values = dict(zip(operation.inputs, arguments, strict=False))
        text = arguments[len(operation.inputs)]
        # A model that only runs does not need what gradients need.
        options: dict[str, Any] = {"training": False}
        if keeps_states is not None:
            options[keeps_states] = False
        descriptor: Any = replace(decode(operation, text), **options)
        present = {name: value for name, value in values.items() if value is not None}
        writer = _Writer(present["source"])
        empty = writer.constant(np.zeros(0, _dtype(present["source"])))
        node = _node(operation, descriptor, present, states[:1])
        if len(states) == 1:
            return recurrent(writer, node)[0], empty
        found = scan(writer, _node(operation, descriptor, present, states))
        if native_words(writer, node) is not None:
            found = [recurrent(writer, node)[0], *found[1:]]
        return *found, empty

    return _with_signature(translate, [*operation.inputs])


def _with_signature(translate: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """The exporter reads the names of a translation's parameters: tensors, then attributes."""
    import inspect

    def function(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        return translate(*bound.arguments.values())

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in names]
    parameters += [
        inspect.Parameter("descriptor", kind, annotation=str),
        inspect.Parameter("backend", kind, default="", annotation=str),
    ]
    signature = inspect.Signature(parameters)
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {"descriptor": str, "backend": str}
    return function


@dataclass(eq=False)
class _Input:
    """One of the exporter's values, in the shape of a graph's tensor."""

    value: Any
    name: str
    shape: tuple[int | None, ...]
    dtype: str


def _dtype(value: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(value.dtype.numpy())
    return dtype


def _node(
    operation: Operation, descriptor: Any, present: dict[str, Any], states: tuple[str, ...]
) -> Any:
    """In the shape of a graph's node."""
    inputs = []
    for name, value in present.items():
        if value.shape is None:
            raise OptionError(refusal("onnx.torch_translations", name, "a known rank", "none"))
        sizes = tuple(size if isinstance(size, int) else None for size in value.shape)
        inputs.append(_Input(value, name, sizes, _dtype(value).name))
    results = [SimpleNamespace(name=name) for name in states]
    attributes: dict[str, Any] = {"names": tuple(present), "descriptor": descriptor}
    name = operation.key
    if name not in OPERATIONS:
        name, attributes["cell"] = MADE, SimpleNamespace(definition=operation.cell)
    return SimpleNamespace(
        op=SimpleNamespace(name=name), attributes=attributes, inputs=inputs, results=results
    )


class _Writer(Emitter):
    """Hands the nodes to torch's exporter, one by one."""

    def __init__(self, like: Any) -> None:
        import onnx_ir
        from onnxscript import evaluator

        super().__init__()
        self._ir = onnx_ir
        self._recorder: Any = evaluator.default()  # the exporter's, which lists the nodes
        self._kind = type(like)  # of its values
        self._in_body = False
        self._captured: dict[int, tuple[str, Any]] = {}

    def name(self, tensor: Any) -> Any:
        return tensor.value

    def constant(self, array: Any, hint: str = "constant") -> Any:
        tensor = self.onnx.numpy_helper.from_array(np.asarray(array))
        if not self._in_body:
            return self._recorded(
                "Constant", [], {"value": self._ir.serde.deserialize_tensor(tensor)}
            )
        name = self.new_name(hint)
        self.nodes.append(self.onnx.helper.make_node("Constant", [], [name], value=tensor))
        return name

    def named(self, value: Any, hint: str = "constant") -> Any:
        if isinstance(value, np.ndarray):
            return self.constant(value, hint)
        if not self._in_body or isinstance(value, str):
            return value
        if id(value) not in self._captured:
            self._captured[id(value)] = (self.new_name("outer"), value)
        return self._captured[id(value)][0]

    def emit(self, kind: str, *inputs: Any, count: int = 1, **attributes: Any) -> Any:
        if self._in_body:
            return super().emit(kind, *inputs, count=count, **attributes)
        values = [None if isinstance(each, str) else self.named(each) for each in inputs]
        if "body" in attributes:
            attributes["body"] = self._ir.serde.deserialize_graph(attributes["body"])
        return self._recorded(kind, values, attributes, count)

    def _recorded(
        self, kind: str, inputs: list[Any], attributes: dict[str, Any], count: int = 1
    ) -> Any:
        node = self._ir.Node(
            "",
            kind,
            inputs,
            attributes=self._ir.convenience.convert_attributes(attributes),
            outputs=[self._kind(self._recorder.opset) for _ in range(count)],
        )
        self._recorder.nodes.append(node)
        return node.outputs[0] if count == 1 else list(node.outputs)

    def mean(self, value: Any) -> Any:
        return self.emit("ReduceMean", value, self.ints(-1))  # as from opset 18 on

    def begin_body(self) -> None:
        super().begin_body()
        self._in_body, self._captured = True, {}

    def end_body(self) -> tuple[list[Any], list[tuple[str, Any]]]:
        self._in_body = False
        nodes, _ = super().end_body()
        return nodes, list(self._captured.values())
