"""Export the model of a `zstate train` run as a generator for another runtime.

One call takes characters as numbers and the state of every layer. It returns the logits of the next
characters and the new states, which the caller feeds to the next call. A .json file with the same
name holds the alphabet, and the names and shape of the states.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OptionError
from ..graph.storage import replacing
from ..train.about import ABOUT
from .arguments import add_number, add_run, check_ending, check_writable

if TYPE_CHECKING:
    from ..graph import Executable

_BESIDE = {"swift": (".safetensors",)}  # the weights, which .onnx and .mlpackage have inside
_ENDINGS = {"onnx": ".onnx", "swift": ".swift", "coreml": ".mlpackage"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, the format and the file."""
    add_run(parser)
    parser.add_argument(
        "--to",
        required=True,
        choices=list(_ENDINGS),
        help="ONNX, Swift that builds the model with MPSGraph, or a Core ML package",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="file to write (default: RUN/generator with the right ending)"
    )
    add_number(parser, "--steps", "characters per call", 1)


def run(options: argparse.Namespace) -> int:
    """Write the model, then what its caller has to know."""
    from ..train.loop import checkpoint_of, load_model

    folder = Path(options.run_folder)
    ending = _ENDINGS[options.to]
    path = folder / f"generator{ending}" if options.out is None else Path(options.out)
    check_ending("export", "--out", path, [ending])
    model, alphabet, prompt = load_model(folder)
    beside = [path.with_suffix(end) for end in (*_BESIDE.get(options.to, ()), ".json")]
    for each in beside if options.to == "coreml" else [path, *beside]:
        check_writable("export", "--out", each)
        for own in (folder / ABOUT, checkpoint_of(folder)):
            if each.exists() and each.samefile(own):
                raise OptionError(
                    f"[export] --out {path}: {each.name} beside it would overwrite the run's own; "
                    "choose another name"
                )
    program = model.generator_program(options.steps)
    _WRITERS[options.to](program, path)
    written = [path, *beside]
    states = [tensor.name for tensor in program.feeds[1:]]
    about = {
        "alphabet": alphabet.alphabet,
        "prompt": prompt,
        "characters": [options.steps, 1],
        "states": {name: f"new_{name}" for name in states},
        "state_shape": [1, model.settings.hidden],
    }
    with replacing(written[-1]) as file:
        file.write(json.dumps(about, indent=1).encode() + b"\n")
    for each in written:
        print(f"wrote {each}")
    print(f"characters, {', '.join(states)} -> {', '.join(program.target_names)}")
    return 0


def _onnx(program: Executable, path: Path) -> None:
    from ..onnx import save

    save(program.graph, dict(zip(program.target_names, program.targets, strict=True)), path)


def _swift(program: Executable, path: Path) -> None:
    weights = path.with_suffix(".safetensors")
    text = program.to_swift("Generator", weights=weights.name)
    program.save(weights)
    with replacing(path) as file:
        file.write(text.encode())


def _coreml(program: Executable, path: Path) -> None:
    from ..coreml import save

    save(program, path)


_WRITERS = {"onnx": _onnx, "swift": _swift, "coreml": _coreml}
