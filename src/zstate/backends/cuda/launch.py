"""Loading and launching a specialisation. Nothing here waits for the device."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from operator import itemgetter
from typing import Any

import torch

from ...errors import BackendError
from .compiler import PRODUCTS, machine_code, source
from .frame import Asked, Frame, Slots, Step
from .options import Options, constants, product_constants
from .plan import BLOCK, CLUSTER, GRID, Chip, Plan, Problem
from .planner import plans
from .products import MOST_WORDS, SHARED, THREADS, Product, jobs

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

_FIRST_GROUP, _EXCHANGE = FIELDS.index("first_group"), FIELDS.index("exchange")

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


@cache
def chip_of(device: torch.device) -> Chip:
    found: Any = torch.cuda.get_device_properties(device)
    return Chip(
        found.multi_processor_count,
        int(found.shared_memory_per_block_optin),
        (found.major, found.minor),
    )


# The handle of a device's current stream; without the object around it, which costs microseconds.
current_stream: Callable[[int], int] = getattr(
    torch._C,
    "_cuda_getCurrentRawStream",
    lambda index: torch.cuda.current_stream(index).cuda_stream,
)


@cache
def _context(index: int) -> Any:
    return checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(index))))


class _Thread(threading.local):
    """The devices whose context this thread has had."""

    def __init__(self) -> None:
        self.devices: set[int] = set()


_THIS_THREAD = _Thread()


def enter(index: int) -> None:
    """Give this thread the context that torch computes in: one of autograd's may have none yet."""
    if index not in _THIS_THREAD.devices:
        checked(driver.cuCtxSetCurrent(_context(index)))
        _THIS_THREAD.devices.add(index)


class Words:
    """Memory for the arguments of a launch, so many 64-bit words; one thread has it at a time.

    The driver copies the arguments before a launch returns.
    """

    def __init__(self, count: int, most: int | None = None) -> None:
        self._pack = struct.Struct(f"{count}q").pack_into
        self._type = ctypes.c_int64 * (most or count)  # as large as the kernel's argument is
        self._free: list[tuple[Any, Any, int]] = []

    def launch(self, config: Any, function: Any, words: tuple[int, ...] | list[int]) -> None:
        """Launch with these arguments."""
        try:
            memory = self._free.pop()
        except IndexError:
            buffer = self._type()
            pointer = ctypes.c_void_p(ctypes.addressof(buffer))
            memory = buffer, pointer, ctypes.addressof(pointer)
        self._pack(memory[0], 0, *words)
        (status,) = driver.cuLaunchKernelEx(config, function, memory[2], 0)
        self._free.append(memory)
        if status:
            checked((status,))


