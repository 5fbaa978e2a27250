"""Project → scan → contract on CUDA tensors: matrix products around one launch of the scan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from ... import pipeline
from ...layout import Layout
from .arguments import MASK, Argument, Arguments, Memory, Shape, Step
from .launch import Kernel, chip_of, enter, kernel_of, launched_products
from .options import Options
from .placement import Scan
from .placements import placements
from .prepared import Prepared, Tensors
from .products import Matrix, Product, are_small, by_torch

Tensor = torch.Tensor
Run = Callable[[Tensors], Tensors]


class Sizes(NamedTuple):
    """The letters of a call."""

    T: int
    N: int
    I: int
    H: int
    D: int
    G: int


def sizes(layout: Layout) -> Sizes:
    return Sizes(*layout.size, layout.directions, len(layout.cell_kind.gates))


class Runner:
    """Calls of one layout: inputs in the operation's order to results in the published order.

    A layout is that of one device and one set of shapes. What else decides on the kernel may change
    from call to call: whether torch allows TF32, and how a mask lies in memory.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._is_float32 = layout.dtype == "float32"
        self._mask = layout.operation.inputs.index("mask") if "mask" in layout.present else None
        self._prepared: dict[tuple[bool, bool], Run] = {}

    def __call__(self, inputs: Tensors) -> Tensors:
        exact = self._is_float32 and not torch.backends.cuda.matmul.allow_tf32
        in_pairs = self._mask is not None and _in_pairs(inputs[self._mask])
        run = self._prepared.get((exact, in_pairs))
        if run is None:
            run = self._prepared[exact, in_pairs] = _prepared(self._layout, inputs, exact, in_pairs)
        return run(inputs)


def _in_pairs(mask: Tensor | None) -> bool:
    """Whether two neighbouring units of a mask can be loaded at once."""
    if mask is None or not mask.ndim or mask.shape[-1] == 1:
        return False
    *others, last = mask.stride()
    aligned = mask.data_ptr() % (2 * mask.element_size()) == 0
    return last == 1 and aligned and all(stride % 2 == 0 for stride in others)


def _prepared(layout: Layout, inputs: Tensors, exact: bool, mask_pairs: bool) -> Run:
    """The steps of such calls; the pipeline on torch where there is nothing to launch."""
    source = inputs[0]
    assert source is not None
    scan, z, device = _scan(layout, exact), sizes(layout), source.device
    # Full float32 may not fit on a chip with few multiprocessors at all.
    if layout.dtype == "float64" or not (z.T and z.N) or not placements(scan, chip_of(device)):
        return partial(pipeline.run, layout)
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in zip(layout.operation.inputs, inputs, strict=True)
        if tensor is not None
    }
    enter(device.index)
    kernel = kernel_of(scan, _options(layout, shapes, mask_pairs), device)
    builder = _Backward if layout.operation.is_gradient else _Forward
    return builder(layout, kernel, shapes, source.dtype).prepared()


