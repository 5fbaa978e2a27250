"""The row that talks to other processes: means over all those that torch.distributed knows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import BackendError, refusal
from ...layout import TensorInfo
from .base import Attributes, Infos, Op, known, require_float, require_same_type

if TYPE_CHECKING:
    from ...arrays import Namespace


def _infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    require_float(label, "tensors", inputs[0])
    require_same_type(label, ["tensors"] * len(inputs), inputs)
    return {str(k): info for k, info in enumerate(inputs)}


def _prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    shapes = [known(info.shape) or () for info in inputs]

    def means(*arrays: Any) -> tuple[Any, ...]:
        # In one piece, because a message costs more than its bytes.
        flat = xp.concat([xp.reshape(array, (-1,)) for array in arrays])
        flat = _mean(xp, flat)
        found, begin = [], 0
        for array, shape in zip(arrays, shapes, strict=True):
            count = 1
            for size in array.shape:
                count *= size
            found.append(xp.reshape(flat[begin : begin + count], shape))
            begin += count
        return tuple(found)

    return means


def _mean(xp: Namespace, flat: Any) -> Any:
    """The mean of an array of our own over all processes."""
    torch = sys.modules.get("torch")
    distributed = torch and torch.distributed
    if not (distributed and distributed.is_available() and distributed.is_initialized()):
        return flat
    is_tensor = isinstance(flat, torch.Tensor)  # type: ignore[union-attr]
    stays = is_tensor and (not flat.is_cuda or "nccl" in distributed.get_backend_config())
    # gloo's messages go through the host.
    sent = flat if stays else torch.from_numpy(xp.to_numpy(flat))  # type: ignore[union-attr]
    try:
        distributed.all_reduce(sent)
    except RuntimeError as error:
        reason = str(error).split("\n", 1)[0]
        expected = f"{distributed.get_world_size()} processes"
        got = f"fewer: one has ended ({reason})"
        raise BackendError(refusal("mean_over_processes", "tensors", expected, got)) from error
    sent /= distributed.get_world_size()
    return sent if stays else xp.asarray(sent.numpy())


ROWS = (Op("mean_over_processes", _infer, _prepare, operands=("tensors",)),)
