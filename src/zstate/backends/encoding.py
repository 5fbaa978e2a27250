"""A cell's stages as the native engine takes them: programs of vector instructions, as numbers.

The engine says which instructions and places it has (csrc/engine/opcodes.h); both are looked up by
name, so that the two cannot drift apart. csrc/runtime/cell_tables.cpp reads the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ..cells import Cell
from ..cells.expressions import Book, Expression, ordered
from ..cells.program import Leaf, Program
from ..cells.stages import Equations, backward_stages, forward_stages
from ..cells.tracing import Trace
from ..descriptors import Descriptor
from ..layout import Layout

Place: TypeAlias = tuple[str, int]  # a kind of place, and which of them
Words: TypeAlias = list[int]
Leaves: TypeAlias = Callable[[Leaf], Expression]


class UnsupportedError(Exception):
    """What the engine lacks for a cell, in words."""


@dataclass(frozen=True, eq=False)
class Tables:
    """What the engine has: numbers by the names of instructions and places, and its limits."""

    opcodes: dict[str, int]
    places: dict[str, int]
    limits: dict[str, int]

    @classmethod
    def of(cls, module: Any) -> Tables:
        opcodes, places = (
            {name: number for number, name in enumerate(names)}
            for names in (module.opcodes(), module.places())
        )
        return cls(opcodes, places, dict(module.limits()))


class Form(NamedTuple):
    """What a call's programs depend on."""

    cell: Cell
    descriptor: Descriptor
    given: frozenset[str]  # the inputs that are there
    wanted: frozenset[str]  # the results
    outer: frozenset[str]  # states with a gradient from outside at every step
    last: frozenset[str]  # and at the last one

    @property
    def own(self) -> frozenset[str]:
        return frozenset(each.name for each in self.cell.own if each.name in self.given)

    @property
    def text(self) -> tuple[Descriptor, frozenset[str], bool, bool]:
        """What the equations depend on."""
        return self.descriptor, self.own, "mask" in self.given, "resets" in self.given

    @property
    def trace(self) -> Trace:
        return self.cell.forward(*self.text)

    @property
    def vectors(self) -> list[Leaf]:
        """The own parameters that are there, as vectors [H]."""
        return [
            ("own", each.name, gate) if each.by_gate else ("own", each.name)
            for each in self.cell.own
            if each.name in self.given
            for gate in (self.cell.gates if each.by_gate else ("",))
        ]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.cell.states]


def form_of(layout: Layout, shapes: Mapping[str, tuple[int, ...]] | None, packed: bool) -> Form:
    """``shapes`` of the inputs say which gradients are of every step; None: all that could be."""
    cell = layout.cell_kind
    outer, last = set(), set()
    for each in cell.states if layout.operation.is_gradient else ():
        if each.gradient in layout.present and (
            each.gradient != each.last_gradient
            or packed
            or shapes is None
            or (len(shapes[each.gradient]) == 3 and shapes[each.gradient][0] == layout.size[0])
        ):
            outer.add(each.name)
        elif each.gradient in layout.present:
            last.add(each.name)
        if each.last_gradient != each.gradient and each.last_gradient in layout.present:
            last.add(each.name)
    return Form(
        cell,
        layout.descriptor,
        layout.present,
        frozenset(layout.result_names()),
        frozenset(outer),
        frozenset(last),
    )


def called(form: Form, names: Iterable[str], results: bool) -> list[str]:
    """What the engine calls these tensors (csrc/runtime/named_arrays.h)."""
    listed = {each.name: f"own.{k}" for k, each in enumerate(form.cell.own)}
    for k, state in enumerate(form.cell.states):
        listed |= {state.initial: f"initial.{k}", state.output: f"after.{k}"}
        listed[state.last_gradient] = f"last.{k}"
        if state.name in form.outer:
            listed[state.gradient] = f"outer.{k}"
        if results:
            listed[state.name] = f"result.{k}"
    listed["z_state"] = "training_state"
    return [listed.get(name, name) for name in names]


class Encoded(NamedTuple):
    """A cell for one form of calls."""

    words: tuple[int, ...]
    numbers: tuple[float, ...]


@lru_cache(maxsize=1024)
def encode(form: Form, is_gradient: bool, tables: Tables) -> Encoded:
    """The tables of a form; raises UnsupportedError for what the engine lacks."""
    writer = (_Gradient if is_gradient else _Forward)(form, tables)
    return Encoded(tuple(writer.words()), tuple(writer.numbers))


