"""Writes a pass as C++: one line per equation, for NVRTC to compile and for people to read.

``arguments_text`` is the struct that a launch is given, ``cell_text`` the rest: what stays the same
for all steps, what is summed over them, and the equations. A value is a pair of units (float2);
pairs.cuh has the arithmetic and the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from ...cells.expressions import OPERATORS
from ...cells.program import Leaf
from ...cells.stages import Equations, Label
from .passes import AnyPass, BackwardPass, ForwardPass, Options, field, pass_of

# What every launch is given; fields of a cell follow. Numbers are 64-bit words, like addresses.
FIELDS = {
    "T": "i64",
    "N": "i64",
    "step": "i64",  # values in a step of [N,D,H]
    "first_group": "i64",  # tile groups of earlier launches
    "mask_t": "i64",  # strides, 0 where the mask is broadcast
    "mask_n": "i64",
    "mask_h": "i64",
    # [chains,G,kHidden,kHidden], the caller's own, if kHoldsAll; else padded
    "weight": "const Stored*",
    "mask": "const Stored*",
    "resets": "const Stored*",  # [T,N,D], not 0 where a step begins a new sequence
    "gates_x": "const Stored*",  # [T,N,D,G,H]
    "saved": "Stored*",  # [T,N,D,G,H]; backward: read
    # Whole grid: phases of [T][groups·kTiles] operands, all ones; kWide: a counter per tile, all
    # ones, then two operands per tile.
    "exchange": "char*",
    "d_gates": "Stored*",  # [T,N,D,G,H]
    "sum_stride": "i64",  # from one tile group to the next
    # Of a scan in single steps:
    "index": "i64",
    "product": "const Stored*",  # [chains][parts][N][outs,kHidden]
    "operand": "Stored*",  # [chains][N][ins,kHidden]
    "kept": "float2*",  # [blocks][kStates][kRows,kUnits/2]
}
FUNCTIONS = frozenset(  # of pairs.cuh
    {
        *("none", "relu", "tanh", "sigmoid", "hard_sigmoid", "softplus", "log_sigmoid"),
        *("exp", "log", "sqrt", "abs", "maximum", "minimum", "where"),
    }
)
_SIGNS = {name: "*" if sign == "·" else sign for name, (sign, _) in OPERATORS.items()}
_SIGNS["at_least"] = ">="
_LOOSEST, _TIGHTEST = 0, 9
_MOST_OPERATIONS = 4  # in one line


def lacks_function(options: Options) -> str | None:
    """Which function of a cell the kernels do not have, in words, or None."""
    found = pass_of(options)
    others = [found.stages.begin] if isinstance(found, BackwardPass) else [found.stages.first]
    stages = [*found.stages.stages, *others]
    for each in (one for stage in stages for one in stage.text.instructions):
        name = each.detail if each.op == "slope" else each.op
        if name not in FUNCTIONS and name not in OPERATORS and name != "number":
            return f"it has no function {name!r} for cell {options.cell.short!r}"
    return None


def fields_of(found: AnyPass) -> list[str]:
    """The words of a launch, in their order."""
    own = [*found.read, *found.written]
    return [*FIELDS, *own, *(found.summed if isinstance(found, BackwardPass) else ())]


def written_by(found: AnyPass) -> list[str]:
    """Those of them that the scan writes to; it reads the rest."""
    if isinstance(found, BackwardPass):
        return ["d_gates", "exchange", *found.written, *found.summed]
    return ["saved", "exchange", *found.written]


def arguments_text(found: AnyPass) -> str:
    """The struct of these words.

    initial, d_initial and last [N,D,H]; after, outer, recomputed and operand [T,N,D,H], of which
    operand lies in the order of the input; products [T,N,D,gates,H]; own [D,H] or [D,G,H], and sum
    likewise, per tile group.
    """
    kinds = FIELDS | dict.fromkeys(found.read, "const Stored*")
    kinds |= dict.fromkeys(found.written, "Stored*")
    if isinstance(found, BackwardPass):
        kinds |= dict.fromkeys(found.summed, "Summed*")
    lines = [f"  {kinds[name]} {name};" for name in fields_of(found)]
    return "\n".join(["struct Arguments {", *lines, "};", ""])


def cell_text(found: AnyPass) -> str:
    """The cell of a specialisation."""
    printer = _Backward(found) if isinstance(found, BackwardPass) else _Forward(found)
    cell = found.options.cell
    title = f"// The {'gradient of' if found.options.backward else 'step of'} {cell.name}"
    lines = [f"{title}, gates {', '.join(cell.gates)}: printed from its equations."]
    lines += _constants(found) + _sums(found)
    lines += ["struct Pass {", *_indented(printer.lines()), "};", ""]
    return "\n".join(lines)


def _indented(lines: Iterable[str], by: int = 1) -> list[str]:
    return ["  " * by + line if line else line for line in lines]


def _constants(found: AnyPass) -> list[str]:
    """The own parameters of a unit."""
    cell, slots, lines, names = found.options.cell, found.options.slots, [], []
    for name, _, by_gate, *_ in cell.own:
        if name not in found.options.own:
            continue
        for gate, slot in zip(cell.gates, slots, strict=True) if by_gate else [("", 0)]:
            own = field("own", name, gate) if by_gate else field("own", name)
            place = f"(w.direction * kGates + {slot})" if by_gate else "w.direction"
            names.append(own)
            lines.append(
                f"{own} = load_pair(a.{field('own', name)} + {place} * kLayer + w.column, count);"
            )
    declared = [f"  float2 {', '.join(names)};"] if names else []
    if lines:
        lines.insert(0, "const int count = w.on ? units_inside(w.unit) : 0;")
    return [
        "struct Constants {",
        *declared,
        "  ZS_DEVICE void load(const Arguments& a, const Item& w) {",
        *_indented(lines, 2),
        "  }",
        "};",
    ]


def _sums(found: AnyPass) -> list[str]:
    """Sums over time of an item, numbered one after the other, and where they go."""
    groups = found.sums if isinstance(found, BackwardPass) else []
    first, places = sum(len(labels) for _, labels in groups), []
    count = first
    for name, labels in reversed(groups):
        first -= len(labels)
        place = f"(direction * kGates + slot(k - {first}))" if len(labels) > 1 else "direction"
        test = f"if (k >= {first}) " if first else ""
        places.append(f"    {test}return a.{field('sum', name)} + {place} * kLayer;")
    return [
        "struct Sums {",
        f"  static constexpr int count = {count};",
        f"  Sum values[{max(count, 1)}];",
        "  ZS_DEVICE float2 at(int k) const { return values[k].sum; }",
        "  // Where the k-th goes, of the first tile group.",
        "  static ZS_DEVICE Summed* place(const Arguments& a, int k, int direction) {",
        *(places or ["    return nullptr;"]),
        "  }",
        "};",
    ]


class _Stage:
    """The equations of a stage as lines; each value is computed once, when it is first wanted."""

    def __init__(
        self, equations: Equations, wanted: Iterable[Label], leaf: Callable[[Leaf], str]
    ) -> None:
        self._text, self._leaf = equations.text, leaf
        places = dict(zip(equations.labels, equations.text.outputs, strict=True))
        self._places = {label: places[label] for label in wanted}
        self._by_result = {each.results[0]: each for each in self._text.instructions}
        self._uses: dict[int, int] = {}
        self._names: dict[int, str] = {}
        for label, place in self._places.items():
            if place not in self._names and label[0] != "behind":
                name = _variable(label)
                taken = [each for each in self._names.values() if each.split("__")[0] == name]
                self._names[place] = f"{name}__{len(taken)}" if taken else name
        for place in self._needed(self._places.values()):
            for arg in self._args(place):
                self._uses[arg] = self._uses.get(arg, 0) + 1
        self._lines = self._have_lines()
        self._done: set[int] = set()
        self.labels = list(self._places)

    def _args(self, place: int) -> tuple[int, ...]:
        found = self._by_result.get(place)
        return () if found is None else found.args

    def _needed(self, places: Iterable[int]) -> list[int]:
        """These and all that they need, in the order of computation."""
        seen, stack = set[int](), list(places)
        while stack:
            place = stack.pop()
            if place not in seen:
                seen.add(place)
                stack.extend(self._args(place))
        return sorted(seen)

    def leaves(self) -> list[Leaf]:
        """What the wanted values are computed from."""
        count = len(self._text.inputs)
        return [self._text.inputs[k] for k in self._needed(self._places.values()) if k < count]

    def lines(self, labels: Iterable[Label]) -> list[str]:
        """What computes these values, unless it has been written before."""
        lines = []
        for place in self._needed(self._places[label] for label in labels):
            if place in self._done or place < len(self._text.inputs):
                continue
            if place in self._lines:
                self._done.add(place)
                kind = "Both" if self._by_result[place].op in ("greater", "at_least") else "float2"
                lines.append(f"const {kind} {self._name(place)} = {self._computed(place)[0]};")
        return lines

    def assignments(self) -> list[str]:
        """Gives what belongs to the step behind to variables that were declared before."""
        late = [label for label in self.labels if label[0] == "behind"]
        return [f"{_variable(label)} = {self.value(label)};" for label in late]

    def value(self, label: Label) -> str:
        return self._operand(self._places[label], _LOOSEST)

    def has(self, label: Label) -> bool:
        return label in self._places

    def _have_lines(self) -> set[int]:
        """The values that have a line of their own; others stand in the lines that use them."""
        found, lengths = set[int](), dict[int, int]()  # how many operations stand in one line
        for place, each in self._by_result.items():
            lengths[place] = 1 + sum(lengths.get(arg, 0) for arg in each.args if arg not in found)
            shared = self._uses.get(place, 0) > 1 or lengths[place] > _MOST_OPERATIONS
            if each.op != "number" and (place in self._names or shared):
                found.add(place)
        return found

    def _name(self, place: int) -> str:
        return self._names.get(place, f"t{place}")

    def _operand(self, place: int, binds: int) -> str:
        """A value inside an expression whose sign binds so tightly."""
        if place < len(self._text.inputs):
            return self._leaf(self._text.inputs[place])
        if place in self._lines:
            return self._name(place)
        text, own = self._computed(place)
        return f"({text})" if own < binds else text

    def _computed(self, place: int) -> tuple[str, int]:
        op, args, _, detail = self._by_result[place]
        if op == "number":
            return f"splat({_literal(detail)})", _TIGHTEST
        if op == "slope":
            return f"slope_{detail}({self._operand(args[0], _LOOSEST)})", _TIGHTEST
        if op not in _SIGNS:
            inner = ", ".join(self._operand(arg, _LOOSEST) for arg in args)
            return f"{op}({inner})", _TIGHTEST
        binds = OPERATORS[op][1]
        if len(args) == 1:
            return f"{_SIGNS[op]}{self._operand(args[0], _TIGHTEST)}", binds
        left, right = self._operand(args[0], binds), self._operand(args[1], binds + 1)
        return f"{left} {_SIGNS[op]} {right}", binds


def _literal(value: float) -> str:
    if value != value or abs(value) > 3.4028235677973366e38:  # rounds to infinity
        bits = "0x7fc00000" if value != value else "0x7f800000" if value > 0 else "0xff800000"
        return f"__uint_as_float({bits}u)"
    return f"{value!r}f"


# How equations call what they give; gradients are d.
_PREFIXES = {"saved": "gate", "after": "new", "before": "d_before", "x": "d", "own": "d"}
_PREFIXES["product"] = "d_product"
# The order in which a step loads.
_KINDS = (
    *("x", "next_mask", "next_reset", "saved", "outer", "after", "before", "recomputed"),
    *("mask", "reset"),
)
# What a step reads of tensors that all cells have, and in C++.
_COMMON = {"mask": "take_mask", "reset": "take_reset"}
_COMMON |= {f"next_{name}": take for name, take in _COMMON.items()}
_RESETS = ("reset", "next_reset")


def _variable(label: Label) -> str:
    kind, *names = label
    if kind == "behind":
        return "behind_" + _variable(tuple(names))
    return field(_PREFIXES.get(kind, kind), *names)


def _recalled(leaf: Leaf) -> str:
    """What is kept, as a stage calls it that recalls it."""
    return field(*leaf) if leaf[0] == "before" else "kept_" + _variable(leaf)


def _struct(leaves: Iterable[Leaf]) -> list[str]:
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


class _Printer:
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
        return _recalled(leaf) if leaf in self.found.kept else f"in.{field(*leaf)}"

    def summed(self, stage: int, leaf: Leaf) -> str | None:
        """What the phase before a stage gave, if the leaf is that."""
        if leaf[0] not in ("product", "back", "mean"):
            return None
        given = f"sum[{self.found.given(stage).index(leaf)}]"
        return f"({given} * splat(1.0f / kHidden))" if leaf[0] == "mean" else given

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
            f"const float2 {_recalled(each)} = turn.recall({kept[each]});"
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
                lines += [f"if constexpr (P == {phase}) {{", *_indented(body), "}"]
        return lines


class _Forward(_Printer):
    found: ForwardPass

    def __init__(self, found: ForwardPass) -> None:
        super().__init__(found)
        stages = found.stages.stages
        self.stages = [
            _Stage(each, found.wanted(k), partial(self.of_phase, k))
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
            *_struct(every),
            "template <int P>",
            f"static ZS_DEVICE void fetch({step}, Loaded& in) {{",
            "  const Stored* const x = a.gates_x + gates_at(a, w, input_time(a, w, s));",
            *_indented(self.by_phase([self.fetch(reads) for reads in self.reads])),
            "}",
            "template <int P>",
            f"static ZS_DEVICE void fetch_ahead({step}) {{",
            *_indented([*ahead, *self.by_phase([self.prefetch(reads) for reads in self.reads])]),
            "}",
            "// The operand of the first product.",
            "template <class Turn>",
            "static ZS_DEVICE void begin(const Turn& turn) {",
            *_indented(self.begin()),
            "}",
            "template <int P, class Turn>",
            "static ZS_DEVICE void consume(const Turn& turn, i64 s, const Inputs& in, "
            "const float2 (&sum)[kWidest]) {",
            "  const Arguments& a = turn.a;",
            "  const Item& w = turn.item;",
            "  const i64 t = output_time(a, w, s), pair = pair_at(a, w, t);",
            "  Stored* const saved = a.saved + gates_at(a, w, t);",
            *_indented(self.by_phase([self.stage(k) for k in range(len(self.stages))])),
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
                value = f"{_COMMON[kind]}(a, w, {at})"
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
            elif leaf[0] in _COMMON:
                loads[leaf] = f"{_COMMON[leaf[0]]}(a, w, 0).value()"
        kept = {("after", leaf[1]): leaf for leaf in self.found.kept if leaf[0] == "before"}
        for state in self.cell.states:
            leaf = ("after", state.name)
            if leaf in leaves or leaf in kept:
                loads[leaf] = "splat(0.0f)"
                if state.name in self.options.initial:
                    loads[leaf] = f"load_pair(a.{field('initial', state.name)} + w.pair, w.count)"
        local = {leaf: field(*leaf) for leaf in loads}
        lines += [f"const float2 {local[leaf]} = {value};" for leaf, value in loads.items()]
        stage = _Stage(first, first.labels, lambda leaf: local.get(leaf) or self.leaf(leaf))
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


class _Backward(_Printer):
    found: BackwardPass

    def __init__(self, found: BackwardPass) -> None:
        super().__init__(found)
        first_state = found.stages.first_state
        self.first_state = None
        if first_state is not None:
            self.first_state = _Stage(first_state, first_state.labels, self.earlier)
        stages = found.stages.stages
        self.stages = [
            _Stage(each, found.wanted(each), partial(self.of_stage, k))
            for k, each in enumerate(stages)
        ]
        self.beginning = _Stage(found.stages.begin, found.wanted(found.stages.begin), self.at_begin)
        end = found.stages.end
        self.ending = _Stage(end, found.wanted(end), self.at_end)
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

    def before_first(self, stage: _Stage, step: str) -> list[str]:
        """The first state before the step, where a stage needs it and does not read it."""
        if self.unread not in stage.leaves() or self.first_state is None:
            return []
        first = self.found.stages.first_state
        assert first is not None
        again = _Stage(first, first.labels, self.earlier)
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
            *_struct(every),
            f"static ZS_DEVICE void fetch_step({step} s, Loaded& in) {{",
            "  const i64 t = output_time(a, w, s), pair = pair_at(a, w, t);",
            "  const Stored* const saved = a.saved + gates_at(a, w, t);",
            *_indented([f"in.{field(*leaf)} = {self.take(leaf)};" for leaf in self.of_step]),
            "}",
            "template <int P>",
            f"static ZS_DEVICE void fetch({step} i, Loaded& in) {{",
            "  const i64 s = a.T - 1 - i;",
            *_indented(self.by_phase([self.fetch(k) for k in range(len(self.stages))])),
            "}",
            "template <int P>",
            f"static ZS_DEVICE void fetch_ahead({step} i) {{",
            "  const i64 s = a.T - 1 - i - 4;  // the latency of device memory",
            "  if (P != kLastPhase || s < 0 || !w.count || (w.unit * kBytes) % 32) return;",
            "  const i64 t = output_time(a, w, s), pair = pair_at(a, w, t);",
            "  const Stored* const saved = a.saved + gates_at(a, w, t);",
            *_indented(self.prefetch()),
            "}",
            "template <class Turn>",
            "static ZS_DEVICE void begin(const Turn& turn) {",
            *_indented(self.begin()),
            "}",
            "template <int P, class Turn>",
            "static ZS_DEVICE void consume(const Turn& turn, i64 i, const Inputs& in, "
            "const float2 (&sum)[kWidest]) {",
            "  const Arguments& a = turn.a;",
            "  const Item& w = turn.item;",
            "  const i64 s = a.T - 1 - i;  // of the product",
            *_indented(self.by_phase([self.consume(k) for k in range(len(self.stages))])),
            "}",
        ]

    def take(self, leaf: Leaf) -> str:
        """What a step loads; ``s`` is the step, ``pair`` its place."""
        kind, *names = leaf
        if kind in _COMMON:
            return f"{_COMMON[kind]}(a, w, s)"
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
        names = {label[1:]: _variable(label) for label in late}
        return [
            *self.recalled(dict.fromkeys([*first.leaves(), *self.ending.leaves()])),
            *([f"float2 {', '.join(names.values())};"] if names else []),
            "if (s > 0) {",
            *_indented(self.stage(first, 0, "s - 1")),
            "} else {",
            *_indented(self.end()),
            "}",
            *self.places("behind", "s", first),
            *self.stores("behind", names),
        ]

    def places(self, step: str, number: str, stage: _Stage) -> list[str]:
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

    def stage(self, stage: _Stage, at: int, step: str) -> list[str]:
        found = self.found
        handed = found.handed_on(at)
        earlier = [label for label in handed if not stage.has(label)]
        # What the first stage recalls, the end does too, and it was recalled for both.
        lines = self.recalled([*stage.leaves(), *earlier]) if at else []
        lines += self.before_first(stage, step)
        lines += stage.lines(label for label in handed if stage.has(label))
        lines += self.handing_on(
            at, lambda label: stage.value(label) if stage.has(label) else _recalled(label)
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

    def results(self, stage: _Stage) -> list[str]:
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
            f"turn.sums.values[{number}].add({values[label]});"
            for number, label in enumerate(added)
            if label in values
        ]


def _of_earlier(leaf: Leaf) -> Leaf:
    """A leaf of the step before, as this step calls it."""
    kind, *names = leaf
    return ("earlier_saved", *names) if kind == "saved" else ("before", *names)
