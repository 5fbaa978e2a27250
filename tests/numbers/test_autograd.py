"""Every output and every gradient against PyTorch autograd over an independent plain loop.

First the structural options of each cell at small odd sizes, every combination of any four of them,
while the activations take every pair of values; then hypothesis over shapes down to empty ones and
all options. float64, relative error below 1e-12 for each tensor and for each element.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from tests.cases import (
    ACTIVATION_FIELDS,
    CELLS,
    DIRECTIONS,
    FLAGS,
    MASK_FORMS,
    OPTIONAL,
    Case,
    cases,
    check_everywhere,
    subsets,
    well_conditioned,
)

DRAWN = "peephole_on_new_cell"  # at random within the product, which is long enough without it
# Of the whole product, the part with an even number of each of these options: a half, an eighth and
# a quarter of it, in which any four options still have all their combinations.
EVEN: dict[str, tuple[frozenset[str], ...]] = {
    cell: tuple(frozenset(words.split()) for words in each)
    for cell, each in {
        "rnn": ["bidirectional reverse input_weight bias init_state mask state_gradient"],
        "lstm": [
            "bidirectional reverse forget_gate_last init_cell mask",
            "reverse forget_gate_last input_weight bias peephole",
            "bidirectional forget_gate_last input_weight init_state state_gradient",
        ],
        "gru": [
            "bidirectional reverse flip_z bias init_state secondary_bias state_gradient",
            "reverse reset_gate_first reset_after flip_z input_weight mask state_gradient",
        ],
    }.items()
}


def flag_sets(cell: str) -> list[frozenset[str]]:
    return subsets(flag for flag in FLAGS[cell] if flag != DRAWN)


GROUPS = [
    pytest.param(cell, direction, flags, id="-".join([cell, direction, *sorted(flags)]))
    for cell in CELLS
    for direction in DIRECTIONS
    for flags in flag_sets(cell)
]
WEIGHTS = [
    pytest.param(frozenset(s), id="-".join(s) or "neither")
    for s in ((), ("input_weight",), ("bias",), ("input_weight", "bias"))
]


def combinations_of_activations(cell: str) -> list[tuple[int, ...]]:
    """All of them, in a fixed shuffled order."""
    found = list(itertools.product(range(5), repeat=len(ACTIVATION_FIELDS[cell])))
    random.Random(5).shuffle(found)
    return found


def turned_on(case: Case) -> frozenset[str]:
    """The structural options of a case that are on, of those that are on or off."""
    on = case.inputs | case.flags - {DRAWN}
    on |= {"state_gradient"} if case.state_gradient != "none" else set()
    return on | {name for name in ("bidirectional", "reverse") if case.options[name]}


def product(
    cell: str, direction: str, flags: frozenset[str], weights: frozenset[str]
) -> Iterator[Case]:
    """Sets of the other optional inputs, times the gradients that may come in."""
    rng = random.Random(f"{cell} {direction} {sorted(flags)} {sorted(weights)}")
    activations = combinations_of_activations(cell)
    others = [n for n in OPTIONAL[cell] if n not in ("input_weight", "bias")]
    if "reset_after" not in flags:
        others = [n for n in others if n != "secondary_bias"]
    cell_gradients = ("none", "last", "all") if cell == "lstm" else ("none",)
    repeats = 5 if cell == "rnn" else 1
    start = rng.randrange(len(activations))
    every = itertools.product(subsets(others), (False, True), cell_gradients, range(repeats))
    for index, (inputs, with_state_gradient, cell_gradient, _) in enumerate(every):
        last = rng.choice(("flat", "leading"))
        case = Case(
            cell=cell,
            direction=direction,
            flags=flags | ({DRAWN} if DRAWN in FLAGS[cell] and rng.random() < 0.5 else set()),
            activations=activations[(start + index) % len(activations)],
            inputs=inputs | weights,
            mask_form=rng.choice(MASK_FORMS),
            flat_peephole=rng.random() < 0.5,
            state_gradient=rng.choice(("flat", "leading")) if with_state_gradient else "none",
            cell_gradient=last if cell_gradient == "last" else cell_gradient,
            T=3,
            N=rng.choice((1, 3)),
            I=rng.choice((1, 2, 5)),
            H=rng.choice((1, 3, 5)),
            seed=rng.randrange(2**32),
        )
        if all(len(turned_on(case) & even) % 2 == 0 for even in EVEN[cell]):
            yield case


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("cell", "direction", "flags"), GROUPS)
def test_every_combination_of_four_options(
    cell: str, direction: str, flags: frozenset[str], weights: frozenset[str]
) -> None:
    for case in product(cell, direction, flags, weights):
        check_everywhere(well_conditioned(case))


def test_the_product_is_complete() -> None:
    """The generator above makes what its name says: counted, with all combinations of four options,
    and of two activations."""
    made = {
        cell: [
            case
            for direction in DIRECTIONS
            for flags in flag_sets(cell)
            for weights in subsets(("input_weight", "bias"))
            for case in product(cell, direction, flags, weights)
        ]
        for cell in CELLS
    }
    assert {cell: len(found) for cell, found in made.items()} == {
        "rnn": 4 * 2**4 * 2 * 5 / 2,
        "lstm": 4 * 2 * 2**6 * 2 * 3 / 8,
        "gru": 4 * 4 * (2**4 + 2**5) * 2 / 4,
    }
    for cell, options in {
        "rnn": {*OPTIONAL["rnn"]},
        "lstm": {*OPTIONAL["lstm"], "forget_gate_last"},
        "gru": {*OPTIONAL["gru"], *FLAGS["gru"]},
    }.items():
        options |= {"bidirectional", "reverse", "state_gradient"}
        seen = {(turned_on(case), case.cell_gradient[:1]) for case in made[cell]}
        for four in itertools.combinations(sorted(options), 4):
            found = {(on & set(four), gradient) for on, gradient in seen}
            without = "secondary_bias" in four and "reset_after" in four
            ways = 16 - 4 * without  # the one needs the other
            assert len(found) >= (3 * ways if cell == "lstm" else ways), four
    seen = [case for case in made["lstm"] if "peephole" in case.inputs and DRAWN in case.flags]
    assert {case.direction for case in seen} == set(DIRECTIONS)
    assert {case.inputs for case in seen} == {
        s for s in subsets(OPTIONAL["lstm"]) if "peephole" in s
    }
    for cell, fields in ACTIVATION_FIELDS.items():
        for position in range(len(fields)):
            for direction in DIRECTIONS:
                kinds = {c.activations[position] for c in made[cell] if c.direction == direction}
                assert kinds == set(range(5))
        for pair in itertools.combinations(range(len(fields)), 2):
            assert len({tuple(c.activations[k] for k in pair) for c in made[cell]}) == 25


@given(case=cases("rnn"))
@settings(max_examples=150)
def test_any_single_gate_rnn(case: Case) -> None:
    check_everywhere(case)


@given(case=cases("lstm"))
@settings(max_examples=300)
def test_any_lstm(case: Case) -> None:
    check_everywhere(case)


@given(case=cases("gru"))
@settings(max_examples=300)
def test_any_gru(case: Case) -> None:
    check_everywhere(case)
