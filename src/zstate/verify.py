"""How far a backend is from the oracle: cases over cells and options, and the error of each.

Used by ``zstate check``, and by anyone who adds a backend or a cell. Inputs are random and nowhere
zero: zeros hide mistakes. A cell from equations starts from states that it can reach, since others
may make no sense for it, and has parameters between 0.2 and 0.8.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import numpy as np

from . import functional
from .backends import BACKENDS
from .cells import Cell, MadeCell
from .cells.expressions import ordered
from .cells.functions import ACTIVATIONS, FUNCTIONS
from .descriptors import Activation, AnyDescriptor, GRUDescriptor, LSTMDescriptor
from .descriptors import SingleGateRNNDescriptor as RNNDescriptor
from .layout import Layout, cell_of
from .mpsgraph import published
from .operations import AnyResult, Operation, operations_of
from .types import FLOAT_NAMES, Array, Shape, float_dtype


def _usable(name: str) -> bool:
    try:
        float_dtype(name)
    except ImportError:
        return False
    return True


FLOAT_TYPES = [name for name in reversed(FLOAT_NAMES) if _usable(name)]


@dataclass(frozen=True)
class Case:
    """One call: a descriptor (with training on), what is left out, and sizes."""

    title: str
    descriptor: AnyDescriptor
    without: frozenset[str] = frozenset()
    sizes: tuple[int, int, int, int] = (7, 3, 5, 9)  # T, N, I, H
    every_cell: bool = False  # a gradient for every c, not for the last one
    scale: float = 1.0  # of all inputs
    extra: dict[str, Shape] = field(default_factory=dict, compare=False)  # shapes of the mask
    resets: bool = False
    made: MadeCell | None = None  # a cell from equations; else the descriptor's

    @property
    def cell(self) -> Cell:
        return cell_of(self.descriptor) if self.made is None else self.made.definition


_NO_OPTIONS = frozenset({"mask", "peephole", "secondary_bias", "resets"})
_MASKS: dict[str, Shape] = {"[T,N,H]": (7, 3, 9), "[1,N,H]": (1, 3, 9), "[T,1,1]": (7, 1, 1)}


def _common_cases(kind: type[Any], initial: Collection[str]) -> list[Case]:
    """The cases that every cell has."""
    cases = [
        Case("defaults", kind(training=True), _NO_OPTIONS),
        Case("all inputs", kind(training=True)),
        Case("bidirectional", kind(training=True, bidirectional=True), every_cell=True),
        Case("reverse", kind(training=True, reverse=True), every_cell=True),
        Case("pre-projected", kind(training=True), frozenset({"input_weight", "bias"})),
        Case("no initial state", kind(training=True), frozenset(initial)),
        Case("T = 1", kind(training=True), sizes=(1, 2, 3, 4)),
        Case("H = 64", kind(training=True, bidirectional=True), sizes=(20, 8, 32, 64)),
    ]
    cases += [
        Case("resets", kind(training=True), resets=True),
        Case("resets, both ways", kind(training=True, bidirectional=True), resets=True),
        Case("heads", kind(training=True, heads=3)),
        Case("resets and heads", kind(training=True, heads=3, reverse=True), resets=True),
    ]
    masks = _MASKS.items()
    return cases + [Case(f"mask {n}", kind(training=True), extra={"mask": s}) for n, s in masks]


def cases_of(made: MadeCell) -> list[Case]:
    """The cases of a cell from equations."""
    cell = made.definition
    common = _common_cases(cell.descriptor, [state.initial for state in cell.states])
    return [replace(case, made=made) for case in common]


def _cases(kind: type[AnyDescriptor], own: dict[str, dict[str, Any]]) -> list[Case]:
    """The cases of a built-in cell: also its own options and the activations."""
    cases = _common_cases(kind, ("init_state", "init_cell"))
    cases += [Case(title, kind(training=True, **options)) for title, options in own.items()]
    return cases + [_with_activation(kind, activation) for activation in Activation]


def _with_activation(kind: type[AnyDescriptor], first: Activation) -> Case:
    """Every gate another activation, beginning with one."""
    names = kind.activation_fields
    # Not beside one that an engine, or MPSGraph, lacks: it would have to leave out the case.
    kinds = [other for other in Activation if _known_to(other) == _known_to(first)]
    start = kinds.index(first)
    chosen: dict[str, Any] = dict(zip(names, cycle(kinds[start:] + kinds[:start]), strict=False))
    descriptor = kind(training=True, **chosen)
    # Few steps of small numbers: gates without a bound make the state grow beyond float16.
    return Case(f"{first.name.lower()} first", descriptor, sizes=(3, 3, 5, 9), scale=0.4)


def _known_to(kind: Activation) -> tuple[bool, bool]:
    return ACTIVATIONS[kind].compiled, kind in published.ACTIVATIONS


CASES: dict[str, list[Case]] = {
    "single_gate_rnn": _cases(RNNDescriptor, {}),
    "lstm": _cases(
        LSTMDescriptor,
        {
            "forget gate last": {"forget_gate_last": True},
            "peephole on new cell": {"peephole_on_new_cell": True},
            "both, both ways": {
                "forget_gate_last": True,
                "peephole_on_new_cell": True,
                "bidirectional": True,
            },
        },
    ),
    "gru": _cases(
        GRUDescriptor,
        {
            "reset after": {"reset_after": True},
            "reset after, both ways": {"reset_after": True, "bidirectional": True},
            "flip z": {"flip_z": True},
            "reset gate first": {"reset_gate_first": True},
            "all of them": {"reset_after": True, "flip_z": True, "reset_gate_first": True},
        },
    ),
}


def cell_name(descriptor: AnyDescriptor) -> str:
    """The forward operation that a descriptor belongs to."""
    return cell_of(descriptor).name


def make_inputs(case: Case, seed: int) -> dict[str, Array]:
    """Random float64 inputs of the gradient operation, but for the forward results."""
    _, operation = operations_of(case.cell)
    present = set(operation.inputs) - case.without - {"resets"}
    for name, option, *_ in operation.cell.own:
        if option and not getattr(case.descriptor, option):
            present.discard(name)
    layout = _layout(case, operation, "float64", present)
    rng = np.random.default_rng([seed, zlib.crc32(case.title.encode())])
    scale = {
        "recurrent_weight": case.sizes[3] ** -0.5,
        "input_weight": max(case.sizes[2], 1) ** -0.5,
    }
    inputs = {}
    first, *others = operation.cell.states
    for name in operation.inputs:
        if name not in present or name in operation.cell.fed_back:
            continue
        shape = case.extra.get(name, layout.shape(name))
        if case.every_cell and name in {state.gradient for state in others}:
            shape = layout.shape(first.name)
        inputs[name] = rng.normal(size=shape) * scale.get(name, 1.0) * case.scale
    if case.resets:
        inputs["resets"] = rng.random(case.sizes[:2]) < 0.3
    if "mask" in inputs:
        keep = rng.random(inputs["mask"].shape) < 0.8
        inputs["mask"] = np.where(keep, 1.25, 0.0)
    return inputs if case.made is None else _of_made_cell(case, inputs, rng)


def _of_made_cell(
    case: Case, inputs: dict[str, Array], rng: np.random.Generator
) -> dict[str, Array]:
    """The inputs with parameters between 0.2 and 0.8, and states after some steps of the cell."""
    for parameter in case.cell.own:
        inputs[parameter.name] = rng.uniform(0.2, 0.8, size=inputs[parameter.name].shape)
    values = _step_columns(case)  # values per step likewise, or a little outside
    if "input_weight" in inputs:
        inputs["input_weight"][values] *= 0.05
        inputs["bias"][values] = rng.uniform(0.2, 0.8, size=len(values))
    initial = {state.initial for state in case.cell.states}
    source = inputs["source"]
    later = {*initial, "mask", "resets"}
    before = {name: array for name, array in inputs.items() if name not in later}
    before["source"] = rng.normal(size=(5, *source.shape[1:]))
    if "input_weight" not in inputs:
        for each in (source, before["source"]):
            each[..., values] = rng.uniform(0.2, 0.8, size=each[..., values].shape)
    there = run_forward(case, before, "reference")
    for state in case.cell.states:
        if state.initial in inputs:
            last = _last(case, there[state.name])
            inputs[state.initial] = np.where(last == 0, rng.uniform(0.05, 0.1), last)
    return inputs


def _step_columns(case: Case) -> list[int]:
    """Where the values per step lie among the gates of both directions."""
    assert case.made is not None
    gates = case.cell.gates * (2 if case.descriptor.bidirectional else 1)
    places = [k for k, gate in enumerate(gates) if gate in case.made.steps]
    return [place * case.sizes[3] + unit for place in places for unit in range(case.sizes[3])]


def _layout(case: Case, operation: Operation, dtype: str, present: Collection[str]) -> Layout:
    sizes = dict(zip("TNIH", case.sizes, strict=True))
    sizes["d"] = sizes["H"] // case.descriptor.heads
    return Layout(operation, case.descriptor, dtype, sizes, frozenset(present))


def serves(backend: str, case: Case, dtype: str) -> bool:
    """Whether a backend has the cell, the activations and the type of a case."""
    if backend == "jax":  # composes what no engine serves
        return True
    operation, _ = operations_of(case.cell)
    layout = _layout(case, operation, dtype, {*operation.required, *case.cell.needed})
    return BACKENDS[backend].refuses(layout) is None


def run_forward(case: Case, inputs: dict[str, Array], backend: str) -> dict[str, Array]:
    """The forward results by name."""
    operation, _ = operations_of(case.cell)
    return _present(_call(case, operation, inputs, backend))


def run_backward(
    case: Case, inputs: dict[str, Array], there: dict[str, Array], backend: str
) -> dict[str, Array]:
    """The gradients by the name of their input, from what the forward operation gave."""
    _, operation = operations_of(case.cell)
    fed = {name: there[result] for name, result in operation.cell.fed_back.items()}
    return _present(_call(case, operation, {**inputs, **fed}, backend))


def _present(result: AnyResult) -> dict[str, Array]:
    return {name: array for name, array in result._asdict().items() if array is not None}


def _call(case: Case, operation: Operation, inputs: dict[str, Array], backend: str) -> AnyResult:
    filled = {}
    if case.made is not None:
        both, heads = case.descriptor.bidirectional, case.descriptor.heads
        filled = case.made.initial_values(inputs, both, heads)
    tensors = tuple(map((inputs | filled).get, operation.inputs))
    result = _call_on(operation, tensors, case.descriptor, backend)
    return result._replace(**dict.fromkeys(filled)) if operation.is_gradient else result


def _call_on(
    operation: Operation,
    tensors: tuple[Array | None, ...],
    descriptor: AnyDescriptor,
    backend: str,
) -> AnyResult:
    if backend == "jax":
        return _call_on_jax(operation, tensors, descriptor)
    if BACKENDS[backend].device == "cpu":
        result: AnyResult = functional.run(operation, tensors, descriptor, backend)
        return result
    moved = tuple(None if tensor is None else _to_gpu(tensor) for tensor in tensors)
    result = functional.run(operation, moved, descriptor, backend)
    return operation.result(*(None if each is None else _from_gpu(each) for each in result))


def _call_on_jax(
    operation: Operation, tensors: tuple[Array | None, ...], descriptor: AnyDescriptor
) -> AnyResult:
    """One compiled program on JAX's default device; its products are not rounded to TF32."""
    import jax

    from .jax.functions import run

    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        result = jax.jit(lambda *given: run(operation, given, descriptor, None))(*tensors)
    return operation.result(*(None if each is None else np.asarray(each) for each in result))