class _Builder:
    """What both directions of time share. Steps are bound once all of them are known."""

    def __init__(
        self, layout: Layout, kernel: Kernel, shapes: dict[str, Shape], dtype: torch.dtype
    ) -> None:
        self.layout, self.kernel, self.dtype = layout, kernel, dtype
        self.z, self.shapes = sizes(layout), dict(shapes)
        self.names = layout.result_names()
        read = [n for n in layout.operation.inputs if n in layout.present and self.reads(n)]
        self.arguments = Arguments(read, [self.result(name) for name in self.names])
        self.steps: list[Callable[[], Step]] = []

    def reads(self, name: str) -> bool:
        """Whether a step reads an input; the mask is read as it lies."""
        return name != "mask"

    def result(self, name: str) -> str:
        """A result's name among all tensors of the call."""
        return name

    def given(self, name: str) -> str | None:
        """An input's name, if it was passed."""
        return name if name in self.layout.present else None

    def prepared(self) -> Prepared:
        self.build()
        self.shapes |= {
            self.result(name): self.shapes[name]
            if self.layout.operation.is_gradient
            else self.layout.shape(name)
            for name in self.names
        }
        fields = self.layout.operation.result._fields
        return Prepared(
            self.arguments,
            self.layout.operation.inputs,
            self.shapes,
            [self.result(name) if name in self.names else None for name in fields],
            self.layout.shape("mask") if self.given("mask") else None,
            self.kernel.device,
            self.dtype,
            self.steps,
        )

    def build(self) -> None:
        raise NotImplementedError

    def multiply(self, products: list[Product]) -> None:
        """A step of products."""
        products = [each for each in products if each.m and each.n]
        if not products:
            return
        kind, device = self.kernel.scan.type, self.kernel.device
        if are_small(products, kind, chip_of(device).multiprocessors):
            self.steps.append(launched_products(products, self.arguments, kind, device))
        else:
            self.by_torch(by_torch(products, self.arguments))

    def by_torch(self, step: Step) -> None:
        """A step of torch operations."""
        self.steps.append(lambda: step)

    def scan(self, **tensors: str | Argument | None) -> None:
        """The step of the scan; tensors are named as in launch.FIELDS."""
        tensors |= {
            "weight": self.weight(),
            "peephole": self.given("peephole"),
            "bias2": self.given("secondary_bias"),
            "state0": self.given("init_state"),
            "cell0": self.given("init_cell"),
        }
        addresses = {
            field: self.arguments.address(name) if name is None or isinstance(name, str) else name
            for field, name in tensors.items()
        }
        if self.given("mask"):
            addresses |= {name: (name, 0) for name in MASK}
        self.steps.append(self.kernel.step(self.arguments, self.z.T, addresses))

    def weight(self) -> str:
        """The recurrent weight as the scan reads it: the caller's own if it stays on the chip."""
        z, placement = self.z, self.kernel.placement
        gradient = self.layout.operation.is_gradient
        size = placement.padded
        if placement.holds_all(self.kernel.scan) or (size == z.H and not gradient):
            return "recurrent_weight"
        shape = (z.D, size, z.G, size) if gradient else (z.D, z.G, size, size)
        name = self.arguments.reserve("weight", shape, self.dtype)

        def copy(memory: Memory) -> None:
            weight = self.arguments.tensor(memory, "recurrent_weight").reshape(z.D, z.G, z.H, z.H)
            padded = self.arguments.tensor(memory, name)
            if size != z.H:
                padded.zero_()
            if gradient:  # transposed, so that the backward product reads along its rows too
                padded[:, : z.H, :, : z.H] = weight.permute(0, 3, 1, 2)
            else:
                padded[:, :, : z.H, : z.H] = weight

        self.by_torch(copy)
        return name


class _Forward(_Builder):
    """Project, scan."""

    def build(self) -> None:
        made = {name: name if name in self.names else None for name in ("cell", "training_state")}
        self.scan(
            gates_x=self.project(),
            state="state",
            cell=made["cell"],
            saved=made["training_state"],
        )

    def project(self) -> str:
        """x[t]W^T + b for all t, [T·N,D·G·H]; a source without a weight is projected already.

        The scan may write zState over it: each number is read and written by one thread, and in
        the same place, unless input and output go in different orders.
        """
        z, bias = self.z, self.given("bias")
        if not self.given("input_weight") and bias is None:
            return "source"
        wide, name = z.D * z.G * z.H, "training_state"
        if name not in self.names or (self.layout.descriptor.reverse and z.D == 1):
            name = self.arguments.reserve("gates", (z.T, z.N, wide), self.dtype)
        if self.given("input_weight"):
            operands = Matrix(name, wide), Matrix("source", z.I), Matrix("input_weight", z.I)
            added = None if bias is None else Matrix("bias", wide)
            self.multiply([Product("nt", *operands, z.T * z.N, wide, z.I, added)])
        else:
            self.by_torch(lambda memory: self._add_bias(memory, name))
        return name

    def _add_bias(self, memory: Memory, to: str) -> None:
        source, bias, gates = (
            self.arguments.tensor(memory, name) for name in ("source", "bias", to)
        )
        torch.add(source, bias, out=gates)


