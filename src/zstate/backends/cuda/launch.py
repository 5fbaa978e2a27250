"""Loading and launching a specialisation. Nothing here waits for the device."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from ...errors import BackendError
from .arguments import Argument, Arguments
from .compiler import ARGUMENTS, CELL, PRODUCTS, STREAMED, machine_code, scan_texts, source
from .options import constants, product_constants, streamed_constants
from .passes import Options, pass_of
from .phases import Phase
from .placement import GRID, STEPS, WIDE, Chip, Placement, Scan
from .placements import placements
from .printing import FIELDS, arguments_text, cell_text, fields_of
from .products import MOST_WORDS, SHARED, THREADS, Product, jobs
from .streamed import THREADS as STREAMED_THREADS
from .streamed import WORDS as STREAMED_WORDS
from .streamed import Streamed, product_of, ring_of

driver: Any
try:
    driver = import_module("cuda.bindings.driver")
except ImportError:  # the backend's unavailable() says so before anything here is used
    driver = None

_ORDER = list(FIELDS)
_FIRST_GROUP, _EXCHANGE = _ORDER.index("first_group"), _ORDER.index("exchange")
INDEX = _ORDER.index("index")

Launched: TypeAlias = Callable[[list[int], int], None]  # of a call's numbers, on a stream

_PHASES = (b"first_phase", b"last_phase")  # in steps.cu; the last may be the only one
DEPENDENT = True  # a step's launch begins to read its inputs while the product before it ends
DEBUG = False  # stop a wait that lasts too long: for development


def checked(answer: tuple[Any, ...]) -> Any:
    """The result of a driver call, or an exception with the driver's own words."""
    status, *rest = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        name = driver.cuGetErrorName(status)[1]
        text = driver.cuGetErrorString(status)[1]
        raise BackendError(f"CUDA driver: {(name or b'?').decode()}: {(text or b'?').decode()}")
    return rest[0] if rest else None


@cache
def chip_of(device: int) -> Chip:
    """The chip of a device, by the driver's number of it."""
    checked(driver.cuInit(0))
    handle, names = checked(driver.cuDeviceGet(device)), driver.CUdevice_attribute

    def number(name: str) -> int:
        attribute = getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(checked(driver.cuDeviceGetAttribute(attribute, handle)))

    return Chip(
        number("MULTIPROCESSOR_COUNT"),
        number("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        (number("COMPUTE_CAPABILITY_MAJOR"), number("COMPUTE_CAPABILITY_MINOR")),
    )


@cache
def _context(index: int) -> Any:
    checked(driver.cuInit(0))
    return checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(index))))


class _Thread(threading.local):
    """The devices whose context this thread has entered."""

    def __init__(self) -> None:
        self.devices: set[int] = set()


_THIS_THREAD = _Thread()


def enter(index: int) -> None:
    """Enter the context that everyone computes in; a thread of autograd may have none yet."""
    if index not in _THIS_THREAD.devices:
        checked(driver.cuCtxSetCurrent(_context(index)))
        _THIS_THREAD.devices.add(index)


