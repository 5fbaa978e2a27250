"""Training with several processes, started by torchrun, each with its share of the streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

from ..errors import OptionError, ZStateError, refusal
from ..types import Array

Value = TypeVar("Value")


class EndedElsewhereError(ZStateError):
    """The first process could not begin; it printed why."""


class Processes:
    """The processes of a run. The first one reads and writes for all of them."""

    def __init__(self, uses_gpus: bool) -> None:
        self._distributed = import_module("torch.distributed")
        if uses_gpus:
            torch, local = import_module("torch"), int(os.environ.get("LOCAL_RANK", "0"))
            if local >= torch.cuda.device_count():
                expected = f"at most {torch.cuda.device_count()}, one per GPU"
                raise OptionError(refusal("train", "processes", expected, f"{local + 1} or more"))
            torch.cuda.set_device(local)
        # gloo carries objects and stops, NCCL the gradients on GPUs.
        self._distributed.init_process_group("cpu:gloo,cuda:nccl" if uses_gpus else "gloo")
        self.rank, self.count = self._distributed.get_rank(), self._distributed.get_world_size()

    @property
    def is_first(self) -> bool:
        return bool(self.rank == 0)

    def share(self, streams: int) -> slice:
        """The streams of this process."""
        if streams % self.count:
            expected = f"a multiple of the {self.count} processes"
            raise OptionError(refusal("train", "batch", expected, str(streams)))
        each = streams // self.count
        return slice(self.rank * each, (self.rank + 1) * each)

    def from_first(self, make: Callable[[], Value]) -> Value:
        """What ``make`` returns in the first process; an exception there ends all processes."""
        box: list[Any] = [None]
        if self.is_first:
            try:
                value = make()
            except BaseException:
                self._distributed.broadcast_object_list(box)
                raise
            box = [(value,)]
        self._distributed.broadcast_object_list(box)
        if box[0] is None:
            raise EndedElsewhereError("[train] the first process has ended")
        found: Value = box[0][0]
        return found

    def joined(self, parts: dict[str, Array]) -> dict[str, Array]:
        """The shares of all processes, concatenated along the first axis."""
        found: list[Any] = [None] * self.count
        self._distributed.all_gather_object(found, parts)
        return {name: np.concatenate([each[name] for each in found]) for name in parts}

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process."""
        found: list[Any] = [None] * self.count
        self._distributed.all_gather_object(found, flag)
        return any(found)

    def leave(self) -> None:
        """End the group after the last message."""
        self._distributed.barrier()
        self._distributed.destroy_process_group()


def joined(uses_gpus: bool) -> Processes | None:
    """The processes that torchrun started; None if there is only this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        return None
    if find_spec("torch") is None:
        raise ImportError(
            "training with several processes needs torch: pip install 'zstate[torch]'"
        )
    return Processes(uses_gpus)
