"""One more batch axis, as vmap has it, for a forward operation whose weights are shared."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .arrays import namespace_of
from .layout import batch_axes
from .operations import Operation
from .types import Shape, Value


def fold(
    operation: Operation,
    values: Mapping[str, Value | None],
    batched: Collection[str],
    size: int,
    mask: Shape,
) -> list[Value | None]:
    """The inputs with a new axis inside their batch axis: [T,B·N,X] for source [T,N,X].

    Args:
        values: the inputs in their order; those in ``batched`` have the new axis in front.
        size: B, of the new axis.
        mask: [T,N,D·H], the shape that a mask broadcasts to.
    """
    folded = []
    for name, value in values.items():
        axis = batch_axes(operation).get(name)
        if value is None or axis is None:
            folded.append(value)
            continue
        xp = namespace_of(value)
        lead = (size,) if name in batched else ()
        if name == "mask":  # its own axes are the last ones, however few
            own = tuple(value.shape[len(lead) :])
            value = value.reshape((*lead, *(1,) * (len(mask) - len(own)), *own))
            value = xp.broadcast_to(value, (*lead, *mask))
        if not lead:
            value = xp.broadcast_to(value, (size, *value.shape))
        value = xp.moveaxis(value, 0, axis)
        batch = size * value.shape[axis + 1]  # said, not left to be found: there may be no values
        folded.append(value.reshape((*value.shape[:axis], batch, *value.shape[axis + 2 :])))
    return folded
