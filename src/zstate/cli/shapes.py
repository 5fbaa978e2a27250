"""Print every tensor of an operation with its shape, and the order of its gradients."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, cast

from ..cells import CELLS, Cell
from ..descriptors import AnyDescriptor
from ..errors import OptionError, ShapeError, refusal
from ..layout import Layout, brackets, gate_order
from ..operations import Operation, operations_of
from .arguments import add_number

if TYPE_CHECKING:
    from rich.console import Console

# What a tensor is, in a few words; the letters are those of docs/equations.md.
_MEANINGS = {
    "source": "x, the input",
    "recurrent_weight": "R",
    "input_weight": "W; without it, source is already projected",
    "bias": "b",
    "mask": "m, multiplies h[t-1] before R; any shape that broadcasts",
    "peephole": "p, all gates look at c[t-1]",
    "secondary_bias": "b2, inside the reset",
    "resets": "true where step t begins a new sequence; not in MPSGraph",
    "training_state": "zState, for the gradients",
    "z_state": "zState of the forward operation",
}
_CELLS = {cell.short: cell for cell in CELLS}


def _meanings(cell: Cell) -> dict[str, str]:
    """Those of a cell's tensors by name: its states and their gradients, its own parameters."""
    found = {each.name: each.symbol for each in cell.own} | _MEANINGS
    for state in cell.states:
        s = state.symbol
        found |= {
            state.name: f"{s}, every step",
            state.initial: f"{s}[-1]",
            state.output: f"{s} of the forward operation",
            state.gradient: f"gradient of {s}, every step",
            state.last_gradient: f"gradient of the last {s}",
        }
        if state.gradient == state.last_gradient:
            found[state.gradient] = f"gradient of the last {s}, or of every {s}"
    return found


def _flags(cell: Cell) -> list[str]:
    """The options of a cell that change a shape or an order."""
    own = [each.only_with for each in cell.own]
    order = cell.other_order[0] if cell.other_order else ""
    return ["bidirectional", "reverse", *filter(None, (cell.keeps_states, order, *own))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sizes, and a flag for each option that changes a shape or an order."""
    parser.add_argument("cell", choices=_CELLS, help="the operation family")
    for letter, meaning in (
        ("T", "time steps"),
        ("N", "batch"),
        ("I", "input features"),
        ("H", "units"),
    ):
        add_number(parser, f"-{letter}", f"{meaning}; symbolic if omitted", least=0, metavar=letter)
    projected = "the source is already projected: no input_weight"
    parser.add_argument("--pre-projected", action="store_true", help=projected)
    for flag in dict.fromkeys(flag for cell in CELLS for flag in _flags(cell)):
        text = f"the descriptor's {flag}=True"
        parser.add_argument(f"--{flag.replace('_', '-')}", action="store_true", help=text)


def run(options: argparse.Namespace) -> int:
    """Print the tables."""
    from rich.console import Console

    console, cell = Console(), _CELLS[options.cell]
    if options.H == 0:
        raise ShapeError(refusal("shapes", "-H", "at least 1", "0"))
    flags = {flag for flag, value in vars(options).items() if value is True} - {"pre_projected"}
    others = sorted(flags.difference(_flags(cell)))
    if others:
        wrong = ", ".join(f"--{flag.replace('_', '-')}" for flag in others)
        raise OptionError(refusal("shapes", "options", f"those of {cell.name}", wrong))
    chosen: dict[str, Any] = dict.fromkeys(flags, True)
    descriptor = cast(AnyDescriptor, cell.descriptor(**chosen, training=True))
    _print(console, *operations_of(cell), descriptor, options)
    return 0


def _layout(operation: Operation, descriptor: AnyDescriptor, options: argparse.Namespace) -> Layout:
    present = set(operation.inputs)
    if options.pre_projected:
        present.discard("input_weight")
    for each in operation.cell.own:
        if each.only_with and not getattr(descriptor, each.only_with):
            present.discard(each.name)
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
    return _meanings(layout.operation.cell)[name]