class _Cell:
    """What both operations have."""

    def __init__(self, form: Form, tables: Tables) -> None:
        self.form, self.tables, self.numbers = form, tables, list[float]()
        self.book = Book()
        self.trace = form.trace
        self._check("gates", len(form.cell.gates))
        self._check("states", len(form.cell.states))
        self._check("parameters", len(form.cell.own))

    def _check(self, what: str, count: int) -> None:
        most = self.tables.limits[what]
        if count > most:
            raise UnsupportedError(f"it has room for {most} {what}, not {count}")

    def place(self, kind: str, index: int = 0) -> Expression:
        return self.book.make("leaf", (), (kind, index))

    def leaf(self, leaf: Leaf) -> Expression:
        """A leaf that means the same in both operations."""
        kind, *rest = leaf
        if kind in ("mask", "next_mask", "reset", "next_reset"):
            return self.place(kind)
        if kind == "own":
            return self.place("own", self.form.vectors.index(leaf))
        if kind in ("carried", "mean"):
            return self.place(kind, int(rest[0]))
        if kind == "saved":
            return self.place("saved", self.form.cell.gates.index(rest[0]))
        raise AssertionError(leaf)

    def values(self, text: Program, leaf: Leaves) -> list[Expression]:
        """The outputs of equations with other leaves."""
        values = [leaf(each) for each in text.inputs]
        for op, args, _, detail in text.instructions:
            given = [values[arg] for arg in args]
            if op == "number":
                values.append(self.book.number(detail))
            elif op in ("add", "subtract", "multiply", "negative"):
                values.append(self.book.operation(op, *given))
            else:
                values.append(self.book.make(op, tuple(given), detail))
        return [values[k] for k in text.outputs]

    def program(self, outputs: Sequence[Output]) -> Words:
        return _Text(self.tables, self.numbers, outputs, self.aliases).words()

    # Kinds of places that may be one and the same memory.
    aliases: ClassVar[Mapping[str, str]] = {}

    def head(
        self,
        keeps: Sequence[bool],
        has_x: Sequence[bool],
        saves_last: bool,
        carried: int,
        means: int,
        extra: int,
    ) -> Words:
        form = self.form
        order = form.cell.gate_order(form.descriptor)
        vectors = form.vectors
        parameters = [each.name for each in form.cell.own]
        gates = form.cell.gates
        self._check("values", max(carried, means))
        return [
            len(self.tables.opcodes),
            int(isinstance(self, _Gradient)),
            len(gates),
            *(order.index(gate) for gate in gates),
            len(form.cell.states),
            len(parameters),
            len(vectors),
            *(
                number
                for leaf in vectors
                for number in (
                    parameters.index(leaf[1]),
                    gates.index(leaf[2]) if len(leaf) > 2 else -1,
                )
            ),
            *map(int, keeps),
            *map(int, has_x),
            int(saves_last),
            carried,
            means,
            extra,
        ]

    def stage(
        self,
        means: int,
        products: Sequence[tuple[int, Sequence[tuple[str, int]]]],
        programs: list[Words | None],
    ) -> Words:
        self._check("products", sum(len(gates) for _, gates in products))
        words = [means, len(products)]
        for operand, gates in products:
            words += [operand, len(gates)]
            for gate, extra in gates:
                words += [self.form.cell.gates.index(gate), extra]
        for program in programs + [None] * (4 - len(programs)):
            words += program or [-1]
        return words


