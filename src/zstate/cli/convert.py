"""Convert the weights of recurrent layers from one framework's conventions to another's.

Reads and writes .safetensors, .npz, .onnx, .keras and .h5, and reads .pt and .pth. The
whole of IN is converted only if it is a stack of recurrent layers, each fed by the one before it.
From any other model, --only takes layers by name; the command prints what it left out. If the
target cannot express an option, an error names it and nothing is written.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..convert import FRAMEWORKS, Layer, facts, load
from ..convert.contents import shown
from ..convert.files import check_target, read, write
from ..convert.limits import MIB
from ..errors import OptionError, refusal, visible
from . import at_least_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two files, the two frameworks, and the facts that the arrays do not hold."""
    parser.add_argument("input", metavar="IN", help="the file to read")
    parser.add_argument("output", metavar="OUT", help="the file to write")
    parser.add_argument(
        "--from", dest="source", required=True, choices=list(FRAMEWORKS), help="framework of IN"
    )
    parser.add_argument(
        "--to", dest="target", required=True, choices=list(FRAMEWORKS), help="framework of OUT"
    )
    parser.add_argument(
        "--cell", choices=["rnn", "lstm", "gru"], help="cell of the layers (default: read from IN)"
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        default=[],
        help="take only this layer, or the layers whose names begin with this path; may be "
        "repeated. The layers keep their names and are not connected to each other",
    )
    parser.add_argument(
        "--fact",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of IN's layers under its framework's name, such as nonlinearity=relu",
    )
    parser.add_argument(
        "--weights",
        choices=["float", "int8"],
        default="float",
        help="int8 writes the matrices in 8 bits, each with its scales as NAME.scale, to a "
        ".safetensors file; IN can be such a file too (default: float, as in IN)",
    )
    parser.add_argument(
        "--limit",
        metavar="MIB",
        type=at_least_one(int),
        help="reject a file whose arrays take more memory than this (default: 256 MiB, or 16 "
        "times the size of IN if that is more)",
    )


def run(options: argparse.Namespace) -> int:
    """Convert, and print each layer with the facts for OUT's framework."""
    console = Console(soft_wrap=True, highlight=False)
    check_target(options.output, options.target)
    told = dict(_fact(text) for text in options.fact)
    limit = None if options.limit is None else int(options.limit) * MIB
    chosen = read(options.input, options.source, options.only, limit)
    stacks = {}
    for name, pieces in chosen.stacks.items():
        found = load(pieces, options.source, options.cell, **told)
        stacks[name] = found if isinstance(found, list) else [found]
    write(options.output, stacks, options.target, int8=options.weights == "int8")
    for name, layers in stacks.items():
        for number, layer in enumerate(layers):
            title = (f"{name} {number}" if len(layers) > 1 else name) or str(number)
            console.print(f"layer {escape(visible(title.strip()))}: {_title(layer)}")
            words = facts(layer, options.target).items()
            text = " ".join(f"{k}={json.dumps(v)}" for k, v in words)
            if text:
                console.print(f"  {options.target}: {escape(text)}")
    if chosen.left_out:
        console.print(f"left out: {escape(shown(chosen.left_out))}")
    console.print(f"wrote {escape(visible(options.output))}")
    return 0


def _fact(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(refusal("convert", "--fact", "NAME=VALUE", repr(text)))
    try:
        return name, json.loads(value.lower() if value in ("True", "False") else value)
    except ValueError:
        return name, value


def _title(layer: Layer) -> str:
    both = ", both directions" if layer.directions == 2 else ""
    return f"{layer.cell}, {layer.inputs} inputs, {layer.hidden} units{both}"