def _to_gpu(array: Array) -> Any:
    import torch

    # By way of float32, which holds the 16-bit types exactly: NumPy's bfloat16 is not torch's.
    wide = array if array.dtype.itemsize > 2 else array.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(wide)).to("cuda", getattr(torch, array.dtype.name))


def _from_gpu(tensor: Any) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    wide: Array = (tensor.float() if tensor.element_size() == 2 else tensor).cpu().numpy()
    return wide.astype(float_dtype(name), copy=False)


def relative_error(found: Array, wanted: Array) -> float:
    """‖found - wanted‖ / ‖wanted‖, in float64; NaN if either has one."""
    wanted = wanted.astype(np.float64)
    size = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(found.astype(np.float64) - wanted)) / (size or 1.0)


def worst_error(case: Case, backend: str, dtype: str, seed: int) -> float:
    """A backend in one float type against the oracle in float64 on the same rounded inputs.

    "jax" stands for whatever serves zstate.jax on JAX's default device.

    The gradient operation is compared on the same rounded forward results as well: what a 16-bit
    type loses between the two operations is the type's doing, not the backend's.
    """
    storage = float_dtype(dtype)
    rounded = {name: array.astype(storage) for name, array in make_inputs(case, seed).items()}
    exact = _widened(rounded)
    there = run_forward(case, rounded, backend)
    back = run_backward(case, rounded, there, backend)
    wanted_there = run_forward(case, exact, "reference")
    wanted_back = run_backward(case, exact, _widened(there), "reference")
    errors = [relative_error(there[name], wanted_there[name]) for name in wanted_there]
    errors += [relative_error(back[name], wanted_back[name]) for name in wanted_back]
    return float(np.max(errors))


