"""Convert the weights of recurrent layers from one framework's conventions to another's.

Reads and writes .safetensors, .npz, .onnx, .keras and .h5. What the target cannot express is
refused by name, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..convert import FRAMEWORKS, Layer, facts, load
from ..convert.files import check_target, read, write
from ..errors import OptionError, refusal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two files, the two frameworks, and what the arrays do not say."""
    parser.add_argument("input", metavar="IN", help="the file to read")
    parser.add_argument("output", metavar="OUT", help="the file to write")
    parser.add_argument(
        "--from", dest="source", required=True, choices=list(FRAMEWORKS), help="framework of IN"
    )
    parser.add_argument(
        "--to", dest="target", required=True, choices=list(FRAMEWORKS), help="framework of OUT"
    )
    parser.add_argument("--cell", choices=["rnn", "lstm", "gru"], help="found out if left out")
    parser.add_argument(
        "--only", metavar="PREFIX", default="", help="take only arrays whose names begin with this"
    )
    parser.add_argument(
        "--fact",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of IN's layers in its framework's words, such as nonlinearity=relu",
    )


def run(options: argparse.Namespace) -> int:
    """Convert, and print each layer with what OUT's framework has to be told."""
    console = Console(soft_wrap=True, highlight=False)
    check_target(options.output, options.target)
    told = dict(_fact(text) for text in options.fact)
    weights = read(options.input, options.source, options.only)
    found = load(weights, options.source, options.cell, **told)
    layers = found if isinstance(found, list) else [found]
    write(options.output, layers, options.target)
    for number, layer in enumerate(layers):
        console.print(f"layer {number}: {_title(layer)}")
        words = " ".join(f"{k}={json.dumps(v)}" for k, v in facts(layer, options.target).items())
        if words:
            console.print(f"  {options.target}: {escape(words)}")
    console.print(f"wrote {escape(options.output)}")
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
