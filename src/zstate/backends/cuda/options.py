"""The options of a call and its placement, as the constants that a kernel is compiled with."""

from __future__ import annotations

from typing import NamedTuple

from .placement import ROW, WIDE, WORKER_REGISTERS, Placement, Scan
from .products import MOST_JOBS, SHARED, SPLIT
from .wgmma import wgmma

_TYPES = {"bfloat16": 0, "float16": 1, "tf32": 2, "float32": 3}


class Options(NamedTuple):
    """What a call uses; what it does not use is not in its kernel."""

    slots: tuple[int, ...]
    activations: tuple[int, ...]
    reverse: bool = False
    flip_z: bool = False
    mask: bool = False
    mask_pairs: bool = False  # two units of the mask can be loaded at once
    peephole: bool = False
    peephole_on_new_cell: bool = False  # the output gate's; only with peephole
    bias2: bool = False
    state: bool = False  # an initial state
    cell: bool = False  # an initial cell
    save_cell: bool = False
    save_gates: bool = False
    last_state: bool = False  # a gradient of the last state
    last_cell: bool = False
    every_cell: bool = False
    want_left: bool = False  # the left factor of the recurrent weight's gradient
    sum_bias: bool = False
    sum_peephole: bool = False
    sum_bias2: bool = False


def constants(scan: Scan, options: Options, placement: Placement, debug: bool = False) -> str:
    """The text in front of the scan's."""
    slots = (*options.slots, 0, 0, 0)
    phases = scan.phases
    integers = {
        "Type": _TYPES[scan.type],
        "Hidden": scan.hidden,
        "Directions": scan.directions,
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
        **{f"Slot{k}": slots[k] for k in range(4)},
    }
    by_phase = {
        "GatesIn": [phase.gates_in for phase in phases],
        "GatesOut": [phase.gates_out for phase in phases],
        "FirstGate": [phase.first for phase in phases],
        "Held": placement.held,
        "Stored": placement.stored,
    }
    switches = {
        "Backward": scan.backward,
        "ResetAfter": scan.reset_after,
        "Reverse": options.reverse,
        "FlipZ": options.flip_z,
        "HasMask": options.mask,
        "MaskPairs": options.mask_pairs,
        "HoldsAll": placement.holds_all(scan),
        "OneGroup": scan.backward and placement.sums_all(scan.batch),
        "HasPeephole": options.peephole,
        "PeepholeOnNewCell": options.peephole_on_new_cell,
        "HasBias2": options.bias2,
        "HasState": options.state,
        "HasCell": options.cell,
        "SaveCell": options.save_cell,
        "SaveGates": options.save_gates,
        "LastState": options.last_state,
        "LastCell": options.last_cell,
        "EveryCell": options.every_cell,
        "WantLeft": options.want_left,
        "SumBias": options.sum_bias,
        "SumPeephole": options.sum_peephole,
        "SumBias2": options.sum_bias2,
        "Debug": debug,
    }
    arrays = [
        f"constexpr int k{name}[] = {{{', '.join(map(str, values))}}};"
        for name, values in by_phase.items()
    ]
    kinds = ", ".join(map(str, options.activations))
    activations = f"using Activations = zstate::FixedActivations<{kinds}>;"
    instructions = [wgmma(placement.rows, scan.type)] if placement.mode == WIDE else []
    return _written(integers, switches) + "\n".join([*arrays, activations, *instructions, ""])


def product_constants(kind: str) -> str:
    """The text in front of the products'; of ``SPLIT``, TF32 multiplies both halves of a number."""
    # Their rows are whole pieces of 16 bytes, so that pairs of numbers are whole words.
    integers = {"Hidden": 2, "ItemUnits": 2, "MostJobs": MOST_JOBS, "Shared": SHARED}
    integers["Type"] = _TYPES["tf32" if kind == SPLIT else kind]
    return _written(integers, {"Debug": False, "Split": kind == SPLIT})


def _written(integers: dict[str, int], switches: dict[str, bool]) -> str:
    lines = [f"constexpr int k{name} = {value};" for name, value in integers.items()]
    lines += [f"constexpr bool k{name} = {str(on).lower()};" for name, on in switches.items()]
    return "\n".join(lines) + "\n"