class _Backward(_Builder):
    """Scan, contract."""

    def __init__(
        self, layout: Layout, kernel: Kernel, shapes: dict[str, Shape], dtype: torch.dtype
    ) -> None:
        super().__init__(layout, kernel, shapes, dtype)
        self.form = kernel.scan.form
        self.wide = self.z.D * self.z.G * self.z.H

    def reads(self, name: str) -> bool:
        needless = {"mask", "bias", *(() if self.given("input_weight") else ("source",))}
        return name not in needless

    def result(self, name: str) -> str:
        return f"gradient of {name}"

    def gradient(self, name: str) -> str | None:
        return self.result(name) if name in self.names else None

    def build(self) -> None:
        z, reserve = self.z, self.arguments.reserve
        gates = self.result("source")  # already projected: the gates' gradient is the source's
        if self.given("input_weight"):
            gates = reserve("gates", (z.T * z.N, self.wide), self.dtype)
        left = reserve("left", (z.T * z.N, z.D * z.H), self.dtype)
        left_reset = None
        if self.form.left_reset:
            width = z.D * self.form.left_reset * z.H
            left_reset = reserve("left_reset", (z.T * z.N, width), self.dtype)
        sums = self.sums()
        self.scan(
            saved="z_state",
            cell=self.given("cell_output_fwd"),
            state=self.given("output_fwd"),
            d_state="source_gradient",
            d_last=self.given("state_gradient"),
            d_cell=self.given("cell_gradient"),
            unreset=self.unreset(),
            d_gates=gates,
            left=left,
            left_reset=left_reset,
            d_state0=self.gradient("init_state"),
            d_cell0=self.gradient("init_cell"),
            **sums.addresses,
        )
        self.multiply([*self.contractions(gates), *sums.products])

    def contractions(self, gates: str) -> list[Product]:
        """dx [T·N,I], dW [D·G·H,I] and dR [D,G·H,H] from the gates' gradients [T·N,D·G·H]."""
        z, wide, rows = self.z, self.wide, self.z.T * self.z.N
        products = []
        if self.given("input_weight"):
            dg, x, w = Matrix(gates, wide), Matrix("source", z.I), Matrix("input_weight", z.I)
            dx, dw = (Matrix(self.result(name), z.I) for name in ("source", "input_weight"))
            products.append(Product("nn", dx, dg, w, rows, z.I, wide))
            products.append(Product("tn", dw, dg, x, wide, z.I, rows))
        for d in range(z.D):
            for gradients, factor, first, count in self.form.contractions:
                row = (d * z.G + first) * z.H
                dr = Matrix(self.result("recurrent_weight"), z.H, row * z.H)
                left = Matrix(gates if gradients == "gates" else gradients, wide, row)
                right = Matrix(factor, z.D * z.H, d * z.H)
                products.append(Product("tn", dr, left, right, count * z.H, z.H, rows))
        return products

    def sums(self) -> _Sums:
        """Gradients that are sums over time and batch: the scan leaves one per group of rows."""
        z, arguments = self.z, self.arguments
        per_unit = {"bias": z.G, "peephole": z.G, "secondary_bias": 1}
        widths = {name: z.D * n * z.H for name, n in per_unit.items() if name in self.names}
        groups, total = self.kernel.placement.tile_groups(z.N), sum(widths.values())
        if groups == 1:
            return _Sums({_SUM_FIELDS[name]: self.result(name) for name in widths}, [])
        several = _Sums({"sum_stride": arguments.constant(total)}, [])
        if widths:
            arguments.reserve("sums", (groups, total), torch.float32)
        begin = 0
        for name, width in widths.items():
            several.addresses[_SUM_FIELDS[name]] = arguments.address("sums", begin * 4)
            out, sums = Matrix(self.result(name), width), Matrix("sums", total, begin)
            several.products.append(Product("sum", out, sums, None, 1, width, groups))
            begin += width
        return several

    def unreset(self) -> str | None:
        """What reset_after multiplies by r, for all t in one product; zState does not keep it.

        [T,N,D·H]; without an initial state the scan knows it at the first step.
        """
        z = self.z
        if not self.form.unreset:
            return None
        name = self.arguments.reserve("unreset", (z.T, z.N, z.D * z.H), self.dtype)
        if self.given("mask"):
            self.by_torch(self._unreset_masked)
            return name
        wide, step, last = z.D * z.H, z.N * z.D * z.H, (z.T - 1) * z.N * z.D * z.H
        products = []
        for d in range(z.D):
            # In the order of the output; the second direction goes the other way.
            begin, after, before = (0, step, 0) if d == 0 else (last, 0, step)
            own = d * z.H
            weight = Matrix("recurrent_weight", z.H, (d * z.G + 2) * z.H * z.H)
            bias = Matrix("secondary_bias", wide, own) if self.given("secondary_bias") else None
            out, states = (
                Matrix(name, wide, after + own),
                Matrix("output_fwd", wide, before + own),
            )
            rows = (z.T - 1) * z.N
            products.append(Product("nt", out, states, weight, rows, z.H, z.H, bias))
            if self.given("init_state"):
                out, states = Matrix(name, wide, begin + own), Matrix("init_state", wide, own)
                products.append(Product("nt", out, states, weight, z.N, z.H, z.H, bias))
        self.multiply(products)
        return name

    def _unreset_masked(self, memory: Memory) -> None:
        z, arguments = self.z, self.arguments
        state, unreset = (arguments.tensor(memory, name) for name in ("output_fwd", "unreset"))
        weight = arguments.tensor(memory, "recurrent_weight").reshape(z.D, z.G, z.H, z.H)[:, 2]
        first, bias = (
            arguments.tensor(memory, name) if self.given(name) else None
            for name in ("init_state", "secondary_bias")
        )
        assert memory.mask is not None
        for d in range(z.D):
            own = slice(d * z.H, (d + 1) * z.H)
            mask = memory.mask[:, :, own]
            mask = mask.flip(0) if z.D == 1 and self.layout.descriptor.reverse else mask
            early, late = (slice(None, -1), slice(1, None))
            before, after = (early, late) if d == 0 else (late, early)
            begin = 0 if d == 0 else -1
            added = None if bias is None else bias[own]
            rows = (state[before, :, own] * mask[after]).reshape(-1, z.H)
            linear = torch.nn.functional.linear
            unreset[after, :, own] = linear(rows, weight[d], added).view(-1, z.N, z.H)
            if first is not None:
                unreset[begin, :, own] = linear(first[:, own] * mask[begin], weight[d], added)


