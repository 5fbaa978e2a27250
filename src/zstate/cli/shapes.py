"""Print every tensor of an operation with its shape, and the order of its gradients."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from ..cells import CELLS
from ..descriptors import AnyDescriptor
from ..errors import OptionError, ShapeError, refusal
from ..layout import DESCRIPTORS, Layout, brackets, gate_order
from ..operations import OPERATIONS, Operation
from . import at_least_zero

if TYPE_CHECKING:
    from rich.console import Console

# What a tensor is, in a few words; the letters are those of docs/equations.md.
_MEANINGS = {
    "source": "x, the input",
    "recurrent_weight": "R",
    "input_weight": "W; without it, source is already projected",
    "bias": "b",
    "init_state": "h[-1]",
    "init_cell": "c[-1]",
    "mask": "m, multiplies h[t-1] before R; any shape that broadcasts",
    "peephole": "p, all gates look at c[t-1]",
    "secondary_bias": "b2, inside the reset",
    "resets": "true where step t begins a new sequence; not in MPSGraph",
    "state": "h, every step",
    "cell": "c, every step",
    "training_state": "zState, for the gradients",
    "source_gradient": "gradient of h, every step",
    "z_state": "zState of the forward operation",
    "cell_output_fwd": "c of the forward operation",
    "output_fwd": "h of the forward operation",
    "state_gradient": "gradient of the last h",
    "cell_gradient": "gradient of the last c, or of every c",
}

_CELLS = {cell.short: cell.name for cell in CELLS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sizes, and a flag for each option that changes a shape or an order."""
    parser.add_argument("cell", choices=_CELLS, help="the operation family")
    for letter, meaning in (("T", "time steps"), ("N", "batch"), ("I", "inputs"), ("H", "hidden")):
        parser.add_argument(
            f"-{letter}",
            type=at_least_zero(int),
            metavar=letter,
            help=f"{meaning}; symbolic if omitted",
        )
    parser.add_argument(
        "--pre-projected",
        action="store_true",
        help="the source is already projected: no input_weight",
    )
    for flag in ("bidirectional", "reverse", "produce-cell", "forget-gate-last"):
        parser.add_argument(f"--{flag}", action="store_true")
    for flag in ("reset-gate-first", "reset-after"):
        parser.add_argument(f"--{flag}", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Print the tables."""
    from rich.console import Console

    console = Console()
    name = _CELLS[options.cell]
    if options.H == 0:
        raise ShapeError(refusal("shapes", "-H", "at least 1", "0"))
    fields = {field.name for field in dataclasses.fields(DESCRIPTORS[name])}
    flags = {flag for flag, value in vars(options).items() if value is True} - {"pre_projected"}
    if flags - fields:
        wrong = ", ".join(f"--{flag.replace('_', '-')}" for flag in sorted(flags - fields))
        raise OptionError(refusal("shapes", "options", f"those of {name}", wrong))
    chosen: dict[str, Any] = dict.fromkeys(flags, True)
    descriptor = DESCRIPTORS[name](**chosen, training=True)
    _print(console, OPERATIONS[name], OPERATIONS[f"{name}_gradients"], descriptor, options)
    return 0


def _layout(operation: Operation, descriptor: AnyDescriptor, options: argparse.Namespace) -> Layout:
    present = set(operation.inputs)
    if options.pre_projected:
        present.discard("input_weight")
    if not getattr(descriptor, "reset_after", False):
        present.discard("secondary_bias")
    letters = {letter: getattr(options, letter) for letter in "TNIH"}
    return Layout(operation, descriptor, "float32", letters, frozenset(present))


def _print(
    console: Console,
    forward: Operation,
    backward: Operation,
    descriptor: AnyDescriptor,
    options: argparse.Namespace,
) -> None:
    order = ", ".join(gate_order(descriptor))
    console.print(f"[bold]{forward.name}[/]  gates along the G·H axis: {order}")
    if descriptor.bidirectional:
        console.print("two directions; the reverse half is aligned with input time")
    elif descriptor.reverse:
        console.print("reverse: per-step outputs are in processing order, out[0] belongs to x[T-1]")
    there, back = _layout(forward, descriptor, options), _layout(backward, descriptor, options)
    _table(console, f"{forward.name}: inputs", there, _inputs(there), False)
    _table(console, f"{forward.name}: outputs, with training", there, there.result_names(), True)
    _table(console, f"{backward.name}: inputs", back, _inputs(back), False)
    _table(console, f"{backward.name}: gradients, in this order", back, back.result_names(), True)
    console.print("An input that is not passed has no slot among the gradients.")


def _inputs(layout: Layout) -> tuple[str, ...]:
    return tuple(name for name in layout.operation.inputs if name in layout.present)


def _table(
    console: Console, title: str, layout: Layout, names: tuple[str, ...], numbered: bool
) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("#" if numbered else "", justify="right")
    for column in ("tensor", "shape", "in numbers", "what it is"):
        table.add_column(column, overflow="fold", min_width=len(column))
    for index, name in enumerate(names):
        forms = layout.forms(name)
        if name == "resets":  # as they are passed: one for both directions
            forms = [form[:2] for form in forms]
        letters = " or ".join(brackets(form) for form in forms)
        numbers = " or ".join(
            brackets(layout.number(dim) if layout.number(dim) is not None else dim for dim in form)
            for form in forms
        )
        optional = not numbered and name not in layout.operation.required
        mark = str(index) if numbered else ("?" if optional else "")
        if numbered and layout.operation.is_gradient:
            meaning = "the shape of its input"
        else:
            meaning = _meaning(layout, name)
        shown = numbers if numbers != letters else ""
        table.add_row(mark, name, *(escape(text) for text in (letters, shown, meaning)))
    if not numbered:
        table.caption, table.caption_justify = "? may be left out", "left"
    console.print(table)


def _meaning(layout: Layout, name: str) -> str:
    if layout.operation.is_gradient and name in layout.operation.result._fields:
        return "of the forward operation"
    if name == "source" and "input_weight" not in layout.present:
        return "x, already projected"
    return _MEANINGS[name]
