"""A cell as this backend sees it: counts and lists, which follow from its equations.

A pass is one direction of time of a call: the stages of a step (cells/stages.py), the products
between them as phases, and what a unit of a row keeps from phase to phase. ``printing`` writes its
text, ``calls`` the products around it. Nothing else in this folder knows a cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from ...cells.backward_stages import BackwardStages, backward_stages
from ...cells.definition import Cell
from ...cells.program import Leaf
from ...cells.sharing import Equations, Label, Reduction, Reductions
from ...cells.stages import ForwardStages, forward_stages
from ...descriptors import Descriptor
from .phases import Form, Phase

MOST_GATES = 8


class Options(NamedTuple):
    """What a call uses of a cell; what it does not use is not in its kernel."""

    cell: Cell
    descriptor: Descriptor
    backward: bool
    own: frozenset[str] = frozenset()  # parameters of the cell's own that were passed
    mask: bool = False
    mask_pairs: bool = False  # two units of the mask can be loaded at once
    resets: bool = False
    initial: frozenset[str] = frozenset()  # states whose initial value was passed
    stored: frozenset[str] = frozenset()  # forward: states that are results
    save_gates: bool = False
    outer: frozenset[str] = frozenset()  # backward: states with a gradient of every step
    last: frozenset[str] = frozenset()  # with a gradient of the last step
    bias: bool = False  # the gradient of a bias is wanted

    @property
    def reverse(self) -> bool:
        both = getattr(self.descriptor, "bidirectional", False)
        return bool(getattr(self.descriptor, "reverse", False)) and not both

    @property
    def slots(self) -> tuple[int, ...]:
        """The place of each gate along the G axis."""
        order = self.cell.gate_order(self.descriptor)
        return tuple(order.index(gate) for gate in self.cell.gates)


def training(cell: Cell, descriptor: Descriptor, backward: bool) -> Options:
    """A call that trains, without anything optional but a bias."""
    names, own = frozenset(each.name for each in cell.states), cell.needed
    if backward:
        first = frozenset({cell.states[0].name})
        return Options(cell, descriptor, True, own, outer=first, bias=True)
    return Options(cell, descriptor, False, own, stored=names, save_gates=True)


class Contraction(NamedTuple):
    """Gates of dR: the sum over time and batch of ``gradients`` times an operand.

    ``slots`` of the gates along the G axis, one after the other, and their first place in what
    ``gradients`` names: None, the gates' own, or those of the products of an operand.
    """

    operand: int | None  # None: the gradient is zero
    slots: tuple[int, ...]
    gradients: int | None
    first: int


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """A step forward: phase p is multiplied, then stage p computed."""

    options: Options
    stages: ForwardStages

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        place = self.options.cell.gates.index
        found = []
        for at, products in enumerate(self.stages.products):
            outs = [(each.operand, gate) for each in products for gate in each.gates]
            ins = [each.operand for each in products]
            gates = tuple(tuple(place(g) if k == one else -1 for one in ins) for k, g in outs)
            found.append(Phase(gates) if products else _reducing(self.stages.means[at]))
        return tuple(found)

    def handed_on(self, phase: int) -> list[Label]:
        """The labels of what goes into a phase."""
        operands: list[Label] = [("operand", str(e.operand)) for e in self.stages.products[phase]]
        return operands + _reduced(self.stages.means[phase])

    def given(self, stage: int) -> list[Leaf]:
        """The leaves that come out of the phase before a stage."""
        products = self.stages.products[stage]
        found: list[Leaf] = [
            ("product", str(e.operand), gate) for e in products for gate in e.gates
        ]
        return found + [("mean", k) for k in _means(self.stages.means, stage)]

    def wanted(self, stage: int) -> list[Label]:
        """What a stage has to compute of all that it could."""
        kept = {("after", leaf[1]) for leaf in self.kept if leaf[0] == "before"}
        kept |= {("after", name) for name in self.options.stored}
        return [
            label
            for label in self.stages.stages[stage].labels
            if label in kept
            or label[0] in ("operand", "carried", "reduced")
            or (label[0] == "saved" and self.options.save_gates)
        ]

    @cached_property
    def kept(self) -> dict[Leaf, int]:
        """The place of everything that is kept: states, and what is carried between stages."""
        stages = [each.text.inputs for each in self.stages.stages]
        count, spans = len(stages), dict[Leaf, set[int]]()
        for at, leaves in enumerate(stages):
            for leaf in leaves:
                if leaf[0] == "before":  # since the end of the step before
                    spans.setdefault(leaf, {count - 1}).update(range(at))
        spans |= _carried(self.stages.stages)
        return _places(spans)

    @cached_property
    def form(self) -> Form:
        cell = self.options.cell
        reads = {leaf for each in self.stages.stages for leaf in each.text.inputs}
        return Form(
            cell.name,
            False,
            len(cell.gates),
            self.phases,
            _count(self.kept),
            sum(leaf[0] == "next_x" for leaf in reads),
        )

    @cached_property
    def read(self) -> list[str]:
        """Tensors of the cell that the scan reads, as fields of Arguments."""
        cell = self.options.cell
        states = [field("initial", each.name) for each in cell.states]
        return states + [field("own", name) for name in _own(self.options)]

    @cached_property
    def written(self) -> list[str]:
        return [field("after", each.name) for each in self.options.cell.states]

    @property
    def reads_input_late(self) -> bool:
        """Whether a stage reads the input of a gate that an earlier one has saved."""
        saved: set[str] = set()
        for each in self.stages.stages:
            if any(leaf[0] == "x" and leaf[1] in saved for leaf in each.text.inputs):
                return True
            saved |= {label[1] for label in each.labels if label[0] == "saved"}
        return False


@dataclass(frozen=True, eq=False)
class BackwardPass:
    """A step backward: stage p is computed, then phase p multiplied; the last phase is followed by
    stage 0 of the step before."""

    options: Options
    stages: BackwardStages
    products: tuple[tuple[str, int], ...]  # gates and operands whose products have a gradient

    def _behind(self, phase: int) -> int:
        """The stage behind a phase."""
        return (phase + 1) % len(self.stages.products)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        place = self.options.cell.gates.index
        found = []
        for stage in map(self._behind, range(len(self.stages.products))):
            products = self.stages.products[stage]
            ins = [(each.operand, gate) for each in products for gate in each.gates]
            gates = tuple(
                tuple(place(g) if k == one.operand else -1 for k, g in ins) for one in products
            )
            found.append(Phase(gates) if products else _reducing(self.stages.means[stage]))
        return tuple(found)

    def gradient(self, operand: int, gate: str) -> Label:
        """The label of a product's gradient."""
        if (gate, operand) in self.stages.same:
            return "x", gate
        return "product", str(operand), gate

    def handed_on(self, phase: int) -> list[Label]:
        """The labels of what goes into a phase."""
        stage = self._behind(phase)
        products = self.stages.products[stage]
        gradients = [self.gradient(each.operand, gate) for each in products for gate in each.gates]
        return gradients + _reduced(self.stages.means[stage])

    def given(self, stage: int) -> list[Leaf]:
        """The leaves that come out of the phase before a stage."""
        found: list[Leaf] = [("back", str(each.operand)) for each in self.stages.products[stage]]
        return found + [("mean", k) for k in _means(self.stages.means, stage)]

    def wanted(self, equations: Equations) -> list[Label]:
        """All that a stage computes, but gradients of initial states that nobody asked for."""
        initial = self.options.initial
        return [each for each in equations.labels if each[0] != "before" or each[1] in initial]

    @cached_property
    def kept(self) -> dict[Leaf, int]:
        """The place of what is carried, and of gradients that a later stage hands on."""
        spans = _carried(self.stages.stages, self.stages.end)
        made = {label: at for at, each in enumerate(self.stages.stages) for label in each.labels}
        for phase in range(len(self.phases)):
            for label in self.handed_on(phase):
                if made[label] < phase:
                    spans.setdefault(label, set()).update(range(made[label], phase))
        return _places(spans)

    @cached_property
    def form(self) -> Form:
        cell = self.options.cell
        every = self.stages.stages[0].text.inputs
        reads = {leaf for leaf in every if "mask" not in leaf[0] and "reset" not in leaf[0]}
        known = {leaf for leaf in reads if leaf[0] in ("own", "carried", "back")}
        states = _count(self.kept)
        # Of many values that are kept, a stage recalls a few.
        further = max(0, len(reads - known) - len(cell.gates) - 4) + min(max(0, states - 4), 8)
        return Form(cell.name, True, len(cell.gates), self.phases, states, further)

    @cached_property
    def unused(self) -> list[str]:
        """Gates whose input is not in the equations: its gradient is zero."""
        stages = (*self.stages.stages, self.stages.end)
        labels = {label for each in stages for label in each.labels}
        gates = self.options.cell.gates
        return [g for g in gates if not {("x", g), ("behind", "x", g)} & labels]

    @cached_property
    def unknown_at_first(self) -> set[Leaf]:
        """Products to recompute of a state without an initial value: at first they are zero."""
        found = set[Leaf]()
        for each in self.stages.recomputed:
            state = self.bare_operand(each.operand)
            if state is not None and state not in self.options.initial:
                found |= {("recomputed", str(each.operand), gate) for gate in each.gates}
        return found

    def bare_operand(self, operand: int) -> str | None:
        """The state that an operand is, if it is nothing else and is an input of the operation."""
        text = self.stages.operands[operand].text
        kind, *names = text.inputs[0] if text.inputs else ("",)
        is_bare = not text.instructions and kind == "before"
        return names[0] if is_bare and names[0] in self.options.cell.fed_states else None

    @cached_property
    def separate(self) -> list[int]:
        """Operands whose products have other gradients than the gates: these are stored too."""
        return sorted({k for g, k in self.products if (g, k) not in self.stages.same})

    def gates_of(self, operand: int) -> list[str]:
        """The gates that an operand is multiplied for, as they lie along the G axis."""
        order = self.options.cell.gate_order(self.options.descriptor)
        return [gate for gate in order if (gate, operand) in self.products]

    @cached_property
    def operands(self) -> list[int]:
        return list(dict.fromkeys(k for _, k in self.products))

    @cached_property
    def contractions(self) -> list[Contraction]:
        order = self.options.cell.gate_order(self.options.descriptor)
        found, done = [], set[str]()
        for operand in self.operands:
            gates = self.gates_of(operand)
            done.update(gates)
            for run in _runs([order.index(gate) for gate in gates]):
                if operand in self.separate:
                    found.append(Contraction(operand, run, operand, gates.index(order[run[0]])))
                else:
                    found.append(Contraction(operand, run, None, run[0]))
        rest = [k for k, gate in enumerate(order) if gate not in done]
        return found + [Contraction(None, run, None, run[0]) for run in _runs(rest)]

    @cached_property
    def sums(self) -> list[tuple[str, list[Label]]]:
        """Gradients that are sums over time and batch: by parameter, what a step adds to them."""
        gates, found = self.options.cell.gates, list[tuple[str, list[Label]]]()
        if self.options.bias:
            found.append(("bias", [("x", gate) for gate in gates]))
        for name, by_gate in _own(self.options).items():
            vectors: list[Label] = [(gate,) for gate in gates] if by_gate else [()]
            found.append((name, [("own", name, *each) for each in vectors]))
        return found

    @cached_property
    def read(self) -> list[str]:
        found = []
        for each in self.options.cell.states:
            found += [field(kind, each.name) for kind in ("initial", "after", "outer", "last")]
        found += [field("own", name) for name in _own(self.options)]
        return found + [
            field("recomputed", str(each.operand), gate)
            for each in self.stages.recomputed
            for gate in each.gates
        ]

    @cached_property
    def written(self) -> list[str]:
        found = [field("d_initial", each.name) for each in self.options.cell.states]
        found += [field("operand", str(k)) for k in self.operands]
        return found + [field("products", str(k)) for k in self.separate]

    @cached_property
    def summed(self) -> list[str]:
        return [field("sum", name) for name, _ in self.sums]


