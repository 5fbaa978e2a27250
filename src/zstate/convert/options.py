"""Facts: what a framework's layer says besides its arrays, in that framework's own words.

``options`` reads them into the fields of a descriptor, ``told`` writes them. They are the
arguments of the framework's constructor (attributes of an ONNX node, inputs of a MIL operation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..descriptors import Activation
from ..errors import OptionError, refusal
from ..graph.methods.core import truth
from ..layout import DESCRIPTORS
from .layer import Layer
from .table import GRU, LSTM, RNN, Framework

# What ONNX's activations take, of alpha and beta; zstate's two have these values.
TAKES_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
TAKES_BETA = {"affine", "scaledtanh", "hardsigmoid"}
ONNX_VALUES = {"affine": (1.0, 0.0), "hardsigmoid": (0.2, 0.5)}
_ONNX_DEFAULTS: dict[str, tuple[float | None, float | None]] = {"hardsigmoid": (0.2, 0.5)}


def usual(cell: str) -> dict[str, Activation]:
    """The activations of a layer that names none, in any framework."""
    kind = DESCRIPTORS[cell]
    named = dict(zip(kind.activation_fields, kind().activations, strict=True))
    return {"activation": Activation.TANH} if cell == RNN else named


def options(
    row: Framework,
    cell: str,
    facts: Mapping[str, Any],
    directions: int,
    has_bias: bool,
    has_rows: bool | None,
) -> dict[str, Any]:
    """The descriptor's fields that the facts set; a fact that zstate cannot express is refused.

    ``has_rows`` says whether a bias of the kind "rows" came as two rows, None if there was none.
    """
    unknown = sorted(facts.keys() - known_facts(row, cell) - row.activations[cell].keys())
    if unknown:
        known = ", ".join(sorted(known_facts(row, cell))) or "none"
        expected = f"those of {row.name} for {cell}: {known}"
        raise OptionError(refusal("load", "facts", expected, ", ".join(unknown)))
    if row.directed:
        _check_direction(row, facts, directions)
    told = facts
    if row.listed:
        told, *others = by_direction(row, cell, facts, directions)
        if any(other != told for other in others):
            expected, got = "the same in both directions", repr(facts["activations"])
            raise OptionError(refusal("load", "activations", expected, got))
    fields: dict[str, Any] = {"bidirectional": directions == 2, **usual(cell)}
    for word, names in row.activations[cell].items():
        if word in told:
            fields |= dict.fromkeys(names, _activation(row, word, told[word]))
    if row.reverse:
        fields["reverse"] = truth("load", row.reverse, facts.get(row.reverse, False))
        if fields["reverse"] and directions == 2:
            expected = "False for a layer with two directions"
            raise OptionError(refusal("load", row.reverse, expected, "True"))
    biased = truth("load", row.bias_fact, facts.get(row.bias_fact, has_bias))
    if biased != has_bias:
        got = "a bias" if has_bias else "no bias"
        raise OptionError(f"[load] {row.bias_fact}={biased}: the arrays have {got}")
    for word, (values, why) in row.neutral.items():
        value = facts.get(word, values[0])
        if isinstance(value, np.ndarray) or value not in values:
            raise OptionError(f"[load] {word}={value!r}: {why}")
    if cell == GRU:
        given = facts.get(row.reset_fact, row.reset_after[0] if has_rows is None else has_rows)
        after = truth("load", row.reset_fact, given)
        if has_rows is not None and after != has_rows:
            got = "two rows" if has_rows else "one row"
            raise OptionError(f"[load] {row.reset_fact}={after}: the bias has {got}")
        fields |= {"reset_after": after, "flip_z": row.flip_z}
    return fields


def known_facts(row: Framework, cell: str) -> set[str]:
    """The facts that ``load`` takes for a cell."""
    words = {*row.neutral, *row.ignored, row.reverse, row.bias_fact, row.directed}
    if row.listed:
        words |= {"activations", "activation_alpha", "activation_beta"}
    else:
        words |= {*row.activations[cell]}
    if cell == GRU:
        words.add(row.reset_fact)
    if cell == LSTM and row.forget_bias is not None:
        words.add("forget_bias")
    if not row.tells_cell:
        words.add("cell")
    return words - {""}


def _check_direction(row: Framework, facts: Mapping[str, Any], directions: int) -> None:
    usual_word = "bidirectional" if directions == 2 else "forward"
    word = _text(facts.get(row.directed, usual_word))
    if word == "reverse":
        raise OptionError(
            f"[load] {row.directed}='reverse': this format returns outputs in the order of the "
            "input, zstate's reverse in the order it computes them; load it as 'forward' and "
            "flip source and outputs"
        )
    if word != usual_word:
        expected = f"{usual_word!r}, because the arrays have {directions} directions"
        raise OptionError(refusal("load", row.directed, expected, repr(word)))


def _activation(row: Framework, fact: str, value: Any) -> Activation:
    if isinstance(value, Activation):
        return value
    word = "linear" if value is None else _text(value)
    for name, kind in row.words.items():
        if name.lower() == word.lower():
            return kind
    if word.lower() in row.hard_words.values():
        return Activation.HARD_SIGMOID
    if word.lower() in ("hard_sigmoid", "hardsigmoid") and row.hard_sigmoid:
        raise OptionError(f"[load] {fact}={word!r}: not zstate's hard sigmoid: {row.hard_sigmoid}")
    raise OptionError(refusal("load", fact, f"one of {', '.join(row.words)}", repr(word)))


_PACKAGES = ("jax", "flax", "keras", "tf_keras", "tensorflow", "mlx", "torch", "numpy")


def _text(value: Any) -> str:
    """The name that a string, bytes or a function gives."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    name = value if isinstance(value, str) else str(getattr(value, "__name__", value))
    module = getattr(value, "__module__", None)
    if callable(value) and str(module).split(".")[0] not in _PACKAGES:
        return f"{module}.{name}"  # a user's own function may compute anything, whatever its name
    return name


