"""What a user can choose: the five activations and the three descriptors.

A descriptor is a frozen dataclass: comparable, hashable, safe to share. It rejects a wrong type or
an unknown field on creation, so that later code need not check again. You can pass an activation by
name: ``LSTMDescriptor(activation="relu")``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import DescriptorError, close_name
from .types import as_integer


class Activation(IntEnum):
    """The activation of a gate, with MPSGraph's numbers."""

    NONE = 0
    RELU = 1
    TANH = 2
    SIGMOID = 3
    HARD_SIGMOID = 4

    def __repr__(self) -> str:
        return f"Activation.{self.name}"


_D = TypeVar("_D", bound="Descriptor")

if TYPE_CHECKING:

    class _ActivationField:
        """For type checkers: takes an Activation or its name, and returns an Activation."""

        def __get__(self, instance: object, owner: object) -> Activation: ...
        def __set__(self, instance: object, value: Activation | str) -> None: ...

else:
    _ActivationField = Activation


_RELU: Any = Activation.RELU
_TANH: Any = Activation.TANH
_SIGMOID: Any = Activation.SIGMOID


def named_activation(label: str, value: str) -> Activation:
    """The activation of a name such as "tanh"; ``label`` names the field in messages."""
    found = _NAMED.get(value)
    if found is None:
        close = close_name(value, _NAMED)
        hint = f"; did you mean {close!r}?" if close else ""
        raise DescriptorError(
            f"{label}: expected an Activation or one of {', '.join(_NAMED)}, got {value!r} of type "
            f"str{hint}"
        )
    return found


_NAMED = {kind.name.lower(): kind for kind in Activation}


_EXPECTED = {Activation: "an Activation or its name", bool: "a bool", int: "an integer"}


class Descriptor:
    """What the three descriptors share: checks, hashing and the activations by gate."""

    heads: int = 1  # an option of those that list it
    # One slot per canonical gate, then, for the LSTM, the activation of the cell's output.
    activation_fields: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ("heads",)  # the options that MPSGraph does not have

    def __new__(cls: type[_D], *args: Any, **options: Any) -> _D:
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if len(args) > len(known):
            raise DescriptorError(
                f"[{cls.__name__}] expected at most {len(known)} options, got {len(args)}"
            )
        for name in options:
            if name not in known:
                close = close_name(name, known)
                hint = f"; did you mean {close!r}?" if close else ""
                raise DescriptorError(
                    f"[{cls.__name__}] unknown field {name!r}{hint} (fields: {', '.join(known)})"
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            kind = type(field.default)
            if kind is Activation and isinstance(value, str):
                value = named_activation(f"[{type(self).__name__}] {field.name}", value)
                object.__setattr__(self, field.name, value)
            whole = as_integer(value) if kind is int else None
            if whole is not None:
                object.__setattr__(self, field.name, whole)
            elif type(value) is not kind:
                expected = _EXPECTED[kind]
                raise DescriptorError(
                    f"[{type(self).__name__}] {field.name}: expected {expected}, got "
                    f"{value!r} of type {type(value).__name__}"
                )
        if self.heads < 1:
            raise DescriptorError(
                f"[{type(self).__name__}] heads: expected at least 1, got {self.heads}"
            )
        values = tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        # A call looks its layout up by descriptor: hash once, not at every call.
        object.__setattr__(self, "_hash", hash((type(self).__name__, values)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew rather than restored: a hash must not travel to another process.
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activations in canonical gate order; for the LSTM the one on c[t] comes last."""
        return tuple(getattr(self, name) for name in self.activation_fields)


@dataclass(frozen=True, eq=True, unsafe_hash=False)
class SingleGateRNNDescriptor(Descriptor):
    """Options of the single-gate RNN, ``h[t] = activation(x[t]W^T + (h[t-1]·m[t])R^T + b)``.

    With ``heads``, here and below, R has one block per head. MPSGraph has no heads.

    >>> SingleGateRNNDescriptor(activation=Activation.TANH).activations
    (Activation.TANH,)
    """

    reverse: bool = False
    bidirectional: bool = False
    training: bool = False
    activation: _ActivationField = _RELU
    heads: int = 1

    activation_fields = ("activation",)
    __hash__ = Descriptor.__hash__


@dataclass(frozen=True, eq=True, unsafe_hash=False)
class LSTMDescriptor(Descriptor):
    """Options of the LSTM; ``activation`` is the one on c[t].

    With ``peephole_on_new_cell``, which MPSGraph does not have, the output gate's peephole sees
    c[t], as in ONNX and TensorFlow. The other gates always see c[t-1].

    >>> LSTMDescriptor(forget_gate_last=True).forget_gate_last
    True
    """

    reverse: bool = False
    bidirectional: bool = False
    produce_cell: bool = False
    training: bool = False
    forget_gate_last: bool = False
    input_gate_activation: _ActivationField = _SIGMOID
    forget_gate_activation: _ActivationField = _SIGMOID
    cell_gate_activation: _ActivationField = _TANH
    output_gate_activation: _ActivationField = _SIGMOID
    activation: _ActivationField = _TANH
    peephole_on_new_cell: bool = False
    heads: int = 1

    activation_fields = (
        "input_gate_activation",
        "forget_gate_activation",
        "cell_gate_activation",
        "output_gate_activation",
        "activation",
    )
    extensions = ("peephole_on_new_cell", "heads")
    __hash__ = Descriptor.__hash__


@dataclass(frozen=True, eq=True, unsafe_hash=False)
class GRUDescriptor(Descriptor):
    """Options of the GRU, in both forms (``reset_after``) and both blends (``flip_z``).

    >>> GRUDescriptor(reset_after=True) == GRUDescriptor(reset_after=True)
    True
    """

    reverse: bool = False
    bidirectional: bool = False
    training: bool = False
    reset_gate_first: bool = False
    reset_after: bool = False
    flip_z: bool = False
    update_gate_activation: _ActivationField = _SIGMOID
    reset_gate_activation: _ActivationField = _SIGMOID
    output_gate_activation: _ActivationField = _TANH
    heads: int = 1

    activation_fields = (
        "update_gate_activation",
        "reset_gate_activation",
        "output_gate_activation",
    )
    __hash__ = Descriptor.__hash__


AnyDescriptor = SingleGateRNNDescriptor | LSTMDescriptor | GRUDescriptor
