"""Descriptors as text: how an operator's schema, and so a compiled graph, carries the options.

The text lists what differs from the default: ``"bidirectional training activation=relu"``.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

from ..descriptors import Activation, AnyDescriptor
from ..layout import DESCRIPTORS
from ..operations import Operation

_DEFAULTS: dict[type, dict[str, Any]] = {
    kind: {field.name: field.default for field in fields(kind)} for kind in DESCRIPTORS.values()
}

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
            words.append(name if value is True else f"{name}={value.name.lower()}")
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
        options[name] = _ACTIVATIONS.get(value, value) if value else True
    return DESCRIPTORS[operation.cell.name](**options)


@cache
def trained(descriptor: AnyDescriptor) -> AnyDescriptor:
    """The same descriptor with ``training``."""
    return replace(descriptor, training=True)
