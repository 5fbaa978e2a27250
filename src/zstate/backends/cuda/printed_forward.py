"""A step forward as C++, and what both directions of time share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from ...cells.program import Leaf
from ...cells.sharing import Label
from .passes import AnyPass, ForwardPass, field
from .printed_stage import StageText, variable

# The order in which a step loads.
_KINDS = "x next_mask next_reset saved outer after before recomputed mask reset".split()
# What a step reads of tensors that all cells have, and in C++.
COMMON = {"mask": "take_mask", "reset": "take_reset"}
COMMON |= {f"next_{name}": take for name, take in COMMON.items()}
_RESETS = ("reset", "next_reset")


def indented(lines: Iterable[str], by: int = 1) -> list[str]:
    return ["  " * by + line if line else line for line in lines]


def recalled_name(leaf: Leaf) -> str:
    """What is kept, as a stage calls it that recalls it."""
    return field(*leaf) if leaf[0] == "before" else "kept_" + variable(leaf)


def struct(leaves: Iterable[Leaf]) -> list[str]:
    """What a step loads, and the same as numbers."""
    kinds: dict[str, list[str]] = {}
    for leaf in leaves:
        kinds.setdefault("Same" if leaf[0] in _RESETS else "Pair", []).append(field(*leaf))
    names = [name for each in kinds.values() for name in each]
    listed = ", ".join(names)
    values = ", ".join(f"{name}(in.{name}.value())" for name in names)
    return [
        *[
            "struct Loaded {",
            *(f"  {kind} {', '.join(each)};" for kind, each in kinds.items()),
            "};",
        ],
        "struct Inputs {",
        *([f"  float2 {listed};"] if names else []),
        f"  ZS_DEVICE explicit Inputs(const Loaded& in){' : ' if values else ''}{values} {{}}",
        "};",
    ]


class Printer:
    """What both directions of time share."""

    def __init__(self, found: AnyPass) -> None:
        self.found, self.options = found, found.options
        self.cell = self.options.cell
        self.slots = dict(zip(self.cell.gates, self.options.slots, strict=True))
        self.last = len(found.phases) - 1

    def leaf(self, leaf: Leaf) -> str:
        """How a stage calls what it reads."""
        if leaf[0] == "own":
            return f"turn.constants.{field(*leaf)}"
        return recalled_name(leaf) if leaf in self.found.kept else f"in.{field(*leaf)}"

    def summed(self, stage: int, leaf: Leaf) -> str | None:
        """What the phase before a stage gave, if the leaf is that."""
        if leaf[0] not in ("product", "back", "mean"):
            return None
        return f"sum[{self.found.given(stage).index(leaf)}]"

    def loaded(self, leaves: Iterable[Leaf]) -> list[Leaf]:
        """What of the leaves comes from memory, in a fixed order."""
        here = ("own", "product", "back", "mean")
        found = [each for each in leaves if each[0] not in here and each not in self.found.kept]
        return sorted(found, key=self._order)

    def _order(self, leaf: Leaf) -> tuple[int, ...]:
        kind, *names = leaf
        states = [each.name for each in self.cell.states]
        place = [self.slots.get(n, states.index(n) if n in states else 0) for n in names[-1:]]
        return (_KINDS.index(kind) if kind in _KINDS else len(_KINDS), *place)

    def recalled(self, leaves: Iterable[Leaf]) -> list[str]:
        kept = self.found.kept
        return [
            f"const float2 {recalled_name(each)} = turn.recall({kept[each]});"
            for each in leaves
            if each in kept
        ]

    def handing_on(self, phase: int, value: Callable[[Label], str]) -> list[str]:
        values = ", ".join(map(value, self.found.handed_on(phase)))
        return [f"const float2 operand[kWidest] = {{{values}}};", "turn.hand_on(operand);"]

    def keep(self, leaf: Leaf, value: str) -> str:
        return f"turn.keep({self.found.kept[leaf]}, {value});"

    def by_phase(self, bodies: list[list[str]]) -> list[str]:
        """Of each phase its own lines."""
        lines = []
        for phase, body in enumerate(bodies):
            if body:
                lines += [f"if constexpr (P == {phase}) {{", *indented(body), "}"]
        return lines


class ForwardPrinter(Printer):
    """The C++ of a cell's step forward, phase by phase."""

    found: ForwardPass

    def __init__(self, found: ForwardPass) -> None:
        super().__init__(found)
        stages = found.stages.stages
        self.stages = [
            StageText(each, found.wanted(k), partial(self.of_phase, k))
            for k, each in enumerate(stages)
        ]
        self.reads = [self.loaded(each.leaves()) for each in self.stages]

    def of_phase(self, phase: int, leaf: Leaf) -> str:
        return self.summed(phase, leaf) or self.leaf(leaf)

    def lines(self) -> list[str]:
        every = dict.fromkeys(leaf for reads in self.reads for leaf in reads)
        step = "const Arguments& a, const Item& w, i64 s"
        ahead = [
            "constexpr int steps = 3;  // the latency of device memory",
            "if (s + steps >= a.T || !w.count || (w.unit * kBytes) % 32) return;",
            "const Stored* const x = a.gates_x + gates_at(a, w, input_time(a, w, s + steps));",
        ]
        return [
            *struct(every),
            "template <int P>",
            f"static ZS_DEVICE void fetch({step}, Loaded& in) {{",
            "  const Stored* const x = a.gates_x + gates_at(a, w, input_time(a, w, s));",
            *indented(self.by_phase([self.fetch(reads) for reads in self.reads])),
            "}",
            "template <int P>",
            f"static ZS_DEVICE void fetch_ahead({step}) {{",
            *indented([*ahead, *self.by_phase([self.prefetch(reads) for reads in self.reads])]),
            "}",
            "// The operand of the first product.",
            "template <class Turn>",
            "static ZS_DEVICE void begin(const Turn& turn) {",
            *indented(self.begin()),
            "}",
            "template <int P, class Turn>",
            "static ZS_DEVICE void consume(const Turn& turn, i64 s, const Inputs& in, "
            "const float2 (&sum)[kWidest]) {",
            "  const Arguments& a = turn.a;",
            "  const Item& w = turn.item;",
            "  const i64 t = output_time(a, w, s), pair = pair_at(a, w, t);",
            "  Stored* const saved = a.saved + gates_at(a, w, t);",
            *indented(self.by_phase([self.stage(k) for k in range(len(self.stages))])),
            "}",
        ]

    def fetch(self, reads: list[Leaf]) -> list[str]:
        lines, next_step = [], "s + 1 < a.T ? s + 1 : s"
        if any(leaf[0] == "next_x" for leaf in reads):
            at = f"gates_at(a, w, input_time(a, w, {next_step}))"
            lines.append(f"const Stored* const next_x = a.gates_x + {at};")
        for leaf in reads:
            kind, *names = leaf
            if kind in ("x", "next_x"):
                value = f"take({kind} + {self.slots[names[0]]} * kLayer, w.count)"
            else:
                at = next_step if kind.startswith("next_") else "s"
                value = f"{COMMON[kind]}(a, w, {at})"
            lines.append(f"in.{field(*leaf)} = {value};")
        return lines

    def prefetch(self, reads: list[Leaf]) -> list[str]:
        slots = [self.slots[leaf[1]] for leaf in reads if leaf[0] == "x"]
        lines = [f"prefetch(x + {slot} * kLayer);" for slot in slots]
        if ("next_mask",) in reads:
            lines.append("prefetch(mask_at(a, w, s + steps));")
        return lines

    def begin(self) -> list[str]:
        lines = ["const Arguments& a = turn.a;", "const Item& w = turn.item;"]
        first = self.found.stages.first
        leaves = first.text.inputs
        if any(leaf[0] == "next_x" for leaf in leaves):
            lines.append("const Stored* const x = a.gates_x + gates_at(a, w, input_time(a, w, 0));")
        loads = {}
        for leaf in leaves:
            if leaf[0] == "next_x":
                loads[leaf] = f"take(x + {self.slots[leaf[1]]} * kLayer, w.count).value()"
            elif leaf[0] in COMMON:
                loads[leaf] = f"{COMMON[leaf[0]]}(a, w, 0).value()"
        kept = {("after", leaf[1]): leaf for leaf in self.found.kept if leaf[0] == "before"}
        for state in self.cell.states:
            leaf = ("after", state.name)
            if leaf in leaves or leaf in kept:
                loads[leaf] = "splat(0.0f)"
                if state.name in self.options.initial:
                    loads[leaf] = f"load_pair(a.{field('initial', state.name)} + w.pair, w.count)"
        local = {leaf: field(*leaf) for leaf in loads}
        lines += [f"const float2 {local[leaf]} = {value};" for leaf, value in loads.items()]
        stage = StageText(first, first.labels, lambda leaf: local.get(leaf) or self.leaf(leaf))
        lines += [self.keep(own, local[leaf]) for leaf, own in kept.items()]
        lines += stage.lines(first.labels)
        return lines + self.handing_on(0, stage.value)

    def stage(self, at: int) -> list[str]:
        found, stage = self.found, self.stages[at]
        following = 0 if at == self.last else at + 1
        lines = self.recalled(stage.leaves())
        wanted = found.wanted(at)
        lines += stage.lines(wanted)
        lines += self.handing_on(following, stage.value)
        for label in wanted:
            kind, *names = label
            if kind == "carried":
                lines.append(self.keep(label, stage.value(label)))
            elif kind == "after" and ("before", names[0]) in found.kept:
                lines.append(self.keep(("before", names[0]), stage.value(label)))
        for label in wanted:
            kind, *names = label
            if kind == "after" and names[0] in self.options.stored:
                to = f"a.{field('after', names[0])} + pair"
                lines.append(f"turn.store({to}, {stage.value(label)});")
            elif kind == "saved":
                to = f"saved + {self.slots[names[0]]} * kLayer"
                lines.append(f"turn.store({to}, {stage.value(label)});")
        return lines
