"""Every probe tells the readings apart: zstate's own facade and an independent loop agree in all of
them, and a stand-in with another reading is told by the probes of that reading and by no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import oracle
from tests.mpsgraph.stand_ins import Variation, module, outputs
from tests.mpsgraph.variations import (
    NOT_EMPTY,
    NOTHING,
    VARIATIONS,
    Expected,
    hard_sigmoid,
    together,
    training_alone,
)
from zstate import pyobjc
from zstate.mpsgraph import probes
from zstate.mpsgraph.calling import Call, Framework, Outcome
from zstate.mpsgraph.decisions import PROBES
from zstate.mpsgraph.probes import Finding, draw, judge, run_probes
from zstate.mpsgraph.reading_steps import Reading
from zstate.mpsgraph.readings import Answer, answer, zstate_reading

SOAK = os.environ.get("ZSTATE_SOAK")
# Each alone as well; the others alone only in long runs, as they are slow.
ALONE = [
    "the other flipZ",
    "zState in another order",
    "reverse in input order",
    "LSTM: training returns h, zState",
]
BY_NAME = {probe.name: probe for probe in PROBES}


@pytest.fixture(autouse=True, scope="module")
def remembered() -> Iterator[None]:
    """Compute what a reading gives for a call once: most stand-ins differ in few readings."""
    known: dict[Any, Answer] = {}

    def remember(call: Call, reading: Reading) -> Answer:
        key = call, tuple(sorted(reading.items()))
        if key not in known:
            known[key] = answer(call, reading)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "answer", remember)
        yield


def findings(modules: Any, seed: int = 1, cells: str = "RNN LSTM GRU") -> dict[str, Finding]:
    chosen = [probe for probe in PROBES if probe.name.split(":")[0] in cells.split()]
    return {f.probe.name: f for f in run_probes(chosen, Framework([modules]), seed)}


def told(modules: Any, cells: str = "RNN LSTM GRU") -> Expected:
    """The readings by probe where they are not zstate's; anything but a reading as its verdict."""
    found = findings(modules, cells=cells)
    return {
        name: finding.reading or finding.verdict
        for name, finding in found.items()
        if finding.verdict != "agrees"
    }


@pytest.mark.parametrize("seed", range(40 if SOAK else 1))
def test_the_facade_agrees(seed: int) -> None:
    found = findings(pyobjc, seed)
    assert len(found) == len(PROBES)
    assert {finding.verdict for finding in found.values()} == {"agrees"}


def test_an_independent_loop_agrees() -> None:
    assert told(module()) == {}


@pytest.mark.parametrize(
    ("variation", "expected"),
    [
        pytest.param(made, found, id=f"{names[0]} and {len(names) - 1} more")
        for names, made, found in together()
    ],
)
def test_other_readings_are_told(variation: Variation, expected: Expected) -> None:
    assert told(module(variation)) == expected


@pytest.mark.parametrize("name", VARIATIONS if SOAK else ALONE)
def test_another_reading_is_told(name: str) -> None:
    variation, expected = VARIATIONS[name]
    assert told(module(variation)) == expected


def test_every_probe_has_a_stand_in() -> None:
    """The others are the subject of the tests below."""
    covered = {
        name
        for _, expected in VARIATIONS.values()
        for name, label in expected.items()
        if label != NOTHING
    }
    below = {"RNN: outputs with training", "GRU: outputs with training"}
    assert covered | below | {"LSTM: T = 0", "LSTM: N = 0"} == set(BY_NAME)
    for _, expected in VARIATIONS.values():
        for name, label in expected.items():
            _, *others = BY_NAME[name].readings
            assert label in (*others, NOTHING), (name, label)


@pytest.mark.parametrize("cell", ["rnn", "gru"])
def test_a_missing_training_state(cell: str) -> None:
    short = cell.upper()
    found = told(module(Variation(outputs=training_alone("h", cell))), short)
    assert found.pop(f"{short}: outputs with training") == "h"
    assert found  # what needs zState cannot be seen then
    for name, verdict in found.items():
        assert verdict == "unavailable"
        assert BY_NAME[name].looks_at in ("training_state", "gradients"), name


def test_empty_calls_that_are_refused() -> None:
    assert told(module(NOT_EMPTY), "LSTM") == {"LSTM: T = 0": "refused", "LSTM: N = 0": "refused"}


def test_a_slope_that_no_reading_has_is_measured() -> None:
    variation = Variation(activations={oracle.HARD_SIGMOID: hard_sigmoid(0.3)})
    found = findings(module(variation))
    finding = found["RNN: hard sigmoid"]
    assert (finding.verdict, finding.reading) == ("differs", None)
    assert "measured clamp(0.3000x + 0.5000, 0, 1)" in finding.text
    others = {name for name, each in found.items() if each.verdict != "agrees"}
    assert others == {f"{cell}: hard sigmoid" for cell in ("RNN", "LSTM", "GRU")} | {
        "RNN: hard sigmoid at its kinks"
    }


