"""The options of a call and its plan, as the constants that the kernel is compiled with."""

from __future__ import annotations

from typing import NamedTuple

from .plan import Plan, Problem
from .products import MOST_JOBS, SHARED

_CELLS = {"single_gate_rnn": 0, "lstm": 1, "gru": 2}
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


def constants(problem: Problem, options: Options, plan: Plan, debug: bool = False) -> str:
    """The text in front of the kernel's."""
    slots = (*options.slots, 0, 0, 0)
    activations = (*options.activations, 0, 0, 0, 0)
    integers = {
        "CELL": _CELLS[problem.cell],
        "TYPE": _TYPES[problem.type],
        "H": problem.hidden,
        "D": problem.directions,
        "MODE": plan.mode,
        "B": plan.blocks,
        "UH": plan.units,
        "HP": plan.padded,
        "RV": plan.rows,
        "MT": plan.tiles,
        "WK": plan.warps_k,
        "WN": plan.warps_n,
        "KR0": plan.held[0],
        "KR1": plan.held[1] if len(plan.held) > 1 else 0,
        "KS0": plan.stored[0],
        "KS1": plan.stored[1] if len(plan.stored) > 1 else 0,
        "CHUNK": plan.chunk,
        "SHARED": plan.shared,
        "RESIDENT": plan.resident,
        **{f"SLOT{k}": slots[k] for k in range(4)},
        **{f"ACT{k}": activations[k] for k in range(5)},
    }
    switches = {
        "BACKWARD": problem.backward,
        "RESET_AFTER": problem.reset_after,
        "REVERSE": options.reverse,
        "FLIP_Z": options.flip_z,
        "HAS_MASK": options.mask,
        "MASK_PAIRS": options.mask_pairs,
        "AS_IS": plan.holds_all(problem),
        "ONE_GROUP": problem.backward and plan.tile_groups(problem.batch) == 1,
        "HAS_PEEPHOLE": options.peephole,
        "HAS_BIAS2": options.bias2,
        "HAS_STATE": options.state,
        "HAS_CELL": options.cell,
        "SAVE_C": options.save_cell,
        "SAVE_Z": options.save_gates,
        "LAST_STATE": options.last_state,
        "LAST_CELL": options.last_cell,
        "EVERY_CELL": options.every_cell,
        "WANT_LEFT": options.want_left,
        "SUM_BIAS": options.sum_bias,
        "SUM_PEEPHOLE": options.sum_peephole,
        "SUM_BIAS2": options.sum_bias2,
        "DEBUG": debug,
    }
    # The preprocessor cannot see a constexpr, and only one of the two directions is included.
    return _written(integers, switches) + f"#define BACKWARD_TEXT {int(problem.backward)}\n"


def product_constants(kind: str) -> str:
    """The text in front of the products'."""
    # Their rows are whole pieces of 16 bytes, so that pairs of numbers are whole words.
    integers = {"TYPE": _TYPES[kind], "H": 2, "MOST_JOBS": MOST_JOBS, "SHARED": SHARED}
    return _written(integers, {"DEBUG": False})


def _written(integers: dict[str, int], switches: dict[str, bool]) -> str:
    lines = [f"constexpr int {name} = {value};" for name, value in integers.items()]
    lines += [f"constexpr bool {name} = {str(on).lower()};" for name, on in switches.items()]
    return "\n".join(lines) + "\n"
