"""The benchmark times only what is right, takes its ratios from what it timed, and keeps it."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import zstate as zs
from zstate import cli
from zstate.bench import contenders, contest, report, timing
from zstate.bench.contenders import Case
from zstate.bench.contest import errors_of, oracle
from zstate.bench.rows import GATES, GPU_ROWS, ROWS, Row, choose, make_data
from zstate.bench.timing import Protocol, Timing, measure
from zstate.cli import bench

SMALL = [
    Row("LSTM", 3, 2, 5),
    Row("GRU", 3, 2, 5),
    Row("RNN", 3, 2, 5),
    Row("LSTM", 3, 2, 5, bidirectional=True),
    Row("GRU", 3, 2, 5, bidirectional=True),
]


def test_the_rows_of_the_issue_are_there() -> None:
    titles = {row.title for row in ROWS}
    for cell in GATES:
        assert {f"{cell} 64×1×64", f"{cell} 50×128×1024", f"{cell} 1×1×1024"} <= titles
    assert {"LSTM 256×8×1024 both ways", "GRU 187×32×1024", "RNN 50×16×1760"} <= titles
    assert len(titles) == len(ROWS)


def test_flops() -> None:
    row = Row("GRU", 10, 4, 8)
    assert row.flops(False) == 2 * 10 * 4 * 3 * 8 * 16
    assert row.flops(True) == 3 * row.flops(False)
    assert replace(row, bidirectional=True).flops(False) == 2 * row.flops(False)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.title)
def test_every_contender_computes_the_same(row: Row, training: bool) -> None:
    case, data = Case(row, training), make_data(row, 0)
    wanted = oracle(case, data)
    took_part = []
    for name in ["zstate", *contenders.chosen_peers(None, "cpu")]:
        call = contenders.CONTENDERS[name].make(case, data)
        if call is None:
            continue
        errors = errors_of(case, data, call, wanted)
        assert len(errors) == len(wanted) and max(errors) < 1e-5, name
        took_part.append(name)
    assert {"zstate", "torch"} <= set(took_part)


@pytest.mark.parametrize("row", [SMALL[0], SMALL[2], SMALL[4]], ids=lambda row: row.title)
def test_every_contender_on_jax_computes_the_same(row: Row) -> None:
    pytest.importorskip("jax")
    data = make_data(row, 0)
    assert "jax" in contenders.chosen_peers(None, "jax")
    for training in (False, True):
        case = Case(row, training, way="jax")
        wanted = oracle(case, data)
        for name in ("zstate", "jax"):
            call = contenders.CONTENDERS[name].make(case, data)
            assert call is not None
            errors = errors_of(case, data, call, wanted)
            assert len(errors) == len(wanted) and max(errors) < 1e-5, name


def test_jax_in_every_type_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    from zstate.bench import jax_layers

    assert jax_layers.gpu_unavailable() is not None or jax.devices("gpu")
    found = jax.devices("cpu")
    monkeypatch.setattr(jax_layers.jax, "devices", lambda kind=None: found)
    assert jax_layers.gpu_unavailable() is None
    row, short = replace(SMALL[2], T=40, states=False), Protocol(0.0, 0, 1)

    def measured(training: bool) -> report.Measured:
        case = Case(row, training, "bfloat16", "jax", "cuda")
        return contest.contest(case, ["zstate", "jax"], short, 0)

    for training in (False, True):
        each = measured(training)
        assert (each.type, each.training, each.row.T) == ("bfloat16", training, 40)
        assert set(each.timings) == {"zstate", "jax"}
    right = jax_layers.ours

    def wrong(row: Row, data: Any) -> Any:
        layer = right(row, data)
        return replace(layer, run=lambda *given: 1.1 * layer.run(*given))

    monkeypatch.setattr(jax_layers, "ours", wrong)
    for training in (False, True):
        each = measured(training)
        assert set(each.timings) == {"jax"} and each.errors["zstate"] > 0.09


@pytest.mark.parametrize("way", ["numpy", "torch"])
def test_torch_in_every_type_as_on_a_gpu(
    way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command, with tensors in memory, graphs that are calls, and a plain clock."""
    gpu = pytest.importorskip("zstate.bench.gpu")
    right, functional = contenders.tensors, contenders.functional

    def in_memory(case: Case, data: Any) -> Any:
        return right(replace(case, device="cpu"), data)

    def anywhere(name: str) -> Any:
        return lambda *given, backend, **named: getattr(functional, name)(*given, **named)

    names = ("lstm", "lstm_gradients", "gru", "gru_gradients")
    fake = SimpleNamespace(**{name: anywhere(name) for name in names})
    monkeypatch.setattr(contenders, "functional", fake)
    monkeypatch.setattr(contenders, "tensors", in_memory)
    monkeypatch.setattr(gpu, "graphed", lambda call: SimpleNamespace(replay=call))
    monkeypatch.setattr(gpu, "on_device", timing.apart)
    monkeypatch.setattr(gpu, "free", lambda: None)  # nothing on a GPU, and collecting takes long
    monkeypatch.setattr(bench.cuda, "unavailable", lambda: None)
    monkeypatch.setattr(contest, "_CHECKED_STEPS", 4)
    rows = [Row("LSTM", 6, 2, 8, states=False), Row("GRU", 6, 2, 8, states=False)]
    monkeypatch.setattr(bench, "GPU_ROWS", rows)
    words = ["--through", way, "--block", "0.001", "--rounds", "1"]
    assert cli.main(["bench", "--device", "cuda", *words]) == 0
    shown = capsys.readouterr().out
    for name in ("float32", "bfloat16", "float16"):
        for mode in ("inference", "training"):
            assert f"{name} {mode}: ms" in shown
            assert re.search(rf"{name} {mode}: .*geometric mean of 2 rows", shown)
    assert "torch graph" in shown and "wrong" not in shown
    case = Case(rows[0], True, "bfloat16", way, "cuda")
    found = contest.contest(case, ["zstate", "torch"], Protocol(0.0, 0, 1), 0)
    assert set(found.timings) == {"zstate", "zstate graph", "torch", "torch graph"}
    assert found.row == rows[0] and 1e-4 < found.errors["zstate"] < 2e-2