def test_a_zstate_that_no_reading_has_does_not_hide_the_rest() -> None:
    def own(cell: str, options: Any, found: oracle.Forward) -> oracle.Forward:
        return found._replace(training_state=2 * found.training_state + 1)

    found = findings(module(Variation(forward=own)))
    for name, finding in found.items():
        looks_at = BY_NAME[name].looks_at
        if "bidirectional" in name or "resetAfter" in name:
            expected = "unavailable" if looks_at == "training_state" else "agrees"
        else:
            expected = "differs" if looks_at == "training_state" else "agrees"
        assert (finding.verdict, name) == (expected, name)
        assert (finding.reading is None) == (expected != "agrees")


@pytest.mark.parametrize("spoil", [1.01, float("nan")])
def test_numbers_that_no_reading_has(spoil: float) -> None:
    def spoiled(cell: str, options: Any, found: oracle.Forward) -> oracle.Forward:
        return found._replace(state=found.state * spoil) if cell == "gru" else found

    found = findings(module(Variation(forward=spoiled)), cells="RNN GRU")
    finding = found["GRU: flipZ = NO"]
    assert (finding.verdict, finding.reading) == ("differs", None)
    assert "no reading agrees; results [1,8,4], [1,8,12]" in finding.text
    assert ("nearest: z·h[t-1] + (1-z)·o, relative error 1.0e-02" in finding.text) is (spoil < 2)
    assert {f.verdict for name, f in found.items() if not name.startswith("GRU")} == {"agrees"}


def test_a_framework_without_the_gru() -> None:
    old = module()
    del old.MPSGraphGRUDescriptor
    found = findings(old, cells="RNN GRU")
    for name, finding in found.items():
        assert (finding.verdict == "unavailable") == name.startswith("GRU: "), name
    assert found["GRU: flipZ = NO"].text == "there is no MPSGraphGRUDescriptor"


def test_a_method_that_is_missing() -> None:
    old = module()

    class Without(old.MPSGraph):  # type: ignore[name-defined, misc]
        def __getattr__(self, selector: str) -> Any:
            if "peephole" in selector:
                raise AttributeError(selector)
            return super().__getattr__(selector)

    old.MPSGraph = Without
    call = draw(BY_NAME["LSTM: peephole"], 1)
    outcome = Framework([old]).run(call)
    assert outcome.status == "unavailable"
    assert outcome.text.startswith("MPSGraph has no LSTMWithSourceTensor_")


def test_a_mac_without_metal() -> None:
    bare = module()
    bare.MTLCreateSystemDefaultDevice = lambda: None
    with pytest.raises(Exception, match="no Metal device"):
        Framework([bare])


def test_the_shortest_and_the_longest_method() -> None:
    """Arguments that are nil are left out, unless all are to be passed."""
    called: list[str] = []
    spy = module()

    class Spy(spy.MPSGraph):  # type: ignore[name-defined, misc]
        def __getattr__(self, selector: str) -> Any:
            called.append(selector)
            return super().__getattr__(selector)

    spy.MPSGraph = Spy
    x, R = np.ones((1, 2, 4), np.float32), np.ones((4, 1), np.float32)
    call = Call("lstm", {}, {"source": x, "recurrent_weight": R})
    assert Framework([spy]).run(call).status == "ran"
    assert Framework([spy]).run(replace(call, full=True)).status == "ran"
    labels = "inputWeight_bias_initState_initCell_mask_peephole"
    assert called == [
        "LSTMWithSourceTensor_recurrentWeight_initState_initCell_descriptor_name_",
        f"LSTMWithSourceTensor_recurrentWeight_{labels}_descriptor_name_",
    ]


def test_readings_that_no_inputs_tell_apart() -> None:
    probe = BY_NAME["GRU: flipZ = NO"]
    twice = replace(probe, readings={"one": "z keeps", "other": "z keeps"})
    with pytest.raises(AssertionError, match="GRU: flipZ = NO"):
        draw(twice, 1)


def test_a_seed_decides_the_inputs() -> None:
    probe = BY_NAME["LSTM: gradients"]
    one, again, other = draw(probe, 1), draw(replace(probe), 1), draw(probe, 2)
    for name, array in one.tensors.items():
        np.testing.assert_array_equal(array, again.tensors[name])
        assert (array != other.tensors[name]).any()


@pytest.mark.parametrize("status", ["crashed", "timed out", "unavailable"])
def test_a_call_that_ends_badly(status: Any) -> None:
    for name in ("GRU: flipZ = NO", "LSTM: R of a wrong shape"):
        probe = BY_NAME[name]
        outcome = Outcome(status, "SIGABRT")
        finding = judge(probe, draw(probe, 1), outcome, zstate_reading(probe.cell))
        assert (finding.verdict, finding.reading, finding.text) == (status, None, "SIGABRT")


def test_outputs_of_the_stand_in() -> None:
    """The published lists, which the variations change."""
    on = {"training": 1, "produce_cell": 0}
    assert outputs("lstm", on) == "hcz" and outputs("gru", on) == outputs("rnn", on) == "hz"
