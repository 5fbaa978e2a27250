"""What the modules refuse in a call, by the name of the argument at fault."""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import DTypeError, ShapeError, refusal
from ..layout import brackets, describe
from .dispatch import is_autocast, values_are_hidden
from .private import is_batched, is_symbolic_zero

Lengths: TypeAlias = Tensor | Sequence[int]  # how many steps each of N sequences has


def refuse_unusual(operation: str, tensors: dict[str, Tensor]) -> None:
    """Refuse by name what is no tensor, a nested tensor, which has no shape, and one without
    memory."""
    hidden = values_are_hidden()  # then a tensor has no memory of its own
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            expected = "a torch tensor like source"
            raise DTypeError(refusal(operation, name, expected, describe(tensor))) from None
        if tensor.is_nested:
            expected = "a padded tensor (the layers also take lengths or a PackedSequence)"
            raise DTypeError(refusal(operation, name, expected, "a nested tensor")) from None
        plain = type(tensor) is Tensor and tensor.is_cpu and tensor.layout is torch.strided
        if plain and not hidden and not is_batched(tensor) and not _has_memory(tensor):
            expected = "memory behind the tensor"
            raise ShapeError(refusal(operation, name, expected, "an empty storage")) from None


def check_device(operation: str, name: str, tensor: Tensor, source: Tensor) -> None:
    """Refuse a tensor that is not where the source is."""
    if tensor.device != source.device:
        expected = f"a tensor on {source.device} like source"
        raise DTypeError(refusal(operation, name, expected, f"one on {tensor.device}"))


def with_memory(tensor: Tensor) -> Tensor:
    """The tensor, with its own numbers in memory where torch only knows that it is negated or zero;
    refused without any."""
    if _has_memory(tensor):
        return tensor.resolve_neg() if tensor.is_neg() else tensor
    if is_symbolic_zero(tensor):
        return tensor.clone()
    shape = brackets(tensor.shape)
    raise ShapeError(refusal("torch", f"tensor {shape}", "memory behind it", "an empty storage"))


def _has_memory(tensor: Tensor) -> bool:
    """Not if its storage was resized to nothing: then its address is its offset alone."""
    address = tensor.data_ptr()
    return address != tensor.storage_offset() * tensor.element_size() or not tensor.numel()


def _refusal(module: torch.nn.Module, *words: str) -> str:
    return refusal(type(module).__name__, *words)


def check_tensor(module: torch.nn.Module, name: str, value: Any) -> None:
    """Refuse what is no tensor, nested or sparse."""
    if not isinstance(value, Tensor):
        raise DTypeError(_refusal(module, name, "a torch tensor", describe(value)))
    if value.is_nested:
        refuse_unusual(type(module).__name__, {name: value})
    if value.layout is not torch.strided:
        layout = str(value.layout).removeprefix("torch.")
        raise DTypeError(_refusal(module, name, "a strided tensor", f"a {layout} one"))


def check_input(module: Any, source: Tensor, weight: Tensor) -> None:
    """Refuse an input [..., I] that does not fit a module's size and weights."""
    if source.shape[-1] != module.input_size:
        expected = f"{module.input_size} features on the last axis"
        raise ShapeError(_refusal(module, "input", expected, str(source.shape[-1])))
    if source.dtype is not weight.dtype or source.device != weight.device:
        _check_kind(module, "input", source, weight)


def check_state(
    module: torch.nn.Module,
    name: str,
    state: Tensor,
    letters: str,
    shape: tuple[int, ...],
    weight: Tensor,
) -> None:
    """Refuse an initial state of another shape, type or device than ``weight`` calls for."""
    if state.shape != shape:
        expected = f"{letters} = {brackets(shape)}"
        raise ShapeError(_refusal(module, name, expected, brackets(state.shape)))
    _check_kind(module, name, state, weight)


def _check_kind(module: torch.nn.Module, name: str, tensor: Tensor, weight: Tensor) -> None:
    if tensor.device != weight.device:
        expected = f"a tensor on {weight.device} like the weights"
        raise DTypeError(_refusal(module, name, expected, f"one on {tensor.device}"))
    if tensor.dtype != weight.dtype and not _is_cast(tensor, weight):
        wanted, given = (str(each.dtype).removeprefix("torch.") for each in (weight, tensor))
        raise DTypeError(_refusal(module, name, f"{wanted} like the weights", given))


