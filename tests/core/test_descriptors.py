"""The descriptors: defaults, frozen, comparable, hashable, readable, strict about fields."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

import zstate as zs

A = zs.Activation
DESCRIPTORS = (zs.SingleGateRNNDescriptor, zs.LSTMDescriptor, zs.GRUDescriptor)
DEFAULTS: dict[type, dict[str, Any]] = {
    zs.SingleGateRNNDescriptor: {
        "reverse": False,
        "bidirectional": False,
        "training": False,
        "activation": A.RELU,
        "heads": 1,
    },
    zs.LSTMDescriptor: {
        "reverse": False,
        "bidirectional": False,
        "produce_cell": False,
        "training": False,
        "forget_gate_last": False,
        "input_gate_activation": A.SIGMOID,
        "forget_gate_activation": A.SIGMOID,
        "cell_gate_activation": A.TANH,
        "output_gate_activation": A.SIGMOID,
        "activation": A.TANH,
        "peephole_on_new_cell": False,
        "heads": 1,
    },
    zs.GRUDescriptor: {
        "reverse": False,
        "bidirectional": False,
        "training": False,
        "reset_gate_first": False,
        "reset_after": False,
        "flip_z": False,
        "update_gate_activation": A.SIGMOID,
        "reset_gate_activation": A.SIGMOID,
        "output_gate_activation": A.TANH,
        "heads": 1,
    },
}
FIELDS = [
    pytest.param(kind, name, id=f"{kind.__name__}-{name}")
    for kind, defaults in DEFAULTS.items()
    for name in defaults
]
descriptors = pytest.mark.parametrize("kind", DESCRIPTORS, ids=lambda kind: kind.__name__)
every_field = pytest.mark.parametrize(("kind", "name"), FIELDS)


def other_value(kind: type, name: str) -> Any:
    default = DEFAULTS[kind][name]
    if name == "heads":
        return 3
    return A.HARD_SIGMOID if isinstance(default, A) else not default


@descriptors
def test_defaults_and_their_order(kind: Any) -> None:
    made = kind()
    assert {field.name: getattr(made, field.name) for field in fields(made)} == DEFAULTS[kind]
    assert [field.name for field in fields(made)] == list(DEFAULTS[kind])


@every_field
def test_each_field_can_be_set(kind: Any, name: str) -> None:
    value = other_value(kind, name)
    made = kind(**{name: value})
    assert getattr(made, name) is value
    for rest, default in DEFAULTS[kind].items():
        if rest != name:
            assert getattr(made, rest) == default


@every_field
def test_frozen(kind: Any, name: str) -> None:
    made = kind()
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, other_value(kind, name))
    with pytest.raises(FrozenInstanceError):
        delattr(made, name)
    assert made == kind()


@every_field
def test_comparable_and_hashable(kind: Any, name: str) -> None:
    value = other_value(kind, name)
    made = kind(**{name: value})
    assert made == kind(**{name: value})
    assert made != kind()
    assert hash(made) == hash(kind(**{name: value}))
    assert {made: 1}[kind(**{name: value})] == 1
    assert len({made, kind(), kind(**{name: value})}) == 2


def test_descriptors_of_two_cells_are_never_equal() -> None:
    made = [kind() for kind in DESCRIPTORS]
    assert len(set(made)) == 3
    assert made[0] != made[1]
    assert made[1] != made[2]


@every_field
def test_the_repr_is_readable_and_makes_the_same_again(kind: Any, name: str) -> None:
    value = other_value(kind, name)
    made = kind(**{name: value})
    text = repr(made)
    assert text.startswith(kind.__name__ + "(")
    shown = f"{name}={value.name if isinstance(value, A) else value}"
    assert shown in text.replace("Activation.", "")
    assert eval(text, dict(vars(zs))) == made


@every_field
@pytest.mark.parametrize("value", [None, 0, 1, 3, "yes", "TANH", 2.0, [], A], ids=repr)
def test_a_wrong_type_is_refused_by_field(kind: Any, name: str, value: Any) -> None:
    if name == "heads" and type(value) is int:
        return  # of the right type
    with pytest.raises(TypeError) as caught:
        kind(**{name: value})
    assert isinstance(caught.value, zs.ZStateError)
    message = str(caught.value)
    assert kind.__name__ in message
    assert name in message
    expected = {A: "Activation", bool: "bool", int: "an integer"}
    assert expected[type(DEFAULTS[kind][name])] in message
    assert type(value).__name__ in message


@every_field
def test_a_flag_and_an_activation_are_not_the_same_kind(kind: Any, name: str) -> None:
    value: Any = True if isinstance(DEFAULTS[kind][name], A) else A.RELU
    with pytest.raises(TypeError, match=name):
        kind(**{name: value})


@descriptors
@pytest.mark.parametrize("name", ["peephole", "revers", "Training", "hidden_size"])
def test_an_unknown_field_is_refused_by_name(kind: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name) as caught:
        kind(**{name: True})
    assert kind.__name__ in str(caught.value)


@descriptors
def test_too_many_values_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match=kind.__name__):
        kind(*DEFAULTS[kind].values(), False)


@pytest.mark.parametrize("kind", [zs.SingleGateRNNDescriptor, zs.GRUDescriptor])
def test_only_the_lstm_has_a_cell_to_produce(kind: Any) -> None:
    with pytest.raises(TypeError, match="produce_cell"):
        kind(produce_cell=True)


@every_field
def test_copies_are_equal(kind: Any, name: str) -> None:
    made = kind(**{name: other_value(kind, name)})
    assert replace(kind(), **{name: other_value(kind, name)}) == made
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again == made
        assert hash(again) == hash(made)
        assert repr(again) == repr(made)


@descriptors
def test_replace_checks_too(kind: Any) -> None:
    name = next(n for n in DEFAULTS[kind] if n.endswith("activation"))
    with pytest.raises(TypeError, match=name):
        replace(kind(), **{name: 2})


def test_activations_are_the_five() -> None:
    assert [(kind.name, kind.value) for kind in A] == [
        ("NONE", 0),
        ("RELU", 1),
        ("TANH", 2),
        ("SIGMOID", 3),
        ("HARD_SIGMOID", 4),
    ]


ACTIVATIONS = [pytest.param(*p.values, id=p.id) for p in FIELDS if "activation" in str(p.id)]


@pytest.mark.parametrize(("kind", "name"), ACTIVATIONS)
@pytest.mark.parametrize("activation", list(A))
def test_an_activation_may_be_given_by_name(kind: Any, name: str, activation: A) -> None:
    made = kind(**{name: activation.name.lower()})
    assert getattr(made, name) is activation
    assert made == kind(**{name: activation})
    assert hash(made) == hash(kind(**{name: activation}))
    assert replace(kind(), **{name: activation.name.lower()}) == made


@pytest.mark.parametrize(("kind", "name"), ACTIVATIONS)
@pytest.mark.parametrize(
    ("given", "meant"), [("rleu", "relu"), ("TANH", "tanh"), ("hardsigmoid", "hard_sigmoid")]
)
def test_a_mistyped_activation_gets_a_suggestion(
    kind: Any, name: str, given: str, meant: str
) -> None:
    with pytest.raises(zs.DescriptorError, match=f"{name}: .* got '{given}' .*mean '{meant}'\\?"):
        kind(**{name: given})


@descriptors
@pytest.mark.parametrize("heads", [0, -3, True])
def test_a_wrong_number_of_heads(kind: Any, heads: int) -> None:
    with pytest.raises(zs.ZStateError, match="heads: expected (at least 1|an integer), got"):
        kind(heads=heads)
