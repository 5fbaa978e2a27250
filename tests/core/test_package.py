"""The package keeps its promises to whoever imports it: light, NumPy alone, typed, public names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zstate as zs


def fresh(code: str) -> str:
    """What a new interpreter prints for the code."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_import_pulls_in_no_framework() -> None:
    heavy = "torch", "jax", "onnx", "onnxruntime", "ml_dtypes", "rich", "matplotlib", "safetensors"
    seen = fresh("import sys, zstate; print(*sys.modules)").split()
    assert not set(heavy) & set(seen)


def test_import_adds_few_modules_to_numpy() -> None:
    # Time is no assertion on a noisy machine; what import executes is.
    seen = set(
        fresh(
            "import sys, numpy; a = set(sys.modules); import zstate; "
            "print(*sorted(set(sys.modules) - a))"
        ).split()
    )
    others = {name for name in seen if not name.startswith("zstate")}
    assert len(others) < 40, sorted(others)


def test_a_call_imports_nothing() -> None:
    """A child that is forked while another thread is inside an import would wait for ever."""
    code = """
import sys
import numpy as np
import zstate as zs
from zstate import verify

made = [(case[0], verify.make_inputs(case[0], 0)) for case in verify.CASES.values()]
x, R = np.ones((2, 1, 4), "f"), np.ones((4, 1), "f")
before = set(sys.modules)
zs.lstm(x, R)
for case, inputs in made:
    for backend in [each.name for each in zs.backends.available()]:
        verify.run_backward(case, inputs, verify.run_forward(case, inputs, backend), backend)
for wrong in ([1.0], x[0], x.astype("i4")):
    try:
        zs.lstm(wrong, R)
    except zs.ZStateError:
        pass
print(*sorted(set(sys.modules) - before))
"""
    assert fresh(code).split() == []


def test_public_names() -> None:
    for name in zs.__all__:
        assert hasattr(zs, name)
    for name in (
        "Activation",
        "Graph",
        "SingleGateRNNDescriptor",
        "LSTMDescriptor",
        "GRUDescriptor",
    ):
        assert name in zs.__all__
    for cell in ("single_gate_rnn", "lstm", "gru"):
        assert callable(getattr(zs, cell)) and callable(getattr(zs, f"{cell}_gradients"))


def test_the_package_is_typed() -> None:
    assert (Path(zs.__file__).parent / "py.typed").exists()


def test_module_can_be_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zstate", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"zstate {zs.__version__}"


def test_without_a_compiler_the_build_goes_on(tmp_path: Path) -> None:
    """The native module is optional: configuring finds no compiler, says so, and succeeds."""
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent))
    if cmake is None:
        pytest.skip("cmake is not in the environment")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cmake", "ninja"):
        (tools / name).symlink_to(Path(cmake).parent / name)
    done = subprocess.run(
        [cmake, "-G", "Ninja", "-S", str(Path(__file__).parents[2]), "-B", str(tmp_path / "b")],
        capture_output=True,
        text=True,
        env={"PATH": str(tools), "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "NO C++ COMPILER FOUND" in done.stderr
