"""Write text with a model that `zstate train` trained."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and how to sample from it."""
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run, such as runs/lstm")
    parser.add_argument("--prompt", default="", help="what the text begins with")
    parser.add_argument("--length", type=int, default=400, help="characters to write")
    parser.add_argument("--temperature", type=float, default=0.7, help="0: always the likeliest")
    parser.add_argument("--seed", type=int, default=1)


def run(options: argparse.Namespace) -> int:
    """Write as the model draws, character by character."""
    from ..train.data import read_text
    from ..train.loop import Run

    console = Console()
    folder = Path(options.run_folder)
    current = Run.resume(folder, read_text(Run.about(folder)["text"]))
    console.print(options.prompt, end="", highlight=False, markup=False)
    current.sample(
        max(options.length, 0),
        options.prompt,
        options.temperature,
        options.seed,
        lambda text: console.print(text, end="", highlight=False, markup=False, soft_wrap=True),
    )
    console.print()
    return 0