AnyPass = ForwardPass | BackwardPass


def field(*names: str) -> str:
    """The name of a field or a variable in C++; of letters that are not ASCII, their numbers."""
    joined = "_".join(names)
    return "".join(
        each if each.isascii() and (each.isalnum() or each == "_") else f"_{ord(each):x}"
        for each in joined
    )


@lru_cache(maxsize=1024)
def pass_of(options: Options) -> AnyPass:
    """The pass of a call, from the cell's equations."""
    given = (options.descriptor, options.own, options.mask, options.resets)
    trace = options.cell.forward(*given)
    if not options.backward:
        return ForwardPass(options, forward_stages(trace, x_ahead=True))
    back = options.cell.backward(*given)
    stages = backward_stages(back, options.outer, options.last, in_registers=True)
    place = back.operands.index
    return BackwardPass(options, stages, tuple((g, place(o)) for g, o in back.products))


def lacks(options: Options) -> str | None:
    """Why no kernel can be made of such a cell, in words, or None."""
    cell = options.cell
    if len(cell.gates) > MOST_GATES:
        return f"cell {cell.short!r} has {len(cell.gates)} gates; the kernels have {MOST_GATES}"
    found = pass_of(options)
    pairs = list(zip(found.stages.products, found.stages.means, strict=True))
    if not found.stages.products[0]:
        return f"cell {cell.short!r} has no product with R to scan"
    if any(bool(products) == bool(means) for products, means in pairs):
        return f"cell {cell.short!r} takes a mean and multiplies by R at once"
    if isinstance(found, BackwardPass):
        gates = [gate for gate, _ in found.products]
        twice = next((gate for gate in gates if gates.count(gate) > 1), None)
        if twice is not None:
            return f"cell {cell.short!r} multiplies two values by R of gate {twice!r}"
    return None