def test_bench_through_jax(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    row = ["--through", "jax", "--only", "rnn 1x1x64", "--block", "0.01", "--rounds", "1"]
    assert cli.main(["bench", *row]) == 0
    shown = capsys.readouterr().out
    assert len(re.findall(r"× best peer +zstate +jax +GFLOP/s", shown)) == 2
    assert cli.main(["bench", "--through", "jax", "--peers", "torch"]) == 2
    assert "some of jax, got 'torch'" in capsys.readouterr().err


def test_a_wrong_contender_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = contenders.CONTENDERS["torch"]

    def wrong(*arguments: Any) -> Any:
        call = right.make(*arguments)
        assert call is not None
        return lambda: [call()[0] + 0.01]

    monkeypatch.setitem(contenders.CONTENDERS, "torch", replace(right, make=wrong))
    options = ["--only", "rnn 1x1x64", "--mode", "inference", "--peers", "torch"]
    quick = ["--block", "0.01", "--rounds", "1", "--threads", "1"]
    assert cli.main(["bench", *options, *quick]) == 0
    shown = capsys.readouterr().out
    assert "RNN 1×1×64: float32 torch is wrong by" in shown and "best peer (geo" not in shown


def test_no_such_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--only", "lstm*,transformer"]) == 2
    assert "--only: expected the name of a row" in (err := capsys.readouterr().err)
    assert "got 'transformer'" in err


def test_blocks_alternate_and_the_best_median_counts() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in ("a", "b")}
    timings = measure(calls, Protocol(block=0.002, pause=0, rounds=2))
    changes = [name for k, name in enumerate(order) if k == 0 or order[k - 1] != name]
    assert changes == ["a", "b", "a", "b"]
    assert all(timing.seconds > 0 and timing.spread >= 0 for timing in timings.values())


