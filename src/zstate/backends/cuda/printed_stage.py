"""The equations of one stage as lines of C++."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...cells.expressions import OPERATORS
from ...cells.program import Leaf
from ...cells.sharing import Equations, Label
from .passes import field

FUNCTIONS = frozenset(  # of pairs.cuh
    (
        "none relu tanh sigmoid hard_sigmoid softplus log_sigmoid exp log sqrt abs maximum "
        "minimum where"
    ).split()
)
_SIGNS = {name: "*" if sign == "·" else sign for name, (sign, _) in OPERATORS.items()}
_SIGNS["at_least"] = ">="
_LOOSEST, _TIGHTEST = 0, 9
_MOST_OPERATIONS = 4  # in one line


# How equations call what they give; gradients are d.
_PREFIXES = {"saved": "gate", "after": "new", "before": "d_before", "x": "d", "own": "d"}
_PREFIXES["product"] = "d_product"


def variable(label: Label) -> str:
    kind, *names = label
    if kind == "behind":
        return "behind_" + variable(tuple(names))
    return field(_PREFIXES.get(kind, kind), *names)


class StageText:
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
                name = variable(label)
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
        return [f"{variable(label)} = {self.value(label)};" for label in late]

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
