"""Check every backend on this machine against the oracle, for all cells, options and float types.

Prints the configuration, then one line per backend, cell and type. The oracle is the reference
backend in float64; central differences verify its gradients first (rows "differences"). --through
jax checks the operations inside jitted JAX programs instead, on JAX's default device. --cell
MODULE:NAME checks a cell of your own, made with zstate.cells.cell, instead of the built-in ones.

With --mpsgraph, check Apple's framework instead, on a Mac with PyObjC: the same cases, and one
probe per decision that Apple's pages leave open. Exits with status 1 if an error exceeds
its bound or something differs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ..backends import BACKENDS, available
from ..cells import MadeCell
from ..config import as_text, show_config
from ..errors import OptionError, ZStateError, refusal
from ..layout import describe
from ..verify import CASES, FLOAT_TYPES, Case, cases_of, gradient_error, serves, worst_error
from .arguments import add_number, refuse_beside, refuse_without

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
    parser.add_argument("--backend", choices=list(BACKENDS), help="check only this backend")
    through = "check the backends on arrays, or zstate.jax in jitted programs"
    parser.add_argument("--through", choices=("numpy", "jax"), default="numpy", help=through)
    cell = "check this cell, of a module in the current folder or an installed one; may be repeated"
    parser.add_argument("--cell", metavar="MODULE:NAME", action="append", help=cell)
    add_number(parser, "--seed", "random seed; pass the printed one to repeat a run", least=0)
    mpsgraph = parser.add_argument_group("Apple's framework")
    apple = "check MPSGraph through PyObjC, on a Mac"
    mpsgraph.add_argument("--mpsgraph", action="store_true", help=apple)
    module = "check these modules instead of PyObjC's, for example zstate.pyobjc; may be repeated"
    mpsgraph.add_argument("--module", metavar="NAME,...", action="append", help=module)
    timeout = "stop a call that takes longer (default: 60)"
    add_number(mpsgraph, "--timeout", timeout, metavar="SECONDS")
    mpsgraph.add_argument("--json", type=Path, metavar="FILE", help="write all findings")
    markdown = "write a page to attach to an issue"
    mpsgraph.add_argument("--markdown", type=Path, metavar="FILE", help=markdown)


def run(options: argparse.Namespace) -> int:
    """Print the configuration and the errors; 0 if everything passed."""
    seed = options.seed
    if seed is None:
        seed = int(np.random.default_rng().integers(2**31))
    if options.mpsgraph:
        if options.cell:
            got = f"--cell {options.cell[0]}"
            raise OptionError(refusal("check", "--mpsgraph", "MPSGraph's own cells", got))
        refuse_beside("check", "--mpsgraph", options, backend=None, through="numpy")
        from . import check_mpsgraph

        return check_mpsgraph.run(options, seed, _show_progress)
    refuse_without("check", "--mpsgraph", options, ("module", "timeout", "json", "markdown"))
    if options.through == "jax" and (options.backend or find_spec("jax") is None):
        got = f"--backend {options.backend}" if options.backend else "no jax: pip install jax"
        raise OptionError(refusal("check", "--through jax", "jax without --backend", got))
    cases: Mapping[str, list[Case]] = CASES
    if options.cell:
        cases = {spec: cases_of(_cell(spec)) for spec in options.cell}
    config = show_config(mode="dicts")  # imports torch: the CUDA backend works on its tensors
    print(f"{as_text(config)}\nseed: --seed {seed}\n")
    names = [backend.name for backend in available()]
    if options.backend is not None:
        if options.backend not in names:
            reason = config["backends"][options.backend]["reason"]
            print(f"{options.backend} backend unavailable: {reason}")
            return 1
        names = [options.backend]
    if options.through == "jax":
        names = ["jax"]
    print("worst relative error over all results and gradients")
    rows = list(_rows(names, cases, seed))
    failed = [row for row in rows if not row.passed]
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _cell(spec: str) -> MadeCell:
    """The cell that MODULE:NAME stands for; modules of the current folder come first."""
    label = f"--cell {spec}"
    where, _, name = spec.partition(":")
    if not where or not name:
        raise OptionError(refusal("check", label, "MODULE:NAME", "only one of the two"))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(where)
        found = getattr(module, name, None)
    except ZStateError:
        raise  # of a cell, with the line of its source
    except (Exception, SystemExit) as error:
        got = f"{type(error).__name__}: {error}"
        raise OptionError(refusal("check", label, "a module that can be imported", got)) from error
    if found is None:
        cells = [each for each, value in vars(module).items() if isinstance(value, MadeCell)]
        expected = f"a cell of {where} ({', '.join(cells) or 'none'})"
        raise OptionError(refusal("check", label, expected, f"no {name} in it"))
    if not isinstance(found, MadeCell):
        raise OptionError(refusal("check", label, "a cell from zstate.cells.cell", describe(found)))
    return found


def _rows(names: list[str], cases_by_cell: Mapping[str, list[Case]], seed: int) -> Iterator[_Row]:
    """Print and yield each row; in plain text, since this must work in every installation."""
    groups = list(_groups(names, cases_by_cell))
    width = max(4, *(len(_short(cell)) for cell in cases_by_cell))
    _print_columns(width, "backend", "cell", "type", "cases", "error", "bound", "", "worst case")
    for number, (what, cell, dtype, cases) in enumerate(groups):
        _show_progress(f"checking {number + 1} of {len(groups)}")
        if dtype == "":
            errors = [(gradient_error(case, seed), case.title) for case in cases]
            bound, dtype = _GRADIENT_BOUND, "float64"
        else:
            errors = [(worst_error(case, what, dtype, seed), case.title) for case in cases]
            bound = _BOUNDS[dtype]
        # A NaN must come out on top.
        error, worst = max(errors, key=lambda pair: (np.isnan(pair[0]), pair[0]))
        row = _Row(what, cell, dtype, len(cases), error, worst, bound)
        _show_progress("")
        numbers = (str(len(cases)), f"{error:.1e}", f"{bound:.0e}")
        verdict = "ok" if row.passed else "FAILED"
        _print_columns(width, what, _short(cell), dtype, *numbers, verdict, worst)
        yield row


def _short(cell: str) -> str:
    return cell.replace("single_gate_", "")


def _print_columns(width: int, *columns: str) -> None:
    what, cell, dtype, cases, error, bound, verdict, worst = columns
    first = f"{what:11} {cell:{width}} {dtype:8} {cases:>5}"
    print(f"{first} {error:>7} {bound:>5} {verdict:6} {worst}")


def _show_progress(text: str) -> None:
    """Replace the last line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _groups(
    names: list[str], cases_by_cell: Mapping[str, list[Case]]
) -> Iterator[tuple[str, str, str, list[Case]]]:
    for cell, cases in cases_by_cell.items():
        # Over many steps the loss bends too fast for a difference to say anything.
        yield "differences", cell, "", [case for case in cases if case.sizes[0] < 10]
    for name in names:
        for cell, cases in cases_by_cell.items():
            for dtype in FLOAT_TYPES:
                served = [case for case in cases if serves(name, case, dtype)]
                if served and (name != "reference" or dtype != "float64"):
                    yield name, cell, dtype, served