def test_ratios_and_means() -> None:
    row = Row("RNN", 1, 1, 4)
    each = report.Measured(row, False, {"zstate": Timing(1e-3, 0), "torch": Timing(3e-3, 0)})
    each.timings["jax"] = Timing(2e-3, 0)
    assert each.best_peer == "jax"
    assert each.ratio == pytest.approx(2)
    assert report.Measured(row, False, {"zstate": Timing(1e-3, 0)}).ratio is None
    assert report.geometric_mean([1, 4]) == pytest.approx(2)
    assert np.isnan(report.geometric_mean([]))


def test_the_rows_of_the_gpu() -> None:
    titles = {row.title for row in GPU_ROWS}
    assert len(titles) == len(GPU_ROWS) == 30
    for cell in GATES:
        assert {f"{cell} 256×1×128", f"{cell} 1024×16×768", f"{cell} 256×32×2048"} <= titles
    assert not any(row.states for row in GPU_ROWS)


def test_without_a_gpu_the_benchmark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert cli.main(["bench", "--device", "cuda"]) == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err
    assert cli.main(["bench", "--device", "cuda", "--types", "int8"]) == 2
    assert "expected some of bfloat16, float32, float16, got 'int8'" in capsys.readouterr().err


def test_states_are_left_out_where_a_row_has_none() -> None:
    row = replace(SMALL[0], states=False)
    case, data = Case(row, True), make_data(row, 0)
    wanted = oracle(case, data)
    for name in ("zstate", "torch"):
        call = contenders.CONTENDERS[name].make(case, data)
        assert call is not None
        errors = errors_of(case, data, call, wanted)
        assert len(errors) == len(wanted) == 5  # h, and gradients of x, R, W and b
        assert max(errors) < 1e-5, name


def test_graphs_count_and_types_are_kept_apart() -> None:
    measured = []
    for kind, ours in (("float16", 2e-6), ("bfloat16", 1e-6)):
        times = {"zstate": 5e-6, "zstate graph": ours, "torch": 9e-6, "torch graph": 4e-6}
        timings = {name: Timing(seconds, 0) for name, seconds in times.items()}
        for training in (True, False):
            row = Row("LSTM", 2, 1, 4)
            measured.append(report.Measured(row, training, timings, {}, kind))
    assert [each.ratio for each in measured] == pytest.approx([2, 2, 4, 4])
    assert {each.best_peer for each in measured} == {"torch graph"}
    kinds = list(report.kinds(measured))
    modes = [
        f"{kind} {mode}" for mode in ("inference", "training") for kind in ("float16", "bfloat16")
    ]
    assert [name for name, _ in kinds] == modes
    assert all(len(shown) == 1 for _, shown in kinds)


def test_the_bound_of_an_error_on_a_gpu() -> None:
    assert contest.within(2e-3, 1e-3, 0.0)
    assert not contest.within(2.1e-3, 1e-3, 2e-3)
    assert contest.within(1e-3, 0.0, 1e-3)
    assert not contest.within(float("nan"), 1.0, 1.0)


def test_a_result_too_few_is_wrong() -> None:
    case, data = Case(SMALL[2], True), make_data(SMALL[2], 0)
    wanted = oracle(case, data)
    call = contenders.functions(case, data)
    assert max(errors_of(case, data, call, wanted)) < 1e-5
    assert np.isnan(errors_of(case, data, lambda: call()[:-1], wanted)).all()


@pytest.mark.parametrize(
    ("pattern", "titles"),
    [
        ("lstm 64x1x64", ["LSTM 64×1×64"]),
        ("LSTM 64×1×64", ["LSTM 64×1×64"]),
        (" gru 1x1x64 , rnn 1x1x64", ["GRU 1×1×64", "RNN 1×1×64"]),
        ("64x1x64", ["LSTM 64×1×64", "GRU 64×1×64", "RNN 64×1×64"]),
        ("*both ways", ["LSTM 256×8×1024 both ways"]),
        ("[lr]*x1760", ["RNN 50×16×1760"]),
        ("rnn *x333", ["RNN 30×48×333", "RNN 50×3×333"]),
    ],
)
def test_rows_by_what_can_be_typed(pattern: str, titles: list[str]) -> None:
    assert [row.title for row in choose(ROWS, pattern)] == titles


def test_a_row_is_taken_once_and_all_without_a_pattern() -> None:
    assert len(choose(ROWS, "gru*,gru 1x1x64")) == sum(row.cell == "GRU" for row in ROWS)
    assert choose(ROWS, None) == ROWS


