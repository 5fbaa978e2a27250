"""The products and reductions of a step, and what else of a pass decides its placement."""

from __future__ import annotations

from typing import NamedTuple


class Phase(NamedTuple):
    """One product of a step, of what goes in by what comes out.

    ``gates[out][in]`` is the gate whose weight lies between them, -1: none does. Or it is a phase
    of means and variances: 0 where a result takes a value.
    """

    gates: tuple[tuple[int, ...], ...]
    variances: tuple[bool, ...] = ()  # of a reduction, by result; the others are means

    @property
    def ins(self) -> int:
        return len(self.gates[0])

    @property
    def outs(self) -> int:
        return len(self.gates)

    @property
    def reduces(self) -> bool:
        return bool(self.variances)

    @property
    def sources(self) -> list[int]:
        """Of a reduction, by result, the one whose sums it is made from: a mean shares those of a
        variance of the same values."""
        shared = {self.gates[k]: k for k, is_variance in enumerate(self.variances) if is_variance}
        return [shared.get(self.gates[k], k) for k in range(len(self.variances))]

    @property
    def first_words(self) -> list[int]:
        """What blocks exchange of a part of a row, by result: the sum, for a variance one more
        word; last, their number."""
        found = [0]
        for k, (source, is_variance) in enumerate(zip(self.sources, self.variances, strict=True)):
            found.append(found[-1] + (0 if source != k else 2 if is_variance else 1))
        return found

    @property
    def words(self) -> int:
        return self.first_words[-1]

    @property
    def is_full(self) -> bool:
        return all(gate >= 0 for row in self.gates for gate in row)

    def in_places(self, slots: tuple[int, ...]) -> list[int]:
        """The order of what goes in where the library multiplies: that of the gates in the weight,
        where each has one of its own."""
        columns = zip(*self.gates, strict=True)
        return _ranks([max(slots[g] if g >= 0 else -1 for g in each) for each in columns])

    def out_places(self, slots: tuple[int, ...]) -> list[int]:
        return _ranks([max(slots[g] if g >= 0 else -1 for g in row) for row in self.gates])


class Form(NamedTuple):
    """What the placement of a scan has to know of a pass."""

    cell: str
    backward: bool
    gates: int
    phases: tuple[Phase, ...]
    states: int  # values that a unit of a row keeps from phase to phase
    further: int = 0  # values that it reads at a step, beyond those that every cell does


def _ranks(keys: list[int]) -> list[int]:
    order = sorted(range(len(keys)), key=lambda k: (keys[k], k))
    return [order.index(k) for k in range(len(keys))]
