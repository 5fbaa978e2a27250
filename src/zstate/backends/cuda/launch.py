"""Loading and launching a specialisation. Nothing here waits for the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from ...errors import BackendError
from .compiler import machine_code
from .options import Options, constants
from .plan import BLOCK, CLUSTER, GRID, Chip, Plan, Problem
from .planner import plans

driver: Any
try:
    driver = import_module("cuda.bindings.driver")
except ImportError:  # the backend's unavailable() says so before anything here is used
    driver = None

# The fields of Arguments in shape.cuh, in its order.
FIELDS = (
    "T",
    "N",
    "step",
    "first_group",
    "mask_t",
    "mask_n",
    "mask_h",
    "weight",
    "mask",
    "peephole",
    "bias2",
    "state0",
    "cell0",
    "gates_x",
    "state",
    "cell",
    "saved",
    "exchange",
    "d_state",
    "d_cell",
    "d_last",
    "unreset",
    "d_gates",
    "left",
    "left_reset",
    "d_state0",
    "d_cell0",
    "bias_sum",
    "peephole_sum",
    "bias2_sum",
    "sum_stride",
)

_PLACES = {name: place for place, name in enumerate(FIELDS)}
_FIRST_GROUP = _PLACES["first_group"]
_Words = ctypes.c_int64 * len(FIELDS)

DEBUG = False  # stop a wait that lasts too long: for development
ACCEPTS: Callable[[Plan], bool] | None = None  # only these plans: for tests


def checked(answer: tuple[Any, ...]) -> Any:
    """The result of a driver call, or an exception with the driver's own words."""
    status, *rest = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        name = driver.cuGetErrorName(status)[1]
        text = driver.cuGetErrorString(status)[1]
        raise BackendError(f"CUDA driver: {(name or b'?').decode()}: {(text or b'?').decode()}")
    return rest[0] if rest else None


def chip_of(device: torch.device) -> Chip:
    found: Any = torch.cuda.get_device_properties(device)
    return Chip(
        found.multi_processor_count,
        int(found.shared_memory_per_block_optin),
        (found.major, found.minor),
    )