def launch_config(
    blocks: int, threads: int, shared: int, stream: int, attributes: list[Any]
) -> Any:
    """Made once a stream and never changed: making one costs more than launching with it."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared
    config.hStream = driver.CUstream(stream)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def loaded(code: bytes, name: bytes, shared: int) -> Any:
    """A function of machine code, allowed so many bytes of shared memory; it stays loaded."""
    function = checked(driver.cuModuleGetFunction(checked(driver.cuModuleLoadData(code)), name))
    dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    checked(driver.cuFuncSetAttribute(function, dynamic, shared))
    return function


def architecture(device: torch.device) -> str:
    return "sm_{}{}".format(*chip_of(device).capability)


class Kernel:
    """One specialisation, loaded onto one device, with its plan."""

    def __init__(
        self, problem: Problem, options: Options, plan: Plan, device: torch.device
    ) -> None:
        self.problem, self.plan, self.device = problem, plan, device
        text = source(constants(problem, options, plan, DEBUG))
        code = machine_code(text, architecture(device))
        self._function = loaded(code, b"scan", plan.shared)
        if plan.mode == CLUSTER and plan.blocks > 8:
            checked(
                driver.cuFuncSetAttribute(
                    self._function,
                    driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                )
            )
        self._attributes = self._launch_attributes()
        groups, at_once = plan.tile_groups(problem.batch), plan.groups // problem.directions
        self._launches = [
            (first, min(at_once, groups - first) * problem.directions)
            for first in range(0, groups, at_once)
        ]
        self.exchange_words = 0  # of a step, 32 bits each
        if plan.mode == GRID:
            row = sum(into for into, _ in problem.phases) * plan.padded * problem.value_bytes
            self.exchange_words = plan.groups * plan.tiles * plan.rows * row // 4
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
        plan = self.plan
        return launch_config(
            groups * plan.blocks, plan.threads, plan.shared, stream, self._attributes
        )

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

    def step(self, slots: Slots, steps: int, addresses: dict[str, Asked]) -> Callable[[], Step]:
        """A launch on the frame's stream, once all numbers have their places.

        Addresses and strides are named as in FIELDS; what is not named is 0.
        """
        problem = self.problem
        values = {
            "T": steps,
            "N": problem.batch,
            "step": problem.batch * problem.directions * problem.hidden,
        }
        asked: dict[str, Asked] = {name: slots.constant(value) for name, value in values.items()}
        asked |= addresses
        nothing = slots.constant(0)
        if self.exchange_words:
            size = (steps * self.exchange_words,)
            asked["exchange"] = slots.ask(slots.part("exchange", size, torch.int32))
        return lambda: self._bound(
            [slots.place(asked.get(name, nothing)) for name in FIELDS],
            steps * self.exchange_words,
        )

    def _bound(self, places: list[int], exchange_words: int) -> Step:
        pick, words, configs = itemgetter(*places), Words(len(FIELDS)), self._configs
        fill = self._filler(exchange_words) if exchange_words else None

        def launch(frame: Frame) -> None:
            arguments, stream = pick(frame.numbers), frame.stream
            for first, groups in self._launches:
                if first:
                    arguments = [*arguments[:_FIRST_GROUP], first, *arguments[_FIRST_GROUP + 1 :]]
                if fill is not None:
                    fill(arguments[_EXCHANGE], stream)
                config = configs.get((groups, stream))
                if config is None:
                    config = configs[groups, stream] = self._config(groups, stream)
                words.launch(config, self._function, arguments)

        return launch

    def _filler(self, exchange_words: int) -> Callable[[int, int], None]:
        """Sets an exchange, by its address and on a stream, to "not there yet"."""
        kind = "tf32" if self.problem.type == "float32" else self.problem.type
        function = _product_function(kind, self.device, b"fill")
        pieces, words = exchange_words // 4, Words(2)
        most = 8 * chip_of(self.device).multiprocessors
        blocks = min(most, -(-pieces // THREADS))
        configs: dict[int, Any] = {}

        def fill(address: int, stream: int) -> None:
            config = configs.get(stream)
            if config is None:
                config = configs[stream] = launch_config(blocks, THREADS, 0, stream, [])
            words.launch(config, function, (address, pieces))

        return fill


@cache
def _product_function(kind: str, device: torch.device, name: bytes) -> Any:
    text = source(product_constants(kind), PRODUCTS)
    return loaded(machine_code(text, architecture(device)), name, SHARED)


def launched_products(
    products: list[Product], slots: Slots, kind: str, device: torch.device
) -> Callable[[], Step]:
    """Products that are small, all in one launch on the frame's stream."""
    asked, blocks = jobs(products, slots, 4 if kind == "tf32" else 2)
    function = _product_function(kind, device, b"products")

    def bound() -> Step:
        pick, words = itemgetter(*map(slots.place, asked)), Words(len(asked), MOST_WORDS)
        configs: dict[int, Any] = {}

        def launch(frame: Frame) -> None:
            stream = frame.stream
            config = configs.get(stream)
            if config is None:
                config = configs[stream] = launch_config(blocks, THREADS, SHARED, stream, [])
            words.launch(config, function, pick(frame.numbers))

        return launch

    return bound


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
