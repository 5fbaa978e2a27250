"""Compare every backend of this machine with the oracle, over cells, options and float types.

The oracle is the reference backend in float64; its own gradients are held against central
differences first (rows "differences").
Exits with 1 if an error is above its bound.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .. import __version__
from ..backends import BACKENDS, available
from ..verify import CASES, FLOAT_TYPES, Case, gradient_error, worst_error

# Relative error of a whole tensor, the worst over results and gradients. The 16-bit bounds are a
# few units in the last place of the storage type.
_BOUNDS = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
_GRADIENT_BOUND = 1e-7


@dataclass
class _Row:
    what: str
    cell: str
    dtype: str
    cases: int
    error: float
    worst: str
    bound: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bound  # a NaN does not pass


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which backends to check, and with which numbers."""
    parser.add_argument("--backend", choices=list(BACKENDS), help="only this one")
    parser.add_argument("--seed", type=int, default=None, help="repeat the numbers of a run")


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 if everything passed."""
    console = Console()
    seed = (
        options.seed if options.seed is not None else int(np.random.default_rng().integers(2**31))
    )
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    console.print(f"zstate {__version__} on {machine}, NumPy {np.__version__}; --seed {seed}")
    if find_spec("torch") is not None:
        import_module("torch")  # the CUDA backend works on its tensors
    for backend in BACKENDS.values():
        reason = backend.unavailable()
        if reason is not None:
            console.print(f"[bold yellow]backend {backend.name} is not there:[/] {reason}")
    names = [backend.name for backend in available()]
    if options.backend is not None:
        if options.backend not in names:
            return 1
        names = [options.backend]
    rows = _rows(console, names, seed)
    console.print(_table(rows))
    failed = [row for row in rows if not row.passed]
    console.print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _rows(console: Console, names: list[str], seed: int) -> list[_Row]:
    groups = list(_groups(names))
    rows = []
    with Progress(console=console, transient=True) as progress:
        for what, cell, dtype, cases in progress.track(groups, description="checking"):
            if dtype == "":
                errors = [(gradient_error(case, seed), case.title) for case in cases]
                bound, dtype = _GRADIENT_BOUND, "float64"
            else:
                errors = [(worst_error(case, what, dtype, seed), case.title) for case in cases]
                bound = _BOUNDS[dtype]
            # A NaN must come out on top.
            error, worst = max(errors, key=lambda pair: (np.isnan(pair[0]), pair[0]))
            rows.append(_Row(what, cell, dtype, len(cases), error, worst, bound))
    return rows


def _groups(names: list[str]) -> Iterator[tuple[str, str, str, list[Case]]]:
    for cell, cases in CASES.items():
        # Over many steps the loss bends too fast for a difference to say anything.
        yield "differences", cell, "", [case for case in cases if case.sizes[0] < 10]
    for name in names:
        for cell, cases in CASES.items():
            for dtype in FLOAT_TYPES:
                if name != "reference" or dtype != "float64":
                    yield name, cell, dtype, cases


def _table(rows: list[_Row]) -> Table:
    table = Table(title="worst relative error over all results and gradients", title_justify="left")
    for column in ("backend", "cell", "type"):
        table.add_column(column, no_wrap=True)
    for column in ("cases", "error", "bound"):
        table.add_column(column, justify="right")
    table.add_column("worst case", overflow="fold")
    table.add_column("")
    for row in rows:
        verdict = "[green]ok[/]" if row.passed else "[bold red]FAILED[/]"
        numbers = (str(row.cases), f"{row.error:.1e}", f"{row.bound:.0e}")
        table.add_row(
            row.what, row.cell.replace("single_gate_", ""), row.dtype, *numbers, row.worst, verdict
        )
    return table
