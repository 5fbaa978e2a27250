"""MPSGraph and MPSGraphExecutable. Their operations are made from the two tables of selectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import DTypeError, GraphError, ShapeError, refusal
from ..graph import Executable, Graph, Tensor
from ..graph.methods.core import listed
from ..layout import brackets, describe
from ..operations import OPERATIONS, check_saved
from .constants import MPSDataTypeFloat32, type_name
from .descriptors import ObjCDescriptor
from .objects import (
    MPSGraphOperation,
    MPSGraphShapedType,
    MPSGraphTensor,
    MPSGraphTensorData,
    NSObject,
    array_of,
    data_of,
    fed,
    sizes_of,
    unwrap,
)
from .operations import Build, keyword_of, operation_selectors
from .recurrent import selectors


class MPSGraph(NSObject):
    """A graph. Its recurrent methods and its operations are made from tables."""

    def __init__(self) -> None:
        self._graph = Graph()
        # One wrapper per tensor, so that results can be looked up by the tensor that was given out.
        self._wrappers: dict[Tensor, MPSGraphTensor] = {}

    @classmethod
    def alloc(cls) -> Any:
        return cls()

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
        made = MPSGraphOperation()
        values = unwrap("assign", "variable", variable), unwrap("assign", "tensor", tensor)
        made._tensor = self._graph.assign(*values, name=name)
        return made

    def gradientForPrimaryTensor_withTensors_name_(
        self, primary: MPSGraphTensor, tensors: Sequence[MPSGraphTensor], name: str | None
    ) -> dict[MPSGraphTensor, MPSGraphTensor]:
        wanted = _tensors("gradients", "withTensors", tensors)
        found = self._graph.gradients(unwrap("gradients", "primaryTensor", primary), wanted)
        return {self._wrap(tensor): self._wrap(gradient) for tensor, gradient in found.items()}

    def runWithFeeds_targetTensors_targetOperations_(
        self,
        feeds: Mapping[MPSGraphTensor, Any],
        targetTensors: Sequence[MPSGraphTensor],
        targetOperations: Sequence[MPSGraphOperation] | None,
    ) -> dict[MPSGraphTensor, MPSGraphTensorData]:
        """Run; feeds are MPSGraphTensorData, or NumPy arrays for convenience."""
        arrays = {unwrap("run", "feeds", t): fed(value) for t, value in _items("run", feeds)}
        targets = _tensors("run", "targetTensors", targetTensors)
        found = self._graph.run(arrays, targets, _effects("run", targetOperations))
        return {self._wrap(tensor): data_of(array) for tensor, array in found.items()}

    def runWithMTLCommandQueue_feeds_targetTensors_targetOperations_(
        self,
        commandQueue: object,
        feeds: Mapping[MPSGraphTensor, Any],
        targetTensors: Sequence[MPSGraphTensor],
        targetOperations: Sequence[MPSGraphOperation] | None,
    ) -> dict[MPSGraphTensor, MPSGraphTensorData]:
        """The same; the queue is ignored."""
        run = self.runWithFeeds_targetTensors_targetOperations_
        return run(feeds, targetTensors, targetOperations)

    def compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        self,
        device: object,
        feeds: Mapping[MPSGraphTensor, MPSGraphShapedType],
        targetTensors: Sequence[MPSGraphTensor],
        targetOperations: Sequence[MPSGraphOperation] | None,
        compilationDescriptor: object,
    ) -> MPSGraphExecutable:
        shapes = {}
        for tensor, kind in _items("compile", feeds):
            if not isinstance(kind, MPSGraphShapedType):
                got = describe(kind)
                raise DTypeError(refusal("compile", "feeds", "an MPSGraphShapedType", got))
            dtype = type_name("compile", kind.dataType())
            shapes[unwrap("compile", "feeds", tensor)] = (kind.shape(), dtype)
        targets = _tensors("compile", "targetTensors", targetTensors)
        effects = _effects("compile", targetOperations)
        made = MPSGraphExecutable()
        made._program = self._graph.compile(shapes, targets, effects)
        made._feeds, made._targets = list(feeds), list(targetTensors)
        return made

    def _wrap(self, tensor: Tensor) -> MPSGraphTensor:
        found = self._wrappers.get(tensor)
        if found is None:
            found = MPSGraphTensor()
            found._tensor = tensor
            # Another thread may have been first: its wrapper is the one that was given out.
            found = self._wrappers.setdefault(tensor, found)
        return found

    def __repr__(self) -> str:
        return f"<MPSGraph {self._graph!r}>"


class MPSGraphExecutable(NSObject):
    """A compiled graph. Its feeds are in the order in which ``feeds`` had them."""

    _program: Executable
    _feeds: list[MPSGraphTensor]
    _targets: list[MPSGraphTensor]

    def feedTensors(self) -> list[MPSGraphTensor]:
        return self._feeds

    def targetTensors(self) -> list[MPSGraphTensor]:
        return self._targets

    def __repr__(self) -> str:
        return f"<MPSGraphExecutable {self._program!r}>"

    def runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        self,
        commandQueue: object,
        inputsArray: Sequence[Any],
        resultsArray: Sequence[MPSGraphTensorData] | None,
        executionDescriptor: object,
    ) -> list[MPSGraphTensorData]:
        """The targets' values; written into ``resultsArray`` where there is one."""
        inputs = listed("run", "inputsArray", inputsArray)
        arrays = self._program.run([fed(value) for value in inputs])
        if resultsArray is None:
            return [data_of(array) for array in arrays]
        if len(resultsArray) != len(arrays):
            expected = f"{len(arrays)} results"
            raise GraphError(refusal("run", "resultsArray", expected, str(len(resultsArray))))
        for data, array in zip(resultsArray, arrays, strict=True):
            if not isinstance(data, MPSGraphTensorData):
                expected = "MPSGraphTensorData"
                raise DTypeError(refusal("run", "resultsArray", expected, describe(data)))
            if (data._array.shape, data._array.dtype) != (array.shape, array.dtype):
                wanted = f"{array.dtype}{brackets(array.shape)}"
                got = f"{data._array.dtype}{brackets(data._array.shape)}"
                raise ShapeError(refusal("run", "resultsArray", wanted, got))
            data._array = array
        return list(resultsArray)


