"""Fit the cost model that the CUDA backend uses to choose placements, for this machine's GPU.

    python benchmarks/fit_cost_model.py measure times.json
    python benchmarks/fit_cost_model.py fit times.json

``measure`` times scans alone, with several placements each, and needs a GPU and cuda-core. It
writes

    {"device": "NVIDIA H200",
     "chip": {"multiprocessors": 132, "shared_bytes": 232448, "capability": [9, 0]},
     "rows": [{"scan": {...}, "placement": {...}, "microseconds": 1.93}, ...]}

where ``scan`` and ``placement`` hold the fields of Scan and Placement in
zstate.backends.cuda.placement, and ``microseconds`` is the time of one step. ``fit`` finds the
costs, none below zero, that minimise the relative error over these rows, and writes them into
cost_model.json under the chip's compute capability.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zstate.backends.cuda import cost_model
from zstate.backends.cuda.cost_model import Costs, Group, Model
from zstate.backends.cuda.passes import Options, pass_of, training
from zstate.backends.cuda.phases import Form, Phase
from zstate.backends.cuda.placement import Chip, Placement, Scan
from zstate.backends.cuda.placements import placements
from zstate.cells import CELLS, GRU, layer_norm_gru, layer_norm_lstm
from zstate.descriptors import GRUDescriptor

Array = Any
FEWEST_ROWS = 40  # of a group: about two per cost


class Row(NamedTuple):
    """One measurement."""

    scan: Scan
    placement: Placement
    microseconds: float


# ---- fitting


def features(row: Row, chip: Chip, model: Model) -> tuple[Array, float]:
    """What multiplies each cost, and the part of the time that no cost multiplies.

    The model is linear in its costs: each is tried alone.
    """

    def time(costs: Costs) -> float:
        group = cost_model.group_of(row.scan, row.placement)
        only = model._replace(costs={group: costs})
        return cost_model.microseconds(row.scan, chip, row.placement, only)

    fixed = time(Costs())
    return np.array([time(Costs(**{name: 1.0})) - fixed for name in Costs._fields]), fixed


def nonnegative_least_squares(A: Array, b: Array) -> Array:
    """The x >= 0 with the least |Ax - b|, by Lawson and Hanson's active sets."""
    size = np.linalg.norm(A, axis=0)
    A = A / np.where(size > 0, size, 1)
    x, free = np.zeros(A.shape[1]), np.zeros(A.shape[1], bool)
    for _ in range(30 * A.shape[1]):
        descent = np.where(free | (size == 0), 0, A.T @ (b - A @ x))
        if descent.max() <= 1e-12 * np.linalg.norm(b):
            break
        free[descent.argmax()] = True
        while free.any():
            trial = np.zeros_like(x)
            trial[free] = np.linalg.lstsq(A[:, free], b, rcond=None)[0]
            if (trial[free] > 0).all():
                x = trial
                break
            below = free & (trial <= 0)
            x += np.min(x[below] / (x[below] - trial[below] + 1e-300)) * (trial - x)
            free &= x > 1e-15
            x[~free] = 0
    return x / np.where(size > 0, size, 1)


