"""A program on its device: memory that stays where it is, and the CUDA graph that runs in it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays import NUMPY, allows_tf32
from ...errors import GraphError, refusal
from ...layout import is_torch_tensor
from ...types import Array, float_dtype
from ..ops import VARIABLE
from ..ops.base import known
from ..tensor import Node, Store, Tensor
from .groups import (
    Adam,
    Unit,
    adam_groups,
    dead_after,
    together,
    with_squares,
    without_unread_casts,
)
from .namespace import DeviceNamespace, HostNeededError, Kernels
from .scalars import with_scalars

if TYPE_CHECKING:
    from ..executable import Executable

_ALIGNMENT = 256
# The stream that programs last ran on, by device: a program on another stream waits for it, because
# programs share variables.
_LAST_STREAM: dict[Any, Any] = {}


class Live:
    """What a program has on its device. One thread at a time runs it."""

    def __init__(
        self, program: Executable, torch: Any, device: Any, kernels: Kernels | None
    ) -> None:
        self._torch, self._device, self._program = torch, device, program
        self.xp = DeviceNamespace(torch, device, kernels)
        self._is_cuda = device.type == "cuda"
        self._lock = threading.Lock()
        self._follow_stream()
        self._inputs = _Inputs(torch, device, program.feeds, pinned=self._is_cuda)
        nodes = [n for n in program.nodes if n.op is VARIABLE]
        nodes += [node for node, _ in program.updates if node not in nodes]
        self._homes = [(node, _home(self.xp, node.attributes["store"])) for node in nodes]
        self._owned = _memory(home for _, home in self._homes)
        self._plan(program, kernels)
        self._at: Unit | None = None  # what is being launched
        self._seen = torch.zeros((), dtype=torch.int32, pin_memory=self._is_cuda)
        self._seen_number: Array = self._seen.numpy()
        self._warm: tuple[Any, ...] | None = None  # the settings of the last plain run
        self._captured: tuple[Any, tuple[Any, ...], list[Any]] | None = None
        self.why_plain: str | None = None if self._is_cuda else f"it runs on {device}"

    def _plan(self, program: Executable, kernels: Kernels | None) -> None:
        updates = dict(program.updates)
        bound, self._constants = program.bound_to(self.xp)
        self._adam: list[Adam] = []
        replaced: set[Node] = set()
        if kernels is not None:
            self._adam, replaced = adam_groups(program.nodes, updates, program.targets)
        units = {
            each.node: Unit(
                each.function, each.node.inputs, tuple(each.node.results), each.is_tuple
            )
            for each in bound
            if each.node not in replaced
        }
        in_place = {variable.node for a in self._adam for some, _ in a.tensors for variable in some}
        self._stepped = _memory(home for node, home in self._homes if node in in_place)
        self._updates = [
            (home, updates[node])
            for node, home in self._homes
            if node in updates and node not in in_place and updates[node] is not node.results[0]
        ]
        kept = [*program.targets, *(t for _, t in self._updates)]
        kept += [tensor for a in self._adam for tensor in a.read()]
        ordered = list(units.values())
        if kernels is not None:
            ordered = with_squares(program.nodes, units, kept, kernels.squares)
            ordered = without_unread_casts(ordered, kept)
            ordered = together(ordered, kernels.narrow)
            ordered = with_scalars(ordered, kernels.scalars)
        ends = dead_after(ordered, kept)
        self._units = list(zip(ordered, ends, strict=True))

    # ---- a run ----

    def run(self, feeds: Sequence[Any]) -> list[Any]:
        with self._lock:
            if not self._is_cuda or self._torch.cuda.current_device() == self._device.index:
                return self._run(feeds)
            with self._torch.cuda.device(self._device):
                return self._run(feeds)

    def _run(self, feeds: Sequence[Any]) -> list[Any]:
        wants_numpy = bool(feeds) and not any(map(is_torch_tensor, feeds))
        if self.xp.is_capturing():
            self._check_inside_capture(feeds)
        else:
            self._follow_stream()
            self.refuse_withheld()
            self._bring_home()
        self._inputs.fill(feeds)
        try:
            found = self._results()
        except HostNeededError as error:  # in the caller's own capture
            expected, got = "nodes that a CUDA graph can hold", _reason(self._at, error)
            raise GraphError(refusal("run", "program", expected, got)) from None
        # In memory that the next run does not write to: the results belong to the caller.
        results = [self.xp.copy(tensor) for tensor in found]
        if wants_numpy:
            results = [self.xp.to_numpy(tensor) for tensor in results]
            self.refuse_withheld()
        return results

    def _results(self) -> list[Any]:
        """The targets, by the captured graph where there is one or can be one."""
        if self.why_plain is not None or self.xp.is_capturing():
            return self._compute()
        settings = _settings(self._torch)
        if self._captured is not None and self._captured[1] != settings:
            self._captured = self._warm = None
        if self._captured is None:
            if self._warm != settings:  # kernels are compiled and loaded by a plain run
                found = self._compute()
                self._warm = settings
                return found
            self._capture(settings)
            if self._captured is None:
                return self._compute()
        graph, _, found = self._captured
        graph.replay()
        return found

    def _capture(self, settings: tuple[Any, ...]) -> None:
        cuda = self._torch.cuda
        graph = cuda.CUDAGraph()
        # torch's own stream for captures is on the device of the process's first one.
        stream = cuda.Stream(self._device)
        # torch does not give the caller's stream back where a capture cannot even be ended.
        callers = cuda.stream(cuda.current_stream(self._device))
        try:
            with callers, cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                found = self._compute()
        except Exception as error:
            self.why_plain = _reason(self._at, error)
        else:
            self._captured = graph, settings, found

    def _compute(self) -> list[Any]:
        """Everything that a run launches."""
        xp, values = self.xp, dict(self._constants)
        xp.begin()
        values |= zip(self._program.feeds, self._inputs.tensors, strict=True)
        values |= {node.results[0]: home for node, home in self._homes}
        for unit, dead in self._units:
            self._at = unit
            found = unit.function(*[values[tensor] for tensor in unit.inputs])
            for tensor, array in zip(
                unit.results, found if unit.is_tuple else (found,), strict=True
            ):
                values[tensor] = array
            for tensor in dead:
                values.pop(tensor, None)
        targets = [self._own(values[tensor], self._owned) for tensor in self._program.targets]
        self._store(values)
        if not xp.has_checks:
            return targets
        self._seen.copy_(xp.withheld, non_blocking=True)
        return [self._spoilt(tensor) for tensor in targets]

    def _own(self, value: Any, memory: set[int]) -> Any:
        """A value that does not lie in this memory of variables, which is about to change."""
        return self.xp.copy(value) if _memory([value]) <= memory else value

    def _store(self, values: dict[Tensor, Any]) -> None:
        """Give the variables what was assigned, unless the run is withheld."""
        xp, kernels = self.xp, self.xp.kernels
        pairs = [(home, self._own(values[tensor], self._owned)) for home, tensor in self._updates]
        if kernels is None:
            for home, value in pairs:
                kept = self._torch.where(xp.withheld == 0, value, home) if xp.has_checks else value
                home.copy_(kept)
            return
        steps = [self._step_of(group, values) for group in self._adam]
        for tensors, numbers in steps:
            kernels.adam(tensors, numbers, xp.withheld)
        if pairs:
            kernels.store([(home, value.contiguous()) for home, value in pairs], xp.withheld)

    def _step_of(self, group: Adam, values: dict[Tensor, Any]) -> tuple[list[Any], list[Any]]:
        """What a kernel of Adam is given; another one may change what this one reads."""

        def read(tensor: Tensor) -> Any:
            return self._own(values[tensor], self._stepped)

        tensors = [
            (*(values[v] for v in some), *[None] * (4 - len(some)), read(gradient).contiguous())
            for some, gradient in group.tensors
        ]
        return tensors, [None if number is None else read(number) for number in group.numbers]

    def _spoilt(self, target: Any) -> Any:
        """NaN in place of numbers that follow from an index outside its axis."""
        if not target.is_floating_point():
            return target
        return self._torch.where(self.xp.withheld == 0, target, math.nan)

    # ---- around it ----

    def refuse_withheld(self) -> None:
        """Tell of an index outside its axis in a run before, once; then runs count again."""
        if not self._seen_number[()]:
            return
        if self._is_cuda:
            self._torch.cuda.synchronize(self._device)
        number = int(self._seen_number[()])
        self.xp.withheld.zero_()
        self._seen.zero_()
        raise self.xp.refused(number)

    def wait(self) -> None:
        if self._is_cuda:
            self._torch.cuda.synchronize(self._device)

    def _bring_home(self) -> None:
        """Variables that others have given values take these; what runs here writes into them."""
        for node, home in self._homes:
            store: Store = node.attributes["store"]
            if store.value is not home:
                home.copy_(self.xp.asarray(store.value))
                store.value = home

    def _follow_stream(self) -> None:
        if not self._is_cuda:
            return
        stream = self._torch.cuda.current_stream(self._device)
        last = _LAST_STREAM.get(self._device)
        if last != stream:
            if last is not None:
                stream.wait_stream(last)
            _LAST_STREAM[self._device] = stream

    def _check_inside_capture(self, feeds: Sequence[Any]) -> None:
        """What the caller's own CUDA graph cannot hold is refused before anything is launched."""
        for tensor, feed in zip(self._program.feeds, feeds, strict=True):
            if not is_torch_tensor(feed) or feed.device != self._device:
                expected = f"a tensor on {self._device}, since a CUDA graph is being captured"
                got = str(feed.device) if is_torch_tensor(feed) else "a NumPy array"
                raise GraphError(refusal("run", f"feed {tensor.name!r}", expected, got))
        moved = [n.name for n, home in self._homes if n.attributes["store"].value is not home]
        if moved or self._warm is None:
            got = f"new values of {moved[0]!r}" if moved else "no run yet"
            expected = "a run before a CUDA graph captures one"
            raise GraphError(refusal("run", "program", expected, got))