class _Forward(_Cell):
    """The forward operation."""

    # A projection into zState, activated in place.
    aliases: ClassVar[Mapping[str, str]] = {"x": "gate", "saved": "gate"}

    def words(self) -> Words:
        stages = forward_stages(self.trace)
        names = self.form.names
        read = {leaf for each in stages.stages for leaf in each.text.inputs}
        self.kept = {name for name in names if ("before", name) in read}
        self.early = {int(label[1]) for label in stages.first.labels}
        self._check("operands", stages.operands)
        self._check("stages", len(stages.stages))
        saves_last = not any(
            ("saved", leaf[1]) in early.labels
            for k, late in enumerate(stages.stages)
            for leaf in late.text.inputs
            if leaf[0] == "x"
            for early in stages.stages[:k]
        )
        has_x = [True] * len(self.form.cell.gates)
        keeps = [name in self.kept for name in names]
        words = self.head(keeps, has_x, saves_last, stages.carried, sum(stages.means), 0)
        firsts = dict(
            zip(stages.first.labels, self.values(stages.first.text, self._first_leaf), strict=True)
        )
        words.append(stages.operands)
        for k in range(stages.operands):
            value = firsts.get(("operand", str(k)))
            plain = value.detail if value is not None and value.op == "leaf" else ("", 0)
            words += [int(k in self.early), plain[1] if plain[0] == "initial" else -1, 0, -1, -1]
        words.append(len(stages.stages))
        of_stages = zip(stages.means, stages.products, stages.stages, strict=True)
        for means, products, equations in of_stages:
            listed = [(p.operand, [(gate, -1) for gate in p.gates]) for p in products]
            made = [(str(k), gate) for k, gates in listed for gate, _ in gates]
            programs: list[Words | None] = [self._program(equations, made, fused=False)]
            if len(stages.stages) == 1 and _adds_input(equations.text, made, self.form.cell.gates):
                programs.append(self._program(equations, made, fused=True))
            words += self.stage(means, listed, programs)
        outputs = [
            Output(("operand", int(label[1])), value, False) for label, value in firsts.items()
        ]
        outputs += [
            Output(("state", k), self.place("initial", k), False)
            for k, name in enumerate(names)
            if name in self.kept
        ]
        return [*words, *self.program(outputs), -1, 0, 0]

    def _first_leaf(self, leaf: Leaf) -> Expression:
        if leaf[0] == "after":
            return self.place("initial", self.form.names.index(leaf[1]))
        return self.leaf(leaf)

    def _program(self, equations: Equations, made: list[tuple[str, str]], fused: bool) -> Words:
        gates, names, form = self.form.cell.gates, self.form.names, self.form

        def leaf(each: Leaf) -> Expression:
            if each[0] == "x":
                g = gates.index(each[1])
                x = self.book.number(0) if fused else self.place("x", g)
                return (
                    self.book.operation("add", x, self.place("bias", g))
                    if "bias" in form.given
                    else x
                )
            if each[0] == "product":
                return self.place("product", made.index((each[1], each[2])))
            if each[0] == "before":
                return self.place("state", names.index(each[1]))
            return self.leaf(each)

        outputs = []
        values = self.values(equations.text, leaf)
        for label, value in zip(equations.labels, values, strict=True):
            if label[0] == "saved":
                if "training_state" in form.wanted:
                    outputs.append(Output(("saved", gates.index(label[1])), value, False))
            elif label[0] == "after":
                k = names.index(label[1])
                if label[1] in form.wanted:  # first: the engine may read it back from there
                    outputs.append(Output(("result", k), value, False))
                if label[1] in self.kept:
                    outputs.append(Output(("state", k), value, False))
            else:
                late = label[0] == "operand" and int(label[1]) in self.early
                outputs.append(Output((label[0], int(label[1])), value, late))
        return self.program(outputs)


def _adds_input(text: Program, made: list[tuple[str, str]], gates: tuple[str, ...]) -> bool:
    """Whether every gate's x is needed only in the sum with the gate's only product."""
    if sorted(gate for _, gate in made) != sorted(gates):
        return False
    uses = [0] * (len(text.inputs) + sum(len(each.results) for each in text.instructions))
    for each in text.instructions:
        for arg in each.args:
            uses[arg] += 1
    for place in text.outputs:
        uses[place] += 1
    places = {leaf: k for k, leaf in enumerate(text.inputs)}
    sums = {frozenset(each.args) for each in text.instructions if each.op == "add"}
    for operand, gate in made:
        x, product = places.get(("x", gate)), places.get(("product", operand, gate))
        if x is None or product is None or uses[x] != 1 or uses[product] != 1:
            return False
        if frozenset((x, product)) not in sums:
            return False
    return True