def _current_stream(device: torch.device) -> int:
    """The handle of the current stream; without the object around it, which costs microseconds."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None and device.index is not None:
        return int(raw(device.index))
    return int(torch.cuda.current_stream(device).cuda_stream)


class Kernel:
    """One specialisation, loaded onto one device, with its plan."""

    def __init__(
        self, problem: Problem, options: Options, plan: Plan, device: torch.device
    ) -> None:
        self.problem, self.plan, self.device = problem, plan, device
        chip = chip_of(device)
        architecture = "sm_{}{}".format(*chip.capability)
        code = machine_code(constants(problem, options, plan, DEBUG), architecture)
        self._module = checked(driver.cuModuleLoadData(code))
        self._function = checked(driver.cuModuleGetFunction(self._module, b"scan"))
        attributes = driver.CUfunction_attribute
        checked(
            driver.cuFuncSetAttribute(
                self._function,
                attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                plan.shared,
            )
        )
        if plan.mode == CLUSTER and plan.blocks > 8:
            checked(
                driver.cuFuncSetAttribute(
                    self._function,
                    attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                )
            )
        self._attributes = self._launch_attributes()
        # What is the same in every launch.
        self._values = [0] * len(FIELDS)
        self._values[1] = problem.batch
        self._values[2] = problem.batch * problem.directions * problem.hidden
        groups, at_once = plan.tile_groups(problem.batch), plan.groups // problem.directions
        self._launches = [
            (first, min(at_once, groups - first) * problem.directions)
            for first in range(0, groups, at_once)
        ]
        self._exchange_words = 0  # of a step
        if plan.mode == GRID:
            row = sum(into for into, _ in problem.phases) * plan.padded * problem.value_bytes
            self._exchange_words = plan.groups * plan.tiles * plan.rows * row // 4
        # Made once a stream and never changed: making one costs more than launching with it.
        self._configs: dict[tuple[int, int], Any] = {}

    def _launch_attributes(self) -> list[Any]:
        if self.plan.mode == CLUSTER:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x = self.plan.blocks
            attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
            return [attribute]
        if self.plan.mode == GRID:
            # The driver refuses a launch whose blocks cannot all be resident: no wait without end.
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            return [attribute]
        return []

    def _config(self, groups: int, stream: int) -> Any:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = groups * self.plan.blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.plan.threads, 1, 1
        config.sharedMemBytes = self.plan.shared
        config.hStream = driver.CUstream(stream)
        config.attrs = self._attributes
        config.numAttrs = len(self._attributes)
        return config

    def fits(self) -> bool:
        """Whether the driver can have what must be resident together on the chip at once."""
        if self.plan.mode == CLUSTER:
            return self.active_clusters() >= 1
        count = checked(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self._function, self.plan.threads, self.plan.shared
            )
        )
        needed = self.plan.groups * self.plan.blocks if self.plan.mode == GRID else 1
        return bool(count * chip_of(self.device).multiprocessors >= needed)

    def active_clusters(self) -> int:
        """How many clusters the driver would have on the chip at once."""
        config = self._config(1, 0)
        return int(checked(driver.cuOccupancyMaxActiveClusters(self._function, config)))

    def resources(self) -> tuple[int, int]:
        """Registers of a thread and its bytes of local memory (spills)."""
        attributes = driver.CUfunction_attribute
        registers = driver.cuFuncGetAttribute(attributes.CU_FUNC_ATTRIBUTE_NUM_REGS, self._function)
        local = driver.cuFuncGetAttribute(
            attributes.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, self._function
        )
        return int(checked(registers)), int(checked(local))

    def __call__(self, steps: int, **arguments: torch.Tensor | int | None) -> None:
        """Launch on the current stream of the device; arguments are named as in FIELDS."""
        values = self._values.copy()
        values[0] = steps
        for name, value in arguments.items():
            if value is not None:
                values[_PLACES[name]] = value if type(value) is int else value.data_ptr()  # type: ignore[union-attr]
        words = _Words(*values)
        # The driver copies the arguments before it returns.
        where = ctypes.c_void_p(ctypes.addressof(words))
        exchange = None
        if self._exchange_words:
            size = steps * self._exchange_words
            exchange = torch.empty(size, dtype=torch.int32, device=self.device)
            words[_PLACES["exchange"]] = exchange.data_ptr()
        stream = _current_stream(self.device)
        for first, groups in self._launches:
            words[_FIRST_GROUP] = first
            if exchange is not None:
                exchange.fill_(-1)
            config = self._configs.get((groups, stream))
            if config is None:
                config = self._configs[groups, stream] = self._config(groups, stream)
            (status,) = driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(where), 0)
            if status:
                checked((status,))


_KERNELS: dict[tuple[object, ...], Kernel] = {}
_MOST_REFUSED = 3  # plans of one way; each had to be compiled


def prepare(problem: Problem, options: Options, device: torch.device) -> Kernel:
    """The best specialisation that the driver agrees to."""
    key = (problem, options, device, ACCEPTS, DEBUG)
    if key in _KERNELS:
        return _KERNELS[key]
    refused = {BLOCK: 0, CLUSTER: 0, GRID: 0}
    for plan in plans(problem, chip_of(device)):
        if refused[plan.mode] == _MOST_REFUSED or (ACCEPTS is not None and not ACCEPTS(plan)):
            continue
        kernel = Kernel(problem, options, plan, device)
        if kernel.fits():
            _KERNELS[key] = kernel
            return kernel
        refused[plan.mode] += 1
    raise BackendError(
        f"[{problem.cell}] backend 'cuda': no way to hold H = {problem.hidden} on this device "
        f"({chip_of(device)}); {sum(refused.values())} plans were refused by the driver"
    )