class _Inputs:
    """The memory that feeds are copied into: on the host in one piece, so that one copy takes them
    all to the device."""

    def __init__(self, torch: Any, device: Any, feeds: Sequence[Tensor], pinned: bool) -> None:
        self._torch, self._device, self._pinned = torch, device, pinned
        self._shapes = [known(tensor.shape) or () for tensor in feeds]
        self._types = [float_dtype(tensor.dtype) for tensor in feeds]
        self._sizes = [
            math.prod(s) * t.itemsize for s, t in zip(self._shapes, self._types, strict=True)
        ]
        ends = np.cumsum([-(-size // _ALIGNMENT) * _ALIGNMENT for size in self._sizes], dtype=int)
        self._begins = [0, *ends.tolist()][: len(feeds)]
        self._all = torch.zeros(int(ends[-1]) if len(ends) else 0, dtype=torch.uint8, device=device)
        self.tensors = [
            self._all[begin : begin + size].view(getattr(torch, tensor.dtype)).view(shape)
            for tensor, begin, size, shape in zip(
                feeds, self._begins, self._sizes, self._shapes, strict=True
            )
        ]

    def fill(self, feeds: Sequence[Any]) -> None:
        """Copy the feeds in; returns before the device has them."""
        there = [is_torch_tensor(feed) and feed.device == self._device for feed in feeds]
        if not all(there):
            # From torch's pool of pinned memory, which takes it back when the copy has ended.
            staged = self._torch.empty_like(self._all, device="cpu", pin_memory=self._pinned)
            whole: Array = staged.numpy()
            for k, feed in enumerate(feeds):
                if not there[k]:
                    part = whole[self._begins[k] : self._begins[k] + self._sizes[k]]
                    array = NUMPY.asarray(feed)
                    part.view(self._types[k]).reshape(self._shapes[k])[...] = array
            self._all.copy_(staged, non_blocking=True)
        for tensor, feed, is_there in zip(self.tensors, feeds, there, strict=True):
            if is_there:
                tensor.copy_(feed.detach())


def _memory(tensors: Iterable[Any]) -> set[int]:
    """Where the tensors' memory begins."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _home(xp: DeviceNamespace, store: Store) -> Any:
    """Where a variable lies on a device: the same memory for all programs."""
    home = store.homes.get(xp.device)
    if home is None:
        home = store.homes.setdefault(xp.device, xp.copy(xp.asarray(store.value)))
        store.value = home
    return home


def _settings(torch: Any) -> tuple[Any, ...]:
    """What of torch's settings decides what a run launches, and so a captured graph."""
    matmul = torch.backends.cuda.matmul
    return (
        allows_tf32(torch),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )


def _reason(unit: Unit | None, error: Exception) -> str:
    """Which node a CUDA graph cannot hold, and why."""
    where = f"{unit.results[0].node.op.name} {unit.results[0].node.name!r}" if unit else "a node"
    why = str(error) if isinstance(error, HostNeededError) else str(error).split("\n", 1)[0]
    return f"{where}: {why}"
