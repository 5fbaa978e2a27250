"""What the page shows of one model on one sequence, as arrays.

T steps, H units, V classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np

from ..errors import OptionError, ShapeError, refusal
from ..layout import brackets
from ..types import Array
from .flow import chosen_steps, gradient_flow
from .models import Subject, bits, of_run
from .scans import Scan

TOP = 5  # classes shown per step
_LONGEST = 1e6  # steps: what keeps its state for longer keeps it for good


@dataclass(eq=False)
class Map:
    """A gate or a state over time [T,H]."""

    name: str
    kind: str  # "gate" or "state"
    function: str  # of a gate: what gave its values; "" if they are those before it
    values: Array


@dataclass(eq=False)
class LayerView:
    """One direction of a layer."""

    name: str
    cell: str
    maps: list[Map]
    memory: dict[str, Array]  # by state, the steps until 1/e of a unit's value is left [H]
    orders: dict[str, Array]  # by name, the units from the top [H]
    flow: dict[str, Array] = field(default_factory=dict)  # by state, norms [losses,T]


@dataclass(eq=False)
class View:
    """A model on one sequence."""

    subject: Subject
    layers: list[LayerView]
    losses: Array  # the steps whose losses are in flow [losses]
    loss: Array | None = None  # bits [T]
    top: tuple[Array, Array] | None = None  # the likeliest classes [T,k], and their probabilities

    @property
    def of_loss(self) -> str:
        """What flow is the gradient of."""
        return "the loss in nats" if self.loss is not None else "‖output‖"


def view(subject: Subject) -> View:
    """Run the model forward, then back from the loss of every step that is looked at."""
    layers: list[list[Scan]] = []
    source = subject.source
    for call in subject.layers:
        scans = call.directions(source)
        layers.append(scans)
        source = np.concatenate([_output(scan) for scan in scans], axis=1)
    shown = [[_layer_view(scan, _name(k, scan)) for scan in each] for k, each in enumerate(layers)]
    loss, top, seeds = _loss(subject, source)
    losses = chosen_steps(len(source))
    norms = gradient_flow(layers, seeds, losses)
    for each, found in zip(shown, norms, strict=True):
        for one, flow in zip(each, found, strict=True):
            one.flow = flow
    return View(subject, [one for each in shown for one in each], losses, loss, top)


def run_views(
    folder: Path,
    second: str | PathLike[str] | None,
    text: str | None,
    prompt: str | None,
    steps: int,
) -> list[View]:
    """A run, and perhaps a second one on the same text."""
    if text is not None and prompt is not None:
        raise OptionError(refusal("inspect", "text and prompt", "one of them", "both"))
    if not isinstance(steps, int) or steps < 1:
        raise OptionError(refusal("inspect", "steps", "at least 1", repr(steps)))
    if second is not None:
        from ..train.loop import checkpoint_of

        checkpoint_of(Path(second))  # refused before the first one is computed
    found = [of_run(folder, text, prompt, steps)]
    if second is not None:
        first = found[0]
        assert first.classes is not None and first.targets is not None
        same = "".join(first.labels) + first.classes[first.targets[-1]]
        found.append(of_run(Path(second), same, None, steps))
    return [view(subject) for subject in found]


def _output(scan: Scan) -> Array:
    return scan.in_order(next(iter(scan.states.values())))


def _name(layer: int, scan: Scan) -> str:
    return f"layer {layer + 1}" + (", reverse" if scan.backwards else "")


def _check_finite(shown: Map) -> None:
    wrong = ~np.isfinite(shown.values)
    if wrong.any():
        step, unit = np.argwhere(wrong)[0]
        got = f"{shown.values[step, unit]} in unit {unit} at step {step}"
        raise OptionError(refusal("inspect", f"{shown.kind} {shown.name}", "finite values", got))


def _layer_view(scan: Scan, name: str) -> LayerView:
    maps = [
        Map(gate, "gate", scan.gate_kinds[gate].function, scan.in_order(values))
        for gate, values in scan.gates.items()
    ]
    maps += [Map(s, "state", "", scan.in_order(values)) for s, values in scan.states.items()]
    for each in maps:
        _check_finite(each)
    memory = {s: _memory(kept) for s, kept in scan.retention().items()}
    output = next(iter(scan.states.values()))
    orders = {
        "activity": np.argsort(-output.std(axis=0), kind="stable"),
        "similarity": clustered(output),
    }
    for state, times in memory.items():
        label = "memory" if len(memory) == 1 else f"memory of {state}"
        orders[label] = np.argsort(-times, kind="stable")
    return LayerView(name, scan.cell.short, maps, memory, orders)


def _memory(kept: Array) -> Array:
    """The steps until 1/e of a value is left, from the part that is kept at every step [T,H]."""
    with np.errstate(divide="ignore"):
        rate = -np.log(np.abs(kept.astype(np.float64))).mean(axis=0)
    times: Array = 1 / np.maximum(rate, 1 / _LONGEST)
    return times


def clustered(values: Array) -> Array:
    """An order of the columns of [T,H] in which those that move alike are neighbours: the leaves of
    the tree of average linkage by correlation, built along chains of nearest neighbours."""
    moved = values.astype(np.float64) - values.mean(axis=0)
    scale = np.sqrt((moved * moved).sum(axis=0))
    moved /= np.where(scale > 0, scale, 1)
    far = 1 - moved.T @ moved
    np.fill_diagonal(far, np.inf)
    leaves = [[unit] for unit in range(len(far))]
    alive = list(range(len(far)))
    chain: list[int] = []
    while len(alive) > 1:
        if not chain:
            chain.append(alive[0])
        last = chain[-1]
        near = int(far[last].argmin())
        if len(chain) > 1 and far[last, chain[-2]] <= far[last, near]:
            near = chain[-2]  # each is the other's nearest: they become one
            del chain[-2:]
            a, b = len(leaves[near]), len(leaves[last])
            joined = (a * far[near] + b * far[last]) / (a + b)
            leaves[near] += leaves[last]
            alive.remove(last)
            far[near] = far[:, near] = joined
            far[near, near] = far[last] = far[:, last] = np.inf
        else:
            chain.append(near)
    return np.array(leaves[alive[0]])


def _loss(
    subject: Subject, output: Array
) -> tuple[Array | None, tuple[Array, Array] | None, Array]:
    """The loss in bits, the likeliest classes, and the gradients of each loss by its step's output.

    Without a readout, the norm of the output serves as the loss.
    """
    if subject.readout is None or subject.targets is None:
        norm = np.linalg.norm(output, axis=1, keepdims=True)
        return None, None, output / np.where(norm > 0, norm, 1)
    weight, bias = subject.readout
    if weight.shape[1] != output.shape[1] or bias.shape != weight.shape[:1]:
        expected = f"[V,{output.shape[1]}] and [V]"
        got = f"{brackets(weight.shape)} and {brackets(bias.shape)}"
        raise ShapeError(refusal("inspect", "readout", expected, got))
    logits = output @ weight.T + bias  # [T,V]
    logits -= logits.max(axis=1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    every = np.arange(len(logs))
    p = np.exp(logs)
    ids = np.argsort(-p, axis=1, kind="stable")[:, :TOP]
    top = (ids, np.take_along_axis(p, ids, 1))
    loss = -logs[every, subject.targets]
    p[every, subject.targets] -= 1
    return bits(loss), top, p @ weight