class Launch:
    """A function with its launch configuration: call it with a stream and the arguments' words.

    A configuration is made once per stream and never changed: making one costs more than launching
    with it. The memory of the words serves one thread at a time; the driver copies them before a
    launch returns.
    """

    def __init__(
        self,
        function: Any,
        blocks: int,
        threads: int,
        shared: int,
        words: int,
        attributes: Sequence[Any] = (),
        most_words: int | None = None,
    ) -> None:
        self._function, self._attributes = function, list(attributes)
        self._blocks, self._threads, self._shared = blocks, threads, shared
        self._pack = struct.Struct(f"{words}q").pack_into
        self._type = ctypes.c_int64 * (most_words or words)  # as large as the kernel's argument is
        self._free: list[tuple[Any, Any, int]] = []
        self._configs: dict[int, Any] = {}

    def __call__(self, stream: int, words: Sequence[int]) -> None:
        config = self._config(stream)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = self._memory()
        self._pack(memory[0], 0, *words)
        (status,) = driver.cuLaunchKernelEx(config, self._function, memory[2], 0)
        self._free.append(memory)
        if status:
            checked((status,))

    def repeated(self, stream: int, words: Sequence[int], place: int) -> Callable[[int], None]:
        """The same with another number at one place each time; for one thread."""
        config, function = self._config(stream), self._function
        memory = buffer, _, address = self._memory()
        self._pack(buffer, 0, *words)

        def launch(number: int) -> None:
            memory[0][place] = number
            (status,) = driver.cuLaunchKernelEx(config, function, address, 0)
            if status:
                checked((status,))

        return launch

    def _memory(self) -> tuple[Any, Any, int]:
        """Words, a pointer to them, and that pointer's address: what the driver is given."""
        buffer = self._type()
        pointer = ctypes.c_void_p(ctypes.addressof(buffer))
        return buffer, pointer, ctypes.addressof(pointer)

    def _config(self, stream: int) -> Any:
        config = self._configs.get(stream)
        if config is None:
            config = self._configs[stream] = self.config(stream)
        return config

    def config(self, stream: int) -> Any:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self._threads, 1, 1
        config.sharedMemBytes = self._shared
        config.hStream = driver.CUstream(stream)
        config.attrs = self._attributes
        config.numAttrs = len(self._attributes)
        return config


def loaded(code: bytes, names: Sequence[bytes], shared: int) -> list[Any]:
    """Functions of machine code, allowed ``shared`` bytes of shared memory; they stay loaded."""
    module = checked(driver.cuModuleLoadData(code))
    functions = [checked(driver.cuModuleGetFunction(module, name)) for name in names]
    dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    for function in functions:
        checked(driver.cuFuncSetAttribute(function, dynamic, shared))
    return functions


def architecture(device: int, mode: int = GRID) -> str:
    """What code is compiled for; WIDE needs instructions that only one architecture has."""
    return "sm_{}{}".format(*chip_of(device).capability) + ("a" if mode == WIDE else "")


class Exchange(NamedTuple):
    """Memory that blocks exchange through, in words of 32 bits; the first of them begin as ones."""

    words: int
    filled: int


def specialisation(scan: Scan, options: Options, placement: Placement, debug: bool = False) -> str:
    """The text of a scan, with what is printed for its cell."""
    found = pass_of(options)
    printed = {ARGUMENTS: arguments_text(found), CELL: cell_text(found)}
    front = constants(scan, options, placement, debug)
    return source(front, scan_texts(placement.mode), printed)


