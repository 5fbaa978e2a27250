"""mypy --strict accepts the examples of the README and of the graph page, and a typed script. It
refuses arguments that an operation does not take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import zstate as zs
from tests.docs.test_pages import ROOT, blocks

SCRIPT = """
import numpy as np
import torch
import zstate as zs
from zstate.pyobjc import *

d = zs.LSTMDescriptor(training=True, activation="relu", cell_gate_activation=zs.Activation.NONE)
chosen: zs.Activation = d.activation
x, R = np.zeros((2, 1, 8)), np.zeros((8, 2))
h, c, z = zs.lstm(x, R, descriptor=d)
print(zs.lstm_gradients(x, R, h, z, c, descriptor=d).source.shape, chosen.name)
result = zs.lstm(torch.zeros(2, 1, 8), torch.zeros(8, 2))
result.state.sum().backward()

g = zs.Graph()
t = g.placeholder(shape=(None, 2), name="t")
u: zs.Tensor = t[0] + 2 ** abs(-t[:1, None]) * (t < 1.0)
n: int = len(t)

graph = MPSGraph.alloc().init()
descriptor = MPSGraphLSTMDescriptor.descriptor()
descriptor.setActivation_(MPSGraphRNNActivationRelu)
p = graph.placeholderWithShape_dataType_name_([1, 2], MPSDataTypeFloat32, None)
device = MPSGraphDevice.deviceWithMTLDevice_(MTLCreateSystemDefaultDevice())
"""

OPERATIONS = """
import numpy as np
import zstate as zs
import zstate.jax as zj

x, R = np.zeros((2, 1, 8)), np.zeros((8, 2))
d = zs.LSTMDescriptor(training=True)
result: zs.LSTMResult = zj.lstm(x, recurrent_weight=R, peephole=None, descriptor=d, lengths=[1])
found: zs.GRUGradients = zj.gru_gradients(x, R, x, x, x, state_gradient=None, backend="native")
zj.gru(x, R, secondary_bias=None, heads=1).state
zj.gru(x, R, peephole=None)  # type: ignore[call-arg]
zj.gru(x, R, descriptor=d)  # type: ignore[arg-type]
zj.gru_gradients(x, R, x, x, x, lengths=[1])  # type: ignore[call-arg]
zj.lstm(x, R, lengths=[1]).init_cell  # type: ignore[attr-defined]
zj.lstm(x)  # type: ignore[call-arg]
zs.lstm(x, R, lengths=[1])  # type: ignore[call-arg]
zs.lstm(x, R, None)  # type: ignore[call-arg]

g = zs.Graph()
t, W = g.constant(x), g.constant(R)
states: list[zs.Tensor] = g.lstm(t, recurrent_weight=W, init_cell=None, descriptor=d, name="a")
h, c, z = states
g.lstm_gradients(t, recurrent_weight=W, source_gradient=h, z_state=z, cell_output_fwd=c)
g.lstm_gradients(t, recurrent_weight=W, source_gradient=h, z_state=z)  # type: ignore[call-arg]
g.lstm(t, W)  # type: ignore[call-arg]
g.lstm(t, recurrent_weight=R)  # type: ignore[arg-type]
g.lstm(t, recurrent_weight=W, secondary_bias=t)  # type: ignore[call-arg]
g.gru(t, recurrent_weight=W, heads="2")  # type: ignore[arg-type]
g.single_gate_rnn(t, recurrent_weight=W, descriptor=d)  # type: ignore[arg-type]
"""
JAX = "[mypy-jax.*]\nfollow_imports = skip\nignore_missing_imports = True\n"


def test_mypy_accepts_the_examples(tmp_path: Path) -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "graph.md"):
        text = ""
        for line, code in blocks(page, "python"):
            # Blank lines in front, so that an error shows the line of the page.
            text += "\n" * (line - text.count("\n")) + code
        (tmp_path / f"{page.stem.lower()}_page.py").write_text(text, encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "operations.py").write_text(OPERATIONS, encoding="utf-8")
    settings = tmp_path / "settings.ini"
    settings.write_text(f"[mypy]\n{JAX}", encoding="utf-8")
    # One run for all, with a cache that stays: a second or two but for the first time.
    cache = ROOT / ".mypy_cache" / "examples"
    command = [sys.executable, "-m", "mypy", "--strict", f"--config-file={settings}"]
    command.append(f"--cache-dir={cache}")
    command.append("--allow-untyped-defs")  # a cell's equations need no types
    source = Path(zs.__file__).parents[1]
    # mypy finds an installed package by itself, and refuses to be told where it is.
    found = {} if source.name == "site-packages" else {"MYPYPATH": str(source)}
    done = subprocess.run(
        [*command, *sorted(map(str, tmp_path.glob("*.py")))],
        capture_output=True,
        text=True,
        env={**os.environ, **found},
    )
    assert done.returncode == 0, done.stdout + done.stderr