_SUM_FIELDS = {"bias": "bias_sum", "peephole": "peephole_sum", "secondary_bias": "bias2_sum"}


class _Sums(NamedTuple):
    """Where the scan leaves sums over time and batch, and how those of the groups become one."""

    addresses: dict[str, str | Argument | None]
    products: list[Product]


def _scan(layout: Layout, exact: bool) -> Scan:
    z = sizes(layout)
    kind = "tf32" if layout.dtype == "float32" and not exact else layout.dtype
    # Of a pair of units: the mask, peepholes and the sums of their gradients.
    gradient, present = layout.operation.is_gradient, layout.present
    sums = 2 if gradient else 1
    optional = 2 * ("mask" in present) + 2 * z.G * sums * ("peephole" in present)
    reset_after = getattr(layout.descriptor, "reset_after", False)
    return Scan(layout.cell_kind.name, gradient, reset_after, kind, z.H, z.N, z.D, optional)


def _options(layout: Layout, shapes: dict[str, Shape], mask_pairs: bool) -> Options:
    present, descriptor, names = layout.present, layout.descriptor, layout.result_names()
    gradient = layout.operation.is_gradient
    of_cell = shapes.get("cell_gradient")
    every = of_cell is not None and len(of_cell) == 3 and of_cell[0] == layout.size[0]
    return Options(
        slots=layout.slots,
        activations=tuple(int(kind) for kind in descriptor.activations),
        reverse=descriptor.reverse and not descriptor.bidirectional,
        flip_z=getattr(descriptor, "flip_z", False),
        mask="mask" in present,
        mask_pairs=mask_pairs,
        peephole="peephole" in present,
        peephole_on_new_cell=layout.peephole_on_new_cell,
        bias2="secondary_bias" in present,
        state="init_state" in present,
        cell="init_cell" in present,
        save_cell="cell" in names,
        save_gates="training_state" in names,
        last_state="state_gradient" in present,
        last_cell=of_cell is not None and not every,
        every_cell=every,
        want_left=gradient,
        sum_bias=gradient and "bias" in present,
        sum_peephole=gradient and "peephole" in present,
        sum_bias2=gradient and "secondary_bias" in present,
    )
