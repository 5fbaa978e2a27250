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

from ..convert import FRAMEWORKS, Layer, facts, load
from ..convert.contents import shown
from ..convert.files import check_target, read, write
from ..convert.limits import MIB
from ..errors import OptionError, refusal, visible
from .arguments import add_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two files, the two frameworks, and the facts that the arrays do not hold."""
    add, frameworks = parser.add_argument, list(FRAMEWORKS)
    add("input", metavar="IN", help="the file to read")
    add("output", metavar="OUT", help="the file to write")
    add("--from", dest="source", required=True, choices=frameworks, help="framework of IN")
    add("--to", dest="target", required=True, choices=frameworks, help="framework of OUT")
    cells = ["rnn", "lstm", "gru"]
    add("--cell", choices=cells, help="cell of the layers (default: read from IN)")
    only = (
        "take only this layer, or the layers whose names begin with this path; may be repeated. "
        "The layers keep their names and are not connected to each other"
    )
    add("--only", metavar="NAME", action="append", default=[], help=only)
    fact = "an option of IN's layers under its framework's name, such as nonlinearity=relu"
    add("--fact", metavar="NAME=VALUE", action="append", default=[], help=fact)
    weights = (
        "int8 writes the matrices in 8 bits, each with its scales as NAME.scale, to a .safetensors "
        "file; IN can be such a file too (default: float, as in IN)"
    )
    add("--weights", choices=["float", "int8"], default="float", help=weights)
    limit = (
        "reject a file whose arrays take more memory than this (default: 256 MiB, or 16 times the "
        "size of IN if that is more)"
    )
    add_number(parser, "--limit", limit, metavar="MIB")


def run(options: argparse.Namespace) -> int:
    """Convert, and print each layer with the facts for OUT's framework."""
    from rich.console import Console
    from rich.markup import escape

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
