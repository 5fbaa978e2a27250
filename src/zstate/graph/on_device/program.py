"""A program on a device."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...backends import cuda
from ...errors import BackendError, refusal
from ...types import Array
from ..executable import Executable
from ..tensor import Node, Tensor
from .live import Live
from .namespace import Kernels


class DeviceExecutable(Executable):
    """A program whose variables, constants and results are on a device.

    Runs copy the feeds in, NumPy arrays or torch tensors from anywhere, and give torch tensors on
    the device, or NumPy arrays where only these were fed. Nothing waits for the device, unless a
    result is a NumPy array. From the second run on, what a run launches is one CUDA graph.
    """

    def __init__(
        self,
        graph: Any,
        feeds: Sequence[Tensor],
        targets: Sequence[Tensor],
        updates: Sequence[tuple[Node, Tensor]],
        names: Sequence[str],
        device: Any,
        kernels: Kernels | None,
    ) -> None:
        super().__init__(graph, feeds, targets, updates, names)
        self.device, self._kernels = str(device), kernels
        self._live: Live | None = self._made()

    @property
    def why_plain(self) -> str | None:
        """The node that no CUDA graph can hold, and why, so that every run launches one by one;
        None as long as no such node is known."""
        return self._here().why_plain

    @property
    def variables(self) -> dict[str, Array]:
        """The variables that the program reads or updates, by name: copies of their values."""
        self._here().wait()
        self._here().refuse_withheld()
        return {name: np.array(value) for name, value in super().variables.items()}

    def run(self, feeds: Sequence[Any]) -> list[Any]:
        """Compute the targets, then store what was assigned; see :class:`DeviceExecutable`."""
        self.check_feeds(feeds)
        return self._here().run(feeds)

    def _here(self) -> Live:
        if self._live is None:  # a copy, or one that was pickled
            self._live = self._made()
        return self._live

    def _made(self) -> Live:
        torch = import_module("torch")
        device, kernels = torch.device(self.device), self._kernels
        if kernels is None and device.type == "cuda":
            found = device_named("compile", self.device)
            assert found is not None
            device, kernels = found
        return Live(self, torch, device, kernels)

    def __getstate__(self) -> dict[str, Any]:
        kernels = None if self.device.startswith("cuda") else self._kernels
        return {**super().__getstate__(), "_live": None, "_kernels": kernels}


def device_named(operation: str, name: object) -> tuple[Any, Kernels | None] | None:
    """A device by its name, with its kernels; None for "cpu", which needs nothing of its own."""
    if name is None or name == "cpu":
        return None
    kind, _, index = name.partition(":") if isinstance(name, str) else ("", "", "")
    expected = "None, 'cpu', 'cuda' or 'cuda:1'"
    if kind != "cuda" or not (index.isdecimal() or (index == "" and name == kind)):
        raise BackendError(refusal(operation, "device", expected, repr(name)))
    if find_spec("torch") is not None:
        import_module("torch")  # asked for by the device's name
    reason = cuda.unavailable()
    if reason is not None:
        got = f"{name!r}: {reason}"
        raise BackendError(refusal(operation, "device", "an available device", got))
    torch = import_module("torch")
    number = int(index) if index else torch.cuda.current_device()
    if number >= torch.cuda.device_count():
        got = f"{name!r} of {torch.cuda.device_count()}"
        raise BackendError(refusal(operation, "device", "an available device", got))
    from ...backends.cuda.graph_kernels import graph_kernels

    return torch.device("cuda", number), graph_kernels(number)