def _widened(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def _smooth(kind: Activation) -> Activation:
    """The activation, or a smooth one in its place."""
    if ACTIVATIONS[kind].smooth:
        return kind
    return Activation.SIGMOID if ACTIVATIONS[kind].bounded else Activation.TANH


def gradient_error(case: Case, seed: int) -> float:
    """The oracle's gradients against central differences of the oracle's own forward pass.

    The loss is a random weighting of every result that takes a gradient; the differences
    are of fourth order, along one random direction per input. A difference across a kink means
    nothing, so the activations that have one are replaced by smooth ones; equations stay as they
    are, and the steps become short enough to cross none.
    """
    names = case.descriptor.activation_fields
    smooth: dict[str, Any] = {name: _smooth(getattr(case.descriptor, name)) for name in names}
    case = replace(case, descriptor=replace(case.descriptor, **smooth))
    inputs = make_inputs(case, seed)
    gradients = run_backward(case, inputs, run_forward(case, inputs, "reference"), "reference")
    rng = np.random.default_rng(seed + 1)
    errors = []
    for name, gradient in gradients.items():
        along = rng.normal(size=gradient.shape) + np.sign(gradient)
        wanted = _difference(case, inputs, name, along)
        found = float(np.vdot(gradient, along))
        scale = float(np.linalg.norm(gradient) * np.linalg.norm(along))
        errors.append(abs(found - wanted) / (scale or 1.0))
    return float(np.max(errors))


def _difference(case: Case, inputs: dict[str, Array], name: str, along: Array) -> float:
    """The slope of the loss along a direction, by steps short enough for this loss.

    Peepholes on large cell states can make the loss bend so sharply that no one step serves every
    draw. The step is therefore shortened until two estimates in turn stop coming closer, which is
    where rounding takes over; what is being checked has no say in it. Across a kink estimates do
    not agree: of a cell that has one, the three in turn that agree best count.
    """
    step = 3e-4 / float(np.max(np.abs(along)))
    if case.made is not None and _has_kinks(case):
        steps = step / 4.0 ** np.arange(8)
        found = np.array([_central_difference(case, inputs, name, along, s) for s in steps])
        three = np.stack([found[:-2], found[1:-1], found[2:]])
        spread = np.nan_to_num(np.ptp(three, axis=0), nan=np.inf)
        return float(three[1, np.argmin(spread)])
    last, gap = _central_difference(case, inputs, name, along, step), np.inf
    while True:
        step /= 4
        estimate = _central_difference(case, inputs, name, along, step)
        if not abs(estimate - last) < gap:
            return last
        last, gap = estimate, abs(estimate - last)


def _has_kinks(case: Case) -> bool:
    trace = case.cell.forward(case.descriptor, case.cell.needed, "mask" not in case.without)
    every = ordered(trace.states)
    return any(each.op in FUNCTIONS and not FUNCTIONS[each.op].smooth for each in every)


def _central_difference(
    case: Case, inputs: dict[str, Array], name: str, along: Array, step: float
) -> float:
    weights = {1: 2 / 3, -1: -2 / 3, 2: -1 / 12, -2: 1 / 12}
    total = 0.0
    for multiple, weight in weights.items():
        moved = {**inputs, name: inputs[name] + multiple * step * along}
        total += weight * _loss(case, moved)
    return total / step


def _loss(case: Case, inputs: dict[str, Array]) -> float:
    """What the incoming gradients are the gradients of."""
    there = run_forward(case, inputs, "reference")
    loss = 0.0
    for state in case.cell.states:
        steps = there[state.name]
        for name in sorted({state.gradient, state.last_gradient} & set(inputs)):
            seen = steps if inputs[name].ndim == 3 else _last(case, steps)
            loss += float(np.vdot(inputs[name], seen))
    return loss


def _last(case: Case, steps: Array) -> Array:
    """The last processed step: for the reverse half of two directions, t = 0."""
    if not case.descriptor.bidirectional:
        last: Array = steps[-1]
        return last
    half = steps.shape[-1] // 2
    return np.concatenate([steps[-1][:, :half], steps[0][:, half:]], axis=1)
