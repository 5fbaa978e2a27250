"""A call as steps around the scan, whatever runs them: project → scan → contract.

``describe`` lists the tensors that a call reads, makes and needs in between, and the steps on them
in order. ``engine`` runs them with torch, ``zstate.jax`` as part of a compiled program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ...cells.sharing import Equations
from ...layout import Layout
from .arguments import MASK, Argument, Arguments, Shape
from .passes import BackwardPass, Contraction, ForwardPass, Options, field, pass_of
from .phases import Form
from .placement import STEPS, Scan
from .printing import written_by
from .products import Heads, Matrix, Product

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
    heads: int

    @property
    def units(self) -> int:
        """Units of a head."""
        return self.H // self.heads

    @property
    def chains(self) -> int:
        """Heads of all directions."""
        return self.heads * self.D


def sizes(layout: Layout) -> Sizes:
    descriptor, gates = layout.descriptor, len(layout.cell_kind.gates)
    return Sizes(*layout.size, layout.directions, gates, descriptor.heads)


# ---- steps ----


class Multiply(NamedTuple):
    """Independent products."""

    products: list[Product]


class CopyWeight(NamedTuple):
    """The recurrent weight [chains,G,d,d] into a larger one that is zero elsewhere, [chains,G,P,P].

    ``turned``: into [chains,P,G,P], so that the backward product reads along its rows too.
    """

    to: str
    turned: bool


class AddBias(NamedTuple):
    """source + bias, [T,N,D·G·H]."""

    to: str


class MakeOperand(NamedTuple):
    """What R multiplied at every step, [T,N,D·H], in the order of the output (operands.py)."""

    to: str
    equations: Equations


class RunScan(NamedTuple):
    """The launch; what it is given by the names of its words, and which of these it writes."""

    fields: dict[str, Argument]
    written: frozenset[str]


AnyStep: TypeAlias = Multiply | CopyWeight | AddBias | MakeOperand | RunScan


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
        self.cell, self.scanned = layout.cell_kind, pass_of(kernel.options)
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
        """The step of the scan; tensors are named as the words of its launch."""
        tensors["weight"] = self.weight()
        tensors |= {field("own", each.name): self.given(each.name) for each in self.cell.own}
        states = self.cell.states
        tensors |= {field("initial", each.name): self.given(each.initial) for each in states}
        addresses = {
            word: self.arguments.address(name) if name is None or isinstance(name, str) else name
            for word, name in tensors.items()
            if word in self.kernel.words
        }
        if self.given("mask"):
            addresses |= {name: (name, 0) for name in MASK}
        if self.given("resets"):
            addresses["resets"] = self.arguments.address("resets")
        fields = self.kernel.fields(self.arguments, self.z.T, addresses)
        self.steps.append(RunScan(fields, frozenset(written_by(self.scanned))))

    def weight(self) -> str:
        """The recurrent weight as the scan reads it.

        The caller's own if it stays on the chip, or if the library multiplies by it.
        """
        z, placement = self.z, self.kernel.placement
        gradient = self.layout.operation.is_gradient
        size = placement.padded
        holds_all = placement.mode == STEPS or placement.holds_all(self.kernel.scan)
        if holds_all or (size == z.units and not gradient):
            return "recurrent_weight"
        shape = (z.chains, size, z.G, size) if gradient else (z.chains, z.G, size, size)
        name = self.arguments.reserve("weight", shape, self.dtype)
        self.steps.append(CopyWeight(name, gradient))
        return name


class _Forward(_Builder):
    """Project, scan."""

    scanned: ForwardPass

    def build(self) -> None:
        states = [each.name for each in self.cell.states]
        made = {field("after", name): name if name in self.names else None for name in states}
        saved = "training_state" if "training_state" in self.names else None
        self.scan(gates_x=self.project(), saved=saved, **made)

    def project(self) -> str:
        """x[t]W^T + b for all t, [T·N,D·G·H]; a source without a weight is projected already.

        The scan may write zState over it: each number is read and written by one thread, and in
        the same place, unless input and output go in different orders, or one is read twice.
        """
        z, bias = self.z, self.given("bias")
        if not self.given("input_weight") and bias is None:
            return "source"
        wide, name = z.D * z.G * z.H, "training_state"
        turns = self.layout.descriptor.reverse and z.D == 1
        if name not in self.names or turns or self.scanned.reads_input_late:
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

    scanned: BackwardPass

    def __init__(self, layout: Layout, kernel: Kernel, shapes: dict[str, Shape]) -> None:
        super().__init__(layout, kernel, shapes)
        self.wide = self.z.D * self.z.G * self.z.H

    def reads(self, name: str) -> bool:
        needless = {"mask", "bias", *(() if self.given("input_weight") else ("source",))}
        return name not in needless

    def result(self, name: str) -> str:
        return f"gradient of {name}"

    def gradient(self, name: str) -> str | None:
        return self.result(name) if name in self.names else None

    def build(self) -> None:
        z, scanned, reserve = self.z, self.scanned, self.arguments.reserve
        gates = self.result("source")  # already projected: the gates' gradient is the source's
        if self.given("input_weight"):
            gates = reserve("gates", (z.T * z.N, self.wide), self.dtype)
        made = {field("operand", str(k)): z.D * z.H for k in scanned.operands}
        for k in scanned.separate:
            made[field("products", str(k))] = z.D * len(scanned.gates_of(k)) * z.H
        for name, width in made.items():
            reserve(name, (z.T * z.N, width), self.dtype)
        tensors: dict[str, str | Argument | None] = {name: name for name in made}
        for state in self.cell.states:
            every = state.name in scanned.options.outer
            last = state.name in scanned.options.last
            tensors |= {
                field("after", state.name): self.given(state.output),
                field("outer", state.name): self.given(state.gradient) if every else None,
                field("last", state.name): self.given(state.last_gradient) if last else None,
                field("d_initial", state.name): self.gradient(state.initial),
            }
        sums = self.sums()
        tensors |= self.recomputed() | sums.addresses
        self.scan(saved="z_state", d_gates=gates, **tensors)
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
        heads = Heads(z.heads, z.G * z.units**2, z.units, z.units)
        for d in range(z.D):
            for operand, slots, separate, first in self.slices():
                dr = self.of_gate(self.result("recurrent_weight"), d, slots[0])
                name, count = gates, z.G
                if separate is not None:
                    name = field("products", str(separate))
                    count = len(self.scanned.gates_of(separate))
                left = Matrix(name, z.D * count * z.H, (d * count + first) * z.H)
                # No gradient at all is a sum of nothing.
                right, terms = (
                    (left, 0)
                    if operand is None
                    else (
                        Matrix(field("operand", str(operand)), z.D * z.H, d * z.H),
                        rows,
                    )
                )
                sizes = (len(slots) * z.units, z.units, terms)
                products.append(Product("tn", dr, left, right, *sizes, heads=heads))
        return products

    def of_gate(self, name: str, direction: int, slot: int) -> Matrix:
        """The first head's block of a recurrent weight, or of its gradient."""
        z = self.z
        return Matrix(name, z.units, (direction * z.heads * z.G + slot) * z.units**2)

    def slices(self) -> list[Contraction]:
        """The parts of dR: with several heads, gates that follow each other do not lie so."""
        if self.z.heads == 1:
            return self.scanned.contractions
        return [
            each._replace(slots=(slot,), first=each.first + k)
            for each in self.scanned.contractions
            for k, slot in enumerate(each.slots)
        ]

    def sums(self) -> _Sums:
        """Gradients that are sums over time and batch: the scan leaves one per group of rows."""
        z, arguments = self.z, self.arguments
        widths = {name: z.D * len(labels) * z.H for name, labels in self.scanned.sums}
        groups, total = self.kernel.placement.tile_groups(z.N), sum(widths.values())
        if self.kernel.placement.sums_all(z.N):
            return _Sums({field("sum", name): self.result(name) for name in widths}, [])
        several = _Sums({"sum_stride": arguments.constant(total)}, [])
        if widths:
            arguments.reserve("sums", (groups, total), "float32")
        begin = 0
        for name, width in widths.items():
            several.addresses[field("sum", name)] = arguments.address("sums", begin * 4)
            out, sums = Matrix(self.result(name), width), Matrix("sums", total, begin)
            several.products.append(Product("sum", out, sums, None, 1, width, groups))
            begin += width
        return several

    def recomputed(self) -> dict[str, str]:
        """Products that the gradient needs again, [T,N,D·H], each for all steps at once."""
        z, known = self.z, dict[str, str]()
        slots = dict(zip(self.cell.gates, self.layout.slots, strict=True))
        for operand, gate in (
            (each.operand, gate) for each in self.scanned.stages.recomputed for gate in each.gates
        ):
            name = self.arguments.reserve(
                field("recomputed", str(operand), gate), (z.T, z.N, z.D * z.H), self.dtype
            )
            self.multiply(self.multiplied(operand, slots[gate], name))
            known[name] = name
        return known

    def multiplied(self, operand: int, slot: int, name: str) -> list[Product]:
        """An operand times R of one gate, at all steps."""
        z, wide = self.z, self.z.D * self.z.H
        step, last = z.N * wide, (z.T - 1) * z.N * wide
        bare = self.scanned.bare_operand(operand)
        products = []
        if bare is None:
            made = f"multiplied_{operand}"
            if made not in self.arguments.pieces:
                self.arguments.reserve(made, (z.T, z.N, wide), self.dtype)
                equations = self.scanned.stages.operands[operand]
                self.steps.append(MakeOperand(made, equations))

        heads = Heads(z.heads, z.units, z.units, z.G * z.units**2)

        def multiply(states: Matrix, begin: int, rows: int, d: int) -> None:
            weight = self.of_gate("recurrent_weight", d, slot)
            out = Matrix(name, wide, begin + d * z.H)
            sizes = (rows, z.units, z.units)
            products.append(Product("nt", out, states, weight, *sizes, heads=heads))

        for d in range(z.D):
            own = d * z.H
            if bare is None:
                multiply(Matrix(made, wide, own), 0, z.T * z.N, d)
                continue
            # In the order of the output; the second direction goes the other way.
            state = next(each for each in self.cell.states if each.name == bare)
            begin, after, before = (0, step, 0) if d == 0 else (last, 0, step)
            multiply(Matrix(state.output, wide, before + own), after, (z.T - 1) * z.N, d)
            if self.given(state.initial) is not None:
                multiply(Matrix(state.initial, wide, own), begin, z.N, d)
        return products


