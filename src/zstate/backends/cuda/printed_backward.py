"""A step backward as C++."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ...cells.program import Leaf
from ...cells.sharing import Label
from .passes import BackwardPass, field
from .printed_forward import COMMON, Printer, indented, recalled_name, struct
from .printed_stage import StageText, variable


class BackwardPrinter(Printer):
    """The C++ of a cell's step backward, stage by stage."""

    found: BackwardPass

    def __init__(self, found: BackwardPass) -> None:
        super().__init__(found)
        first_state = found.stages.first_state
        self.first_state = None
        if first_state is not None:
            self.first_state = StageText(first_state, first_state.labels, self.earlier)
        stages = found.stages.stages
        self.stages = [
            StageText(each, found.wanted(each), partial(self.of_stage, k))
            for k, each in enumerate(stages)
        ]
        begin, end = found.stages.begin, found.stages.end
        self.beginning = StageText(begin, found.wanted(begin), self.at_begin)
        self.ending = StageText(end, found.wanted(end), self.at_end)
        self.reads = [self.loaded(each.leaves()) for each in self.stages]
        begins = self.loaded(self.beginning.leaves())
        every = dict.fromkeys([*self.reads[0], *begins])
        own = [leaf for leaf in every if leaf[0] not in ("last", "next_mask", "next_reset")]
        self.of_step = sorted(own, key=self._order)

    # ---- what stages read

    def of_stage(self, stage: int, leaf: Leaf) -> str:
        own = "before_first" if leaf == self.unread else None
        return own or self.summed(stage, leaf) or self.leaf(leaf)

    def at_begin(self, leaf: Leaf) -> str:
        if leaf[0] == "last":
            return f"load_pair(a.{field(*leaf)} + w.pair, w.count)"
        return self.of_stage(0, leaf)

    def at_end(self, leaf: Leaf) -> str:
        """Before the first step there are the initial states."""
        if leaf[0] == "after":
            if leaf[1] not in self.options.initial:
                return "splat(0.0f)"
            return f"load_pair(a.{field('initial', leaf[1])} + w.pair, w.count)"
        return self.of_stage(0, leaf)

    @property
    def unread(self) -> Leaf | None:
        """The first state before a step, where it is not an input but follows from others."""
        if self.found.stages.first_state is None:
            return None
        return "before", self.cell.states[0].name

    def earlier(self, leaf: Leaf) -> str:
        """What it follows from, of the step before."""
        if leaf[0] == "own":
            return self.leaf(leaf)
        return f"in.{field(*_of_earlier(leaf))}"

    def loaded(self, leaves: Iterable[Leaf]) -> list[Leaf]:
        found = super().loaded(leaves)
        if self.unread in found and self.first_state is not None:
            found.remove(self.unread)
            earlier = [_of_earlier(leaf) for leaf in self.first_state.leaves()]
            own = [("initial", self.unread[1])] if self.unread[1] in self.options.initial else []
            found += [leaf for leaf in [*earlier, *own] if leaf not in found and leaf[0] != "own"]
        return found

    def before_first(self, stage: StageText, step: str) -> list[str]:
        """The first state before the step, where a stage needs it and does not read it."""
        if self.unread not in stage.leaves() or self.first_state is None:
            return []
        first = self.found.stages.first_state
        assert first is not None
        again = StageText(first, first.labels, self.earlier)
        initial = "splat(0.0f)"
        if self.unread[1] in self.options.initial:
            initial = f"in.{field('initial', self.unread[1])}"
        lines = again.lines(first.labels)
        value = again.value(first.labels[0])
        return [*lines, f"const float2 before_first = {step} > 0 ? {value} : {initial};"]

    # ---- the text

    def lines(self) -> list[str]:
        masks = [leaf for leaf in self.ending.leaves() if leaf[0] in ("next_mask", "next_reset")]
        later = (leaf for reads in self.reads for leaf in reads)
        every = dict.fromkeys([*self.of_step, *later, *masks])
        step = "const Arguments& a, const Item& w, i64"
        return [
            *struct(every),
            f"static ZS_DEVICE void fetch_step({step} s, Loaded& in) {{",
            "  const i64 t = output_time(a, w, s), pair = pair_at(a, w, t);",
            "  const Stored* const saved = a.saved + gates_at(a, w, t);",
            *indented([f"in.{field(*leaf)} = {self.take(leaf)};" for leaf in self.of_step]),
            "}",
            "template <int P>",
            f"static ZS_DEVICE void fetch({step} i, Loaded& in) {{",
            "  const i64 s = a.T - 1 - i;",
            *indented(self.by_phase([self.fetch(k) for k in range(len(self.stages))])),
            "}",
            "template <int P>",
            f"static ZS_DEVICE void fetch_ahead({step} i) {{",
            "  const i64 s = a.T - 1 - i - 4;  // the latency of device memory",
            "  if (P != kLastPhase || s < 0 || !w.count || (w.unit * kBytes) % 32) return;",
            "  const i64 t = output_time(a, w, s), pair = pair_at(a, w, t);",
            "  const Stored* const saved = a.saved + gates_at(a, w, t);",
            *indented(self.prefetch()),
            "}",
            "template <class Turn>",
            "static ZS_DEVICE void begin(const Turn& turn) {",
            *indented(self.begin()),
            "}",
            "template <int P, class Turn>",
            "static ZS_DEVICE void consume(const Turn& turn, i64 i, const Inputs& in, "
            "const float2 (&sum)[kWidest]) {",
            "  const Arguments& a = turn.a;",
            "  const Item& w = turn.item;",
            "  const i64 s = a.T - 1 - i;  // of the product",
            *indented(self.by_phase([self.consume(k) for k in range(len(self.stages))])),
            "}",
        ]

    def take(self, leaf: Leaf) -> str:
        """What a step loads; ``s`` is the step, ``pair`` its place."""
        kind, *names = leaf
        if kind in COMMON:
            return f"{COMMON[kind]}(a, w, s)"
        if kind == "saved":
            return f"take(saved + {self.slots[names[0]]} * kLayer, w.count)"
        if kind == "earlier_saved":
            at = "gates_at(a, w, output_time(a, w, s > 0 ? s - 1 : 0))"
            return f"take(a.saved + {at} + {self.slots[names[0]]} * kLayer, w.count)"
        if kind == "initial":
            return f"take(a.{field(*leaf)} + w.pair, w.count)"
        if kind == "before":
            has = str(names[0] in self.options.initial).lower()
            own = (field("after", names[0]), field("initial", names[0]))
            return f"take_earlier(a, w, a.{own[0]}, a.{own[1]}, {has}, s)"
        if leaf in self.found.unknown_at_first:
            return f"take(a.{field(*leaf)} + pair, s > 0 ? w.count : 0)"
        return f"take(a.{field(*leaf)} + pair, w.count)"

    def fetch(self, phase: int) -> list[str]:
        if phase == self.last:
            read = [*self.reads[0], *self.ending.leaves()]
            here = [kind for kind in ("next_mask", "next_reset") if (kind,) in read]
            behind = [f"in.{kind} = {self.take((kind,))};" for kind in here]
            return [*behind, "fetch_step(a, w, s > 0 ? s - 1 : 0, in);"]
        return [f"in.{field(*leaf)} = {self.take(leaf)};" for leaf in self.reads[phase + 1]]

    def prefetch(self) -> list[str]:
        lines = dict[str, None]()
        for leaf in self.of_step:
            kind, *names = leaf
            if kind in ("saved", "earlier_saved"):
                at = f"saved + {self.slots[names[0]]} * kLayer"
            elif kind in ("mask", "reset", "initial"):
                continue
            else:
                at = f"a.{field('after', *names) if kind == 'before' else field(*leaf)} + pair"
            lines[f"prefetch({at});"] = None
        masks = any("mask" in leaf[0] for reads in self.reads for leaf in reads)
        return [*lines, *(["prefetch(mask_at(a, w, s));"] if masks else [])]

    def begin(self) -> list[str]:
        return [
            "const Arguments& a = turn.a;",
            "const Item& w = turn.item;",
            "Loaded loaded = {};",
            "fetch_step(a, w, a.T - 1, loaded);",
            "const Inputs in(loaded);",
            *self.stage(self.beginning, 0, "a.T - 1"),
        ]

    def consume(self, phase: int) -> list[str]:
        if phase != self.last:
            stage = self.stages[phase + 1]
            return self.stage(stage, phase + 1, "s")
        first = self.stages[0]
        late = [label for label in first.labels if label[0] == "behind"]
        names = {label[1:]: variable(label) for label in late}
        return [
            *self.recalled(dict.fromkeys([*first.leaves(), *self.ending.leaves()])),
            *([f"float2 {', '.join(names.values())};"] if names else []),
            "if (s > 0) {",
            *indented(self.stage(first, 0, "s - 1")),
            "} else {",
            *indented(self.end()),
            "}",
            *self.places("behind", "s", first),
            *self.stores("behind", names),
        ]

    def places(self, step: str, number: str, stage: StageText) -> list[str]:
        """Where what a stage gives of a step is stored."""
        late = step == "behind"
        labels = [
            each[1:] if late else each for each in stage.labels if late == (each[0] == "behind")
        ]
        kinds = {label[0] for label in labels}
        zeros = bool(self.found.unused) and not late
        if not (kinds & {"x", "product", "operand"} or zeros):
            return []
        lines = [f"const i64 {step} = {number};"]
        at = f"input_time(a, w, {step})"
        if "x" in kinds or zeros:
            lines.append(f"Stored* const {step}_gates = a.d_gates + gates_at(a, w, {at});")
        if "operand" in kinds:
            lines.append(f"const i64 {step}_pair = pair_at(a, w, {at});")
        for operand in self.found.separate:
            gates = self.found.gates_of(operand)
            if any(self.found.gradient(operand, gate) in labels for gate in gates):
                products = f"a.products_{operand} + products_at<{len(gates)}>(a, w, {at})"
                lines.append(f"Stored* const {step}_products_{operand} = {products};")
        return lines

    def stage(self, stage: StageText, at: int, step: str) -> list[str]:
        found = self.found
        handed = found.handed_on(at)
        earlier = [label for label in handed if not stage.has(label)]
        # What the first stage recalls, the end does too, and it was recalled for both.
        lines = self.recalled([*stage.leaves(), *earlier]) if at else []
        lines += self.before_first(stage, step)
        lines += stage.lines(label for label in handed if stage.has(label))
        lines += self.handing_on(
            at, lambda label: stage.value(label) if stage.has(label) else recalled_name(label)
        )
        lines += self.places("now", step, stage)
        unused = "turn.store(now_gates + {} * kLayer, splat(0.0f));"
        zeros = [unused.format(self.slots[gate]) for gate in found.unused if at == 0]
        return lines + self.results(stage) + zeros

    def end(self) -> list[str]:
        """Behind the last step backward: the gradients of the initial states."""
        stage = self.ending
        lines = self.results(stage)
        for state in self.cell.states:
            if state.name in self.options.initial:
                label = ("before", state.name)
                value = stage.value(label) if stage.has(label) else "splat(0.0f)"
                lines.append(f"turn.store(a.{field('d_initial', state.name)} + w.pair, {value});")
        return lines

    def results(self, stage: StageText) -> list[str]:
        """Computes, keeps and stores what a stage gives, of its step and of the one behind."""
        lines, kept = stage.lines(stage.labels) + stage.assignments(), self.found.kept
        lines += [self.keep(label, stage.value(label)) for label in stage.labels if label in kept]
        own = {label: stage.value(label) for label in stage.labels if label[0] != "behind"}
        return lines + self.stores("now", own)

    def stored_at(self, label: Label) -> int:
        """Gates in their order along the G axis, then the rest."""
        return self.slots[label[1]] if label[0] == "x" else len(self.slots)

    def stores(self, step: str, values: dict[Label, str]) -> list[str]:
        found, lines = self.found, []
        for label, value in sorted(values.items(), key=lambda each: self.stored_at(each[0])):
            if label[0] == "x":
                to = f"{step}_gates + {self.slots[label[1]]} * kLayer"
                lines.append(f"turn.store({to}, {value});")
            elif label[0] == "operand":
                lines.append(f"turn.store(a.{field(*label)} + {step}_pair, {value});")
        for operand in found.separate:
            every = found.gates_of(operand)
            for place, gate in enumerate(every):
                value = values.get(found.gradient(operand, gate), "")
                to = f"{step}_products_{operand} + {place} * kLayer"
                lines += [f"turn.store({to}, {value});"] if value else []
        added = [label for _, labels in found.sums for label in labels]
        return lines + [
            f"turn.add({number}, {values[label]});"
            for number, label in enumerate(added)
            if label in values
        ]


def _of_earlier(leaf: Leaf) -> Leaf:
    """A leaf of the step before, as this step calls it."""
    kind, *names = leaf
    return ("earlier_saved", *names) if kind == "saved" else ("before", *names)
