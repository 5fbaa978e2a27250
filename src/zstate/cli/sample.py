"""Write text with a model that `zstate train` trained."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from . import at_least_zero


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and how to sample from it."""
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run, such as runs/lstm")
    parser.add_argument("--prompt", default="", help="what the text begins with")
    parser.add_argument(
        "--length",
        type=at_least_zero(int),
        default=400,
        metavar="N",
        help="characters to write (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=at_least_zero(float),
        default=0.7,
        metavar="X",
        help="0: always the likeliest (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=at_least_zero(int),
        default=1,
        metavar="N",
        help="another one, another text (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Write as the model draws, character by character."""
    from ..train.data import read_text
    from ..train.loop import Run

    console = Console()
    folder = Path(options.run_folder)
    current = Run.resume(folder, read_text(Run.about(folder)["text"]))
    current.corpus.encode(options.prompt)  # refused before anything is printed
    console.print(options.prompt, end="", highlight=False, markup=False)
    current.sample(
        options.length,
        options.prompt,
        options.temperature,
        options.seed,
        lambda text: console.print(text, end="", highlight=False, markup=False, soft_wrap=True),
    )
    console.print()
    return 0