class _Gradient(_Cell):
    """The gradient operation."""

    def words(self) -> Words:
        form, gates = self.form, self.form.cell.gates
        back = form.cell.backward(*form.text)
        stages = self.stages = backward_stages(back, form.outer, form.last)
        pairs = [
            (int(label[1]), label[2])
            for each in stages.stages
            for label in each.labels
            if label[0] == "product"
        ]
        again = [(p.operand, gate) for p in stages.recomputed for gate in p.gates]
        self.extra = list(dict.fromkeys([*pairs, *again]))
        self._check("products", max(len(self.extra), len(back.products)))
        self._check("operands", len(stages.operands))
        self._check("stages", len(stages.stages))
        has_x = [("x", gate) in back.inputs for gate in gates]
        keeps = [False] * len(form.names)
        means = sum(stages.means)
        words = self.head(keeps, has_x, True, stages.carried, means, len(self.extra))
        words.append(len(stages.operands))
        for k, equations in enumerate(stages.operands):
            words += self._operand(k, equations)
        words.append(len(stages.stages))
        for k, (products, equations) in enumerate(zip(stages.products, stages.stages, strict=True)):
            listed = [
                (p.operand, [(g, self._extra(p.operand, g)) for g in p.gates]) for p in products
            ]
            made = [p.operand for p in products]
            texts = [equations] if k else [equations, stages.begin]
            programs: list[Words | None] = [
                self._program(text, made, first) for text in texts for first in (False, True)
            ]
            words += self.stage(stages.means[k], listed, programs)
        made = [p.operand for p in stages.products[0]]
        words += [-1, *self._program(stages.end, made, True)]
        order = form.cell.gate_order(form.descriptor)
        factors = [(gate, back.operands.index(operand)) for gate, operand in back.products]
        factors.sort(key=lambda each: order.index(each[0]))
        words.append(len(again))
        for k, gate in again:
            words += [gates.index(gate), k, self.extra.index((k, gate))]
        words.append(len(factors))
        for gate, k in factors:
            words += [gates.index(gate), k, self._extra(k, gate)]
        return words

    def _extra(self, operand: int, gate: str) -> int:
        """Where the gradient of a product is, if it is not that of the gate."""
        return -1 if (gate, operand) in self.stages.same else self.extra.index((operand, gate))

    def _operand(self, k: int, equations: Equations) -> Words:
        text, fed = equations.text, self.form.cell.fed_states
        (place,) = text.outputs
        state = -1
        if place < len(text.inputs):
            kind, *rest = text.inputs[place]
            if kind == "before" and rest[0] in fed:
                state = self.form.names.index(rest[0])
        words = [0, state, int(_vanishes(text, place))]
        for first in (False, True):
            (value,) = self.values(text, self._leaves([], first))
            words += self.program([Output(("operand_value", k), value, False)])
        return words

    def _leaves(self, made: list[int], first: bool, ends: bool = False) -> Leaves:
        form = self.form
        names, fed = form.names, form.cell.fed_states

        def state(name: str, kind: str, saved: str) -> Expression:
            """A state after a step: given, or what the saved values of the step say."""
            if name in fed:
                return self.place(kind, names.index(name))

            def inner(each: Leaf) -> Expression:
                if each[0] == "saved":
                    return self.place(saved, form.cell.gates.index(each[1]))
                return state(each[1], kind, saved) if each[0] == "after" else self.leaf(each)

            assert self.stages.first_state is not None
            return self.values(self.stages.first_state.text, inner)[0]

        def leaf(each: Leaf) -> Expression:
            kind, *rest = each
            if kind == "after":
                if ends:
                    return self.place("initial", names.index(rest[0]))
                return state(rest[0], "after", "saved")
            if kind == "before":
                if first:
                    return self.place("initial", names.index(rest[0]))
                return state(rest[0], "before", "saved_before")
            if kind in ("outer", "last"):
                return self.place(kind, names.index(rest[0]))
            if kind == "back":
                return self.place("product", made.index(int(rest[0])))
            if kind == "recomputed":
                return self.place("extra", self.extra.index((int(rest[0]), rest[1])))
            return self.leaf(each)

        return leaf

    def _program(self, equations: Equations, made: list[int], first: bool) -> Words:
        form, gates = self.form, self.form.cell.gates
        outputs = []
        leaves = self._leaves(made, first, equations is self.stages.end)
        values = self.values(equations.text, leaves)
        for label, value in zip(equations.labels, values, strict=True):
            kind, *rest = label
            if kind == "x":
                outputs.append(Output(("gate_gradient", gates.index(rest[0])), value, False))
            elif kind == "product":
                place = ("extra", self.extra.index((int(rest[0]), rest[1])))
                outputs.append(Output(place, value, False))
            elif kind == "own":
                k = form.vectors.index(label)
                total = self.book.operation("add", self.place("own_sum", k), value)
                outputs.append(Output(("own_sum", k), total, False))
            elif kind == "before":
                k = form.names.index(rest[0])
                if form.cell.states[k].initial in form.wanted:
                    outputs.append(Output(("initial_gradient", k), value, False))
            else:
                outputs.append(Output((kind, int(rest[0])), value, False))
        if equations is self.stages.end:
            given = {label[1] for label in equations.labels}
            outputs += [
                Output(("initial_gradient", k), self.book.number(0), False)
                for k, each in enumerate(form.cell.states)
                if each.initial in form.wanted and each.name not in given
            ]
        return self.program(outputs)