def test_odd_sizes_are_in_the_table() -> None:
    odd = [row for row in ROWS if row.group == "odd"]
    for cell in GATES:
        sizes = {(row.N, row.H) for row in odd if row.cell == cell}
        assert sizes == {(12, 200), (5, 200), (48, 333), (3, 333)}
    assert len(ROWS) == 43 + len(odd)


def _fast(*_: object) -> None:
    raise AssertionError("something was measured")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "["], "--only: expected the name of a row, such as 'lstm 64x1x64'"),
        (["--only", ""], "--only: expected the name of a row"),
        (
            ["--peers", "foo"],
            "--peers: expected none, or some of torch, onnxruntime, openvino, jax, got 'f",
        ),
        (["--types", "float32"], "--types needs --device cuda"),
        (["--weights", "int8", "--types", "float32"], "--types needs --device cuda"),
        (["--steps", "3"], "--steps needs --train"),
        (["--weights", "int8", "--steps", "3"], "--steps needs --train"),
        (["--device", "cuda", "--threads", "2"], "--device cuda cannot be combined with --threads"),
        (["--rounds", "0"], "--rounds: expected an integer of at least 1, got '0'"),
        (["--threads", "0"], "--threads: expected an integer of at least 1, got '0'"),
        (["--block", "nan"], "--block: expected a number of at least 0, got 'nan'"),
        (["--json", "nowhere/x.json"], "--json: expected a file in a folder that exists, got no"),
    ],
)
def test_options_are_checked_before_anything_is_measured(
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "contest", _fast)
    with suppress(SystemExit):
        assert cli.main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gone", "words", "message"),
    [
        ("jax", ["--peers", "jax"], "--peers: jax is not installed: pip install jax"),
        ("onnx", ["--peers", "onnxruntime"], "onnxruntime is not installed: pip install onnx"),
        ("torch", ["--through", "torch"], "--through torch: torch is missing: pip install 'zst"),
        ("jax", ["--through", "jax"], "--through jax: jax is missing: pip install 'zstate[jax]'"),
    ],
)
def test_missing_packages_are_named_first(
    gone: str,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    right = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda n: None if n == gone else right(n))
    monkeypatch.setattr(bench, "contest", _fast)
    assert cli.main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_a_peer_it_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contenders, "missing", lambda name: [name] if name != "zstate" else [])
    quick = ["--block", "0.001", "--rounds", "1", "--mode", "inference"]
    assert cli.main(["bench", "--only", "rnn 1x1x64", *quick]) == 0
    printed = capsys.readouterr().out
    assert (
        "no peer is installed, so there are no ratios; to install one: pip install torch" in printed
    )


@pytest.mark.parametrize("width", [30, 50, 60, 80, 100, 160])
def test_the_ratio_is_never_cut(width: int) -> None:
    row = Row("LSTM", 256, 8, 1024, bidirectional=True)
    times = {"zstate": 12.3456, "torch": 1.23456, "onnxruntime": 2.0, "jax": 3.0}
    timings = {name: Timing(seconds, 0.123) for name, seconds in times.items()}
    out = io.StringIO()
    console = Console(file=out, width=width)
    each = report.Measured(row, False, timings)
    console.print(report.table("float32 inference", [each], width))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= max(width, 45) for line in lines)
    (line,) = [line for line in lines if "0.10" in line]
    assert width < 45 or "LSTM 256×8×1024 both ways" in line
    assert ("×" in line) and ("12,346" in line) == (width >= 60)
    assert ("jax" in out.getvalue()) == (width >= 100)
    assert ("GFLOP/s" in out.getvalue()) == (width >= 100)
    assert ("±" in out.getvalue()) == (width == 160)


def test_piped_output_has_all_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    quick = ["--block", "0.001", "--rounds", "1", "--peers", "torch,onnxruntime"]
    assert cli.main(["bench", "--only", "rnn 1x1x64", *quick]) == 0
    printed = capsys.readouterr().out
    assert "× best peer" in printed and "GFLOP/s" in printed and "±" in printed


