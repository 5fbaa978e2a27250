"""CONTRIBUTING's recipes work exactly as written: a copy of the source gets their changes, and
separate processes test there what the page says about them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zstate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def changes(title: str) -> list[tuple[str, str, str]]:
    """A section's changes: a file, the lines that it must contain once, and their replacement."""
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


def copied(where: Path) -> None:
    """A copy of the source, beside the engine's, with the engines as they were built."""
    shutil.copytree(ROOT / "src", where / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for library in Path(zstate.__file__).parent.glob("*.so"):
        shutil.copy(library, where / "src" / "zstate")
    (where / "csrc").symlink_to(ROOT / "csrc")


def follow(title: str, where: Path) -> set[str]:
    """Make a section's changes in a copy of the source; the files that were touched."""
    touched = set()
    for name, old, new in changes(title):
        path = where / name
        if not old:
            assert not path.exists(), f"{name} exists already"
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
    paths = os.pathsep.join(map(str, (where / "src", ROOT)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
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
from zstate import cli
from zstate.cells.mgu import MGU, MGUDescriptor
from zstate.operations import OPERATIONS

forward, backward = OPERATIONS["mgu"], OPERATIONS["mgu_gradients"]
assert forward.required == ("source", "recurrent_weight")
assert forward.optional == ("input_weight", "bias", "init_state", "mask", "resets")
assert "f = sigmoid(x_f + R_f h)" in str(MGU)
rng = np.random.default_rng(0)
T, N, I, H = 3, 2, 4, 3
for both in (False, True):
    D = 2 if both else 1
    trained = MGUDescriptor(training=True, bidirectional=both)
    x = rng.normal(size=(T, N, I))
    R = rng.normal(size=(2, 2 * H, H) if both else (2 * H, H)) / 2
    W, b = rng.normal(size=(D * 2 * H, I)) / 2, rng.normal(size=D * 2 * H)
    h0, mask = rng.normal(size=(N, D * H)), rng.random((T, N, D * H)) + 0.5
    inputs = (x, R, W, b, h0, mask)
    found = zs.mgu(x, R, input_weight=W, bias=b, init_state=h0, mask=mask, descriptor=trained)

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
    on_torch = functional.run(forward, (*given, None), trained, None)
    assert np.array_equal(on_torch.state.detach().numpy(), found.state)
    dy = rng.normal(size=found.state.shape)
    on_torch.state.backward(torch.from_numpy(dy))
    fed = (x, R, dy, found.training_state, found.state, None, W, b, h0, mask, None)
    gradients = functional.run(backward, fed, trained, None)
    for name, tensor in zip(forward.inputs[:5], given):
        assert np.allclose(getattr(gradients, name), tensor.grad.numpy(), rtol=1e-10), name

    def state(*tensors):
        plain = MGUDescriptor(bidirectional=both)
        return functional.run(forward, (*tensors, None), plain, None).state

    assert torch.autograd.gradcheck(state, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(state, given)

    # The graph, with its gradients.
    g = zs.Graph()
    tensors = dict(zip(forward.inputs, map(g.constant, inputs)))
    (h,) = g.mgu(**tensors, descriptor=MGUDescriptor(bidirectional=both))
    loss = g.reduction_sum(h * g.constant(dy), axes=[0, 1, 2])
    (dR,) = g.gradients(of=loss, with_respect_to=[tensors["recurrent_weight"]]).values()
    assert np.allclose(g.run(feeds={}, targets=[dR])[dR], gradients.recurrent_weight, rtol=1e-10)

assert cli.main(["shapes", "mgu"]) == 0
"""

# A second cell by the same recipe, with three states and its own parameter.
LEDGER_FILE = """
from __future__ import annotations

from dataclasses import dataclass

from ..descriptors import Descriptor
from .definition import HIDDEN, Cell, Parameter, state


@dataclass(frozen=True, eq=True, unsafe_hash=False)
class LedgerDescriptor(Descriptor):
    reverse: bool = False
    bidirectional: bool = False
    training: bool = False
    produce_states: bool = False
    __hash__ = Descriptor.__hash__


def _equations(at, h, memory, sums):
    x, R, function = at.x, at.R, h.book.operation
    a = function("sigmoid", x.a + R.a @ h)
    b = function("tanh", x.b + R.b @ (memory * a))
    rate = at.own["decay"] if "decay" in at.own else 0.5
    new = a * memory + (1 - a) * b
    total = sums * function("sigmoid", rate * h) + function("exp", -new * new)
    return function("tanh", new + total), new, total


LEDGER = Cell(
    "ledger",
    gates=("a", "b"),
    descriptor=LedgerDescriptor,
    equations=_equations,
    states=(HIDDEN, state("memory"), state("sums")),
    own=(Parameter("decay"),),
    keeps_states="produce_states",
)
"""

LEDGER = """
import jax
import torch
import zstate.jax
import zstate.torch
from jax.test_util import check_grads
from zstate.cells.ledger import LedgerDescriptor

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
T, N, I, H = 3, 2, 4, 3
names = "recurrent_weight input_weight bias init_state init_memory init_sums mask decay".split()
shapes = [(2 * H, H), (2 * H, I), (2 * H,), (N, H), (N, H), (N, H), (T, N, H), (H,)]
x, values = rng.normal(size=(T, N, I)), [rng.normal(size=shape) / 2 for shape in shapes]
trained, every = LedgerDescriptor(training=True), LedgerDescriptor(produce_states=True)

def run(x, R, *rest, descriptor=every):
    return zs.ledger(x, R, **dict(zip(names[1:], rest)), descriptor=descriptor)

# A loop of its own.
found = run(x, *values, descriptor=trained)
R, W, b, h, memory, sums, mask, decay = values
sigmoid = lambda a: 1 / (1 + np.exp(-a))
for t in range(T):
    x_a, x_b = np.split(x[t] @ W.T + b, 2, 1)
    a = sigmoid(x_a + (h * mask[t]) @ R[:H].T)
    new = a * memory + (1 - a) * np.tanh(x_b + (memory * a * mask[t]) @ R[H:].T)
    sums = sums * sigmoid(decay * h) + np.exp(-new * new)
    h, memory = np.tanh(new + sums), new
    for name, value in (("state", h), ("memory", memory), ("sums", sums)):
        assert np.allclose(getattr(found, name)[t], value, rtol=1e-12), name
assert run(x, *values, descriptor=LedgerDescriptor()).memory is None

# A loss on every state: torch, with second derivatives, and vmap.
tensors = [torch.from_numpy(value).requires_grad_() for value in (x, *values)]
states = lambda *inputs: run(*inputs)[:3]
assert torch.autograd.gradcheck(states, tensors, check_forward_ad=True)
assert torch.autograd.gradgradcheck(states, tensors)
starts = torch.stack([tensors[4], 2 * tensors[4]]).detach()
plain = [tensor.detach() for tensor in tensors]
batched = torch.func.vmap(lambda start: run(*plain[:4], start, *plain[5:]).memory)(starts)
alone = run(*plain[:4], starts[1], *plain[5:]).memory
assert torch.allclose(batched[1], alone, rtol=1e-12)

# JAX.
def loss(*inputs):
    found = run(*inputs)
    return (found.state**2).sum() + (found.memory * found.sums).sum()

arrays = [jax.numpy.asarray(value) for value in (x, *values)]
check_grads(jax.jit(loss), arrays, order=2, modes=["rev"])
gradients = jax.jit(jax.grad(loss, argnums=tuple(range(1, 9))))(*arrays)

# The graph: gradients, files.
g = zs.Graph()
source = g.placeholder(shape=(None, N, I), dtype="float64", name="x")
weights = {name: g.variable(value) for name, value in zip(names, values) if name != "mask"}
weights["mask"] = g.constant(values[6])
h, memory, sums = g.ledger(source, **weights, descriptor=every)
total = g.reduction_sum(g.square(h) + memory * sums, axes=[0, 1, 2])
wanted = [weights[name] for name in names if name != "mask"]
given = g.gradients(of=total, with_respect_to=wanted)
results = g.run(feeds={source: x}, targets=list(given.values()))
for name, gradient in zip(names, gradients):
    if name != "mask":
        assert np.allclose(results[given[weights[name]]], gradient, rtol=1e-9), name
g.save("ledger.safetensors")
again = zs.Graph.load("ledger.safetensors")
assert "ledger" in [node.op.name for node in again.nodes]
"""

# Every engine and exporter computes it, or refuses it by name.
EVERY_ENGINE = """
from tests.docs.every_engine import check

check("mgu")
check("ledger")
"""

FUNCTION = """
from zstate.cells.functions import FUNCTIONS
from zstate.cells.expressions import Book

x = Book().leaf("x", "z")
y = x.book.operation("cube", x)
assert y.op == "cube"
assert np.allclose(FUNCTIONS["cube"].apply(np, np.array([2.0, -3.0])), [8, -27])
(slope,) = FUNCTIONS["cube"].gradient(y.args, y, x.book.leaf("gradient", "h"))
assert slope.op == "multiply"
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
    raise AssertionError("the exponent of integers")
"""

BACKEND = """
import torch
import zstate.torch
from zstate import backends, verify

rng = np.random.default_rng(0)
x, R = rng.normal(size=(4, 2, 12)), rng.normal(size=(12, 3)) / 3
operation = zs.operations.LSTM_FORWARD
inputs = (x, R, *[None] * 7)
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


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with a cell, a function and an op by the recipes, and with a second cell
    that has three states and its own parameter."""
    where = tmp_path_factory.mktemp("copy")
    copied(where)
    assert len(follow("How to add a cell", where)) == 2
    assert len(follow("How to add a function to equations", where)) == 1
    assert len(follow("How to add an op to the graph", where)) == 2
    cells = where / "src" / "zstate" / "cells"
    (cells / "ledger.py").write_text(LEDGER_FILE, encoding="utf-8")
    text = (cells / "__init__.py").read_text(encoding="utf-8")
    text = text.replace("CELLS = (RNN,", "from .ledger import LEDGER\n\nCELLS = (LEDGER, RNN,")
    (cells / "__init__.py").write_text(text, encoding="utf-8")
    return where


def test_cells_a_function_and_an_op(copy: Path) -> None:
    """Both cells work everywhere that the page says."""
    attempt(copy, "\n".join((CELL, FUNCTION, OP, LEDGER, EVERY_ENGINE)))


def test_a_backend(copy: Path, tmp_path: Path) -> None:
    """It then serves every float64 call, so it gets a copy of the copy."""
    where = tmp_path / "with_a_backend"
    shutil.copytree(copy, where, symlinks=True)
    assert len(follow("How to add a backend", where)) == 2
    attempt(where, BACKEND)
