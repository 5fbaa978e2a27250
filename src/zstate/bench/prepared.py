"""Prepared layers beside ONNX Runtime: the rows of the table, and streams of steps and chunks.

Beside int8 weights the peer is ONNX Runtime's dynamic int8 LSTM, as its quantize_dynamic makes it;
it has none for other cells. Beside float32 and bfloat16 it runs in float32; OpenVINO does so beside
float32.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..convert.layer import Layer
from ..prepared import Prepared, prepare
from ..prepared.parts import WEIGHTS
from ..types import Array
from ..verify import relative_error
from . import contenders
from .contenders import Maker, Results
from .report import OWN_FLOAT
from .rows import GATES, Data, Row, make_data
from .small_calls import Spread, spread
from .timing import Protocol

if TYPE_CHECKING:
    from rich.table import Table

# How far from float64 a contender may be: relative to the largest value.
BOUNDS = {"float32": 1e-4, "bfloat16": 2e-2, "int8": 0.1}
PEER = "onnxruntime"
_SIZES, _CHUNK = (64, 128, 256, 512, 1024), 10
STREAMS = [Row(cell, T, 1, H, "streaming") for cell in GATES for H in _SIZES for T in (1, _CHUNK)]
_CHECKED = 3  # chunks


def _packed(row: Row, data: Data, weights: str) -> Prepared:
    own = contenders.zstate_inputs(replace(row, states=False), data)
    tensors = {name: array for name, array in own.items() if name != "source"}
    return prepare(Layer(contenders.OPERATIONS[row.cell], row.descriptor, tensors), weights)


def _ours(weights: str) -> Maker:
    def make(row: Row, data: Data, training: bool, threads: int) -> Callable[[], Results]:
        model = _packed(row, data, weights)
        states = (data.h0, data.c0) if row.cell == "LSTM" else (data.h0,)
        return lambda: [model(data.x, states)[0]]

    return make


def _onnxruntime(weights: str) -> Maker:
    def make(row: Row, data: Data, training: bool, threads: int) -> Callable[[], Results] | None:
        found = _session(row, data, weights, threads)
        if found is None:
            return None
        session, states = found
        fed = {"x": data.x, **states}
        return lambda: [("onnx", session.run(["y"], fed)[0])]

    return make


def _session(
    row: Row, data: Data, weights: str, threads: int
) -> tuple[Any, dict[str, Array]] | None:
    """A session and its initial states; None for a cell that it has no small weights for."""
    if weights == "int8" and row.cell != "LSTM":
        return None
    model, states = contenders.onnx_model(row, data)
    if weights == "int8":
        model = _quantised(model)
    return contenders.onnx_session(model, threads), states


def _quantised(model: Any) -> Any:
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    # There is nothing to simplify in a model of one node: this says so, or every call warns.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "float32.onnx"), Path(folder, "int8.onnx")
        onnx.save(model, before)
        quantize_dynamic(before, after)
        return onnx.load(after)


def makers(weights: str, peers: list[str]) -> dict[str, Maker]:
    """zstate with these weights, the peers, and zstate in float32."""
    found = {"zstate": _ours(weights)}
    if PEER in peers:
        found[PEER] = _onnxruntime(weights)
    if weights == "float32":
        found |= {name: contenders.CONTENDERS[name] for name in peers if name != PEER}
    if weights != OWN_FLOAT:
        found[OWN_FLOAT] = _ours("float32")
    return found


# ---- streams ----


@dataclass
class Streamed:
    """A row whose T is that of a chunk: microseconds per step, by contender.

    Contenders are named "zstate int8" or "onnxruntime float32".
    """

    row: Row
    spreads: dict[str, Spread] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def ratio(self, weights: str) -> float | None:
        """The peer's median over zstate's with these weights."""
        pair = [self.spreads.get(f"{name} {weights}") for name in (PEER, "zstate")]
        return None if None in pair else pair[0].median / pair[1].median  # type: ignore[union-attr]


def _our_stream(row: Row, data: Data, weights: str) -> Callable[[Array], Array]:
    stream = _packed(row, data, weights).stream()
    return stream.run if row.T > 1 else stream.step


def _their_stream(
    row: Row, data: Data, weights: str, threads: int
) -> Callable[[Array], Array] | None:
    """A chunk, its last states handed on to the next."""
    first = replace(data, h0=data.h0 * 0, c0=data.c0 * 0)
    found = _session(row, first, weights, threads)
    if found is None:
        return None
    session, states = found

    def run(x: Array) -> Array:
        y, *last = session.run(None, {"x": x, **states})
        states.update(zip(states, last, strict=True))
        output: Array = y[:, 0]
        return output

    return run


def _streams(
    row: Row, data: Data, kinds: tuple[str, ...], peers: list[str], threads: int
) -> Iterator[tuple[str, str, Callable[[Array], Array]]]:
    """The names, the weights and the functions of one chunk; of one step zstate takes [N,I]."""
    for weights in kinds:
        yield "zstate", weights, _our_stream(row, data, weights)
        if PEER in peers and weights != "bfloat16":
            theirs = _their_stream(row, data, weights, threads)
            if theirs is not None:
                yield PEER, weights, theirs


def stream_row(
    row: Row, kinds: tuple[str, ...], peers: list[str], threads: int, protocol: Protocol, seed: int
) -> Streamed:
    """Check every contender over some chunks, then time those that are right."""
    whole = replace(row, T=_CHECKED * row.T, states=False)
    sequence = make_data(whole, seed)
    data = replace(sequence, x=np.ascontiguousarray(sequence.x[: row.T]))
    (wanted,) = contenders.oracle(whole, sequence, False)
    found, calls = Streamed(row), {}
    for name, weights, run in _streams(row, data, kinds, peers, threads):
        is_step = name == "zstate" and row.T == 1
        chunks = [x[0] if is_step else x for x in np.split(sequence.x, _CHECKED)]
        outputs = np.concatenate([run(x).reshape(row.T, 1, row.H) for x in chunks])
        title = f"{name} {weights}"
        found.errors[title] = relative_error(outputs, wanted)
        if found.errors[title] <= BOUNDS[weights]:
            calls[title] = _call(run, data.x[0] if is_step else data.x)
    found.spreads = _timed(calls, protocol, row.T)
    return found


def _call(run: Callable[[Array], Array], x: Array) -> Callable[[], Array]:
    return lambda: run(x)


def _timed(
    calls: Mapping[str, Callable[[], object]], protocol: Protocol, steps: int
) -> dict[str, Spread]:
    """Microseconds per step of each, in blocks that take turns."""
    blocks: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(protocol.rounds):
        for name, call in calls.items():
            time.sleep(protocol.pause)
            blocks[name].append(_block(call, protocol.block) / steps)
    return {name: spread(taken) for name, taken in blocks.items()}


def _block(call: Callable[[], object], length: float) -> Any:
    """Seconds of each call, over a block of about that length."""
    clock = time.perf_counter
    call()
    end = clock() + length
    taken: list[float] = []
    while not taken or clock() < end:
        start = clock()
        call()
        taken.append(clock() - start)
    return np.array(taken)


def table(measured: list[Streamed]) -> Table:
    """A line per row: median / 99th percentile of each contender, and the ratios to the peer."""
    from rich.table import Table

    title = "streams: µs per step, median / 99th percentile"
    made = Table(title=title, title_justify="left")
    made.add_column("T×N×H", no_wrap=True)
    names = list(dict.fromkeys(name for each in measured for name in each.spreads))
    ratios = [w for w in WEIGHTS if any(each.ratio(w) is not None for each in measured)]
    for name in (*names, *(f"× {PEER} {weights}" for weights in ratios)):
        made.add_column(name, justify="right")
    for each in measured:
        cells = [_shown(each.spreads.get(name)) for name in names]
        cells += ["" if (r := each.ratio(weights)) is None else f"{r:.2f}" for weights in ratios]
        made.add_row(each.row.title, *cells)
    return made


def _shown(found: Spread | None) -> str:
    return "" if found is None else f"{found.median:.2f} / {found.high:.2f}"


def as_rows(measured: list[Streamed]) -> list[dict[str, Any]]:
    """For a JSON file."""
    return [
        {
            "row": each.row.title,
            "us_per_step": {
                name: {"median": found.median, "p99": found.high}
                for name, found in each.spreads.items()
            },
            "error": each.errors,
        }
        for each in measured
    ]
