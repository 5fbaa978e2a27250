"""Wrong calls on jax arrays, with and without jit: refused in one line that names what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zstate as zs
import zstate.jax as zj
from zstate.operations import OPERATIONS

X, R = np.full((4, 2, 12), 0.3), np.full((12, 3), 0.2)  # [T,N,4H], [4H,H]


def refuses(error: type[Exception], text: str, call: Callable[[Any], Any]) -> None:
    """The same refusal on arrays and on tracers."""
    for function in (call, jax.jit(call)):
        with pytest.raises(error) as found:
            function(jnp.asarray(X))
        assert str(found.value) == text


@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "gru"])
def test_none_for_a_required_tensor(cell: str) -> None:
    """What a forward operation without training does not save, above all."""
    gradients, fed_back = getattr(zj, f"{cell}_gradients"), cell != "single_gate_rnn"
    what = f"[{cell}_gradients] z_state: expected the training_state of the forward operation"
    advice = "; run the forward operation with training=True in its descriptor"
    rest = (None,) * fed_back
    refuses(
        zs.DTypeError,
        f"{what}, got None{advice}",
        lambda x: gradients(x, jnp.asarray(R), jnp.ones((4, 2, 3)), None, *rest),
    )
    for name, tensors in {"source": (None, R), "recurrent_weight": (X, None)}.items():
        refuses(
            zs.DTypeError,
            f"[{cell}] {name}: expected a jax or NumPy array, got None",
            lambda x, tensors=tensors: getattr(zj, cell)(*tensors),
        )
    with pytest.raises(zs.DTypeError, match=r"_gradients\] source: expected a jax .* got None"):
        gradients(None, R, X, X, *rest)


def test_what_jax_takes_for_an_array_is_one() -> None:
    """A parameter of flax.nnx, say."""

    class Parameter:
        def __init__(self, value: Any) -> None:
            self.value = value

        def __jax_array__(self) -> Any:
            return self.value

    def state(x: Any, recurrent: Any) -> Any:
        return zj.lstm(Parameter(x), Parameter(recurrent)).state

    np.testing.assert_array_equal(jax.jit(state)(X, R), zj.lstm(X, R).state)
    with pytest.raises(zs.DTypeError, match=r"\[lstm\] source: expected one of .* got int64"):
        state(X.astype(int), R)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.ma.masked_array(X, X > 9), "a jax or NumPy array, got numpy.ma.MaskedArray"),
        (X.astype(">f4"), "one of float16, bfloat16, float32, float64, got >f4"),
        (X.astype(int), "one of float16, bfloat16, float32, float64, got int64"),
    ],
)
def test_numpy_arrays_that_jax_has_none_for(value: Any, text: str) -> None:
    refuses(zs.DTypeError, f"[lstm] source: expected {text}", lambda x: zj.lstm(value, R))
    refuses(
        zs.DTypeError,
        f"[lstm_gradients] source: expected {text}",
        lambda x: zj.lstm_gradients(value, R, X, X, X),
    )
    refuses(
        zs.DTypeError,
        f"[lstm_gradients] source_gradient: expected {text}",
        lambda x: zj.lstm_gradients(x, R, value, X, X),
    )


@pytest.mark.parametrize("name", ["gpu", 3, ["native"]])
def test_a_backend_that_is_none(name: Any) -> None:
    known = "None or one of 'cuda', 'native', 'reference'"
    text = f"[lstm] backend: expected {known}, got {name!r}"
    refuses(zs.BackendError, text, lambda x: zj.lstm(x, R, backend=name))


@pytest.mark.parametrize(
    ("lengths", "got"), [([[1], [2, 3]], "list"), ([1, None], "object"), (["a", "b"], "str32")]
)
def test_lengths_that_are_no_numbers(lengths: Any, got: str) -> None:
    text = f"[lstm] lengths: expected integers, got {got}"
    refuses(zs.DTypeError, text, lambda x: zj.lstm(x, R, lengths=lengths))


def test_a_list_of_lengths_may_hold_jax_arrays_and_tracers() -> None:
    wanted = zj.lstm(X, R, lengths=[3, 1]).state
    assert wanted[2, 0].all() and not wanted[3:, 0].any() and not wanted[1:, 1].any()
    np.testing.assert_array_equal(zj.lstm(X, R, lengths=[jnp.int8(3), 1]).state, wanted)
    found = jax.jit(lambda n: zj.lstm(X, R, lengths=[n, 1]).state)(3)
    np.testing.assert_array_equal(found, wanted)
    assert zj.lstm(X[:, :0], R, lengths=[]).state.shape == (4, 0, 3)


def test_last_states_of_something_else() -> None:
    result = zj.lstm(X, R)
    for states, directions, text in (
        (result, 1, "states: expected [T,N,H], got zstate.operations.LSTMResult"),
        (result.state[0], 1, "states: expected [T,N,H], got [2,3]"),
        (result.state, 2, "states: expected [T,N,2H], got [4,2,3]"),
        (result.state, 3, "directions: expected 1 or 2, got 3"),
    ):
        with pytest.raises(zs.ZStateError, match=f"^{re.escape(f'[last_states] {text}')}$"):
            zj.last_states(states, [1, 2], directions)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rnn", "; did you mean 'single_gate_rnn'?"),
        ("LSTM", "; did you mean 'lstm'?"),
        ("lstm_gradient", "; did you mean 'lstm_gradients'?"),
        ("LSTMDescriptor", ": zstate has LSTMDescriptor"),
        ("transformer", ""),
    ],
)
def test_names_that_are_looked_for(name: str, hint: str) -> None:
    text = f"zstate.jax has no attribute {name!r}{hint}"
    with pytest.raises(AttributeError, match=f"^{re.escape(text)}$"):
        getattr(zj, name)


@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "gru"])
def test_help_has_every_argument(cell: str) -> None:
    text = getattr(zj, cell).__doc__
    names = [*OPERATIONS[cell].inputs, "heads", "descriptor", "backend", "lengths"]
    assert re.findall(r"^        (\w+):", text, re.MULTILINE) == names
    assert "    Returns:\n" in text


def test_resets_of_jax_beside_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    source, weight = torch.ones(4, 2, 12), torch.ones(12, 3)
    with pytest.raises(
        zs.DTypeError, match=r"\[lstm\] resets: expected a torch tensor like source"
    ):
        zs.lstm(source, weight, resets=jnp.ones((4, 2)))  # type: ignore[arg-type]
