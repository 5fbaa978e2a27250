"""The examples run, and the one in two languages is the same graph in both."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_learns_and_is_written_in_swift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["language_model.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "language_model.py"))  # it asserts that its loss halves
    assert capsys.readouterr().out.startswith("loss 3.")
    written = (tmp_path / "language_model.swift").read_text(encoding="utf-8")
    assert written == (EXAMPLES / "language_model.swift").read_text(encoding="utf-8"), (
        "run `python examples/language_model.py examples` and keep the Swift file"
    )
    assert (tmp_path / "language_model.safetensors").exists()


# Too heavy for the development dependencies: tested where somebody has installed them.
@pytest.mark.parametrize(
    ("packages", "command"),
    [
        (("lightning",), ["lightning_tagger.py", "--epochs=2", "--batches=10", "--hidden=16"]),
        (("transformers", "accelerate"), ["huggingface_classifier.py", "--lines=100"]),
    ],
    ids=["lightning", "huggingface"],
)
def test_examples_for_other_libraries(packages: tuple[str, ...], command: list[str]) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: too heavy for the dev extra")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"accuracy 0\.\d+ before, [01]\.\d+ after training", done.stdout)


def test_the_slstm_of_the_xlstm_package() -> None:
    """Results and gradients of its blocks; the script itself compares them."""
    if importlib.util.find_spec("xlstm") is None:
        pytest.skip("xlstm is not installed: too heavy for the dev extra")
    script = [str(EXAMPLES / "xlstm_blocks.py"), "--width=32", "--steps=7", "--batch=3"]
    done = subprocess.run([sys.executable, *script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"output differs by \d\S+, gradients by at most \d", done.stdout)


def load_example(name: str, *packages: str) -> dict[str, Any]:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return runpy.run_path(str(EXAMPLES / name))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_layer_for_flax_is_its_own(kind: str) -> None:
    """nnx.RNN with the same cell gives the same states and gradients."""
    example = load_example("flax_recall.py", "flax")
    import jax
    from flax import nnx

    rngs = nnx.Rngs(1)
    cell = {"lstm": nnx.OptimizedLSTMCell, "gru": nnx.GRUCell}[kind](5, 7, rngs=rngs)
    for dense in (cell.dense_i, cell.dense_h):
        if dense.bias is not None:  # it begins as zeros, which hide mistakes
            dense.bias.set_value(jax.random.normal(rngs.params(), dense.bias.shape))
    x = jax.random.normal(rngs.data(), (3, 6, 5))  # [N,T,I]
    weights = jax.random.normal(rngs.data(), (3, 6, 7))

    def loss(layer: Any, x: Any) -> Any:
        return (layer(x) * weights).sum()

    results = [
        nnx.value_and_grad(loss, argnums=(0, 1))(layer, x)
        for layer in (example["Recurrent"](cell), nnx.RNN(cell))
    ]
    for found, wanted in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_layer_for_equinox_is_its_own(kind: str) -> None:
    """A scan of the same cell gives the same states and gradients."""
    example = load_example("equinox_recall.py", "equinox", "optax")
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(1), 3)
    cell = {"lstm": eqx.nn.LSTMCell, "gru": eqx.nn.GRUCell}[kind](5, 7, key=keys[0])
    x, weights = jax.random.normal(keys[1], (6, 5)), jax.random.normal(keys[2], (6, 7))

    def scan(cell: Any, x: Any) -> Any:
        zero = jnp.zeros(7)

        def step(carry: Any, x: Any) -> Any:
            carry = cell(x, carry)
            return carry, carry[0] if kind == "lstm" else carry

        return jax.lax.scan(step, (zero, zero) if kind == "lstm" else zero, x)[1]

    def ours(cell: Any, x: Any) -> Any:
        return example["Recurrent"](cell)(x, jnp.int32(6))

    def result(run: Any) -> Any:
        loss = jax.value_and_grad(lambda cell, x: (run(cell, x) * weights).sum(), (0, 1))
        return jax.jit(loss)(cell, x)  # compiled whole, in a third of the time

    results = [result(run) for run in (ours, scan)]
    for found, wanted in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["flax", "equinox"])
def test_the_models_in_jax_learn(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load_example(f"{name}_recall.py", name, "optax")
    monkeypatch.setattr(sys, "argv", ["recall", "--steps=150", "--cell=gru"])
    example["main"]()
    found = re.fullmatch(r"accuracy (.+); by chance 0.12\n", capsys.readouterr().out)
    assert found is not None and float(found[1]) > 0.8
