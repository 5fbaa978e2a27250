"""Describes this installation: versions, backends (and why one is unavailable), the engine."""

from __future__ import annotations

import platform
import re
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, overload

import numpy as np

from .backends import BACKENDS, native
from .backends.slow import SlowBackendWarning
from .errors import OptionError, refusal


@overload
def show_config(mode: Literal["stdout"] = "stdout") -> None: ...
@overload
def show_config(mode: Literal["dicts"]) -> dict[str, Any]: ...
def show_config(mode: str = "stdout") -> dict[str, Any] | None:
    """Print the configuration of this installation, or return it as a dict with ``mode="dicts"``.

    Version, Python, NumPy and system; the backends, and why one is unavailable; the native
    engine's instruction set, threads and build (wheel, compiler, flags, instruction sets and
    options); torch and the CUDA devices it sees; jax, and whether its programs can call the engine.
    Imports torch and jax if they are installed.

    Example:
        >>> show_config(mode="dicts")["backends"]["reference"]["available"]
        True
    """
    if mode not in ("stdout", "dicts"):
        raise OptionError(refusal("show_config", "mode", "'stdout' or 'dicts'", repr(mode)))
    found = _config()
    if mode == "dicts":
        return found
    print(as_text(found))
    return None


def as_text(config: dict[str, Any]) -> str:
    """One line per fact, starting with its name."""
    lines = []
    for name, value in config.items():
        if not isinstance(value, dict):
            lines.append(f"{name}: {_plain(value)}")
            continue
        lines.append(f"{name}:")
        for key, fact in value.items():
            lines.append(f"  {key}: {_backend(fact) if name == 'backends' else _plain(fact)}")
    return "\n".join(lines)


def _backend(fact: dict[str, Any]) -> str:
    return "available" if fact["available"] else f"unavailable: {fact['reason']}"


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _config() -> dict[str, Any]:
    from . import __version__  # not set yet while the package is imported

    torch, jax = _torch(), _jax()
    reasons = {name: backend.unavailable() for name, backend in BACKENDS.items()}
    return {
        "zstate": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "backends": {
            name: {"available": reason is None, "reason": reason}
            for name, reason in reasons.items()
        },
        "wheel": _wheel(),
        "native engine": _native(),
        "torch": torch,
        "jax": jax,
    }


def _wheel() -> list[str] | str:
    """The tags of the wheel that was installed."""
    from importlib.metadata import PackageNotFoundError, distribution  # it imports a lot

    try:
        text = distribution("zstate").read_text("WHEEL") or ""
    except PackageNotFoundError:
        text = ""
    return re.findall(r"^Tag: (\S+)", text, re.MULTILINE) or "none: not an installed package"


def _native() -> dict[str, Any] | str:
    if native.unavailable() is not None:
        return "missing"
    module = native._native
    try:
        isa = module.isa()
    except RuntimeError as error:  # an instruction set was forced that this machine lacks
        isa = f"none: {error}"
    found = {
        "instruction set": isa,
        "instruction sets built in that run here": list(module.supported_isas()),
        "threads": native.get_num_threads(),
    }
    return {**found, **module.build_info(), "digest of its sources": native.stamp()}


def _torch() -> dict[str, Any] | str:
    if find_spec("torch") is None:
        return "not installed"
    try:
        torch: Any = import_module("torch")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = [torch.cuda.get_device_name(k) for k in range(count)]
    except Exception as error:  # finding broken installations is the point
        return f"installed, but cannot be used: {error}"
    return {
        "version": torch.__version__,
        "built for CUDA": torch.version.cuda or "no",
        "CUDA devices": devices or "none",
    }


def _jax() -> dict[str, Any] | str:
    if find_spec("jax") is None:
        return "not installed"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowBackendWarning)
            reason = import_module("zstate.jax").unavailable()
        version = import_module("jax").__version__
    except Exception as error:
        return f"installed, but cannot be used: {error}"
    return {
        "version": version,
        "XLA handlers": "available" if reason is None else f"unavailable: {reason}",
    }
