"""The command line: `zstate check` finds a wrong backend, `zstate shapes` prints the right page,
a command is imported when it is asked for, and a refusal is one line on standard error."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zstate import backends, cli, verify
from zstate.backends import native, reference
from zstate.layout import Layout

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_check_passes_and_prints_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--backend", "reference", "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "--seed 3" in printed
    assert "12 passed, 0 failed" in printed
    if native.unavailable() is None:
        assert f"  instruction set: {native._native.isa()}\n" in printed
    for word in ("rnn", "lstm", "gru", "float64", "float32", "float16", "bfloat16", "differences"):
        assert word in printed


def spoil_the_reference(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Layout, Any], Any]
) -> None:
    """Let the reference backend give changed results."""
    right = reference.prepare

    def wrong(layout: Layout) -> Callable[[Any], Any]:
        run = right(layout)
        return lambda values: change(layout, run(values))

    monkeypatch.setattr(reference, "prepare", wrong)
    monkeypatch.setattr(backends, "PREPARED", {})


@pytest.mark.parametrize("spoil", [1e-3, float("nan")])
def test_check_fails_on_a_wrong_backend(
    spoil: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(layout: Layout, result: Any) -> Any:
        if layout.dtype != "float32" or layout.operation.is_gradient:
            return result
        return result._replace(state=result.state + np.float32(spoil))

    few = {cell: cases[:3] for cell, cases in verify.CASES.items()}
    monkeypatch.setattr("zstate.cli.check.CASES", few)
    spoil_the_reference(monkeypatch, change)
    assert cli.main(["check", "--backend", "reference", "--seed", "4"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "9 passed, 3 failed" in printed


def test_gradient_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(layout: Layout, result: Any) -> Any:
        if not layout.operation.is_gradient:
            return result
        return result._replace(source=result.source * (1 + 1e-5))

    case = verify.CASES["lstm"][1]
    assert verify.gradient_error(case, 1) < 1e-7
    spoil_the_reference(monkeypatch, change)
    assert verify.gradient_error(case, 1) > 1e-7


def test_gradient_check_fits_its_steps_to_the_loss() -> None:
    # A draw whose loss bends so sharply that differences of a fixed step were off by 6e-7.
    case = next(case for case in verify.CASES["lstm"] if case.title == "mask [T,1,1]")
    assert verify.gradient_error(case, 1360878590) < 1e-9


def test_shapes_of_a_bidirectional_lstm(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["-T", "10", "-N", "4", "-I", "8", "-H", "16"]
    assert cli.main(["shapes", "lstm", "--bidirectional", *sizes]) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines()]
    table = {row[1]: row[3] for row in rows if len(row) == 5}
    assert table["recurrent_weight"] == "[2,64,16]"
    assert table["input_weight"] == "[128,8]"
    assert table["peephole"] == "[2,64] or [128]"
    assert table["training_state"] == "[10,4,128]"
    assert table["cell_gradient"] == "[4,32] or [1,4,32] or [10,4,32]"
    order = [row[1] for row in rows if len(row) == 5 and row[4] == "the shape of its input"]
    assert order == [
        *("source", "recurrent_weight", "input_weight", "bias"),
        *("peephole", "init_state", "init_cell"),
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rnn", "--reverse"], "out[0] belongs to x[T-1]"),
        (["lstm", "--forget-gate-last"], "i, z, f, o"),
        (["gru", "--reset-gate-first"], "r, z, o"),
        (["gru", "--reset-after", "-H", "5"], "secondary_bias"),
        (["gru", "--pre-projected", "-H", "5"], "already projected"),
    ],
)
def test_shapes_options(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["shapes", *words]) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gru", "--produce-cell"], "[shapes] options: expected those of gru, got --produce-cell"),
        (["lstm", "-H", "0"], "[shapes] -H: expected at least 1, got 0"),
    ],
)
def test_shapes_refusals(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["shapes", *words]) == 2
    assert expected in capsys.readouterr().err


def test_a_bad_size_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["shapes", "lstm", "-T", "x"])
    assert "argument -T: expected an integer of at least 0, got 'x'" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_help_imports_no_command(word: str) -> None:
    code = f"""
import sys
from zstate import cli
before = set(sys.modules)
try:
    cli.main([{word!r}])
except SystemExit:
    pass
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    added = done.stdout.splitlines()[-1].split()
    assert not [name for name in added if name.startswith(("zstate", "rich", "numpy"))]


