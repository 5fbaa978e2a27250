"""CONTRIBUTING's recipes work to the letter: each change is made in a copy of the source, and what
the page says of it is tried there, in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def changes(title: str) -> list[tuple[str, str, str]]:
    """A section's changes: a file, the lines that must stand in it once, and what replaces them."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    found = []
    for block in re.findall(r"^```diff\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^--- \S+\n", block, flags=re.MULTILINE)[1:]:
            head, _, body = part.partition("\n")
            for hunk in re.split(r"^@@\n", body, flags=re.MULTILINE):
                lines = hunk.splitlines()
                if lines:
                    old = "\n".join(line[1:] for line in lines if line[0] in " -")
                    new = "\n".join(line[1:] for line in lines if line[0] in " +")
                    found.append((head.removeprefix("+++ b/"), old, new))
    return found


def follow(title: str, where: Path) -> set[str]:
    """Make a section's changes in a copy of the source; the files that were touched."""
    shutil.copytree(ROOT / "src", where / "src", ignore=shutil.ignore_patterns("__pycache__"))
    touched = set()
    for name, old, new in changes(title):
        path = where / name
        if not old:
            assert not path.exists(), f"{name} is there already"
            path.write_text(new + "\n", encoding="utf-8")
        else:
            text = path.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{name}: {text.count(old)} times {old!r}"
            path.write_text(text.replace(old, new), encoding="utf-8")
        touched.add(name)
    assert touched
    return touched


