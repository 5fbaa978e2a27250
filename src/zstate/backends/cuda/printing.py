"""Writes a pass as C++: one line per equation, for NVRTC to compile and for people to read.

``arguments_text`` is the struct that a launch is given, ``cell_text`` the rest: what stays the same
for all steps, what is summed over them, and the equations. A value is a pair of units (float2);
pairs.cuh has the arithmetic and the functions.
"""

from __future__ import annotations

from ...cells.expressions import OPERATORS
from .passes import AnyPass, BackwardPass, Options, field, pass_of
from .printed_backward import BackwardPrinter
from .printed_forward import ForwardPrinter, indented
from .printed_stage import FUNCTIONS

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

    initial, d_initial and last [N,D,H]; after, outer, recomputed and operand [T,N,D,H], the last
    in the order of the input; products [T,N,D,gates,H]; own [D,H] or [D,G,H], and sum
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
    printer = BackwardPrinter(found) if isinstance(found, BackwardPass) else ForwardPrinter(found)
    cell = found.options.cell
    title = f"// The {'gradient of' if found.options.backward else 'step of'} {cell.name}"
    lines = [f"{title}, gates {', '.join(cell.gates)}: printed from its equations."]
    lines += _constants(found) + _sums(found)
    lines += ["struct Pass {", *indented(printer.lines()), "};", ""]
    return "\n".join(lines)


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
        *indented(lines, 2),
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