def fit(rows: list[Row], chip: Chip, model: Model) -> Model:
    """The costs of every group of placements with enough rows; ``model`` gives the rest."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault(cost_model.group_of(row.scan, row.placement), []).append(row)
    costs = dict(model.costs)
    for group, members in groups.items():
        if len(members) < FEWEST_ROWS:
            print(f"{group}: {len(members)} rows are too few")
            continue
        pairs = [features(row, chip, model) for row in members]
        time = np.array([row.microseconds for row in members])
        A, fixed = np.stack([each for each, _ in pairs]), np.array([each for _, each in pairs])
        x = nonnegative_least_squares(A / time[:, None], 1 - fixed / time)
        costs[group] = Costs(*(float(f"{value:.3g}") for value in x))
        error = np.abs((A @ x + fixed) / time - 1)
        print(f"{group}: {len(members)} rows, half of them within {np.median(error):.1%}")
    return model._replace(costs=costs)


def written(row: Row) -> dict[str, Any]:
    scan = {name: getattr(row.scan, name) for name in Scan.__dataclass_fields__}
    phases = [tuple(phase) for phase in row.scan.phases]
    scan["form"] = row.scan.form._asdict() | {"phases": phases}
    return {
        "scan": scan,
        "placement": row.placement._asdict(),
        "microseconds": row.microseconds,
    }


def read(entry: dict[str, Any]) -> Row:
    placement = dict(entry["placement"])
    for name in ("held", "stored", "split"):
        placement[name] = tuple(placement.get(name, ()))
    form = dict(entry["scan"]["form"])
    form["phases"] = tuple(
        Phase(tuple(map(tuple, gates)), tuple(variances)) for gates, variances in form["phases"]
    )
    scan = Scan(**{**entry["scan"], "form": Form(**form)})
    return Row(scan, Placement(**placement), entry["microseconds"])


def fit_file(times: Path, costs: Path) -> None:
    data = json.loads(times.read_text("utf-8"))
    chip = Chip(**{**data["chip"], "capability": tuple(data["chip"]["capability"])})
    fitted = fit([read(row) for row in data["rows"]], chip, cost_model.model_of(chip.capability))
    entries = json.loads(costs.read_text("utf-8")) if costs.exists() else {}
    capability = "{}.{}".format(*chip.capability)
    entries[capability] = cost_model.written(data["device"], fitted)
    costs.write_text(json.dumps(entries, indent=2) + "\n", "utf-8")


# ---- measuring

# Every cell in every form, forward and backward, and two that reduce rows.
NORMED = [layer_norm_lstm.definition, layer_norm_gru.definition]
PLAIN = [(cell, cell.descriptor()) for cell in (*CELLS, *NORMED)]
DESCRIPTORS = [*PLAIN, (GRU, GRUDescriptor(reset_after=True))]
FORMS = {
    pass_of(options).form: options
    for cell, descriptor in DESCRIPTORS
    for options in (training(cell, descriptor, backward) for backward in (False, True))
}


def scans(limit: int) -> Iterator[Scan]:
    """Every cell, direction of time and type, with the sizes in random order."""
    hidden = (32, 64, 77, 128, 200, 256, 512, 768, 1024, 1536, 2048)
    sizes = list(itertools.product(hidden, (1, 2, 5, 8, 16, 32, 64, 96, 128, 256, 512)))
    every = list(itertools.product(FORMS, ("bfloat16", "tf32", "float32"), sizes))
    random.Random(0).shuffle(every)
    for form, kind, (hidden, batch) in every[:limit]:
        yield Scan(form, kind, hidden, batch, 1)


def tried(scan: Scan, chip: Chip, count: int) -> list[Placement]:
    """The first half by the current model, the others at random."""
    every, rng = placements(scan, chip), random.Random(repr(scan))
    first, rest = every[: count // 2], every[count // 2 :]
    return first + rng.sample(rest, min(count - len(first), len(rest)))


def build(part: list[Scan], device: int, count: int) -> None:
    """Compile what will be measured, which takes most of the time."""
    from zstate.backends.cuda.launch import Kernel, chip_of, enter

    enter(device)
    for scan in part:
        for placement in tried(scan, chip_of(device), count):
            Kernel(scan, plain_options(scan), placement, device)


def measure(times: Path, asked: list[Scan], each: int) -> None:
    import torch

    from zstate.backends.cuda.launch import chip_of

    device = torch.cuda.current_device()
    chip, rows = chip_of(device), []
    workers = max(1, (os.cpu_count() or 1) - 1)
    spawned = multiprocessing.get_context("spawn")
    builders = [
        spawned.Process(target=build, args=(asked[k::workers], device, each))
        for k in range(workers)
    ]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    for scan in asked:
        for placement in tried(scan, chip, each):
            time = step_time(scan, placement, device)
            if time is not None:
                rows.append(Row(scan, placement, time))
        torch.cuda.empty_cache()
        print(f"{scan}: {len(rows)} rows", flush=True)
        data = {
            "device": torch.cuda.get_device_name(device),
            "chip": vars(chip),
            "rows": [written(row) for row in rows],
        }
        times.write_text(json.dumps(data) + "\n", "utf-8")


def step_time(scan: Scan, placement: Placement, device: Any) -> float | None:
    """Microseconds per step of the scan alone, or None if the driver rejects the placement.

    Two lengths are timed and subtracted, so that the launch does not count.
    """
    from zstate.backends.cuda.launch import Kernel, enter

    enter(device)
    kernel = Kernel(scan, plain_options(scan), placement, device)
    if not kernel.fits():
        return None
    step = scan.batch * scan.directions * scan.gates * scan.hidden
    long = max(24, min(320, 2**26 // step))
    return (run_time(kernel, long) - run_time(kernel, long // 4)) / (long - long // 4)


def plain_options(scan: Scan) -> Options:
    """A call that trains, without anything optional."""
    return FORMS[scan.form]


def run_time(kernel: Any, steps: int) -> float:
    """Microseconds of one launch of this many steps: the best of several."""
    import torch

    from zstate.backends.cuda.arguments import Arguments
    from zstate.backends.cuda.prepared import current_stream

    scan, placement, device = kernel.scan, kernel.placement, kernel.device
    dtype = {"bfloat16": torch.bfloat16}.get(scan.type, torch.float32)
    size = steps * scan.batch * scan.directions * scan.gates * scan.hidden
    found = pass_of(kernel.options)
    shapes = dict.fromkeys(("gates_x", "saved", "d_gates", *found.read, *found.written), size)
    shapes["weight"] = scan.directions * scan.gates * placement.padded**2
    width = scan.directions * scan.gates * scan.hidden
    for name in found.summed if scan.backward else ():
        shapes[name] = 2 * placement.tile_groups(scan.batch) * width  # some are in float32
    tensors = {
        name: torch.randn(count, device=device).mul_(0.1).to(dtype)
        for name, count in shapes.items()
    }
    arguments = Arguments(list(tensors), [])
    addresses = {name: arguments.address(name) for name in tensors}
    addresses["sum_stride"] = arguments.constant(width)
    fields = kernel.fields(arguments, steps, addresses)
    scratch = torch.empty(arguments.scratch_bytes or 1, dtype=torch.uint8, device=device)
    run = kernel.launched(arguments, steps, fields)
    numbers = [tensor.data_ptr() for tensor in tensors.values()]
    numbers += [scratch.data_ptr() + piece.begin for piece in arguments.pieces.values()]
    numbers += list(arguments.constants)
    stream = current_stream(device)
    best = float("inf")
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(numbers, stream)
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="time placements on this machine's GPU")
    measuring.add_argument("times", type=Path, help="the file to write")
    measuring.add_argument("--scans", type=int, default=300, help="number of scans")
    measuring.add_argument("--placements", type=int, default=12, help="placements per scan")
    fitting = commands.add_parser("fit", help="fit the costs to measured times")
    fitting.add_argument("times", type=Path, help="a file that `measure` wrote")
    here = Path(cost_model.__file__).with_name("cost_model.json")
    fitting.add_argument("--costs", type=Path, default=here, help="the file to write into")
    options = parser.parse_args()
    if options.command == "measure":
        from on_gpu import require_gpu

        require_gpu()
        measure(options.times, list(scans(options.scans)), options.placements)
    elif not options.times.is_file():
        parser.error(f"no file {str(options.times)!r}")
    else:
        fit_file(options.times, options.costs)


if __name__ == "__main__":
    main()