def _items(label: str, feeds: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    if not isinstance(feeds, Mapping):
        raise DTypeError(refusal(label, "feeds", "a dictionary", describe(feeds)))
    return feeds.items()


def _tensors(label: str, name: str, tensors: Sequence[MPSGraphTensor]) -> list[Tensor]:
    return [unwrap(label, name, tensor) for tensor in listed(label, name, tensors)]


def _effects(label: str, operations: Sequence[MPSGraphOperation] | None) -> list[Tensor]:
    wanted = listed(label, "targetOperations", () if operations is None else operations)
    for operation in wanted:
        if not isinstance(operation, MPSGraphOperation):
            expected = "an MPSGraphOperation"
            raise DTypeError(refusal(label, "targetOperations", expected, describe(operation)))
    return [operation._tensor for operation in wanted]


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
            found = target(self._graph, **passed)
        return [self._wrap(t) for t in found] if isinstance(found, list) else self._wrap(found)

    _named(method, selector, target if isinstance(target, str) else target.__name__[1:], words)


def _inner(value: Any) -> Any:
    """The graph's tensors behind wrappers, also in a list; anything else as it is."""
    if isinstance(value, MPSGraphTensor):
        return value._tensor
    if isinstance(value, list | tuple):
        return [_inner(item) for item in value]
    return value


for _recurrent in selectors():
    _add_recurrent(*_recurrent)
for _operation in operation_selectors():
    _add_operation(*_operation)
