"""MPSGraphExecutable: a compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import GraphError, OptionError, ShapeError, refusal
from ..graph import Executable
from ..graph.methods.core import listed, whole_number
from ..layout import brackets
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
        """No effect: a run has finished when it returns."""
        self._options = whole_number("MPSGraphExecutable", "options", options)

    def feedTensors(self) -> list[MPSGraphTensor] | None:
        """None for an executable from a package, which has no graph."""
        return self._feeds

    def targetTensors(self) -> list[MPSGraphTensor] | None:
        return self._targets

    def specializeWithDevice_inputTypes_compilationDescriptor_(
        self, device: object, inputTypes: Sequence[Any], compilationDescriptor: object
    ) -> None:
        """Only checks: the program is compiled for its types already."""
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
        inputsArray: Sequence[Any],
        resultsArray: Sequence[Any] | None,
        executionDescriptor: Any,
    ) -> _Data:
        """The targets' values; written into ``resultsArray`` where there is one."""
        return self._run(None, inputsArray, resultsArray, executionDescriptor)

    # The same: it runs at once, and the handlers are called before this returns.
    runAsyncWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_ = (
        runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_
    )

    def encodeToCommandBuffer_inputsArray_resultsArray_executionDescriptor_(
        self,
        commandBuffer: Any,
        inputsArray: Sequence[Any],
        resultsArray: Sequence[Any] | None,
        executionDescriptor: Any,
    ) -> _Data:
        """Run when the command buffer is committed; the results have their values then."""
        buffer = one_of("encode", "commandBuffer", MPSCommandBuffer, commandBuffer)
        return self._run(buffer, inputsArray, resultsArray, executionDescriptor)

    def _run(
        self,
        buffer: MPSCommandBuffer | None,
        inputsArray: Sequence[Any],
        resultsArray: Sequence[Any] | None,
        executionDescriptor: Any,
    ) -> _Data:
        label, kind = "run" if buffer is None else "encode", MPSGraphExecutableExecutionDescriptor
        descriptor = one_of("run", "executionDescriptor", kind, executionDescriptor, nil=True)
        inputs, count = listed(label, "inputsArray", inputsArray), len(self._program.targets)
        results = [data_of(None) for _ in range(count)]
        if resultsArray is not None:
            results = listed(label, "resultsArray", resultsArray)
        if len(results) != count:
            expected = f"{count} results"
            raise GraphError(refusal(label, "resultsArray", expected, str(len(results))))

        def work() -> None:
            arrays = self._program.run([fed(value) for value in inputs])
            for data, array in zip(results, arrays, strict=True):
                if resultsArray is None:
                    data._values = array
                else:
                    store("run", "resultsArray", data, array)
            tell(descriptor, results)

        if buffer is None:
            work()
        else:
            buffer._encode(label, work)
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
