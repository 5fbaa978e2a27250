"""--device: where a command computes."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec

from ..backends import cuda
from ..errors import OptionError, refusal

DEVICES = ("cpu", "cuda", "auto")


def add_device(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--device", choices=DEVICES, help=text)


def device_of(name: str) -> str | None:
    """The device as programs take it: None is the CPU; "auto" is a GPU where there is one."""
    if name == "cpu":
        return None
    if find_spec("torch") is not None:
        import_module("torch")
    reason = cuda.unavailable()
    if reason is None:
        return f"cuda:{sys.modules['torch'].cuda.current_device()}"
    if name == "auto":
        return None
    raise OptionError(refusal("train", "--device", "a CUDA device", f"none: {reason}"))