def _means(reductions: Reductions, stage: int) -> list[str]:
    """The numbers of the means and variances that a stage begins with."""
    first = sum(map(len, reductions[:stage]))
    return [str(k) for k in range(first, first + len(reductions[stage]))]


def _places_of(reductions: tuple[Reduction, ...]) -> list[int]:
    """What they take, each once."""
    return sorted({k for _, first, count in reductions for k in range(first, first + count)})


def _reduced(reductions: tuple[Reduction, ...]) -> list[Label]:
    return [("reduced", str(k)) for k in _places_of(reductions)]


def _reducing(reductions: tuple[Reduction, ...]) -> Phase:
    ins = _places_of(reductions)
    taken = (range(first, first + count) for _, first, count in reductions)
    gates = tuple(tuple(0 if k in own else -1 for k in ins) for own in taken)
    return Phase(gates, tuple(each.op == "variance" for each in reductions))


def _own(options: Options) -> dict[str, bool]:
    """The own parameters of a call, and whether each has a vector per gate."""
    return {each.name: each.by_gate for each in options.cell.own if each.name in options.own}


def _carried(stages: tuple[Equations, ...], end: Equations | None = None) -> dict[Leaf, set[int]]:
    """Between which stages each carried value has to be there; 0: between the first and the second.

    What the first stage reads, or ``end``, was carried into the next step.
    """
    count, spans = len(stages), dict[Leaf, set[int]]()
    made = {label: at for at, each in enumerate(stages) for label in each.labels}
    for at, each in enumerate([*stages, *([] if end is None else [end])]):
        for leaf in each.text.inputs:
            if leaf[0] == "carried":
                spans.setdefault(leaf, set()).update(range(made[leaf], at or count))
    return spans


def _places(spans: Mapping[Leaf, set[int]]) -> dict[Leaf, int]:
    """Values that are never there at the same time share a place."""
    taken: list[set[int]] = []
    found = {}
    for leaf, span in spans.items():
        place = next((k for k, other in enumerate(taken) if not other & span), len(taken))
        if place == len(taken):
            taken.append(set())
        taken[place] |= span
        found[leaf] = place
    return found


def _count(kept: Mapping[Leaf, int]) -> int:
    return max(kept.values(), default=-1) + 1


def _runs(places: list[int]) -> list[tuple[int, ...]]:
    """Places that follow each other, together."""
    runs: list[list[int]] = []
    for each in places:
        if runs and runs[-1][-1] + 1 == each:
            runs[-1].append(each)
        else:
            runs.append([each])
    return [tuple(run) for run in runs]
