"""The cases of ``zstate check`` on a framework, against the oracle in float64.

Forward results, zState and gradients are judged apart: what zState holds is the framework's own
affair. The oracle's gradient operation reads the framework's forward results where they agree: what
a 16-bit type loses between the two operations is the type's doing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..descriptors import AnyDescriptor
from ..operations import OPERATIONS
from ..types import Array, float_dtype
from ..verify import (
    CASES,
    Case,
    cell_name,
    make_inputs,
    relative_error,
    run_backward,
    run_forward,
)
from .calling import Call, Outcome, Runner
from .probes import Finding
from .published import ACTIVATIONS

# Relative error of a whole tensor. The arithmetic is the framework's own: in the 16-bit types it
# may round every step.
BOUNDS = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
PARTS = ("forward", "zState", "gradients")


@dataclass(frozen=True)
class CaseResult:
    """One part of one case in one type."""

    cell: str
    dtype: str
    title: str
    part: str
    verdict: str  # as of a probe
    error: float | None = None
    text: str = ""


def left_out(findings: list[Finding]) -> frozenset[str]:
    """Inputs of no published shape that the framework did not take as zstate does."""
    decisions = {
        "stateGradient of shape [N,H]": "state_gradient",
        "cellGradient of shape [N,H]": "cell_gradient",
    }
    return frozenset(
        decisions[each.probe.decision]
        for each in findings
        if each.probe.decision in decisions and each.verdict != "agrees"
    )


def run_case(
    case: Case, runner: Runner, dtype: str, seed: int, without: Collection[str] = ()
) -> Iterator[CaseResult]:
    """The parts of a case. If the two operations do not run together, forward runs alone."""
    case = replace(case, every_cell=False)  # a gradient for every c is an extension of zstate's
    name = cell_name(case.descriptor)
    storage = float_dtype(dtype)
    inputs = {
        key: array.astype(storage)
        for key, array in make_inputs(case, seed).items()
        if key not in without
    }
    call = _call(name, case.descriptor, inputs)
    together = runner.run(call)
    outcome = together if together.status == "ran" else runner.run(replace(call, incoming={}))
    exact = {key: array.astype(np.float64) for key, array in inputs.items()}
    wanted = run_forward(case, exact, "reference")
    results = dict(zip(wanted, outcome.forward, strict=False))
    first = len(wanted) - 1  # zState comes last
    values = list(wanted.values())
    judged = [
        _result(outcome, values[:first], outcome.forward[:first], BOUNDS[dtype]),
        _result(outcome, values[first:], outcome.forward[first:], BOUNDS[dtype]),
    ]
    there = results if {verdict for verdict, *_ in judged} == {"agrees"} else wanted
    rounded = {key: array.astype(storage).astype(np.float64) for key, array in there.items()}
    back = list(run_backward(case, exact, rounded, "reference").values())
    judged.append(_result(together, back, together.gradients, BOUNDS[dtype]))
    for part, result in zip(PARTS, judged, strict=True):
        yield CaseResult(name, dtype, case.title, part, *result)


def _result(
    outcome: Outcome, wanted: list[Array], found: tuple[Array, ...], bound: float
) -> tuple[str, float | None, str]:
    """Verdict, error and text."""
    if outcome.status != "ran":
        return outcome.status, None, outcome.text
    shapes = [array.shape for array in found]
    if shapes != [array.shape for array in wanted]:
        return "differs", None, f"results of shapes {shapes}, expected {[a.shape for a in wanted]}"
    error = float(np.max([relative_error(a, b) for a, b in zip(found, wanted, strict=True)]))
    if not np.isfinite(error):
        return "differs", None, "results that are not finite"
    return ("agrees" if error <= bound else "differs"), error, ""


def _call(cell: str, descriptor: AnyDescriptor, inputs: dict[str, Array]) -> Call:
    """A case's call. Only what differs from zstate's defaults is set: those are checked as well."""
    options: dict[str, Any] = {
        option.name: getattr(descriptor, option.name)
        for option in fields(descriptor)
        if getattr(descriptor, option.name) != option.default
    }
    if cell == "lstm":  # the published texts agree on the results with both
        options["produce_cell"] = True
    names = OPERATIONS[cell].inputs
    forward = {name: array for name, array in inputs.items() if name in names}
    incoming = {name: array for name, array in inputs.items() if name not in names}
    return Call(cell, options, forward, incoming)


def mpsgraph_cases() -> dict[str, list[Case]]:
    """The cases that MPSGraph has options for."""
    return {
        cell: [case for case in cases if not (case.resets or _extended(case.descriptor))]
        for cell, cases in CASES.items()
    }


def _extended(descriptor: AnyDescriptor) -> bool:
    own = any(
        getattr(descriptor, name) != getattr(type(descriptor), name)
        for name in descriptor.extensions
    )
    return own or not set(descriptor.activations) <= set(ACTIVATIONS)