class _Sums(NamedTuple):
    """Where the scan leaves sums over time and batch, and how those of the groups become one."""

    addresses: dict[str, str | Argument | None]
    products: list[Product]


def options_of(layout: Layout, shapes: dict[str, Shape], mask_pairs: bool) -> Options:
    """What a kernel for such calls is compiled with."""
    gradient, cell, names = layout.operation.is_gradient, layout.cell_kind, layout.result_names()
    outer, last = set[str](), set[str]()
    for state in cell.states if gradient else ():
        if state.last_gradient in shapes:
            # Of a state without a gradient of its own for every step, the shape tells which it is.
            shape = shapes[state.last_gradient]
            is_every = state.gradient == state.last_gradient and len(shape) == 3
            (outer if is_every and shape[0] == layout.size[0] else last).add(state.name)
        if state.gradient != state.last_gradient and state.gradient in shapes:
            outer.add(state.name)
    return plain_options(layout)._replace(
        mask_pairs=mask_pairs,
        initial=frozenset(each.name for each in cell.states if each.initial in layout.present),
        stored=frozenset(each.name for each in cell.states if not gradient and each.name in names),
        save_gates=not gradient and "training_state" in names,
        outer=frozenset(outer),
        last=frozenset(last),
        bias=gradient and "bias" in layout.present,
    )