def _vanishes(text: Program, place: int) -> bool:
    """Whether a value is a product with a state before the step."""
    if place < len(text.inputs):
        return text.inputs[place][0] == "before"
    made = {each.results[0]: each for each in text.instructions}[place]
    return made.op == "multiply" and any(_vanishes(text, arg) for arg in made.args)


# ---- programs ----


class Output(NamedTuple):
    """A value and where it goes; ``late``: what only a next step needs."""

    place: Place
    value: Expression
    late: bool


class _Step(NamedTuple):
    """An instruction: its name, what it computes, and of what."""

    op: str
    result: Expression
    args: tuple[Expression, ...]


_SUMMED = frozenset({"relu", "tanh", "sigmoid", "hard_sigmoid"})  # functions that take sums, slopes


def _is_zero(each: Expression) -> bool:
    return each.op == "number" and each.detail == 0


class _Text:
    """One program: instructions in order, several operations to one where the engine has such."""

    def __init__(
        self,
        tables: Tables,
        numbers: list[float],
        outputs: Sequence[Output],
        aliases: Mapping[str, str],
    ) -> None:
        self._tables, self._numbers, self._aliases = tables, numbers, aliases
        self._outputs = self._settled(outputs)
        self._uses: dict[Expression, int] = {}
        roots = [each.value for each in self._outputs]
        for each in ordered(roots):
            for arg in each.args:
                self._uses[arg] = self._uses.get(arg, 0) + 1
        for root in roots:
            self._uses[root] = self._uses.get(root, 0) + 1
        core = [each.value for each in self._outputs if not each.late]
        self._steps: list[_Step] = []
        self._emit(core)
        self._core = len(self._steps)
        self._emit(roots)

    def _memory(self, place: Place) -> Place:
        return self._aliases.get(place[0], place[0]), place[1]

    def _settled(self, outputs: Sequence[Output]) -> list[Output]:
        """Core first; inputs that are results too, and that others overwrite, are copied first."""
        changed = {
            self._memory(each.place)
            for each in outputs
            if not (each.value.op == "leaf" and each.value.detail == each.place)
        }
        found = []
        for place, value, late in sorted(outputs, key=lambda each: each.late):
            if value.op == "leaf":
                if value.detail == place:
                    continue
                if self._memory(value.detail) in changed:
                    value = value.book.make("copy", (value,))
            found.append(Output(place, value, late))
        return found

    def _emit(self, roots: Iterable[Expression]) -> None:
        done = {each.result for each in self._steps}
        stack = [(root, False) for root in reversed(list(roots))]
        while stack:
            each, ready = stack.pop()
            if each in done or each.op in ("leaf", "number"):
                continue
            op, args = self._instruction(each)
            if ready:
                done.add(each)
                self._steps.append(_Step(op, each, args))
            else:
                stack.append((each, True))
                stack.extend((arg, False) for arg in reversed(args))

    # ---- which instruction computes a value ----

    def _alone(self, each: Expression, op: str) -> bool:
        """Whether it is such an operation that nothing else needs."""
        return each.op == op and self._uses[each] == 1

    def _scaled(self, each: Expression) -> bool:
        """Whether it is a product with a slope, which is one instruction itself."""
        return any(self._slope(arg) for arg in each.args)

    def _slope(self, each: Expression) -> bool:
        return self._alone(each, "slope") and each.detail in _SUMMED

    def _product(self, each: Expression) -> bool:
        return self._alone(each, "multiply") and not self._scaled(each)

    def _instruction(self, each: Expression) -> tuple[str, tuple[Expression, ...]]:
        op, args = each.op, each.args
        if op in _SUMMED and self._alone(args[0], "add"):
            inner, terms = self._instruction(args[0])
            if inner in ("add", "add_add"):
                return f"{inner}_{op}", terms
        elif op == "add":
            return self._sum(args)
        elif op == "subtract":
            a, b = args
            if self._product(a):
                return "multiply_subtract", (*a.args, b)
            if self._product(b):
                return "subtract_product", (*b.args, a)
        elif op == "multiply":
            return self._times(args)
        elif op == "slope":
            return f"slope_{each.detail}", args
        elif op == "where" and _is_zero(args[1]) and args[0].op == "greater":
            given, bound = args[0].args
            if _is_zero(bound):
                return "unless_positive", (given, args[2])
        return op, args

    def _sum(self, args: tuple[Expression, ...]) -> tuple[str, tuple[Expression, ...]]:
        if all(map(self._product, args)) and args[0] is not args[1]:
            return "product_sum", args[0].args + args[1].args
        for one, other in (args[::-1], args):
            if self._product(one):
                return "multiply_add", (*one.args, other)
        for one, other in (args[::-1], args):
            if self._alone(one, "negative"):
                return "subtract", (other, one.args[0])
        for one, other in (args, args[::-1]):
            if self._alone(one, "add") and self._instruction(one)[0] == "add":
                return "add_add", (*one.args, other)
        return "add", args

    def _times(self, args: tuple[Expression, ...]) -> tuple[str, tuple[Expression, ...]]:
        for one, other in (args[::-1], args):
            if self._slope(one):
                if self._product(other):
                    return f"multiply_multiply_slope_{one.detail}", (*other.args, one.args[0])
                return f"multiply_slope_{one.detail}", (other, one.args[0])
        for one, other in (args, args[::-1]):
            if self._product(one):
                return "multiply_multiply", (*one.args, other)
        for one, other in (args[::-1], args):
            if self._alone(one, "tanh") and self._instruction(one)[0] == "tanh":
                return "multiply_tanh", (other, *one.args)
        return "multiply", args

    # ---- where values lie ----

    def _in_place(self) -> dict[Expression, Place]:
        """The values that are computed where they go: unless a later instruction reads there."""
        made = {each.result: k for k, each in enumerate(self._steps)}
        read = {
            self._memory(arg.detail): k
            for k, each in enumerate(self._steps)
            for arg in each.args
            if arg.op == "leaf"
        }
        found: dict[Expression, Place] = {}
        for place, value, _ in self._outputs:
            free = value in made and value not in found
            if free and read.get(self._memory(place), -1) <= made[value]:
                found[value] = place
        return found

    def words(self) -> Words:
        leaves = [arg.detail for each in self._steps for arg in each.args if arg.op == "leaf"] + [
            each.value.detail for each in self._outputs if each.value.op == "leaf"
        ]
        read = set(leaves)
        places = list(dict.fromkeys([*leaves, *(each.place for each in self._outputs)]))
        places.sort(key=lambda place: place[0] != "product")  # which the engine computes otherwise
        every = [arg for each in self._steps for arg in each.args]
        every += [each.value for each in self._outputs]
        numbers = list(dict.fromkeys(each.detail for each in every if each.op == "number"))
        at: dict[Expression, int] = {}
        for each in every:
            if each.op == "leaf":
                at[each] = places.index(each.detail)
            elif each.op == "number":
                at[each] = len(places) + numbers.index(each.detail)
        at |= {value: places.index(place) for value, place in self._in_place().items()}
        temporary = self._allocate(at, len(places) + len(numbers))
        count = len(places) + len(numbers) + temporary
        if count > self._tables.limits["values"]:
            most = self._tables.limits["values"]
            raise UnsupportedError(f"it has room for {most} values in a program, not {count}")
        words = [len(places)]
        for place in places:
            words += [self._tables.places[place[0]], place[1], int(place in read)]
        words += [
            len(numbers),
            *map(self._number, numbers),
            temporary,
            len(self._steps),
            self._core,
        ]
        for op, result, args in self._steps:
            if op == "mean":
                raise UnsupportedError(
                    "its gradient cannot contain a mean in a value that R multiplies"
                )
            if op not in self._tables.opcodes:
                raise UnsupportedError(f"it has no function {op!r}")
            words += [self._tables.opcodes[op], at[result], *(at[arg] for arg in args)]
        words.append(len(self._outputs))
        for place, value, _ in self._outputs:
            words += [places.index(place), at[value]]
        return [*words, sum(not each.late for each in self._outputs)]

    def _number(self, value: float) -> int:
        if value not in self._numbers:
            self._numbers.append(value)
        return self._numbers.index(value)

    def _allocate(self, at: dict[Expression, int], first: int) -> int:
        """Places for all other values, used again when a value is no longer needed."""
        last = {arg: k for k, each in enumerate(self._steps) for arg in each.args}
        last |= {each.value: len(self._steps) for each in self._outputs}
        free: list[int] = []
        count = 0
        mine: set[Expression] = set()
        for k, each in enumerate(self._steps):
            for arg in dict.fromkeys(each.args):
                if arg in mine and last[arg] == k:
                    free.append(at[arg])
            if each.result not in at:
                if not free:
                    free.append(first + count)
                    count += 1
                at[each.result] = free.pop()
                mine.add(each.result)
        return count
