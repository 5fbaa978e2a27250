"""Calls on CUDA tensors: each step of a call carried out by torch, or launched on its stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import torch

from ... import pipeline
from ...arrays import allows_tf32
from ...layout import Layout
from .arguments import Argument, Arguments
from .calls import (
    AddBias,
    AnyStep,
    Call,
    CopyWeight,
    MakeOperand,
    Multiply,
    RunScan,
    describe,
    options_of,
    scan_of,
    sizes,
)
from .launch import (
    INDEX,
    Launched,
    chip_of,
    dotting,
    enter,
    kernel_of,
    launched_products,
    streaming,
    turning,
)
from .operands import operand_of
from .phases import Phase
from .placement import ROW, STEPS, round_up
from .placements import placements
from .prepared import Memory, Prepared, Step, Tensors, on_device, tensor_of
from .products import SPLIT, THREADS, Matrix, Product, are_small
from .streamed import Streamed, product_of

Tensor = torch.Tensor
Run = Callable[[Tensors], Tensors]
FEW_STEPS = 8  # fewer do not gain what turning the recurrent weight costs


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
        exact = self._is_float32 and not allows_tf32(torch)
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
    scan, z, index = scan_of(layout, exact), sizes(layout), source.device.index
    # Full float32 may not fit on a chip with few multiprocessors at all.
    if (
        layout.dtype == "float64"
        or not (z.T and z.N)
        or not placements(scan, chip_of(index), in_steps=True)
    ):
        return partial(pipeline.run, layout)
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in zip(layout.operation.inputs, inputs, strict=True)
        if tensor is not None
    }
    with on_device(index):
        enter(index)
        kernel = kernel_of(scan, options_of(layout, shapes, mask_pairs), index, in_steps=True)
        call = describe(layout, kernel, shapes)
        steps = [_step(call, each) for each in call.steps]
        return Prepared(call, source.device, source.dtype, steps)


# ---- the steps ----


def _step(call: Call, step: AnyStep) -> Callable[[], Step]:
    """A step; bound once all numbers of the call have their places."""
    if isinstance(step, RunScan):
        fields, steps = step.fields, call.layout.size[0]
        if call.kernel.placement.mode == STEPS:
            return lambda: _in_single_steps(call, fields)
        return lambda: _launching(call.kernel.launched(call.arguments, steps, fields))
    if isinstance(step, Multiply):
        kind, device = call.kernel.scan.type, call.kernel.device
        # Tiny layers have their recurrent products in full float32: these are then worth it too.
        is_tiny = call.kernel.placement.mode == ROW
        small = SPLIT if is_tiny and kind == "tf32" else kind
        if are_small(step.products, small, chip_of(device).multiprocessors):
            launched = launched_products(step.products, call.arguments, small, device)
            return lambda: _launching(launched())
        return lambda: by_torch(step.products, call.arguments, kind)
    if isinstance(step, CopyWeight):
        return lambda: partial(_copy_weight, call, step)
    if isinstance(step, AddBias):
        return lambda: partial(_add_bias, call, step)
    return lambda: partial(_make_operand, call, step)


def _launching(launched: Launched) -> Step:
    return lambda memory: launched(memory.numbers, memory.stream)


def _in_single_steps(call: Call, fields: dict[str, Argument]) -> Step:
    """For every phase of every step: the products of each direction, and one launch."""
    arguments, z, kernel = call.arguments, sizes(call.layout), call.kernel
    pick = itemgetter(*map(arguments.place, fields.values()))
    begin, *launches = kernel.step_launches()
    backward, scan, placement = kernel.scan.backward, kernel.scan, kernel.placement
    slots, parts = kernel.options.slots, placement.parts(scan)
    turns = backward and scan.type == "tf32" and z.T >= FEW_STEPS and z.heads == 1

    def weights(memory: Memory) -> list[Tensor]:
        """R of each chain, [G·d,d]."""
        every = list(tensor_of(arguments, memory, "recurrent_weight").view(z.chains, -1, z.units))
        return [turned(each, memory) for each in every] if turns and not placement.split else every

    def products(memory: Memory, weights: list[Tensor], phase: int) -> list[Callable[[], object]]:
        """What multiplies for a phase: a product for each direction, or one for all heads."""
        form, count = scan.phases[phase], parts[phase]
        chosen = [right_factor(each, form, slots, backward) for each in weights]
        product = tensor_of(arguments, memory, "product").view(-1)
        out = product[: z.chains * count * z.N * form.outs * z.units]
        out = out.view(z.chains, count, z.N, -1)
        operand = tensor_of(arguments, memory, "operand").view(-1)
        if placement.split:
            asked, often = product_of(scan, form), z.T >= FEW_STEPS
            return [_streaming(asked, operand, chosen[0], out[0], memory.stream, often)]
        left = operand[: z.chains * z.N * form.ins * z.units]
        left = left.view(z.chains, z.N, count, -1).transpose(1, 2)
        if z.heads > 1:
            return [partial(torch.bmm, left[:, 0], torch.stack(chosen), out=out[:, 0])]
        if count > 1:
            right = [each.view(count, -1, each.shape[1]) for each in chosen]
            triples = zip(left, right, out, strict=True)
            return [partial(torch.bmm, a, b, out=c) for a, b, c in triples]
        # One product costs the host less as one of matrices.
        triples = zip(left, chosen, out, strict=True)
        return [partial(torch.mm, a[0], b, out=c[0]) for a, b, c in triples]

    def run(memory: Memory) -> None:
        weight, stream = weights(memory), memory.stream
        words = list(pick(memory.numbers))
        work = [
            (products(memory, weight, phase), launch.repeated(stream, words, INDEX))
            for phase, launch in enumerate(launches)
        ]
        if placement.split:
            tensor_of(arguments, memory, "operand").zero_()  # rows may end with a padding
        begin(stream, words)
        for index in range(z.T):
            for multiplications, launch in work:
                for multiply in multiplications:
                    multiply()
                launch(index)

    return run


@dataclass(frozen=True)
class _Streaming:
    """A launch of a product, with the matrix that it reads."""

    launch: Callable[[int], None]
    kept: int
    matrix: Tensor

    def __call__(self) -> None:
        self.launch(self.kept)


def _streaming(
    product: Streamed, left: Tensor, right: Tensor, out: Tensor, stream: int, often: bool
) -> _Streaming:
    """A product whose right factor passes once. A copy of it, if its rows are not whole pieces of
    16 bytes; often, of 128 bytes."""
    device = out.get_device()
    matrix, chip = right if product.across else right.t(), chip_of(device)
    numbers = (128 if often else 16) // matrix.itemsize
    if matrix.stride(1) != 1 or matrix.stride(0) % numbers or matrix.data_ptr() % 16:
        rows, columns = matrix.shape
        made = matrix.new_zeros(rows, round_up(columns, numbers))
        made[:, :columns] = matrix
        matrix = made
    count, kept = product.shares(chip).pieces, product.kept(chip)
    sizes = (product.rows, product.columns, product.k, product.lda, matrix.stride(0), count, kept)
    words = (left.data_ptr(), matrix.data_ptr(), out.data_ptr(), *sizes)
    launch = streaming(product, device).repeated(stream, words, len(words) - 1)
    return _Streaming(launch, kept, matrix)


def right_factor(weight: Tensor, phase: Phase, slots: tuple[int, ...], backward: bool) -> Tensor:
    """What a phase's operand is multiplied by, [ins·H,outs·H], from R [G·H,H] of one direction.

    Rows of R where these lie side by side; otherwise a matrix made of them.
    """
    H = weight.shape[1]
    used = sorted(slots[gate] for row in phase.gates for gate in row if gate >= 0)
    if phase.is_full and used == list(range(used[0], used[0] + len(used))):
        rows = weight[used[0] * H : (used[-1] + 1) * H]
        return rows if backward else rows.t()
    made = weight.new_zeros(phase.ins, H, phase.outs, H)
    into, out_of = phase.in_places(slots), phase.out_places(slots)
    for out, row in enumerate(phase.gates):
        for k, gate in enumerate(row):
            if gate >= 0:
                own = weight[slots[gate] * H : (slots[gate] + 1) * H]
                made[into[k], :, out_of[out], :] = own if backward else own.t()
    return made.view(phase.ins * H, phase.outs * H)


def _kind(matrix: Tensor) -> str:
    """The type of a kernel that computes with such numbers in float32."""
    return "tf32" if matrix.dtype == torch.float32 else str(matrix.dtype).removeprefix("torch.")


def turned(matrix: Tensor, memory: Memory) -> Tensor:
    """A copy of [rows,columns] in which the numbers of a column lie side by side."""
    copy = matrix.new_empty(matrix.shape[::-1])
    launch = turning(_kind(matrix), matrix.device.index, *matrix.shape)
    numbers = (*matrix.shape, matrix.stride(0))
    launch(memory.stream, (matrix.data_ptr(), copy.data_ptr(), *numbers))
    return copy.t()


_CHUNK = 256  # rows that a thread of ``dots`` adds up


def dots(left: Tensor, right: Tensor, stream: int) -> Tensor:
    """The sums over rows of left·right [rows,columns], column by column, in float32."""
    (rows, columns), index = left.shape, left.device.index
    chunks = max(1, -(-rows // _CHUNK))
    sums = left.new_empty((chunks, columns), dtype=torch.float32)
    addresses = (left.data_ptr(), right.data_ptr(), sums.data_ptr())
    launch = dotting(_kind(left), index, chunks * -(-columns // THREADS))
    launch(stream, (*addresses, rows, columns, left.stride(0), right.stride(0), _CHUNK))
    return sums.sum(0)


def _of_heads(kind: str, left: Tensor, right: Tensor, out: Tensor, stream: int) -> None:
    """A product for every head [heads,…,…], the factors as they lie."""
    if kind == "tn" and out.shape[1:] == (1, 1):  # R is diagonal; heads lie side by side
        out.copy_(dots(left[..., 0].t(), right[..., 0].t(), stream).view_as(out))
        return
    *_, m, n = out.shape
    # The library is ten times slower if rows do not begin at multiples of 16 bytes.
    is_ragged = bool(n * out.itemsize % 16)
    left, right = (_padded(each) if is_ragged else each for each in (left, right))
    left, right = left.mT if kind == "tn" else left, right.mT if kind == "nt" else right
    if is_ragged:
        out.copy_(torch.bmm(left, right)[:, :m, :n])
    else:
        torch.bmm(left, right, out=out)


def _padded(factor: Tensor) -> Tensor:
    """A copy of [heads,rows,columns] with zeros, so that rows are whole pieces of 16 bytes."""
    heads, rows, columns = factor.shape
    pieces = 16 // factor.itemsize
    made = factor.new_zeros(heads, round_up(rows, pieces), round_up(columns, pieces))
    made[:, :rows, :columns] = factor
    return made


def by_torch(products: list[Product], arguments: Arguments, kind: str) -> Step:
    """The same by torch's products, one after the other."""

    def view(
        memory: Memory, matrix: Matrix, shape: tuple[int, int], heads: int = 1, apart: int = 0
    ) -> Tensor:
        """[rows,columns], or [heads,rows,columns] so far apart."""
        tensor = tensor_of(arguments, memory, matrix.name)
        begin = tensor.storage_offset() + matrix.begin
        if heads == 1:
            return tensor.as_strided(shape, (matrix.stride, 1), begin)
        return tensor.as_strided((heads, *shape), (apart, matrix.stride, 1), begin)

    def run(memory: Memory) -> None:
        for each in products:
            shapes = each.shapes()
            if each.kind == "sum":
                out = tensor_of(arguments, memory, each.out.name)
                out.view(-1).copy_(view(memory, each.left, (each.k, each.n)).sum(0))
                continue
            assert each.right is not None
            count, heads = each.heads.number, each.heads
            out = view(memory, each.out, shapes["out"], count, heads.out)
            left = view(memory, each.left, shapes["left"], count, heads.left)
            right = view(memory, each.right, shapes["right"], count, heads.right)
            if each.wants_turned(kind):
                right = turned(right, memory)
            if count > 1:
                _of_heads(each.kind, left, right, out, memory.stream)
                continue
            left = left.t() if each.kind == "tn" else left
            right = right.t() if each.kind == "nt" else right
            if each.bias is None:
                torch.mm(left, right, out=out)
            else:
                bias = tensor_of(arguments, memory, each.bias.name)
                bias = bias.view(-1)[each.bias.begin : each.bias.begin + each.n]
                torch.addmm(bias, left, right, out=out)

    return run


def _copy_weight(call: Call, step: CopyWeight, memory: Memory) -> None:
    z = sizes(call.layout)
    weight = tensor_of(call.arguments, memory, "recurrent_weight")
    weight = weight.reshape(z.chains, z.G, z.units, z.units)
    padded = tensor_of(call.arguments, memory, step.to)
    if padded.shape[-1] != z.units:
        padded.zero_()
    if step.turned:
        padded[:, : z.units, :, : z.units] = weight.permute(0, 3, 1, 2)
    else:
        padded[:, :, : z.units, : z.units] = weight


def _add_bias(call: Call, step: AddBias, memory: Memory) -> None:
    source, bias, gates = (
        tensor_of(call.arguments, memory, name) for name in ("source", "bias", step.to)
    )
    torch.add(source, bias, out=gates)


def _make_operand(call: Call, step: MakeOperand, memory: Memory) -> None:
    arguments = call.arguments

    def read(name: str) -> Tensor | None:
        if name == "mask":
            return memory.mask
        known = (*arguments.inputs, *arguments.pieces)
        return tensor_of(arguments, memory, name) if name in known else None

    tensor_of(arguments, memory, step.to).copy_(operand_of(call, step, read))
