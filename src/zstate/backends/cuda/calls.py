"""A call as steps around the scan, whoever takes them: project → scan → contract.

``describe`` says which tensors a call reads, makes and needs between, and what to do with them in
which order. ``engine`` does it with torch, ``zstate.jax`` as part of a compiled program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ...layout import Layout
from .arguments import MASK, Argument, Arguments, Shape
from .options import Options
from .placement import STEPS, Scan
from .products import Matrix, Product

if TYPE_CHECKING:
    from .launch import Kernel


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


# ---- steps ----


class Multiply(NamedTuple):
    """Independent products."""

    products: list[Product]


class CopyWeight(NamedTuple):
    """The recurrent weight [D,G,H,H] into a larger one that is zero elsewhere, [D,G,P,P].

    ``turned``: into [D,P,G,P], so that the backward product reads along its rows too.
    """

    to: str
    turned: bool


class AddBias(NamedTuple):
    """source + bias, [T,N,D·G·H]."""

    to: str


class MaskStates(NamedTuple):
    """The states before every step, under the mask, [T,N,D·H]; in the order of the output."""

    to: str


class RunScan(NamedTuple):
    """The launch; what it is given, as launch.FIELDS names it."""

    fields: dict[str, Argument]


AnyStep: TypeAlias = Multiply | CopyWeight | AddBias | MaskStates | RunScan

# What a scan writes; it reads the rest.
WRITTEN = {
    False: ("state", "cell", "saved", "exchange"),
    True: (
        *("d_gates", "left", "left_reset", "d_state0", "d_cell0"),
        *("bias_sum", "peephole_sum", "bias2_sum", "exchange"),
    ),
}


class Call(NamedTuple):
    """All that calls of one layout have in common."""

    layout: Layout
    kernel: Kernel
    arguments: Arguments
    shapes: dict[str, Shape]  # of inputs and results
    published: list[str | None]  # the results in their order; None: not produced
    steps: list[AnyStep]


def describe(layout: Layout, kernel: Kernel, shapes: dict[str, Shape]) -> Call:
    """The steps of a call whose inputs have these shapes."""
    builder = _Backward if layout.operation.is_gradient else _Forward
    return builder(layout, kernel, shapes).call()


class _Builder:
    """What both directions of time share."""

    def __init__(self, layout: Layout, kernel: Kernel, shapes: dict[str, Shape]) -> None:
        self.layout, self.kernel, self.dtype = layout, kernel, layout.dtype
        self.z, self.shapes = sizes(layout), dict(shapes)
        self.names = layout.result_names()
        read = [n for n in layout.operation.inputs if n in layout.present and self.reads(n)]
        self.arguments = Arguments(read, [self.result(name) for name in self.names])
        self.steps: list[AnyStep] = []

    def reads(self, name: str) -> bool:
        """Whether a step reads an input; the mask is read as it lies."""
        return name != "mask"

    def result(self, name: str) -> str:
        """A result's name among all tensors of the call."""
        return name

    def given(self, name: str) -> str | None:
        """An input's name, if it was passed."""
        return name if name in self.layout.present else None

    def call(self) -> Call:
        self.build()
        self.shapes |= {
            self.result(name): self.shapes[name]
            if self.layout.operation.is_gradient
            else self.layout.shape(name)
            for name in self.names
        }
        fields = self.layout.operation.result._fields
        published = [self.result(name) if name in self.names else None for name in fields]
        return Call(self.layout, self.kernel, self.arguments, self.shapes, published, self.steps)

    def build(self) -> None:
        raise NotImplementedError

    def multiply(self, products: list[Product]) -> None:
        products = [each for each in products if each.m and each.n]
        if products:
            self.steps.append(Multiply(products))

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
        self.steps.append(RunScan(self.kernel.fields(self.arguments, self.z.T, addresses)))

    def weight(self) -> str:
        """The recurrent weight as the scan reads it.

        The caller's own if it stays on the chip, or if the library multiplies by it.
        """
        z, placement = self.z, self.kernel.placement
        gradient = self.layout.operation.is_gradient
        size = placement.padded
        holds_all = placement.mode == STEPS or placement.holds_all(self.kernel.scan)
        if holds_all or (size == z.H and not gradient):
            return "recurrent_weight"
        shape = (z.D, size, z.G, size) if gradient else (z.D, z.G, size, size)
        name = self.arguments.reserve("weight", shape, self.dtype)
        self.steps.append(CopyWeight(name, gradient))
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
            self.steps.append(AddBias(name))
        return name


class _Backward(_Builder):
    """Scan, contract."""

    def __init__(self, layout: Layout, kernel: Kernel, shapes: dict[str, Shape]) -> None:
        super().__init__(layout, kernel, shapes)
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
        if self.kernel.placement.sums_all(z.N):
            return _Sums({_SUM_FIELDS[name]: self.result(name) for name in widths}, [])
        several = _Sums({"sum_stride": arguments.constant(total)}, [])
        if widths:
            arguments.reserve("sums", (groups, total), "float32")
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
        z, reserve = self.z, self.arguments.reserve
        if not self.form.unreset:
            return None
        name, shape = "unreset", (z.T, z.N, z.D * z.H)
        reserve(name, shape, self.dtype)
        wide, step, last = z.D * z.H, z.N * z.D * z.H, (z.T - 1) * z.N * z.D * z.H
        masked = None
        if self.given("mask"):
            masked = reserve("masked", shape, self.dtype)
            self.steps.append(MaskStates(masked))
        products = []

        def multiply(states: Matrix, begin: int, rows: int, d: int) -> None:
            own = d * z.H
            weight = Matrix("recurrent_weight", z.H, (d * z.G + 2) * z.H * z.H)
            bias = Matrix("secondary_bias", wide, own) if self.given("secondary_bias") else None
            out = Matrix(name, wide, begin + own)
            products.append(Product("nt", out, states, weight, rows, z.H, z.H, bias))

        for d in range(z.D):
            own = d * z.H
            if masked is not None:
                multiply(Matrix(masked, wide, own), 0, z.T * z.N, d)
                continue
            # In the order of the output; the second direction goes the other way.
            begin, after, before = (0, step, 0) if d == 0 else (last, 0, step)
            multiply(Matrix("output_fwd", wide, before + own), after, (z.T - 1) * z.N, d)
            if self.given("init_state"):
                multiply(Matrix("init_state", wide, own), begin, z.N, d)
        self.multiply(products)
        return name


_SUM_FIELDS = {"bias": "bias_sum", "peephole": "peephole_sum", "secondary_bias": "bias2_sum"}


class _Sums(NamedTuple):
    """Where the scan leaves sums over time and batch, and how those of the groups become one."""

    addresses: dict[str, str | Argument | None]
    products: list[Product]


def scan_of(layout: Layout, exact: bool) -> Scan:
    """What of a layout decides its placement; ``exact``: float32 without TF32."""
    z = sizes(layout)
    kind = "tf32" if layout.dtype == "float32" and not exact else layout.dtype
    # Of a pair of units: the mask, peepholes and the sums of their gradients.
    gradient, present = layout.operation.is_gradient, layout.present
    sums = 2 if gradient else 1
    optional = 2 * ("mask" in present) + 2 * z.G * sums * ("peephole" in present)
    reset_after = getattr(layout.descriptor, "reset_after", False)
    return Scan(layout.cell_kind.name, gradient, reset_after, kind, z.H, z.N, z.D, optional)


def options_of(layout: Layout, shapes: dict[str, Shape], mask_pairs: bool) -> Options:
    """What a kernel for such calls is compiled with."""
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
