"""Names of arrays: which layer, direction and role each one has in a framework, and back.

A name is ``[path][name][suffix]``: the path tells layers apart, the name is one of the row's, and
the direction is in the path or in the suffix. ONNX has both directions in one array.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..errors import OptionError, ShapeError, refusal
from ..layout import brackets
from ..types import Array
from .table import CELLS, FRAMEWORKS, LSTM, Framework, Names


@dataclass
class Group:
    """The arrays of one layer: by direction (0 forward, 1 backward), by the row's names."""

    path: str
    arrays: tuple[dict[str, Array], dict[str, Array]] = field(default_factory=lambda: ({}, {}))

    @property
    def names(self) -> set[str]:
        return {*self.arrays[0], *self.arrays[1]}


def groups(framework: str, weights: Mapping[str, Array]) -> list[Group]:
    """The arrays by layer, in the order in which the layers appear; a strange name is refused."""
    row = FRAMEWORKS[framework]
    found: dict[tuple[str, int], Group] = {}
    modules: list[str] = []
    for name, array in weights.items():
        place = _place(framework, name)
        if place is None:
            known = sorted({stem for names in row.names[LSTM].values() for stem in names})
            expected = f"the name of an array of {row.name}, such as {', '.join(known)}"
            raise OptionError(refusal("load", "weights", expected, repr(name)))
        module, number, direction, stem = place
        if stem in row.refused:
            raise OptionError(f"[load] {name}: {row.refused[stem]}")
        if module not in modules:
            modules.append(module)
        group = found.setdefault((module, number), Group(module))
        if stem in group.arrays[direction]:
            raise OptionError(f"[load] {name}: duplicate {stem} of one layer and direction")
        group.arrays[direction][stem] = array
    if not found:
        raise OptionError(refusal("load", "weights", f"arrays of {row.name}", "none"))
    order = sorted(found, key=lambda key: (modules.index(key[0]), key[1]))
    for (before, number), (module, after) in pairwise(order):
        if before == module and after != number + 1:
            expected = f"layer {number + 1} of {module or 'the module'} before layer {after}"
            raise OptionError(refusal("load", "weights", expected, "none"))
    return [found[key] for key in order]


@cache
def _pattern(framework: str) -> re.Pattern[str]:
    row = FRAMEWORKS[framework]
    stems = {*row.refused}.union(*map(row.stems, CELLS))
    name = "|".join(re.escape(stem) for stem in sorted(stems, key=len, reverse=True))
    back = f"(?P<back>{row.directions[1]})?" if row.second == "suffix" else ""
    number = rf"(?:{row.number}(?P<number>\d+))?" if row.number else ""
    # Keras 2 marks its variables with :0.
    return re.compile(
        rf"(?:(?P<module>.*?){re.escape(row.separator)})??(?P<name>{name}){number}{back}(?::0)?",
        re.DOTALL,
    )


class _Place(NamedTuple):
    """Where an array belongs."""

    module: str  # the path in front of its name
    number: int  # of its layer in the module
    direction: int
    stem: str


def _place(framework: str, name: str) -> _Place | None:
    """Where the array of a name belongs; None if no recurrent layer has such an array."""
    row = FRAMEWORKS[framework]
    match = _pattern(framework).fullmatch(name)
    if match is None:
        return None
    found = match.groupdict()
    module = found["module"] or ""
    direction = 1 if found.get("back") else 0
    if row.second == "part":
        words = [re.split("[_/]", text)[0] for text in row.directions]
        parts = module.split(row.separator)
        for place, part in enumerate(parts):
            if part.split("_")[0] in words:
                direction = words.index(part.split("_")[0])
                module = row.separator.join(parts[:place])
                break
    return _Place(module, int(found.get("number") or 0), direction, found["name"])