def attempt(where: Path, code: str) -> None:
    """Run what must be true in the copy."""
    setup = "import numpy as np\nimport zstate as zs\nfrom zstate import functional\n"
    environment = {**os.environ, "PYTHONPATH": str(where / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", setup + code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=where,
        check=False,
    )
    assert done.returncode == 0, done.stderr


CELL = """
import torch
import zstate.torch
from zstate.cells.mgu import MGU, MGUDescriptor
from zstate.operations import OPERATIONS

forward, backward = OPERATIONS["mgu"], OPERATIONS["mgu_gradients"]
assert forward.required == ("source", "recurrent_weight")
assert forward.optional == ("input_weight", "bias", "init_state", "mask")
rng = np.random.default_rng(0)
T, N, H = 4, 3, 5
for both in (False, True):
    D = 2 if both else 1
    trained = MGUDescriptor(training=True, bidirectional=both)
    x = rng.normal(size=(T, N, 6))
    R = rng.normal(size=(2, 2 * H, H) if both else (2 * H, H)) / 2
    W, b = rng.normal(size=(D * 2 * H, 6)) / 2, rng.normal(size=D * 2 * H)
    h0, mask = rng.normal(size=(N, D * H)), rng.random((T, N, D * H)) + 0.5
    inputs = (x, R, W, b, h0, mask)
    found = functional.run(forward, inputs, trained, None)  # the default call

    # An independent loop.
    for d in range(D):
        h, order = h0[:, d * H : (d + 1) * H], range(T)[:: -1 if d else 1]
        weight = R[d] if both else R
        for t in order:
            a = x[t] @ W[d * 2 * H : (d + 1) * 2 * H].T + b[d * 2 * H : (d + 1) * 2 * H]
            m = mask[t, :, d * H : (d + 1) * H]
            f = 1 / (1 + np.exp(-(a[:, :H] + (h * m) @ weight[:H].T)))
            h = (1 - f) * h + f * np.tanh(a[:, H:] + (h * f * m) @ weight[H:].T)
            assert np.allclose(found.state[t, :, d * H : (d + 1) * H], h, rtol=1e-12)

    # Gradients, by torch on the same equations and by differences.
    given = [torch.from_numpy(a).requires_grad_() for a in inputs]
    on_torch = functional.run(forward, tuple(given), trained, None)
    assert np.array_equal(on_torch.state.detach().numpy(), found.state)
    dy = rng.normal(size=found.state.shape)
    on_torch.state.backward(torch.from_numpy(dy))
    fed = (x, R, dy, found.training_state, found.state, None, W, b, h0, mask)
    gradients = functional.run(backward, fed, trained, None)
    for name, tensor in zip(forward.inputs[:5], given):
        assert np.allclose(getattr(gradients, name), tensor.grad.numpy(), rtol=1e-10), name

    def state(*tensors):
        return functional.run(forward, tensors, MGUDescriptor(bidirectional=both), None).state

    assert torch.autograd.gradcheck(state, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(state, given)

    # The graph, with its gradients.
    g = zs.Graph()
    tensors = [g.constant(a) for a in inputs]
    (h,) = g._recurrent("mgu", tensors, MGUDescriptor(bidirectional=both), None)
    loss = g.reduction_sum(h * g.constant(dy), axes=[0, 1, 2])
    (dR,) = g.gradients(of=loss, with_respect_to=[tensors[1]]).values()
    assert np.allclose(g.run(feeds={}, targets=[dR])[dR], gradients.recurrent_weight, rtol=1e-10)

# The engines refuse it by name.
if "native" in [b.name for b in zs.backends.available()]:
    try:
        functional.run(forward, inputs, trained, "native")
    except zs.BackendError as error:
        assert "it has no cell 'mgu'; it has rnn, lstm, gru" in str(error)
    else:
        raise AssertionError("native serves a cell that it has not")
"""

ACTIVATION = """
import torch
import zstate.torch
from zstate import verify

softplus = zs.Activation.SOFTPLUS
rng = np.random.default_rng(0)
x, R = rng.normal(size=(4, 2, 12)), rng.normal(size=(12, 3)) / 3
chosen = zs.LSTMDescriptor(cell_gate_activation=softplus, activation=softplus)
state = zs.lstm(x, R, descriptor=chosen).state  # the default call
tensors = [torch.from_numpy(a).requires_grad_() for a in (x, R)]

def layer(*inputs):
    return zs.lstm(*inputs, descriptor=chosen).state

i, f, z, o = np.split(x[0], 4, 1)
c = 1 / (1 + np.exp(-i)) * np.log1p(np.exp(z))
assert np.allclose(state[0], np.log1p(np.exp(c)) / (1 + np.exp(-o)), rtol=1e-12)
assert np.array_equal(layer(*tensors).detach().numpy(), state)
assert torch.autograd.gradcheck(layer, tensors, check_forward_ad=True)
assert torch.autograd.gradgradcheck(layer, tensors)
g = zs.Graph()
(h,) = g.lstm(g.constant(x), recurrent_weight=g.constant(R), descriptor=chosen)
assert np.array_equal(g.run(feeds={}, targets=[h])[h], state)
for cases in verify.CASES.values():  # they go through all activations
    assert verify.gradient_error(cases[-1], 0) < 1e-7
if "native" in [b.name for b in zs.backends.available()]:
    try:
        zs.lstm(x, R, descriptor=chosen, backend="native")
    except zs.BackendError as error:
        assert "it has no activation 'softplus'; it has none, relu, tanh" in str(error)
    else:
        raise AssertionError("native serves an activation that it has not")
"""

OP = """
import torch

for library in (np.asarray, torch.from_numpy):
    value = library(np.linspace(-2, 2, 7))
    g = zs.Graph()
    x = g.placeholder(shape=(7,), dtype="float64", name="x")
    y = g.exponent_minus_one(x)
    dx = g.gradients(of=g.reduction_sum(y, axes=[0]), with_respect_to=[x])[x]
    ddx = g.gradients(of=g.reduction_sum(dx, axes=[0]), with_respect_to=[x])[x]
    found = g.run(feeds={x: value}, targets=[y, dx, ddx])
    assert type(found[y]) is type(value)
    for tensor, wanted in ((y, np.expm1), (dx, np.exp), (ddx, np.exp)):
        assert np.allclose(np.asarray(found[tensor]), wanted(np.asarray(value)), atol=1e-14)
g = zs.Graph()
try:
    g.exponent_minus_one(g.constant(np.arange(3)))
except zs.ZStateError as error:
    assert "[exponent_minus_one]" in str(error)
else:
    raise AssertionError("the exponent of whole numbers")
"""

BACKEND = """
import torch
import zstate.torch
from zstate import backends, verify

rng = np.random.default_rng(0)
x, R = rng.normal(size=(4, 2, 12)), rng.normal(size=(12, 3)) / 3
operation = zs.operations.LSTM_FORWARD
inputs = (x, R, *[None] * 6)
assert backends.prepare(operation, inputs, None, None).backend.name == "wide"
wanted = zs.lstm(x, R, backend="reference").state
assert np.array_equal(zs.lstm(x, R).state, wanted)
small = tuple(None if a is None else a.astype("float32") for a in inputs)
assert backends.prepare(operation, small, None, None).backend.name != "wide"
try:
    zs.lstm(*small[:2], backend="wide")
except zs.BackendError as error:
    assert "'wide' cannot serve this call: it computes in float64, not float32" in str(error)
else:
    raise AssertionError("wide serves float32")
for cases in verify.CASES.values():
    assert max(verify.worst_error(case, "wide", "float64", 0) for case in cases) < 1e-12
tensors = [torch.from_numpy(a).requires_grad_() for a in (x, R)]
back = zs.LSTMDescriptor(reverse=True)
layer = lambda *inputs: zs.lstm(*inputs, descriptor=back, backend="wide").state
turned = zs.lstm(x[::-1], R, backend="reference").state
assert np.array_equal(layer(*tensors).detach().numpy(), turned)
assert torch.autograd.gradcheck(layer, tensors) and torch.autograd.gradgradcheck(layer, tensors)
g = zs.Graph()
(h,) = g.lstm(g.constant(x), recurrent_weight=g.constant(R))
assert np.array_equal(g.run(feeds={}, targets=[h])[h], wanted)
"""


@pytest.mark.parametrize(
    ("title", "code", "files"),
    [
        ("How to add a cell", CELL, 2),
        ("How to add an activation", ACTIVATION, 2),
        ("How to add an op to the graph", OP, 2),
        ("How to add a backend", BACKEND, 2),
    ],
)
def test_recipe(title: str, code: str, files: int, tmp_path: Path) -> None:
    assert len(follow(title, tmp_path)) == files
    attempt(tmp_path, code)
