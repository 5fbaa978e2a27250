"""MPSGraph. Its operations are made from the two tables of selectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import DTypeError, refusal
from ..graph import Graph, Tensor
from ..graph.methods.core import listed, whole_number
from ..graph.ops import PLACEHOLDER, VARIABLE
from ..graph.tensor import Node
from ..layout import describe
from ..operations import OPERATIONS, check_saved
from ..types import Array
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
from .operations import TENSORS, keyword_of, operation_selectors
from .recurrent import selectors

_Feeds = Mapping[MPSGraphTensor, Any]
_Tensors = Sequence[MPSGraphTensor]
_Operations = Sequence[MPSGraphOperation] | None
_Results = dict[MPSGraphTensor, MPSGraphTensorData]


class MPSGraph(NSObject):
    """A graph. Its recurrent methods and its operations are made from tables."""

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
        """Nothing follows: results are always those of a run that is over."""
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

    def runWithFeeds_targetTensors_targetOperations_(
        self, feeds: _Feeds, targetTensors: _Tensors, targetOperations: _Operations
    ) -> _Results:
        """Run; feeds are MPSGraphTensorData, or NumPy arrays for convenience."""
        targets = listed("run", "targetTensors", targetTensors)
        found = self._values(feeds, targets, targetOperations)
        return {tensor: data_of(array) for tensor, array in found.items()}

    def runWithMTLCommandQueue_feeds_targetTensors_targetOperations_(
        self,
        commandQueue: object,
        feeds: _Feeds,
        targetTensors: _Tensors,
        targetOperations: _Operations,
    ) -> _Results:
        """The same; the queue is ignored."""
        run = self.runWithFeeds_targetTensors_targetOperations_
        return run(feeds, targetTensors, targetOperations)

    def runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_(
        self,
        commandQueue: object,
        feeds: _Feeds,
        targetOperations: _Operations,
        resultsDictionary: Mapping[MPSGraphTensor, MPSGraphTensorData],
    ) -> None:
        """Run for the dictionary's tensors, and write their values into its data."""
        wanted = dict(_items("run", "resultsDictionary", resultsDictionary))
        self._store(self._values(feeds, list(wanted), targetOperations), wanted)

    def runAsyncWithFeeds_targetTensors_targetOperations_executionDescriptor_(
        self,
        feeds: _Feeds,
        targetTensors: _Tensors,
        targetOperations: _Operations,
        executionDescriptor: Any,
    ) -> _Results:
        """Run at once; the descriptor's handlers are called before this returns."""
        descriptor = _run_descriptor(executionDescriptor)
        run = self.runWithFeeds_targetTensors_targetOperations_
        found = run(feeds, targetTensors, targetOperations)
        tell(descriptor, found)
        return found

    def runAsyncWithMTLCommandQueue_feeds_targetTensors_targetOperations_executionDescriptor_(
        self,
        commandQueue: object,
        feeds: _Feeds,
        targetTensors: _Tensors,
        targetOperations: _Operations,
        executionDescriptor: Any,
    ) -> _Results:
        """The same; the queue is ignored."""
        run = self.runAsyncWithFeeds_targetTensors_targetOperations_executionDescriptor_
        return run(feeds, targetTensors, targetOperations, executionDescriptor)

    def runAsyncWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_executionDescriptor_(
        self,
        commandQueue: object,
        feeds: _Feeds,
        targetOperations: _Operations,
        resultsDictionary: Mapping[MPSGraphTensor, MPSGraphTensorData],
        executionDescriptor: Any,
    ) -> None:
        """Run at once for the dictionary's tensors, write, and call the handlers."""
        descriptor = _run_descriptor(executionDescriptor)
        run = self.runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_
        run(commandQueue, feeds, targetOperations, resultsDictionary)
        tell(descriptor, resultsDictionary)

    def encodeToCommandBuffer_feeds_targetTensors_targetOperations_executionDescriptor_(
        self,
        commandBuffer: Any,
        feeds: _Feeds,
        targetTensors: _Tensors,
        targetOperations: _Operations,
        executionDescriptor: Any,
    ) -> _Results:
        """Run when the command buffer is committed; the results have their values then."""
        targets = listed("encode", "targetTensors", targetTensors)
        _tensors("encode", "targetTensors", targets)
        results = {tensor: data_of(None) for tensor in targets}

        def fill(found: dict[MPSGraphTensor, Array]) -> None:
            for tensor, array in found.items():
                results[tensor]._values = array

        self._encode(commandBuffer, feeds, results, targetOperations, executionDescriptor, fill)
        return results

    def encodeToCommandBuffer_feeds_targetOperations_resultsDictionary_executionDescriptor_(
        self,
        commandBuffer: Any,
        feeds: _Feeds,
        targetOperations: _Operations,
        resultsDictionary: Mapping[MPSGraphTensor, MPSGraphTensorData],
        executionDescriptor: Any,
    ) -> None:
        """Run when the command buffer is committed, and write into the dictionary's data."""
        wanted = dict(_items("encode", "resultsDictionary", resultsDictionary))
        self._encode(
            commandBuffer,
            feeds,
            wanted,
            targetOperations,
            executionDescriptor,
            lambda found: self._store(found, wanted),
        )

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

    def _values(
        self, feeds: _Feeds, targets: Sequence[Any], operations: _Operations
    ) -> dict[MPSGraphTensor, Array]:
        arrays = {
            unwrap("run", "feeds", t): fed(value) for t, value in _items("run", "feeds", feeds)
        }
        wanted = _tensors("run", "targetTensors", targets)
        found = self._graph.run(arrays, wanted, _effects("run", operations))
        return {self._wrap(tensor): array for tensor, array in found.items()}

    def _store(self, found: Mapping[Any, Array], wanted: Mapping[Any, object]) -> None:
        for tensor, array in found.items():
            store("run", f"resultsDictionary[{tensor._tensor.name}]", wanted[tensor], array)

    def _encode(
        self,
        commandBuffer: object,
        feeds: _Feeds,
        results: Mapping[Any, Any],
        operations: _Operations,
        executionDescriptor: object,
        finish: Callable[[dict[MPSGraphTensor, Array]], None],
    ) -> None:
        descriptor = _run_descriptor(executionDescriptor)
        kept = dict(_items("encode", "feeds", feeds))

        def work() -> None:
            finish(self._values(kept, list(results), operations))
            tell(descriptor, results)

        one_of("encode", "commandBuffer", MPSCommandBuffer, commandBuffer)._encode("encode", work)

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


def _run_descriptor(value: object) -> Any:
    return one_of("run", "executionDescriptor", MPSGraphExecutionDescriptor, value, nil=True)


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


def _add_operation(selector: str, target: str | Build, words: tuple[str, ...]) -> None:
    label = selector.replace("_", ":")

    def method(self: MPSGraph, *arguments: Any) -> Any:
        _check_count(selector, words, arguments)
        given = [keyword_of(label, *pair) for pair in zip(words, arguments, strict=True)]
        passed = {keyword: _inner(value) for keyword, value in given if keyword}
        if isinstance(target, str):
            found = getattr(self._graph, target)(**passed)
        else:
            for word in TENSORS:
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


for _recurrent in selectors():
    _add_recurrent(*_recurrent)
for _operation in operation_selectors():
    _add_operation(*_operation)
