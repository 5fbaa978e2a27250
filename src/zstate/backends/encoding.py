"""A cell's stages as the native engine takes them: tables of numbers, which
csrc/runtime/cell_tables.cpp reads. vector_programs.py writes the programs in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeAlias

from ..cells import Cell
from ..cells.backward_stages import backward_stages
from ..cells.expressions import Book, Expression
from ..cells.program import Leaf, Program
from ..cells.sharing import Equations, Reduction, Reductions
from ..cells.stages import forward_stages
from ..cells.tracing import Trace
from ..descriptors import Descriptor
from ..layout import Layout
from .vector_programs import Output, ProgramText, Tables, UnsupportedError, Words

Leaves: TypeAlias = Callable[[Leaf], Expression]


class Form(NamedTuple):
    """What a call's programs depend on."""

    cell: Cell
    descriptor: Descriptor
    given: frozenset[str]  # the inputs that were passed
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
        """The own parameters that were passed, as vectors [H]."""
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
        if kind in ("carried", "mean", "reduced"):
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
        return ProgramText(self.tables, self.numbers, outputs, self.aliases).words()

    # Kinds of places that may be one and the same memory.
    aliases: ClassVar[Mapping[str, str]] = {}

    def head(
        self,
        keeps: Sequence[bool],
        has_x: Sequence[bool],
        saves_last: bool,
        carried: int,
        means: Reductions,
        extra: int,
    ) -> Words:
        form = self.form
        order = form.cell.gate_order(form.descriptor)
        vectors = form.vectors
        parameters = [each.name for each in form.cell.own]
        gates = form.cell.gates
        every = [one for each in means for one in each]
        reduced = max((one.first + one.values for one in every), default=0)
        self._check("values", max(carried, reduced, len(every)))
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
            len(every),
            reduced,
            extra,
        ]

    def stage(
        self,
        means: Sequence[Reduction],
        products: Sequence[tuple[int, Sequence[tuple[str, int]]]],
        programs: list[Words | None],
    ) -> Words:
        self._check("products", sum(len(gates) for _, gates in products))
        words = [len(means)]
        for op, first, count in means:
            words += [int(op == "variance"), first, count]
        words.append(len(products))
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
        words = self.head(keeps, has_x, saves_last, stages.carried, stages.means, 0)
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
        means = stages.means
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