def test_only_prints_the_rows_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    quick = ["--block", "0.001", "--rounds", "1", "--peers", "none", "--mode", "inference"]
    file = tmp_path / "rows.json"
    assert cli.main(["bench", "--only", "rnn 1x1x64", *quick, "--json", str(file)]) == 0
    assert re.findall(r"\d+×\d+×\d+", capsys.readouterr().out) == ["1×1×64"]
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["cell"], row["T"], row["H"], row["mode"]) == ("RNN", 1, 64, "inference")
    assert row["ms"]["zstate"] > 0 and row["error"]["zstate"] < 1e-5 and row["ratio"] is None


def test_a_part_of_a_title_has_whole_numbers() -> None:
    assert [row.title for row in choose(ROWS, "lstm 1x1x64")] == ["LSTM 1×1×64"]
    for row in choose(ROWS, "1x1x64, 64x1"):
        assert re.search(r"\b1×1×64\b|\b64×1\b", row.title)
    with pytest.raises(zs.OptionError, match="--only"):
        choose(ROWS, "1x1x1")


def test_training_is_timed_beside_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from zstate.bench import training
    from zstate.train import Settings

    small = Settings(cell="gru", hidden=8, embedding=4, window=8, batch=2, layers=2)
    monkeypatch.setattr(training, "MODELS", {"GRU small": small, "other": small})
    monkeypatch.setattr(training, "WAYS", {"torch eager": training.TorchSteps})
    assert cli.main(["bench", "--train", "--only", "gru*", "--steps", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop(0).startswith("threads: ")
    assert [line.removeprefix("float32   GRU small").split()[0] for line in lines] == [
        "zstate",
        "torch",
    ]
    ours, theirs = (float(line.split()[-2]) for line in lines)
    assert ours == pytest.approx(theirs, abs=2e-3) and ours > 3


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_both_sides_of_the_training_contest_are_the_same_training(
    cell: str, layers: int, tmp_path: Path
) -> None:
    """Weights, windows, carried states, rates, clipping and Adam with its epsilon: over 50 steps
    only rounding may differ. Gradients of 1e-6 make the epsilon count."""
    import torch

    from zstate.bench import training
    from zstate.train import Settings

    settings = Settings(
        cell=cell, layers=layers, hidden=48, embedding=16, window=32, batch=8,
        learning_rate=3e-3, clip=1e-3, total=50,
    )  # fmt: skip
    run = training.run_of(settings, None, tmp_path / "run")
    device = torch.device("cpu")
    sides = training.OurSteps(run), training.TorchSteps(run, device)
    fed = [training.batch_of(run, step, device) for step in range(50)]
    losses = np.array([[float(side(batch)) for side in sides] for batch in fed])
    assert losses[-1, 0] < 0.8 * losses[0, 0]
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=0, atol=2e-5)


def test_training_takes_as_many_steps_as_asked() -> None:
    from zstate.bench import training
    from zstate.train import Settings

    settings = Settings(hidden=4, embedding=2, window=4, batch=2, total=30)
    for steps in (1, 30, 31):
        taken: list[Any] = []

        def way(run: Any, place: Any, taken: list[Any] = taken) -> Any:
            return lambda batch: taken.append(batch) or 0.0

        found = training.contest(replace(settings, total=steps), "cpu", steps, {"other": way})
        assert len(taken) == steps and found.keys() == {"zstate", "other"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--types", "float32"], "--types needs --device cuda"),
        (["--through", "torch"], "--train cannot be combined with --through torch"),
        (["--mode", "training"], "--train cannot be combined with --mode training"),
        (["--peers", "torch"], "--train cannot be combined with --peers torch"),
        (["--block", "1"], "--train cannot be combined with --block 1"),
        (["--rounds", "3"], "--train cannot be combined with --rounds 3"),
        (["--seed", "1"], "--train cannot be combined with --seed 1"),
        (["--weights", "int8"], "--train cannot be combined with --weights int8"),
        (["--only", "x"], "--only"),
    ],
)
def test_training_of_what_is_not_there(
    option: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("zstate.bench.training.contest", _fast)
    assert cli.main(["bench", "--train", *option]) == 2
    assert message in capsys.readouterr().err
