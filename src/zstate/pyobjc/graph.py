"""MPSGraph. Its operations are made from the table of published methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import DTypeError, refusal
from ..graph import Graph, Tensor
from ..graph.methods.core import listed, whole_number
from ..graph.ops import PLACEHOLDER, VARIABLE
from ..graph.tensor import Node
from ..layout import describe
from ..mpsgraph.published import methods_of
from ..operations import OPERATIONS, check_saved
from . import composed
from .base import NSObject, one_of
from .composed import Build
from .constants import MPSDataTypeFloat32, MPSGraphOptionsDefault, type_name
from .descriptors import (
    MPSGraphCompilationDescriptor,
    MPSGraphExecutionDescriptor,
    ObjCDescriptor,
    tell,
)
from .executable import MPSGraphExecutable
from .metal import MPSCommandBuffer, MPSGraphDevice
from .ndarrays import MPSGraphTensorData, array_of, data_of, fed, sizes_of, store
from .objects import (
    MPSGraphOperation,
    MPSGraphShapedType,
    MPSGraphTensor,
    MPSGraphVariableOp,
    unwrap,
)
from .operations import Form, operations, selectors

_Tensors = Sequence[MPSGraphTensor]
_Operations = Sequence[MPSGraphOperation] | None
_Results = dict[MPSGraphTensor, MPSGraphTensorData]


class MPSGraph(NSObject):
    """A graph. Its operations, and the ways to run it, are made from the table of methods."""

    def __init__(self) -> None:
        self._graph = Graph()
        # One wrapper per tensor, so that results can be looked up by the tensor that was given out.
        self._wrappers: dict[Tensor, MPSGraphTensor] = {}
        self._operations: dict[Node, MPSGraphOperation] = {}
        self._options = MPSGraphOptionsDefault

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    def options(self) -> int:
        return self._options

    def setOptions_(self, options: int) -> None:
        """No effect: a run has finished when it returns."""
        self._options = whole_number("MPSGraph", "options", options)

    def placeholderTensors(self) -> list[MPSGraphTensor]:
        """In the order in which they were made."""
        nodes = [node for node in self._graph.nodes if node.op is PLACEHOLDER]
        return [self._wrap(node.results[0]) for node in nodes]

    def placeholderWithShape_dataType_name_(
        self, shape: Sequence[int], dataType: int, name: str | None
    ) -> MPSGraphTensor:
        sizes = [None if size == -1 else size for size in sizes_of("placeholder", shape)]
        dtype = type_name("placeholder", dataType)
        return self._wrap(self._graph.placeholder(shape=sizes, dtype=dtype, name=name))

    def placeholderWithShape_name_(self, shape: Sequence[int], name: str | None) -> MPSGraphTensor:
        return self.placeholderWithShape_dataType_name_(shape, MPSDataTypeFloat32, name)

    def constantWithScalar_dataType_(self, scalar: float, dataType: int) -> MPSGraphTensor:
        return self.constantWithScalar_shape_dataType_(scalar, (), dataType)

    def constantWithScalar_shape_dataType_(
        self, scalar: float, shape: Sequence[int], dataType: int
    ) -> MPSGraphTensor:
        dtype = type_name("constant", dataType)
        sizes = sizes_of("constant", shape)
        return self._wrap(self._graph.constant(scalar, shape=sizes, dtype=dtype))

    def constantWithData_shape_dataType_(
        self, data: Any, shape: Sequence[int], dataType: int
    ) -> MPSGraphTensor:
        return self._wrap(self._graph.constant(array_of("constant", data, shape, dataType)))

    def variableWithData_shape_dataType_name_(
        self, data: Any, shape: Sequence[int], dataType: int, name: str | None
    ) -> MPSGraphTensor:
        value = array_of("variable", data, shape, dataType)
        return self._wrap(self._graph.variable(value, name=name))

    def assignVariable_withValueOfTensor_name_(
        self, variable: MPSGraphTensor, tensor: MPSGraphTensor, name: str | None
    ) -> MPSGraphOperation:
        """Runs that have it among their targetOperations perform it."""
        values = unwrap("assign", "variable", variable), unwrap("assign", "tensor", tensor)
        return self._operation(self._graph.assign(*values, name=name).node)

    def applyStochasticGradientDescentWithLearningRateTensor_variable_gradientTensor_name_(
        self,
        learningRate: MPSGraphTensor,
        variable: MPSGraphVariableOp,
        gradient: MPSGraphTensor,
        name: str | None,
    ) -> MPSGraphOperation:
        """variable - learningRate · gradient, assigned; ``variable`` is a tensor's operation()."""
        label = "applyStochasticGradientDescent"
        one_of(label, "variable", MPSGraphVariableOp, variable)
        rate = unwrap(label, "learningRateTensor", learningRate)
        values = variable._node.results[0]
        step = unwrap(label, "gradientTensor", gradient)
        found = self._graph.stochastic_gradient_descent(rate, values, step)
        return self._operation(self._graph.assign(values, found, name=name).node)

    def gradientForPrimaryTensor_withTensors_name_(
        self, primary: MPSGraphTensor, tensors: Sequence[MPSGraphTensor], name: str | None
    ) -> dict[MPSGraphTensor, MPSGraphTensor]:
        wanted = _tensors("gradients", "withTensors", tensors)
        found = self._graph.gradients(unwrap("gradients", "primaryTensor", primary), wanted)
        return {self._wrap(tensor): self._wrap(gradient) for tensor, gradient in found.items()}

    def compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        self,
        device: object,
        feeds: Mapping[MPSGraphTensor, MPSGraphShapedType],
        targetTensors: _Tensors,
        targetOperations: _Operations,
        compilationDescriptor: Any,
    ) -> MPSGraphExecutable:
        one_of("compile", "device", MPSGraphDevice, device, nil=True)
        kind = MPSGraphCompilationDescriptor
        how = compilationDescriptor
        descriptor = one_of("compile", "compilationDescriptor", kind, how, nil=True)
        shapes = {}
        for tensor, shaped in _items("compile", "feeds", feeds):
            one_of("compile", "feeds", MPSGraphShapedType, shaped)
            dtype = type_name("compile", shaped.dataType())
            shapes[unwrap("compile", "feeds", tensor)] = (shaped.shape(), dtype)
        targets = _tensors("compile", "targetTensors", targetTensors)
        effects = _effects("compile", targetOperations)
        made = MPSGraphExecutable()
        made._program = self._graph.compile(shapes, targets, effects)
        made._feeds, made._targets = list(feeds), list(targetTensors)
        if descriptor is not None:
            descriptor._handler("compilationCompletionHandler", made, None)
        return made

    def _run(self, given: Mapping[str, Any]) -> _Results | None:
        """Run for targets, or for the tensors of a dictionary, into whose data the values go: at
        once, or by the commit of a command buffer. Feeds are MPSGraphTensorData, or NumPy arrays
        for convenience; a queue is ignored. The handlers are called at the end."""
        label = "encode" if "commandBuffer" in given else "run"
        kind, how = MPSGraphExecutionDescriptor, given.get("executionDescriptor")
        descriptor = one_of("run", "executionDescriptor", kind, how, nil=True)
        is_stored = "resultsDictionary" in given
        feeds = dict(_items(label, "feeds", given["feeds"]))
        if is_stored:
            results = dict(_items(label, "resultsDictionary", given["resultsDictionary"]))
            targets = _tensors(label, "resultsDictionary", list(results))
        else:
            targets = _tensors(label, "targetTensors", given["targetTensors"])
            results = {self._wrap(tensor): data_of(None) for tensor in targets}

        def work() -> None:
            arrays = {unwrap("run", "feeds", tensor): fed(data) for tensor, data in feeds.items()}
            effects = _effects("run", given["targetOperations"])
            for tensor, array in self._graph.run(arrays, targets, effects).items():
                data = results[self._wrap(tensor)]
                if is_stored:
                    store("run", f"resultsDictionary[{tensor.name}]", data, array)
                else:
                    data._values = array
            tell(descriptor, results)

        if "commandBuffer" in given:
            buffer = one_of(label, "commandBuffer", MPSCommandBuffer, given["commandBuffer"])
            buffer._encode(label, work)
        else:
            work()
        return None if is_stored else results

    def _wrap(self, tensor: Tensor) -> MPSGraphTensor:
        found = self._wrappers.get(tensor)
        if found is None:
            found = MPSGraphTensor()
            found._tensor, found._operation = tensor, self._operation(tensor.node)
            # Another thread may have been first: its wrapper is the one that was given out.
            found = self._wrappers.setdefault(tensor, found)
        return found

    def _operation(self, node: Node) -> MPSGraphOperation:
        found = self._operations.get(node)
        if found is None:
            found = (MPSGraphVariableOp if node.op is VARIABLE else MPSGraphOperation)()
            found._node, found._graph = node, self
            found = self._operations.setdefault(node, found)
        return found

    def __repr__(self) -> str:
        return f"<MPSGraph {self._graph!r}>"