def by_layer(framework: str, names: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The names of the arrays of each module that has a layer's kernels, and all other names."""
    row = FRAMEWORKS[framework]
    found: dict[str, dict[str, str]] = {}
    others = []
    for name in names:
        place = _place(framework, name)
        if place is None:
            others.append(name)
        else:
            found.setdefault(place.module, {})[name] = place.stem
    kernels = [_kernels(roles, row, cell) for cell in CELLS for roles in row.spellings(cell)]
    layers = {}
    for module, stems in found.items():
        if any(needed <= {*stems.values()} for needed in kernels):
            layers[module] = list(stems)
        else:
            others += stems
    return layers, others


def cell_of(framework: str, group: Group, cell: str | None) -> str:
    """The cell whose arrays these are, by their names and, where those are the same, by shapes."""
    row = FRAMEWORKS[framework]
    where = f"layer {group.path!r}" if group.path else "the layer"
    fits = [kind for kind in CELLS if _fits(row, kind, group)]
    if cell in fits:
        return str(cell)
    if cell is not None:
        found = " or ".join(fits) or f"arrays {', '.join(sorted(group.names))}"
        raise OptionError(refusal("load", "cell", f"{cell} in {where}", found))
    if len(fits) != 1:
        got = " or ".join(fits) or ", ".join(sorted(group.names))
        raise OptionError(f"[load] cell: cannot tell the cell of {where} from {got} (pass cell=…)")
    return fits[0]


def _spelling(row: Framework, cell: str, group: Group) -> Mapping[str, Names] | None:
    """The names by role that these arrays have as a cell's; None if they are not that cell's."""
    for roles in row.spellings(cell):
        known = {name for names in roles.values() for name in names}
        if _kernels(roles, row, cell) <= set(group.arrays[0]) and group.names <= known:
            return roles
    return None


def _fits(row: Framework, cell: str, group: Group) -> bool:
    roles = _spelling(row, cell, group)
    if roles is None:
        return False
    if "joint" in roles:
        return True  # I is not known, so neither is G
    recurrent = [group.arrays[0][name] for name in roles["recurrent"]]
    shape = recurrent[0].shape[-2:]
    if len(shape) != 2:
        return False
    wide, hidden = shape[::-1] if row.transposed else shape
    return bool(wide * len(recurrent) == len(row.gates[cell]) * hidden)


def _kernels(roles: Mapping[str, Names], row: Framework, cell: str) -> set[str]:
    """The names of the kernels, which every layer has."""
    wanted = ("joint",) if "joint" in row.names[cell] else ("input", "recurrent")
    return {name for role in wanted for name in roles[role]}


def roles(
    framework: str, cell: str, group: Group, batch_first: bool = False
) -> list[dict[str, Array]]:
    """The arrays of each direction by role; ``batch_first``: ONNX's initial states are [N,D,H]."""
    row = FRAMEWORKS[framework]
    if row.second == "axis":
        return _unstacked(row, cell, group.arrays[0], batch_first)
    spelling = _spelling(row, cell, group)
    assert spelling is not None  # cell_of has found it
    found = [_joined(row, cell, spelling, arrays, group.path) for arrays in group.arrays if arrays]
    if len(found) == 2 and set(found[0]) != set(found[1]):
        strange = ", ".join(sorted(set(found[0]) ^ set(found[1])))
        raise OptionError(refusal("load", "weights", "the same arrays in both directions", strange))
    for role, array in found[-1].items():
        if array.shape != found[0][role].shape:
            expected = f"{brackets(found[0][role].shape)} in both directions"
            raise ShapeError(refusal("load", role, expected, brackets(array.shape)))
    return found


def _joined(
    row: Framework,
    cell: str,
    roles: Mapping[str, Names],
    arrays: Mapping[str, Array],
    path: str,
) -> dict[str, Array]:
    found = {}
    for role, names in roles.items():
        there = [name for name in names if name in arrays]
        if there and len(there) < len(names):
            missing = ", ".join(sorted(set(names) - set(there)))
            raise OptionError(
                refusal("load", missing, f"an array of {path or 'the layer'}", "none")
            )
        if there:
            found[role] = _along_gates(row, cell, role, {name: arrays[name] for name in names})
    bias = found.get("bias")
    if bias is not None and row.bias[cell] == "rows" and bias.ndim == 2:
        if bias.shape[0] != 2:
            raise ShapeError(refusal("load", "bias", "[3H] or [2,3H]", brackets(bias.shape)))
        found["bias"], found["second"] = bias
    for role in ("bias", "second"):
        if role in found and found[role].ndim != 1:
            raise ShapeError(refusal("load", role, "one axis", brackets(found[role].shape)))
    if "second" in found and "bias" not in found:
        raise OptionError(refusal("load", roles["bias"][0], "an array", "none"))
    if "second" in roles and "bias" in found and "second" not in found:
        raise OptionError(refusal("load", roles["second"][0], "an array", "none"))
    return found


def _gates_of(row: Framework, cell: str, role: str) -> tuple[int, int]:
    """The axis of the gates in an array of a role, and how many it has."""
    is_kernel = role in ("input", "recurrent", "joint")
    gates = len(row.peephole) if role == "peephole" else len(row.gates[cell])
    return int(row.transposed and is_kernel), gates


def _along_gates(row: Framework, cell: str, role: str, parts: Mapping[str, Array]) -> Array:
    """The arrays of a role as one: the last ones have one gate each, the first one the others."""
    first, *others = parts.values()
    if not others:
        return first
    kernel = role in ("input", "recurrent", "joint")
    axis, gates = _gates_of(row, cell, role)
    last = others[-1].shape
    for name, array in parts.items():
        shape = list(last)
        if array is first and len(last) == 1 + kernel:
            shape[axis] *= gates - len(others)
        if array.ndim != 1 + kernel or list(array.shape) != shape:
            expected = f"{1 + kernel} axes that fit the other gates'"
            raise ShapeError(refusal("load", name, expected, brackets(array.shape)))
    return np.concatenate([first, *others], axis=axis)


def _unstacked(
    row: Framework, cell: str, arrays: Mapping[str, Array], batch_first: bool
) -> list[dict[str, Array]]:
    """ONNX: W [D,G·H,I], R [D,G·H,H], B [D,2·G·H], P [D,3H], initial states [D,N,H]."""
    by_role = {
        role: arrays[names[0]] for role, names in row.names[cell].items() if names[0] in arrays
    }
    ranks = {"input": 3, "recurrent": 3, "bias": 2, "peephole": 2, "init_state": 3, "init_cell": 3}
    directions = by_role["input"].shape[0] if by_role["input"].ndim == 3 else 0
    found: list[dict[str, Array]] = [{} for _ in range(directions)]
    for role, array in by_role.items():
        name = row.names[cell][role][0]
        if role.startswith("init") and batch_first and array.ndim == 3:
            array = np.swapaxes(array, 0, 1)
        if array.ndim != ranks[role] or array.shape[0] != directions or directions not in (1, 2):
            expected = f"{ranks[role]} axes, the first with 1 or 2 directions as in W"
            raise ShapeError(refusal("load", name, expected, brackets(array.shape)))
        hidden = by_role["recurrent"].shape[-1]
        if role.startswith("init") and array.shape[2] != hidden:
            expected = f"[D,N,H] with H = {hidden} as in R"
            raise ShapeError(refusal("load", name, expected, brackets(array.shape)))
        for direction, part in zip(found, array, strict=True):
            direction[role] = part
    for direction in found:
        if "bias" in direction:
            if direction["bias"].shape[0] % 2:
                expected = "[D,2·G·H]"
                raise ShapeError(refusal("load", "B", expected, brackets(by_role["bias"].shape)))
            direction["bias"], direction["second"] = np.split(direction["bias"], 2)
    return found


def prefix(row: Framework, number: int, alone: bool) -> str:
    """How the names of a layer begin; torch's have the number at their end."""
    return "" if alone or row.number else f"{number}{row.separator}"


def written(
    framework: str, cell: str, directions: list[dict[str, Array]], number: int, alone: bool
) -> dict[str, Array]:
    """A layer's arrays by name; ``number`` tells it apart where it is not alone."""
    row = FRAMEWORKS[framework]
    path = prefix(row, number, alone)
    arrays: dict[str, Array] = {}
    if row.second == "axis":
        for role, names in row.names[cell].items():
            if role in directions[0]:
                parts = [direction[role] for direction in directions]
                if role == "bias":
                    pairs = [[each["bias"], each["second"]] for each in directions]
                    parts = [np.concatenate(pair) for pair in pairs]
                arrays[path + names[0]] = np.stack(parts)
        return arrays
    count = f"{row.number}{number}" if row.number else ""
    for index, direction in enumerate(directions):
        mark = row.directions[index] if len(directions) == 2 else ""
        before, after = ("", mark) if row.second == "suffix" else (mark, "")
        for name, array in _separate(row, cell, direction).items():
            arrays[f"{path}{before}{name}{count}{after}"] = np.ascontiguousarray(array)
    return arrays


def _separate(row: Framework, cell: str, direction: Mapping[str, Array]) -> dict[str, Array]:
    """One direction's arrays by the row's names: the inverse of ``_joined``."""
    found: dict[str, Array] = {}
    for role, names in row.names[cell].items():
        if role not in direction:
            continue
        array = direction[role]
        if role == "bias" and row.bias[cell] == "rows" and "second" in direction:
            array = np.stack([array, direction["second"]])
        axis, gates = _gates_of(row, cell, role)
        first = gates - len(names) + 1  # the first name holds what the others leave
        places = [array.shape[axis] * (first + k) // gates for k in range(len(names) - 1)]
        found |= dict(zip(names, np.split(array, places, axis=axis), strict=True))
    return found


def natural(names: Iterable[str]) -> list[str]:
    """Names sorted so that layer 10 comes behind layer 9.

    >>> natural(["10/kernel", "9/kernel", "lstm_1/bias", "lstm/bias"])
    ['9/kernel', '10/kernel', 'lstm/bias', 'lstm_1/bias']
    """

    def parts(name: str) -> list[list[tuple[int, str]]]:
        return [
            [(int(text), "") if text.isdigit() else (-1, text) for text in re.split(r"(\d+)", part)]
            for part in re.split("[/.]", name)
        ]

    return sorted(names, key=parts)
