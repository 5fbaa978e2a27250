"""Generate text with a model trained by `zstate train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import add_device, add_number, add_run, device_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and how to sample from it."""
    add_run(parser)
    parser.add_argument(
        "--prompt", help="text to start from (default: the prompt that the run itself samples with)"
    )
    add_number(parser, "--length", "characters to generate", 400, least=0)
    add_number(parser, "--temperature", "0 always picks the most likely character", 0.7)
    add_number(parser, "--seed", "random seed; change it for different text", 1, least=0)
    add_device(parser, "compute")


def run(options: argparse.Namespace) -> int:
    """Write character by character, as the model draws them."""
    from ..train.loop import Sampler, load_model

    device = device_of("sample", options.device or "cpu")
    model, alphabet, prompt = load_model(Path(options.run_folder), device)
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
