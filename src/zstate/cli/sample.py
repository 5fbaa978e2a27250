"""Generate text with a model trained by `zstate train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import at_least_zero
from .devices import DEVICES, add_device, device_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and how to sample from it."""
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run, such as runs/lstm")
    parser.add_argument(
        "--prompt", help="text to start from (default: the prompt that the run itself samples with)"
    )
    parser.add_argument(
        "--length",
        type=at_least_zero(int),
        default=400,
        metavar="N",
        help="characters to generate (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=at_least_zero(float),
        default=0.7,
        metavar="X",
        help="0 always picks the most likely character (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=at_least_zero(int),
        default=1,
        metavar="N",
        help="random seed; change it for different text (default: %(default)s)",
    )
    add_device(parser, f"where to compute: {', '.join(DEVICES)} (default: cpu)")


def run(options: argparse.Namespace) -> int:
    """Write character by character, as the model draws them."""
    from ..train.loop import load_model
    from ..train.sampling import Sampler

    model, alphabet, prompt = load_model(
        Path(options.run_folder), device_of(options.device or "cpu")
    )
    sampler = Sampler(model, alphabet)
    if options.prompt is not None:
        prompt = options.prompt
    sampler.alphabet.encode(prompt, "sample", "--prompt")  # refuse it before printing anything
    print(prompt, end="")
    sampler.write(
        options.length,
        prompt,
        options.temperature,
        options.seed,
        lambda text: print(text, end="", flush=True),
    )
    print()
    return 0
