"""What JAX spells differently from version to version, or keeps to itself, in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


def varying_axes(aval: Any) -> frozenset[Any]:
    """The axes of a shard_map over which a value differs from device to device."""
    axes = getattr(aval, "manual_axis_type", None)  # from JAX 0.10 on
    found: frozenset[Any] = axes.varying if axes is not None else getattr(aval, "vma", frozenset())
    return found


def split_axes(aval: Any) -> tuple[Any, ...]:
    """By which axes of an explicit mesh each axis of a value is split, as its type says."""
    found = tuple(getattr(getattr(aval, "sharding", None), "spec", ()))
    return (*found, *(None,) * (aval.ndim - len(found)))


def array_type(shape: tuple[int, ...], dtype: Any, inputs: tuple[Any, ...], split: Any) -> Any:
    """The type of a result: it varies over the axes over which any input does."""
    most = max(inputs, key=lambda aval: len(varying_axes(aval)))
    if not varying_axes(most) and not any(split):
        return jax.core.ShapedArray(shape, dtype)
    meshes = [aval.sharding.mesh for aval in (most, *inputs)]
    mesh = next(mesh for mesh in meshes if not mesh.empty)
    sharding = NamedSharding(mesh, PartitionSpec(*split))
    if not varying_axes(most):
        return jax.core.ShapedArray(shape, dtype, sharding=sharding)
    name = "manual_axis_type" if hasattr(most, "manual_axis_type") else "vma"
    return jax.core.ShapedArray(shape, dtype, sharding=sharding, **{name: getattr(most, name)})


def on_automatic_mesh(
    function: Callable[..., list[Any]], values: Sequence[Any], splits: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """A function of arrays that an explicit mesh splits, where XLA decides what is split inside.

    ``splits`` says how the results are. (JAX refuses to flatten T and a split N, as products do.)
    """
    meshes = [jax.typeof(v).sharding.mesh for v in values if any(split_axes(jax.typeof(v)))]
    if not meshes:
        return function(*values)
    shardings = [NamedSharding(meshes[0], PartitionSpec(*split)) for split in splits]
    with jax.sharding.use_abstract_mesh(meshes[0]):
        return list(jax.sharding.auto_axes(function, out_sharding=shardings)(*values))


def vary_alike(values: list[Any]) -> list[Any]:
    """Inside a shard_map: the values, all varying over the same axes.

    The gradient of a value that was shared by the devices is then summed over them.
    """
    varying = [varying_axes(jax.typeof(value)) for value in values]
    every = frozenset().union(*varying)
    return [
        value if own == every else _vary(value, tuple(every - own))
        for value, own in zip(values, varying, strict=True)
    ]


def _vary(value: Any, axes: tuple[Any, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(value, axes, to="varying")
    return jax.lax.pvary(value, axes)


def lower_with_devices(primitive: Any) -> None:
    """Let JAX lower a primitive only once it knows the devices, which decide what it becomes.

    Without that, calls under a mesh are gathered on one device: slow, but right.
    """
    with suppress(ImportError, AttributeError):
        from jax._src.dispatch import prim_requires_devices_during_lowering

        prim_requires_devices_during_lowering.add(primitive)


def lowers_for_several(context: Any) -> bool:
    """Whether a lowering is for several devices."""
    axes = context.module_context.axis_context
    devices = getattr(axes, "device_assignment", None)
    if devices is None and getattr(axes, "mesh", None) is not None:
        return bool(axes.mesh.size > 1)
    return devices is not None and len(devices) > 1