def _items(label: str, name: str, values: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    if not isinstance(values, Mapping):
        raise DTypeError(refusal(label, name, "a dictionary", describe(values)))
    return values.items()


def _tensors(label: str, name: str, tensors: Sequence[MPSGraphTensor]) -> list[Tensor]:
    return [unwrap(label, name, tensor) for tensor in listed(label, name, tensors)]


def _effects(label: str, operations: Sequence[MPSGraphOperation] | None) -> list[Tensor]:
    wanted = listed(label, "targetOperations", () if operations is None else operations)
    for operation in wanted:
        one_of(label, "targetOperations", MPSGraphOperation, operation)
    return [operation._node.results[0] for operation in wanted]


def _named(method: Callable[..., Any], selector: str, calls: str, words: Sequence[str]) -> None:
    method.__name__ = method.__qualname__ = selector
    method.__doc__ = f"{selector.replace('_', ':')} — zstate.Graph.{calls}({', '.join(words)})."
    setattr(MPSGraph, selector, method)


def _check_count(selector: str, words: Sequence[str], arguments: Sequence[object]) -> None:
    if len(arguments) != len(words):
        raise TypeError(f"{selector} takes {len(words)} arguments, got {len(arguments)}")


# Every way to run a graph: the labels say what is passed.
_FIRST = {"Feeds": "feeds", "Queue": "commandQueue", "Buffer": "commandBuffer"}


def _add_run(selector: str, name: str) -> None:
    first, *labels = selector[:-1].split(":")
    words = [*(word for end, word in _FIRST.items() if first.endswith(end)), *labels]

    def method(self: MPSGraph, *arguments: Any) -> _Results | None:
        _check_count(name, words, arguments)
        return self._run(dict(zip(words, arguments, strict=True)))

    _named(method, name, "run", words)


def _add_recurrent(selector: str, operation: str, keywords: tuple[str, ...]) -> None:
    """One of the 20: positional arguments as the selector's labels name them."""
    words = ("source", *keywords, "descriptor", "name")

    def method(self: MPSGraph, *arguments: Any) -> list[MPSGraphTensor]:
        _check_count(selector, words, arguments)
        *tensors, descriptor, name = arguments
        for keyword, tensor in zip(words, tensors, strict=False):
            check_saved(OPERATIONS[operation], keyword, tensor)
        passed = {
            keyword: unwrap(operation, keyword, tensor)
            for keyword, tensor in zip(words, tensors, strict=False)
            if tensor is not None or keyword in OPERATIONS[operation].required
        }
        if not isinstance(descriptor, ObjCDescriptor):
            expected = f"MPSGraph's descriptor of {operation}"
            raise DTypeError(refusal(operation, "descriptor", expected, describe(descriptor)))
        source = passed.pop("source")
        build = getattr(self._graph, operation)
        found = build(source, **passed, descriptor=descriptor._frozen(), name=name)
        return [self._wrap(tensor) for tensor in found]

    _named(method, selector, operation, words)


def _add_operation(selector: str, target: str | Build, forms: Mapping[str, Form]) -> None:
    label, words = selector.replace("_", ":"), tuple(forms)

    def method(self: MPSGraph, *arguments: Any) -> Any:
        _check_count(selector, words, arguments)
        pairs = zip(forms.items(), arguments, strict=True)
        passed = {word: _inner(form(label, value)) for (word, form), value in pairs}
        if isinstance(target, str):
            found = getattr(self._graph, target)(**passed)
        else:
            for word in composed.TENSORS:
                if word in passed:
                    self._graph.own(label, word, passed[word])
            found = target(self._graph, **passed)
        return [self._wrap(t) for t in found] if isinstance(found, list) else self._wrap(found)

    _named(method, selector, target if isinstance(target, str) else target.__name__, words)


def _inner(value: Any) -> Any:
    """The graph's tensors behind wrappers, also in a list; anything else as it is."""
    if isinstance(value, list | tuple):
        return [each._tensor if isinstance(each, MPSGraphTensor) else each for each in value]
    return value._tensor if isinstance(value, MPSGraphTensor) else value


for _row in methods_of("MPSGraph"):
    if _row.kind == "offered" and _row.swift_name in ("run", "runAsync", "encode"):
        _add_run(_row.selector, _row.pyobjc)
for _recurrent in selectors():
    _add_recurrent(*_recurrent)
for _operation in operations():
    _add_operation(*_operation)