def by_direction(
    row: Framework, cell: str, facts: Mapping[str, Any], directions: int
) -> list[dict[str, Any]]:
    """The facts of each direction, with each of its activations: ONNX lists those of all
    directions; alpha and beta go to those that take them."""
    left = dict(facts)
    told = "activations" in left
    words = _list(left, "activations")
    alphas = [as_number(each, "activation_alpha") for each in _list(left, "activation_alpha")]
    betas = [as_number(each, "activation_beta") for each in _list(left, "activation_beta")]
    names = list(row.activations[cell])
    if told and len(words) != directions * len(names):
        expected = f"{directions * len(names)} of them"
        raise OptionError(refusal("load", "activations", expected, repr(words)))
    found: list[Activation] = []
    for word in map(_text, words):
        low = word.lower()
        alpha, beta = _ONNX_DEFAULTS.get(low, (None, None))
        if low in TAKES_ALPHA and alphas:
            alpha = alphas.pop(0)
        if low in TAKES_BETA and betas:
            beta = betas.pop(0)
        if low in ONNX_VALUES and not _same((alpha, beta), ONNX_VALUES[low]):
            expected = "alpha={}, beta={}".format(*ONNX_VALUES[low])
            raise OptionError(refusal("load", word, expected, f"alpha={alpha}, beta={beta}"))
        found.append(_activation(row, names[len(found) % len(names)], word))
    if alphas or betas:
        got = repr(alphas + betas)
        raise OptionError(
            refusal(
                "load", "activation_alpha", "at most as many values as the activations use", got
            )
        )
    parts = [found[k * len(names) : (k + 1) * len(names)] for k in range(directions)]
    return [left | dict(zip(names, part, strict=False)) for part in parts]


def _list(left: dict[str, Any], fact: str) -> list[Any]:
    """Take out a fact that is a list; empty if it is missing."""
    value = left.pop(fact, None)
    if not isinstance(value, list | tuple | None):
        raise OptionError(refusal("load", fact, "a list", repr(value)))
    return list(value or [])


def as_number(value: Any, fact: str) -> float:
    """A fact that is a number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(refusal("load", fact, "a number", repr(value))) from error


def _same(values: Sequence[float | None], wanted: Sequence[float]) -> bool:
    """Equal as the 32-bit floats that ONNX stores."""
    return all(
        value is not None and np.float32(value) == np.float32(other)
        for value, other in zip(values, wanted, strict=True)
    )


def told(row: Framework, layer: Layer) -> dict[str, Any]:
    """The facts of a layer in a framework's words; raises where it has no words for them."""
    cell, descriptor = layer.kind, layer.descriptor
    settled = usual(cell)
    words: dict[str, str] = {}
    for fact, names in row.activations[cell].items():
        kinds = {getattr(descriptor, name) for name in names}
        if len(kinds) > 1:
            got = ", ".join(f"{name}={getattr(descriptor, name).name.lower()}" for name in names)
            cannot(row, "activations", f"one activation for {' and '.join(names)} ({fact})", got)
        words[fact] = _word(row, cell, names[0], kinds.pop())
        for name in names:
            settled.pop(name)
    for name, kind in settled.items():
        if getattr(descriptor, name) != kind:
            got = getattr(descriptor, name).name.lower()
            cannot(row, name, kind.name.lower(), got)
    facts: dict[str, Any] = ({} if row.tells_cell else {"cell": cell}) | words
    if row.directed:
        facts[row.directed] = "bidirectional" if layer.directions == 2 else "forward"
    if row.listed:
        told = in_a_list([*words.values()] * layer.directions)
        facts = {"hidden_size": layer.hidden, row.directed: facts[row.directed], **told}
    if row.reverse and layer.directions == 1:
        facts[row.reverse] = descriptor.reverse
    if row.bias_fact:
        facts[row.bias_fact] = bool({"bias", "secondary_bias"} & set(layer.tensors))
    if cell == GRU and row.reset_fact:
        after = bool(getattr(descriptor, "reset_after", False))
        facts[row.reset_fact] = int(after) if row.listed else after
    if cell == LSTM and row.forget_bias is not None:
        facts["forget_bias"] = 0.0
    return facts


def _word(row: Framework, cell: str, name: str, kind: Activation) -> str:
    for word, known in row.words.items():
        if known == kind:
            return row.hard_words.get(cell, word) if kind is Activation.HARD_SIGMOID else word
    if kind is Activation.HARD_SIGMOID and row.hard_sigmoid:
        raise OptionError(f"[save] {name}: no such hard sigmoid in {row.name}: {row.hard_sigmoid}")
    cannot(row, name, f"one of {', '.join(row.words)}", kind.name.lower())
    raise AssertionError


def in_a_list(words: Sequence[str]) -> dict[str, Any]:
    """The attributes of an ONNX node that say the activations of all its directions."""
    pairs = [ONNX_VALUES[word.lower()] for word in words if word.lower() in ONNX_VALUES]
    found: dict[str, Any] = {"activations": [*words]}
    if pairs:
        found["activation_alpha"] = [alpha for alpha, _ in pairs]
        found["activation_beta"] = [beta for _, beta in pairs]
    return found


def cannot(row: Framework, what: str, expected: str, got: str) -> None:
    """Refuse a layer that a framework has no words for."""
    raise OptionError(refusal("save", what, f"{expected} for {row.name}", got))
