"""mypy --strict accepts the examples of the README and of the graph page, and a typed script."""

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


def test_mypy_accepts_the_examples(tmp_path: Path) -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "graph.md"):
        text = ""
        for line, code in blocks(page, "python"):
            # Blank lines in front, so that an error shows the line of the page.
            text += "\n" * (line - text.count("\n")) + code
        (tmp_path / f"{page.stem.lower()}_page.py").write_text(text, encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    # One run for all, with a cache that stays: a second or two but for the first time.
    cache = ROOT / ".mypy_cache" / "examples"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}"]
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
