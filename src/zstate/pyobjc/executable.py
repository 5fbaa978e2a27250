"""MPSGraphExecutable: a compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import GraphError, OptionError, ShapeError, refusal
from ..graph import Executable
from ..graph.methods.core import listed, whole_number
from ..layout import brackets
from ..types import Array
from .base import NSObject, one_of
from .constants import DATA_TYPE_NUMBERS, MPSGraphOptionsDefault
from .descriptors import (
    MPSGraphCompilationDescriptor,
    MPSGraphExecutableExecutionDescriptor,
    MPSGraphExecutableSerializationDescriptor,
    tell,
)
from .foundation import NSURL
from .metal import MPSCommandBuffer
from .ndarrays import MPSGraphTensorData, data_of, fed, store
from .objects import MPSGraphShapedType, MPSGraphTensor

_Inputs = Sequence[Any]
_Data = list[MPSGraphTensorData]


_PROGRAM = "zstate.safetensors"  # in a package, which is a folder


class MPSGraphExecutable(NSObject):
    """A compiled graph. Its feeds are in the order in which ``feeds`` had them."""

    _program: Executable
    _feeds: list[MPSGraphTensor] | None = None
    _targets: list[MPSGraphTensor] | None = None
    _options: int = MPSGraphOptionsDefault

    def initWithMPSGraphPackageAtURL_compilationDescriptor_(
        self, url: NSURL, compilationDescriptor: object
    ) -> MPSGraphExecutable:
        """The executable in a package that ``serializeTo…`` wrote here: Apple's are not read."""
        label, kind = "initWithMPSGraphPackage", MPSGraphCompilationDescriptor
        one_of(label, "compilationDescriptor", kind, compilationDescriptor, nil=True)
        folder = Path(one_of(label, "URL", NSURL, url).path())
        if not (folder / _PROGRAM).is_file():
            expected = "a package that zstate wrote"
            raise GraphError(refusal(label, "URL", expected, f"{str(folder)!r}"))
        self._program = Executable.load(folder / _PROGRAM)
        return self

    def serializeToMPSGraphPackageAtURL_descriptor_(self, url: NSURL, descriptor: object) -> None:
        """Write a package that zstate reads, in place of one that it wrote. Apple's framework does
        not read it."""
        label, kind = "serialize", MPSGraphExecutableSerializationDescriptor
        how = one_of(label, "descriptor", kind, descriptor, nil=True)
        folder = Path(one_of(label, "URL", NSURL, url).path())
        if how is not None and how.append():
            raise OptionError(refusal(label, "append", "False", "True"))
        if folder.exists() and any(path.name != _PROGRAM for path in folder.iterdir()):
            expected, got = "a new package, or one that zstate wrote", f"{str(folder)!r}"
            raise GraphError(refusal(label, "URL", expected, got))
        folder.mkdir(exist_ok=True)
        self._program.save(folder / _PROGRAM)

    def options(self) -> int:
        return self._options

    def setOptions_(self, options: int) -> None:
        """No effect: results are always those of a run that is over."""
        self._options = whole_number("MPSGraphExecutable", "options", options)

    def feedTensors(self) -> list[MPSGraphTensor] | None:
        """None where it comes from a package, without its graph."""
        return self._feeds

    def targetTensors(self) -> list[MPSGraphTensor] | None:
        return self._targets

    def specializeWithDevice_inputTypes_compilationDescriptor_(
        self, device: object, inputTypes: Sequence[Any], compilationDescriptor: object
    ) -> None:
        """Nothing to do but to check: a program is compiled for its types already."""
        self._check_types("specialize", inputTypes)

    def getOutputTypesWithDevice_inputTypes_compilationDescriptor_(
        self, device: object, inputTypes: Sequence[Any], compilationDescriptor: object
    ) -> list[MPSGraphShapedType]:
        self._check_types("getOutputTypes", inputTypes)
        return [
            MPSGraphShapedType.alloc().initWithShape_dataType_(
                list(info.shape), DATA_TYPE_NUMBERS[info.dtype]
            )
            for info in self._program.targets
        ]

    def runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        self,
        commandQueue: object,
        inputsArray: _Inputs,
        resultsArray: Sequence[MPSGraphTensorData] | None,
        executionDescriptor: Any,
    ) -> _Data:
        """The targets' values; written into ``resultsArray`` where there is one."""
        descriptor = _descriptor(executionDescriptor)
        found = self._finished(resultsArray, self._values(inputsArray))
        tell(descriptor, found)
        return found

    # The same: it runs at once, and the handlers are called before this returns.
    runAsyncWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_ = (
        runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_
    )

    def encodeToCommandBuffer_inputsArray_resultsArray_executionDescriptor_(
        self,
        commandBuffer: Any,
        inputsArray: _Inputs,
        resultsArray: Sequence[MPSGraphTensorData] | None,
        executionDescriptor: Any,
    ) -> _Data:
        """Run when the command buffer is committed; the results have their values then."""
        descriptor = _descriptor(executionDescriptor)
        inputs = listed("encode", "inputsArray", inputsArray)
        results = [data_of(None) for _ in self._program.targets]
        if resultsArray is not None:
            results = listed("encode", "resultsArray", resultsArray)

        def work() -> None:
            arrays = self._values(inputs)
            if resultsArray is not None:
                self._finished(results, arrays)
            else:
                for data, array in zip(results, arrays, strict=True):
                    data._values = array
            tell(descriptor, results)

        one_of("encode", "commandBuffer", MPSCommandBuffer, commandBuffer)._encode("encode", work)
        return results

    def _values(self, inputsArray: _Inputs) -> list[Array]:
        inputs = listed("run", "inputsArray", inputsArray)
        return self._program.run([fed(value) for value in inputs])

    def _finished(self, results: Sequence[Any] | None, arrays: list[Array]) -> _Data:
        if results is None:
            return [data_of(array) for array in arrays]
        results = listed("run", "resultsArray", results)
        if len(results) != len(arrays):
            expected = f"{len(arrays)} results"
            raise GraphError(refusal("run", "resultsArray", expected, str(len(results))))
        for data, array in zip(results, arrays, strict=True):
            store("run", "resultsArray", data, array)
        return results

    def _check_types(self, label: str, types: Sequence[Any]) -> None:
        feeds, given = self._program.feeds, listed(label, "inputTypes", types)
        if len(given) != len(feeds):
            raise GraphError(refusal(label, "inputTypes", f"{len(feeds)} types", str(len(given))))
        for tensor, kind in zip(feeds, given, strict=True):
            one_of(label, "inputTypes", MPSGraphShapedType, kind)
            wanted = list(tensor.shape), DATA_TYPE_NUMBERS[tensor.dtype]
            if (list(kind.shape()), kind.dataType()) != wanted:
                expected = f"{tensor.dtype}{brackets(tensor.shape)} for {tensor.name}"
                raise ShapeError(refusal(label, "inputTypes", expected, repr(kind)))

    def __repr__(self) -> str:
        return f"<MPSGraphExecutable {self._program!r}>"


def _descriptor(value: object) -> Any:
    kind = MPSGraphExecutableExecutionDescriptor
    return one_of("run", "executionDescriptor", kind, value, nil=True)