class Kernel:
    """One specialisation, loaded onto one device, with its placement."""

    def __init__(self, scan: Scan, options: Options, placement: Placement, device: int) -> None:
        self.scan, self.placement, self.device = scan, placement, device
        self.options, self.words = options, fields_of(pass_of(options))
        text = specialisation(scan, options, placement, DEBUG)
        self.code = machine_code(text, architecture(device, placement.mode))
        names = [b"scan"]
        if placement.mode == STEPS:
            names = [b"begin", *_PHASES[-len(scan.phases) :]]
        self._functions = loaded(self.code, names, placement.shared)
        self._function = self._functions[-1]
        if placement.cluster_blocks > 8:
            checked(
                driver.cuFuncSetAttribute(
                    self._function,
                    driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                )
            )
        chains = placement.chain_groups(scan)
        groups, at_once = placement.tile_groups(scan.batch), placement.groups // chains
        # The first group of every launch, and the launch's blocks.
        self.launches = [
            (first, min(at_once, groups - first) * chains * placement.blocks)
            for first in range(0, groups, at_once)
        ]

    def exchange(self, steps: int) -> Exchange:
        """The memory through which blocks exchange values in a call of this many steps."""
        scan, placement = self.scan, self.placement
        if not placement.is_cooperative:
            return Exchange(0, 0)
        tiles, words = placement.groups * placement.tiles, placement.exchange_bytes(scan) // 4
        if placement.mode == WIDE:  # a counter per tile, and two places for its operand
            return Exchange(tiles * (32 + 2 * words), tiles * 32)
        return Exchange(steps * tiles * words, steps * tiles * words)

    def _launch(self, blocks: int) -> Launch:
        return self._launch_of(self._function, blocks, self._launch_attributes())

    def _launch_of(self, function: Any, blocks: int, attributes: Sequence[Any] = ()) -> Launch:
        placement = self.placement
        threads, words = placement.launched_threads, len(self.words)
        return Launch(function, blocks, threads, placement.shared, words, attributes)

    def _launch_attributes(self) -> list[Any]:
        attributes, names = [], driver.CUlaunchAttributeID
        if self.placement.cluster_blocks > 1:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attributes[-1].value.clusterDim.x = self.placement.cluster_blocks
            attributes[-1].value.clusterDim.y = attributes[-1].value.clusterDim.z = 1
        if self.placement.is_cooperative:
            # The driver rejects a launch whose blocks cannot all be resident: no wait is endless.
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = names.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attributes[-1].value.cooperative = 1
        # Behind a library's product a step takes 0.2 us longer with it in 16 bits (H200), in TF32
        # 0.3 to 1.4 us less.
        gains = self.scan.value_bytes == 4 or self.placement.split
        if self.placement.mode == STEPS and gains:
            attributes += _early(self.device)
        return attributes

    def fits(self) -> bool:
        """Whether everything that must be resident together fits on the chip at once."""
        placement = self.placement
        needed = placement.groups * placement.blocks if placement.is_cooperative else 1
        if placement.cluster_blocks > 1:
            return self.active_clusters() * placement.cluster_blocks >= needed
        count = checked(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self._function, placement.launched_threads, placement.shared
            )
        )
        return bool(count * chip_of(self.device).multiprocessors >= needed)

    def active_clusters(self) -> int:
        """How many clusters fit on the chip at once."""
        config = self._launch(self.placement.cluster_blocks).config(stream=0)
        return int(checked(driver.cuOccupancyMaxActiveClusters(self._function, config)))

    def fields(
        self, arguments: Arguments, steps: int, addresses: dict[str, Argument]
    ) -> dict[str, Argument]:
        """What a launch is given, as its words are named; what is not named is 0."""
        sizes = {
            "T": steps,
            "N": self.scan.batch,
            "step": self.scan.batch * self.scan.chains * self.scan.hidden,
        }
        given = {name: arguments.constant(value) for name, value in sizes.items()} | addresses
        words = self.exchange(steps).words
        if words:
            name = arguments.reserve("exchange", (words,), "int32")
            given["exchange"] = arguments.address(name)
        if self.placement.mode == STEPS:
            given |= self._step_memory(arguments)
        nothing = arguments.constant(0)
        return {name: given.get(name, nothing) for name in self.words}

    def _step_memory(self, arguments: Arguments) -> dict[str, Argument]:
        """What the launches of a scan in single steps leave for each other."""
        scan, placement = self.scan, self.placement
        dtype = "float32" if scan.type == "tf32" else scan.type
        rows = (scan.chains, scan.batch)
        blocks = placement.groups * placement.blocks
        pairs = blocks * scan.states * placement.rows * placement.units // 2

        def row(phase: Phase) -> int:
            return product_of(scan, phase).lda if placement.split else phase.ins * scan.hidden

        parts = zip(placement.parts(scan), scan.phases, strict=True)
        most = max(count * each.outs for count, each in parts)
        pieces = {
            "product": ((*rows, most * scan.hidden), dtype),
            "operand": ((*rows, max(map(row, scan.phases))), dtype),
            **({"kept": ((pairs, 2), "float32")} if pairs else {}),
        }
        return {
            name: arguments.address(arguments.reserve(name, shape, kind))
            for name, (shape, kind) in pieces.items()
        }

    def step_launches(self) -> list[Launch]:
        """Of a scan in single steps: the one before the first step, then those of its phases."""
        ((_, blocks),) = self.launches
        first, *phases = self._functions
        attributes = self._launch_attributes()
        return [
            self._launch_of(first, blocks),
            *(self._launch_of(each, blocks, attributes) for each in phases),
        ]

    def launched(self, arguments: Arguments, steps: int, fields: dict[str, Argument]) -> Launched:
        """The launches of a call, once all numbers have their places."""
        pick = itemgetter(*map(arguments.place, fields.values()))
        launches = [(first, self._launch(blocks)) for first, blocks in self.launches]
        filled = self.exchange(steps).filled
        fill = self._filler(filled) if filled else None
        pieces = filled // 4

        def launch(numbers: list[int], stream: int) -> None:
            words = pick(numbers)
            for first, launch_groups in launches:
                if first:
                    words = [*words[:_FIRST_GROUP], first, *words[_FIRST_GROUP + 1 :]]
                if fill is not None:
                    fill(stream, (words[_EXCHANGE], pieces))
                launch_groups(stream, words)

        return launch

    def _filler(self, words: int) -> Launch:
        """Sets an exchange, by its address and its 16-byte pieces, to "not there yet"."""
        kind = "tf32" if self.scan.type == "float32" else self.scan.type
        function = _product_function(kind, self.device, b"fill")
        most = 8 * chip_of(self.device).multiprocessors
        blocks = min(most, -(-(words // 4) // THREADS))
        return Launch(function, blocks, THREADS, shared=0, words=2)


@cache
def _product_function(kind: str, device: int, name: bytes) -> Any:
    text = source(product_constants(kind), PRODUCTS)
    (function,) = loaded(machine_code(text, architecture(device)), [name], SHARED)
    return function


def launched_products(
    products: list[Product], arguments: Arguments, kind: str, device: int
) -> Callable[[], Launched]:
    """Products that are small, all in one launch."""
    words, blocks = jobs(products, arguments, kind)
    function = _product_function(kind, device, b"products")
    launch = Launch(function, blocks, THREADS, SHARED, len(words), most_words=MOST_WORDS)

    def bound() -> Launched:
        pick = itemgetter(*map(arguments.place, words))
        return lambda numbers, stream: launch(stream, pick(numbers))

    return bound


def _early(device: int) -> list[Any]:
    """The attribute of a launch that may begin before the one before it has ended."""
    if not DEPENDENT or chip_of(device).capability < (9, 0):
        return []
    attribute = driver.CUlaunchAttribute()
    serial = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.id, attribute.value.programmaticStreamSerializationAllowed = serial, 1
    return [attribute]


@cache
def streaming(product: Streamed, device: int) -> Launch:
    """The launch of a product; its words are those of ``Streamed`` in streamed.cu."""
    chip = chip_of(device)
    shares, words = product.shares(chip), len(STREAMED_WORDS)
    shared = ring_of(product, shares, chip).shared
    text = source(streamed_constants(product, chip, DEBUG), STREAMED)
    (function,) = loaded(machine_code(text, architecture(device)), [b"streamed"], shared)
    return Launch(function, shares.blocks, STREAMED_THREADS, shared, words, _early(device))


@cache
def turning(kind: str, device: int, rows: int, columns: int) -> Launch:
    """Copies a matrix of such a size into one that lies the other way; the words of ``Turning``."""
    side = 32
    blocks = -(-rows // side) * -(-columns // side)
    return Launch(_product_function(kind, device, b"turn"), blocks, THREADS, shared=0, words=5)


@cache
def dotting(kind: str, device: int, blocks: int) -> Launch:
    """Multiplies matrices column by column; the words of ``Dots``."""
    return Launch(_product_function(kind, device, b"dots"), blocks, THREADS, shared=0, words=8)


_KERNELS: dict[tuple[object, ...], Kernel] = {}
_MOST_REFUSED = 3  # placements of one mode; each had to be compiled


def kernel_of(scan: Scan, options: Options, device: int, in_steps: bool = False) -> Kernel:
    """The best specialisation that the driver accepts; in single steps only where allowed."""
    key = (scan, options, device, in_steps, DEBUG)
    if key in _KERNELS:
        return _KERNELS[key]
    refused: Counter[int] = Counter()  # by mode
    for placement in placements(scan, chip_of(device), in_steps):
        if refused[placement.mode] == _MOST_REFUSED:
            continue
        kernel = Kernel(scan, options, placement, device)
        if kernel.fits():
            _KERNELS[key] = kernel
            return kernel
        refused[placement.mode] += 1
    raise BackendError(
        f"[{scan.form.cell}] backend 'cuda': H = {scan.hidden} does not fit on this device "
        f"({chip_of(device)}); {sum(refused.values())} placements were rejected by the driver"
    )
