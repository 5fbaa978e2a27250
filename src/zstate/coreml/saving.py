"""save: a program as MIL, and MIL as a package."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..errors import DTypeError, GraphError, OptionError, refusal
from ..graph import Executable
from ..graph.storage import cannot_write
from ..layout import describe
from .package import REFUSALS, coremltools, quiet
from .writer import LABEL, Writer, identifier


def save(program: Executable, path: str | PathLike[str]) -> None:
    """Write a compiled program as a Core ML package, with the current values of its variables.

    Args:
        program: from ``Graph.compile``; its feeds become the inputs, its targets the outputs. A
            program that updates variables raises an error.
        path: the package's path, which ends in ``.mlpackage``; an existing one is replaced.

    What MIL cannot express raises an error that names the node, and nothing is written.

    Example:
        >>> program = graph.compile({x: ((16, 1, 8), "float32")}, [scores])  # doctest: +SKIP
        >>> save(program, "Scorer.mlpackage")  # doctest: +SKIP
    """
    target = Path(path)
    if target.suffix != ".mlpackage":
        raise OptionError(refusal(LABEL, "path", "a name that ends in .mlpackage", fspath(path)))
    built = mil_program(program)
    ct = coremltools()
    try:
        with quiet():
            model = ct.convert(
                built,
                convert_to="mlprogram",
                compute_precision=ct.precision.FLOAT32,
                minimum_deployment_target=ct.target.iOS16,
                skip_model_load=True,
            )
    except (*REFUSALS, RuntimeError) as error:
        raise OptionError(f"[{LABEL}] coremltools rejects the program: {error}") from error
    folder = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        folder.mkdir()
        model.save(fspath(folder / target.name))
        _replace(folder / target.name, target, folder / "old")
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(new: Path, target: Path, old: Path) -> None:
    """Put a folder in the place of another, which comes back if that fails."""
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def mil_program(program: Executable) -> Any:
    """The program in MIL, as coremltools' ``Program``; its opset is that of iOS 16 and macOS 13."""
    ct = coremltools()
    if not isinstance(program, Executable):
        expected = "a program, from Graph.compile or Executable.load"
        raise DTypeError(refusal(LABEL, "program", expected, describe(program)))
    if program.updates:
        name = program.updates[0][0].name
        expected = "a program for inference, without operations"
        raise GraphError(refusal(LABEL, "program", expected, f"one that assigns to {name!r}"))
    from coremltools.converters.mil.mil import Builder, Function, Program

    writer = Writer(Builder, program)
    for tensor in program.feeds:
        writer.check_feed(tensor)
    names = _unique([identifier(t.name) for t in program.feeds])
    inputs = {
        name: Builder.placeholder(tensor.shape or (1,), _mil_type(tensor.dtype))
        for name, tensor in zip(names, program.feeds, strict=True)
    }
    with Function(inputs, opset_version=ct.target.iOS16) as function:
        for name, tensor in zip(names, program.feeds, strict=True):
            given = function.inputs[name]
            writer.values[tensor] = given if tensor.shape else Builder.squeeze(x=given, axes=[0])
        writer.write()
        outputs = _unique([*names, *map(identifier, program.target_names)])[len(names) :]
        function.set_outputs(
            [
                Builder.identity(x=writer.output(tensor), name=name)
                for tensor, name in zip(program.targets, outputs, strict=True)
            ]
        )
    made = Program()
    made.add_function("main", function)
    return made


def _mil_type(dtype: str) -> Any:
    from coremltools.converters.mil.mil import types

    return {"float32": types.fp32, "int32": types.int32}[dtype]


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, other = 1, name
        while other in found:
            number, other = number + 1, f"{name}_{number + 1}"
        found.append(other)
    return found