@pytest.mark.parametrize("command", cli._COMMANDS)
def test_every_command_has_a_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0
    assert f"usage: zstate {command}" in capsys.readouterr().out


def test_every_command_in_the_documentation_can_be_typed() -> None:
    """Those that stand in blocks of code, and mentions with options."""
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "benchmarks" / "README.md"]
    names, tried = "|".join(cli._COMMANDS), 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        found = re.findall(rf"^(?:.*-- )?zstate ((?:{names})\b.*)$", text, re.MULTILINE)
        found += re.findall(rf"`zstate ((?:{names}) [^`]*--[^`]*)`", text)
        for line in found:
            words = shlex.split(line.split("  #")[0])
            if words[1:2] and words[1].startswith("--") and words[0] in ("sample", "convert"):
                continue  # mentions an option, without the file
            tried += 1
            cli._parse(words)  # ends the process where it cannot be typed
    assert tried > 40


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (KeyboardInterrupt(), 130, ""),
        (ImportError("install me"), 2, "zstate: install me\n"),
        (FileNotFoundError(2, "No such file", "there"), 2, "zstate: there: No such file\n"),
    ],
)
def test_what_stops_a_command(
    raised: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(options: object) -> int:
        raise raised

    monkeypatch.setattr("zstate.cli.shapes.run", stop)
    assert cli.main(["shapes", "lstm"]) == status
    assert capsys.readouterr().err.startswith(message)


WITHOUT_RICH = """
import contextlib, io, sys
sys.modules["rich"] = None
from zstate.cli import _COMMANDS as COMMANDS, main

def status(words):
    try:
        return main(words)
    except SystemExit as stopped:
        return stopped.code

helps = [[name, "--help"] for name in COMMANDS]
check = ["check", "--backend", "reference", "--seed", "4"]
for words in (["--version"], ["--help"], *helps, check):
    if words == check:
        from zstate.cli import check as command
        command.CASES = {cell: cases[:1] for cell, cases in command.CASES.items()}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert status(words) == 0, words
    assert out.getvalue(), words
assert status(["shapes", "lstm"]) == status(["bench"]) == 2
"""


def test_without_rich() -> None:
    """In a process that cannot import it: most works, and what needs it says so."""
    command = [sys.executable, "-c", WITHOUT_RICH]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == 2 * "zstate: this command needs rich: pip install 'zstate[cli]'\n"


def test_check_through_jax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax")
    from zstate.jax import functions

    few = {"gru": verify.CASES["gru"][:1]}
    monkeypatch.setattr("zstate.cli.check.CASES", few)
    assert cli.main(["check", "--through", "jax", "--seed", "4"]) == 0
    assert "5 passed, 0 failed" in (printed := capsys.readouterr().out)  # differences, four types
    assert "  XLA handlers: " in printed and "jax         gru  float64 " in printed
    right = functions.run

    def wrong(*arguments: Any) -> Any:
        result = right(*arguments)
        return result._replace(**{result._fields[0]: result[0] * 1.001})

    monkeypatch.setattr(functions, "run", wrong)
    assert cli.main(["check", "--through", "jax", "--seed", "4"]) == 1
    assert "3 passed, 2 failed" in capsys.readouterr().out  # 16-bit types have wider bounds
    assert cli.main(["check", "--through", "jax", "--backend", "native"]) == 2
    assert "expected jax without --backend, got --backend native" in capsys.readouterr().err


def test_check_of_a_backend_that_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zstate.backends.native._REASON", "it is broken")
    assert cli.main(["check", "--backend", "native", "--seed", "4"]) == 1
    assert capsys.readouterr().out.endswith("native backend unavailable: it is broken\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has such a file")
def test_a_full_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "zstate", "shapes", "lstm"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "zstate: No space left on device\n")


def test_a_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert cli.main(["shapes", "lstm"]) == 0
    assert cli.main(["bench", "--only", "none"]) == 2
    sys.stdout.close()
    sys.stderr.close()


@pytest.mark.parametrize("command", ["check", "bench", "sample x"])
def test_a_negative_seed_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--seed=-1"])
    expected = "--seed: expected an integer of at least 0, got '-1'"
    assert expected in capsys.readouterr().err


def test_bench_through_the_modules(capsys: pytest.CaptureFixture[str]) -> None:
    row = ["--only", "gru 1x1x64", "--block", "0.01", "--rounds", "1"]
    assert cli.main(["bench", "--through", "torch", "--peers", "torch", *row]) == 0
    assert "GRU 1×1×64" in capsys.readouterr().out
