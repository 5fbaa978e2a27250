"""What a probe is, and how it finds the reading that a framework follows.

A probe is a call and the readings that it tells apart, zstate's first. Each probe owns one switch
of :mod:`.readings`. When a framework follows another reading than zstate, the probes after it take
that reading as given, so that one difference does not hide the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from ..layout import brackets
from ..types import Array
from ..verify import relative_error
from .calling import Call, Outcome, Runner
from .reading_steps import Reading
from .readings import answer, outputs, zstate_reading

# The relative error of a whole tensor below which numbers of a reading count as the framework's.
# Readings differ by much more: this leaves room for a GPU's own tanh in float32.
BOUND = 1e-3
APART = 20 * BOUND  # how far any two readings of a probe lie apart on its inputs

RNN, LSTM, GRU = CELLS = ("single_gate_rnn", "lstm", "gru")
SHORT = {RNN: "RNN", LSTM: "LSTM", GRU: "GRU"}


Seen: TypeAlias = tuple[Array | None, ...]  # None: a slot whose contents no reading states


class _Refused:
    def __repr__(self) -> str:
        return "refused"


REFUSED = _Refused()  # the value of a reading by which the framework raises an exception


@dataclass(frozen=True, eq=False)
class Probe:
    """A call on one cell, and the readings of one switch with their values, zstate's first."""

    decision: str
    cell: str
    question: str
    switch: str
    readings: Mapping[str, Any]
    make: Callable[[np.random.Generator], Call]
    looks_at: str = "state"  # a forward result, "forward", "shapes", "gradients", "everything"
    alternatives: str = ""  # the other readings in a few words, where they are many
    carried: bool = True  # later probes take the reading that was found as given

    @property
    def name(self) -> str:
        return f"{SHORT[self.cell]}: {self.decision}"

    @property
    def ours(self) -> str:
        """zstate's reading."""
        return next(iter(self.readings))

    @property
    def others(self) -> str:
        """The alternatives, as tables show them."""
        return self.alternatives or "; ".join(list(self.readings)[1:]) or "none"


@dataclass(frozen=True)
class Finding:
    """What a probe found. ``reading`` is the one that agrees, if any does."""

    probe: Probe
    verdict: str  # agrees, differs, refused, unavailable, crashed or timed out
    reading: str | None = None
    text: str = ""
    error: float | None = None  # of the reading that agrees


def run_probes(probes: Iterable[Probe], runner: Runner, seed: int) -> Iterator[Finding]:
    """The findings of the probes, in their order."""
    known = {cell: zstate_reading(cell) for cell in CELLS}
    for probe in probes:
        call = draw(probe, seed)
        finding = judge(probe, call, runner.run(call), known[probe.cell])
        if probe.carried and finding.reading is not None:
            known[probe.cell][probe.switch] = probe.readings[finding.reading]
        elif "zstate" in probe.switch:  # the other probes do without it
            known[probe.cell][probe.switch] = None
        yield finding


@lru_cache
def draw(probe: Probe, seed: int) -> Call:
    """Inputs for which the readings lie apart; the seed alone decides which."""
    rng = np.random.default_rng([seed, zlib.crc32(probe.name.encode())])
    known = zstate_reading(probe.cell)
    for _ in range(100):
        call = probe.make(rng)
        pairs = combinations([seen for _, seen in _wanted(probe, call, known)], 2)
        if all(_distance(probe, a, b) > APART for a, b in pairs):
            return call
    raise AssertionError(f"{probe.name}: readings that no inputs tell apart")


def _wanted(probe: Probe, call: Call, known: Reading) -> Iterator[tuple[str, Seen]]:
    """What each reading gives for a call, zstate's first."""
    for label, value in probe.readings.items():
        if value is not REFUSED:
            reading = {**known, probe.switch: value}
            seen = _seen(probe, call, reading, *answer(call, reading))
            assert seen is not None
            yield label, seen


def judge(probe: Probe, call: Call, outcome: Outcome, known: Reading) -> Finding:
    """Which reading of the probe an outcome agrees with, the others being as known."""
    if outcome.status == "refused" and probe.readings[probe.ours] is REFUSED:
        return Finding(probe, "agrees", probe.ours, outcome.text)
    if outcome.status != "ran":
        return Finding(probe, outcome.status, None, outcome.text)
    shapes = ", ".join(brackets(array.shape) for array in (*outcome.forward, *outcome.gradients))
    found = _seen(probe, call, known, outcome.forward, outcome.gradients)
    if found is None:
        return Finding(probe, "unavailable", None, f"it is not among the results: {shapes}")
    wanted = dict(_wanted(probe, call, known))
    if any(all(part is None for part in seen) for seen in wanted.values()):
        return Finding(probe, "unavailable", None, "what zState holds is not known")
    errors = {label: _distance(probe, found, seen) for label, seen in wanted.items()}
    near = min(errors, key=lambda label: errors[label])
    same = [label for label in errors if errors[label] <= BOUND]
    if len(same) > 1:  # by what was found before
        return Finding(probe, "unavailable", None, f"cannot be told apart: {'; '.join(same)}")
    if same:
        verdict = "agrees" if near == probe.ours else "differs"
        return Finding(probe, verdict, near, error=errors[near])
    text = f"no reading agrees; results {shapes}"
    if np.isfinite(errors[near]):
        text += f"; nearest: {near}, relative error {errors[near]:.1e}"
    if probe.decision == "hard sigmoid" and "input_weight" not in call.tensors:
        text += _fit(call.tensors["source"], outcome.forward[0])
    return Finding(probe, "differs", None, text)


def _seen(
    probe: Probe,
    call: Call,
    reading: Reading,
    forward: Seen,
    gradients: Seen,
) -> Seen | None:
    """What the probe looks at; None if it is not there."""
    if probe.looks_at == "gradients":
        return gradients or None
    if probe.looks_at == "everything":
        return (*forward, *gradients)
    if probe.looks_at in ("forward", "shapes"):
        return forward
    named = dict(zip(outputs(call, reading), forward, strict=False))
    return (named[probe.looks_at],) if probe.looks_at in named else None


def _distance(probe: Probe, found: Seen, wanted: Seen) -> float:
    """The worst relative error; infinite if shapes or numbers of results differ."""
    if len(found) != len(wanted):
        return float("inf")
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if a is None or b is None:
            continue
        if a.shape != b.shape:
            return float("inf")
        if probe.looks_at != "shapes":
            error = relative_error(a, b)
            worst = max(worst, float("inf") if np.isnan(error) else error)
    return worst


def _fit(source: Array, found: Array) -> str:
    """Slope and offset of the hard sigmoid, measured."""
    x, y = source.ravel().astype(np.float64), found.ravel().astype(np.float64)
    inside = (y > 0.02) & (y < 0.98)
    if inside.sum() < 3:
        return ""
    slope, offset = np.polyfit(x[inside], y[inside], 1)
    return f"; measured clamp({slope:.4f}x + {offset:.4f}, 0, 1)"