def plain_options(layout: Layout) -> Options:
    """What of the options decides the equations."""
    cell, present = layout.cell_kind, layout.present
    own = frozenset(each.name for each in cell.own if each.name in present)
    gradient, resets = layout.operation.is_gradient, "resets" in present
    return Options(cell, layout.descriptor, gradient, own, "mask" in present, resets=resets)


def scan_of(layout: Layout, exact: bool) -> Scan:
    """What of a layout decides its placement; ``exact``: float32 without TF32."""
    z = sizes(layout)
    kind = "tf32" if layout.dtype == "float32" and not exact else layout.dtype
    options = plain_options(layout)
    form = pass_of(options._replace(outer=frozenset({layout.cell_kind.states[0].name}))).form
    optional = optional_registers(form, options)
    return Scan(form, kind, z.units, z.N, z.D, optional, z.heads)


def optional_registers(form: Form, options: Options) -> int:
    """Registers per pair of units: mask, own parameters by gate and the sums of their gradients.

    What a cell reads and keeps beyond the usual counts twice, for the values computed from it.
    """
    by_gate = sum(each.by_gate for each in options.cell.own if each.name in options.own)
    sums = 2 if options.backward else 1
    return 2 * (options.mask + options.resets) + 2 * form.gates * sums * by_gate + 4 * form.further