def _is_cast(*tensors: Tensor) -> bool:
    """Whether autocast brings them to one type."""
    return is_autocast(tensors[0].device.type) and all(
        tensor.is_floating_point() and tensor.dtype != torch.float64 for tensor in tensors
    )


def two_states(module: torch.nn.Module, hx: Any) -> tuple[Tensor | None, ...]:
    """h and c from the argument of an LSTM."""
    return several_states(module, "hx", "two tensors (h_0, c_0)", hx, 2)


def several_states(
    module: torch.nn.Module, name: str, expected: str, given: Any, count: int
) -> tuple[Tensor | None, ...]:
    """The states from an argument: not from a tensor, though it can be taken apart."""
    if given is None:
        return (None,) * count
    several = isinstance(given, tuple) or isinstance(given, list)  # noqa: SIM101, for torch.compile of 2.6
    if not several or len(given) != count:
        got = f"{len(given)} of them" if several else describe(given)
        raise DTypeError(_refusal(module, name, expected, got))
    return tuple(given)


def checked_resets(
    module: torch.nn.Module, resets: Tensor, shape: tuple[int, int], source: Tensor
) -> Tensor:
    """Resets where the source is, refused if they are not one per step and sequence."""
    if resets.shape != shape:
        expected = f"[T,N] = {brackets(shape)}, or [N,T] with batch_first"
        raise ShapeError(_refusal(module, "resets", expected, brackets(resets.shape)))
    return beside(module, "resets", resets, source)


def as_lengths(module: torch.nn.Module, lengths: Any) -> Tensor:
    """Lengths as a tensor, from one, from an array or from integers."""
    if isinstance(lengths, Tensor):
        return lengths
    each: Sequence[Any]
    if isinstance(lengths, np.ndarray):
        each, whole = lengths.reshape(-1).tolist(), lengths.dtype.kind in "iu"
    else:
        each = lengths if isinstance(lengths, list | tuple) else [lengths]
        whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in each)
    if not whole:
        raise DTypeError(_refusal(module, "lengths", "integers", describe(lengths)))
    if any(not -(2**63) <= n < 2**63 for n in each):
        raise DTypeError(_refusal(module, "lengths", "integers of 64 bits", "larger ones"))
    return torch.as_tensor(lengths, dtype=torch.int64)


def beside(module: torch.nn.Module, name: str, tensor: Tensor, source: Tensor) -> Tensor:
    """The tensor where the source is; refused if it has no values and the source has."""
    if tensor.is_meta and not source.is_meta:
        expected = f"a tensor with values, for an input on {source.device}"
        raise DTypeError(_refusal(module, name, expected, "one on meta"))
    return tensor.to(source.device, non_blocking=True)


def check_packed(module: torch.nn.Module, data: Tensor, sizes: tuple[int, ...]) -> None:
    """Refuse the data of a PackedSequence that has other rows than its batch sizes say."""
    rows = sum(sizes)
    if not sizes or sizes[-1] < 1 or any(map(lt, sizes, sizes[1:])):
        expected = "numbers from 1 that do not grow"
        raise ShapeError(_refusal(module, "input.batch_sizes", expected, brackets(sizes)))
    if data.dim() != 2 or data.shape[0] != rows:
        expected = f"[{rows},I], as batch_sizes says"
        raise ShapeError(_refusal(module, "input.data", expected, brackets(data.shape)))


def checked_lengths(
    module: torch.nn.Module, lengths: Tensor, steps: int, batch: int, source: Tensor
) -> Tensor:
    """Lengths in int64 where the source is, refused if they do not fit the batch; their values
    only where they can be read."""
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise DTypeError(_refusal(module, "lengths", "integers", str(lengths.dtype)))
    if lengths.shape != (batch,):
        raise ShapeError(_refusal(module, "lengths", f"[N] = [{batch}]", brackets(lengths.shape)))
    check_tensor(module, "lengths", lengths)
    lengths = beside(module, "lengths", lengths, source).to(torch.int64)
    if lengths.device.type != "cpu" or values_are_hidden() or not batch:
        return lengths
    least, most = (int(value) for value in torch.aminmax(lengths))
    if least < 0 or most > steps:
        raise ShapeError(
            _refusal(module, "lengths", f"0 to T = {steps}", f"{least if least < 0 else most}")
        )
    return lengths
