"""Descriptors as text: how an operator's schema, and so a compiled graph, carries the options.

The text lists what differs from the default: ``"bidirectional training activation=relu"``.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any, cast

from ..descriptors import Activation, AnyDescriptor
from ..operations import Operation

_DEFAULTS: dict[type, dict[str, Any]] = {}


def learn(kind: type[Any]) -> None:
    """Know the options of a descriptor: torch.compile cannot look at its fields."""
    _DEFAULTS[kind] = {field.name: field.default for field in fields(kind)}


_ACTIVATIONS = {kind.name.lower(): kind for kind in Activation}


def encode(descriptor: AnyDescriptor, training: bool) -> str:
    """The options as text; ``training`` switches that option on.

    >>> from zstate import GRUDescriptor
    >>> encode(GRUDescriptor(flip_z=True, output_gate_activation=Activation.RELU), training=True)
    'training flip_z output_gate_activation=relu'
    """
    words = []
    for name, default in _DEFAULTS[type(descriptor)].items():
        value = getattr(descriptor, name)
        if name == "training":
            value = value or training
        if value != default:
            said = value.name.lower() if isinstance(value, Activation) else value
            words.append(name if value is True else f"{name}={said}")
    return " ".join(words)


@cache
def decode(operation: Operation, text: str) -> AnyDescriptor:
    """The descriptor that a text stands for.

    >>> from zstate.operations import LSTM_FORWARD
    >>> decode(LSTM_FORWARD, "training activation=none").activation
    Activation.NONE
    """
    options: dict[str, Any] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        # The descriptor itself refuses what is neither.
        number = int(value) if value.isdecimal() else value
        options[name] = _ACTIVATIONS.get(value, number) if value else True
    return cast(AnyDescriptor, operation.cell.descriptor(**options))


@cache
def trained(descriptor: AnyDescriptor) -> AnyDescriptor:
    """The same descriptor with ``training``."""
    return replace(descriptor, training=True)
