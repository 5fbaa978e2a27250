"""The options of a call and its placement, as the constants that a kernel is compiled with."""

from __future__ import annotations

from collections.abc import Sequence

from .passes import Options
from .phases import Phase
from .placement import ROW, WIDE, WORKER_REGISTERS, Chip, Placement, Scan
from .products import MOST_JOBS, SHARED, SPLIT
from .streamed import Streamed, ring_of
from .wgmma import wgmma

_TYPES = {"bfloat16": 0, "float16": 1, "tf32": 2, "float32": 3}


def constants(scan: Scan, options: Options, placement: Placement, debug: bool = False) -> str:
    """The text in front of the scan's."""
    phases = scan.phases
    integers = {
        "Type": _TYPES[scan.type],
        "Hidden": scan.hidden,
        "Directions": scan.directions,
        "Heads": scan.heads,
        "Pack": placement.pack,
        "Gates": scan.gates,
        "Phases": len(phases),
        "States": scan.states,
        "Mode": placement.mode,
        "Blocks": placement.blocks,
        "Units": placement.units,
        "Padded": placement.padded,
        "Rows": placement.rows,
        "Tiles": placement.tiles,
        "WarpsK": placement.warps_k,
        "WarpsN": placement.warps_n,
        "Chunk": placement.chunk,
        "Shared": placement.shared,
        "Resident": placement.resident,
        "Pieces": placement.pieces,
        "ItemUnits": 1 if placement.mode == ROW else 2,
        "WorkerRegisters": WORKER_REGISTERS,
    }
    by_phase = {
        "Ins": [phase.ins for phase in phases],
        "Outs": [phase.outs for phase in phases],
        "IsFull": [int(phase.is_full) for phase in phases],
        "Words": [phase.words for phase in phases],
        "Reduced": [len(phase.variances) for phase in phases],
        "Variances": [sum(on << k for k, on in enumerate(each.variances)) for each in phases],
        "Held": placement.held,
        "Stored": placement.stored,
        "Parts": placement.parts(scan),
    }
    switches = {
        "Backward": scan.backward,
        "Reverse": options.reverse,
        "HasMask": options.mask,
        "HasResets": options.resets,
        "MaskPairs": options.mask_pairs,
        "HoldsAll": placement.holds_all(scan),
        "OneGroup": scan.backward and placement.sums_all(scan.batch),
        "LooksAhead": options.save_gates and scan.gates > 3,
        "Streams": bool(placement.split),
        "Debug": debug,
    }
    arrays = [
        f"constexpr int k{name}[] = {{{', '.join(map(str, values))}}};"
        for name, values in by_phase.items()
    ]
    instructions = [wgmma(placement.rows, scan.type)] if placement.mode == WIDE else []
    places = _places(phases, options.slots)
    return _written(integers, switches) + "\n".join([*arrays, *places, *instructions, ""])


def _places(phases: tuple[Phase, ...], slots: tuple[int, ...]) -> list[str]:
    """Where gates lie along the gate axis: by number, and by what goes into a phase and comes out;
    the order of what goes in and comes out, where the library multiplies; and what the results of
    a reduction are made from."""

    def chosen(name: str, values: Sequence[int]) -> str:
        tests = [f"{name} == {k} ? {value} : " for k, value in enumerate(values[:-1])]
        return "".join(tests) + str(values[-1])

    def weights(phase: Phase) -> str:
        table = [[slots[gate] if gate >= 0 else -1 for gate in row] for row in phase.gates]
        if phase.outs == 1:
            return chosen("in", table[0])
        rows = [chosen("in", row) for row in table]
        tests = [f"out == {k} ? ({row}) : " for k, row in enumerate(rows[:-1])]
        return "".join(tests) + f"({rows[-1]})"

    def by_phase(head: str, texts: list[str]) -> str:
        tests = [f"if constexpr (P == {k}) return {text};" for k, text in enumerate(texts)]
        return f"template <int P> ZS_DEVICE constexpr int {head} {{ {' '.join(tests)} }}"

    return [
        f"ZS_DEVICE constexpr int slot(int gate) {{ return {chosen('gate', slots)}; }}",
        by_phase("slot_of(int out, int in)", list(map(weights, phases))),
        by_phase("in_place(int in)", [chosen("in", each.in_places(slots)) for each in phases]),
        by_phase("source_of(int out)", [chosen("out", each.sources or [0]) for each in phases]),
        by_phase("word_of(int out)", [chosen("out", each.first_words) for each in phases]),
        by_phase(
            "values_of(int out)", [chosen("out", list(map(_taken, each.gates))) for each in phases]
        ),
        by_phase("out_place(int out)", [chosen("out", each.out_places(slots)) for each in phases]),
    ]


def _taken(row: tuple[int, ...]) -> int:
    return sum(gate >= 0 for gate in row)


def product_constants(kind: str) -> str:
    """The text in front of the products'; of ``SPLIT``, TF32 multiplies both halves of a number."""
    # Their rows are whole pieces of 16 bytes, so that pairs of numbers are whole words.
    integers = {"Hidden": 2, "ItemUnits": 2, "MostJobs": MOST_JOBS, "Shared": SHARED}
    integers["Type"] = _TYPES["tf32" if kind == SPLIT else kind]
    return _written(integers, {"Debug": False, "Split": kind == SPLIT})


def streamed_constants(product: Streamed, chip: Chip, debug: bool = False) -> str:
    """The text in front of streamed.cu."""
    shares = product.shares(chip)
    ring = ring_of(product, shares, chip)
    integers = {"Hidden": 2, "ItemUnits": 2, "Type": _TYPES[product.type], "Width": shares.width}
    integers |= {"Chunks": shares.chunks, "Stages": ring.stages, "Sums": ring.sums}
    switches = {"Across": product.across, "ManyRows": product.has_many_rows, "Debug": debug}
    return _written(integers, switches)


def _written(integers: dict[str, int], switches: dict[str, bool]) -> str:
    lines = [f"constexpr int k{name} = {value};" for name, value in integers.items()]
    lines += [f"constexpr bool k{name} = {str(on).lower()};" for name, on in switches.items()]
    return "\n".join(lines) + "\n"
