"""What zstate.torch refuses, by the name of the argument, and what it takes as torch.nn does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import zstate as zs
import zstate.torch as zt
from zstate import cells

from .modules import CELLS, LAYERS

I, H, N, T = 3, 4, 2, 5
X, X0 = torch.randn(T, N, I), torch.randn(N, I)


def state(*shape: int, **kind: Any) -> Tensor:
    return torch.randn(*shape, **kind)


def lstm(x: Any = X, hx: Any = None, lengths: Any = None) -> Any:
    return zt.LSTM(I, H)(x, hx, lengths)


def nested(jagged: bool) -> Tensor:
    parts = [torch.randn(3, I), torch.randn(2, I)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged if jagged else torch.strided)


meta: dict[str, Any] = {"device": "meta"}
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "NumPy input": (lambda: lstm(X.numpy()), "[LSTM] input: expected a torch tensor, got numpy"),
    "no input": (lambda: lstm(None), "[LSTM] input: expected a torch tensor, got None"),
    "a list": (lambda: zt.GRU(I, H)([1.0]), "[GRU] input: expected a torch tensor, got list"),
    "float64": (lambda: lstm(X.double()), "[LSTM] input: expected float32 like the weights, got f"),
    "integers": (lambda: lstm(X.long()), "[LSTM] input: expected float32 like the weights, g"),
    "float64 h": (
        lambda: zt.RNN(I, H)(X, state(1, N, H).double()),
        "[RNN] h_0: expected float32 like the weights, got float64",
    ),
    "float64 c": (
        lambda: lstm(X, (state(1, N, H), state(1, N, H).double())),
        "[LSTM] c_0: expected float32 like the weights, got float64",
    ),
    "NumPy h": (
        lambda: lstm(X, (state(1, N, H).numpy(), state(1, N, H))),
        "[LSTM] h_0: expected a torch tensor, got numpy.ndarray",
    ),
    "meta input": (lambda: lstm(X.to("meta")), "[LSTM] input: expected a tensor on cpu like the w"),
    "meta weights": (
        lambda: zt.GRU(I, H, device="meta")(X),
        "[GRU] input: expected a tensor on meta like the weights, got one on cpu",
    ),
    "meta states": (
        lambda: zt.GRU(I, H)(X, state(1, N, H, **meta)),
        "[GRU] h_0: expected a tensor on cpu like the weights, got one on meta",
    ),
    "meta lengths of a cell": (
        lambda: zt.LSTMCell(I, H)(X0.to("meta")),
        "[LSTMCell] input: expected a tensor on cpu like the weights, got one on meta",
    ),
    "meta weights of a cell": (
        lambda: zt.RNNCell(I, H, device="meta")(X0),
        "[RNNCell] input: expected a tensor on meta like the weights, got one on cpu",
    ),
    "h and c in one tensor": (
        lambda: lstm(X, state(2, 1, N, H)),
        "[LSTM] hx: expected two tensors (h_0, c_0), got torch.Tensor",
    ),
    "three states": (
        lambda: lstm(X, (state(1, N, H),) * 3),
        "[LSTM] hx: expected two tensors (h_0, c_0), got 3 of them",
    ),
    "one state": (
        lambda: lstm(X, [state(1, N, H)]),
        "[LSTM] hx: expected two tensors (h_0, c_0), got 1 of them",
    ),
    "two states of a GRU": (
        lambda: zt.GRU(I, H)(X, (state(1, N, H),) * 2),
        "[GRU] h_0: expected a torch tensor, got tuple",
    ),
    "h and c of a cell in one tensor": (
        lambda: zt.LSTMCell(I, H)(X0, state(2, N, H)),
        "[LSTMCell] hx: expected two tensors (h_0, c_0), got torch.Tensor",
    ),
    "three states of a cell": (
        lambda: zt.LSTMCell(I, H)(X0, (state(N, H),) * 3),
        "[LSTMCell] hx: expected two tensors (h_0, c_0), got 3 of them",
    ),
    "two states of a GRU cell": (
        lambda: zt.GRUCell(I, H)(X0, (state(N, H),) * 2),
        "[GRUCell] h_0: expected a torch tensor, got tuple",
    ),
    "another batch": (
        lambda: zt.GRUCell(I, H)(X0, state(N + 1, H)),
        "[GRUCell] h_0: expected [N,H] = [2,4], got [3,4]",
    ),
    "a batch of states for one sequence": (
        lambda: zt.RNNCell(I, H)(X0[0], state(N, H)),
        "[RNNCell] h_0: expected [H] = [4], got [2,4]",
    ),
    "features": (
        lambda: zt.GRUCell(I, H)(state(N, 5)),
        "[GRUCell] input: expected 3 features on the last axis, got 5",
    ),
    "float64 cell": (
        lambda: zt.RNNCell(I, H)(X0.double()),
        "[RNNCell] input: expected float32 like the weights, got float64",
    ),
    "NumPy cell": (lambda: zt.RNNCell(I, H)(X0.numpy()), "[RNNCell] input: expected a torch tenso"),
    "nested": (lambda: lstm(nested(False)), "[LSTM] input: expected a padded tensor"),
    "jagged": (lambda: lstm(nested(True)), "[LSTM] input: expected a padded tensor"),
    "nested, to a cell": (lambda: zt.GRUCell(I, H)(nested(True)), "[GRUCell] input: expected a pa"),
    "lengths that are no numbers": (
        lambda: lstm(X, None, ["a", "b"]),
        "[LSTM] lengths: expected integers, got list",
    ),
    "lengths that are bools": (
        lambda: lstm(X, None, [True, False]),
        "[LSTM] lengths: expected integers, got list",
    ),
    "lengths that are fractions": (
        lambda: lstm(X, None, np.array([1.0, 2.0])),
        "[LSTM] lengths: expected integers, got numpy.ndarray",
    ),
    "lengths beyond 64 bits": (
        lambda: lstm(X, None, [2**70, 1]),
        "[LSTM] lengths: expected integers of 64 bits, got larger ones",
    ),
    "too few lengths": (lambda: lstm(X, None, [5]), "[LSTM] lengths: expected [N] = [2], got [1]"),
    "too long": (lambda: lstm(X, None, [5, 6]), "[LSTM] lengths: expected 0 to T = 5, got 6"),
    "meta lengths": (
        lambda: lstm(X, None, torch.tensor([5, 2], **meta)),
        "[LSTM] lengths: expected a tensor with values, for an input on cpu, got one on meta",
    ),
    "sparse lengths": (
        lambda: lstm(X, None, torch.tensor([5, 2]).to_sparse()),
        "[LSTM] lengths: expected a strided tensor, got a sparse_coo one",
    ),
    "meta resets": (
        lambda: zt.GRU(I, H)(X, resets=torch.ones(T, N, **meta)),
        "[GRU] resets: expected a tensor with values, for an input on cpu, got one on meta",
    ),
    "meta resets of a packed batch": (
        lambda: zt.GRU(I, H)(
            pack_padded_sequence(X, torch.tensor([2, 5]), enforce_sorted=False),
            resets=torch.ones(T, N, **meta),
        ),
        "[GRU] resets: expected a tensor with values, for an input on cpu, got one on meta",
    ),
    "sparse resets": (
        lambda: zt.GRU(I, H)(X, resets=torch.ones(T, N).to_sparse()),
        "[GRU] resets: expected a strided tensor, got a sparse_coo one",
    ),
    "sparse state": (
        lambda: zt.GRU(I, H)(X, state(1, N, H).to_sparse()),
        "[GRU] h_0: expected a strided tensor, got a sparse_coo one",
    ),
    "sparse input": (
        lambda: zt.Recurrent(cells.slstm, I, H)(X.to_sparse()),
        "[Recurrent] input: expected a strided tensor, got a sparse_coo one",
    ),
    "fewer packed rows than steps": (
        lambda: lstm(PackedSequence(X.flatten(0, 1)[:6], torch.tensor([2, 2, 2, 1]))),
        "[LSTM] input.data: expected [7,I], as batch_sizes says, got [6,3]",
    ),
    "a packed batch that grows": (
        lambda: lstm(PackedSequence(X[:, 0], torch.tensor([2, 3]))),
        "[LSTM] input.batch_sizes: expected numbers from 1 that do not grow, got [2,3]",
    ),
    "a packed batch of nothing": (
        lambda: lstm(PackedSequence(X[:0, 0], torch.tensor([], dtype=torch.int64))),
        "[LSTM] input.batch_sizes: expected numbers from 1 that do not grow, got []",
    ),
    "an integer for a batch": (
        lambda: lstm(X, None, 5),
        "[LSTM] lengths: expected [N] = [2], got []",
    ),
}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("lengths", [[2, 5], [5, 2]])
def test_states_of_a_packed_batch(lengths: list[int], both: bool) -> None:
    """In any order of the sequences; of layers with a projection too."""
    packed = pack_padded_sequence(X, torch.tensor(lengths), enforce_sorted=False)
    rows = 1 + both
    for batch in (1, 5):
        message = rf"\[GRU\] h_0: expected \[D·L,N,4\] = \[{rows},2,4\], got \[{rows},{batch},4\]"
        with pytest.raises(zs.ShapeError, match=message):
            zt.GRU(I, H, bidirectional=both)(packed, torch.ones(rows, batch, H))
        layer = zt.LSTM(I, H, proj_size=2, bidirectional=both)
        with pytest.raises(zs.ShapeError, match=r"\[LSTM\] c_0: expected \[D·L,N,4\]"):
            layer(packed, (state(rows, 2, 2), state(rows, batch, H)))
    with pytest.raises(zs.ShapeError, match=r"\[GRU\] h_0: expected .*, got \[2,4\]"):
        zt.GRU(I, H)(packed, torch.ones(2, H))
    with pytest.raises(zs.DTypeError, match=r"\[GRU\] h_0: expected float32"):
        zt.GRU(I, H)(packed, state(1, 2, H).double())


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS.keys())
def test_the_message_names_the_argument(call: Any, message: str, grad: bool) -> None:
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(RuntimeError, match=re.escape(message)) as raised,
    ):
        call()
    assert isinstance(raised.value, zs.ZStateError)
    assert raised.value.__context__ is None or raised.value.__suppress_context__


def operation(**changed: Any) -> Any:
    return zs.lstm(**{"source": state(T, N, 4 * H), "recurrent_weight": state(4 * H, H), **changed})


FUNCTIONAL: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"recurrent_weight": state(4 * H, 5)}, "recurrent_weight: expected [4H,H]"),
    "type": ({"recurrent_weight": state(4 * H, H).double()}, "recurrent_weight: expected float32"),
    "meta resets": ({"resets": torch.ones(T, N, **meta)}, "resets: expected a tensor with values"),
    "sparse resets": (
        {"resets": torch.ones(T, N).to_sparse()},
        "resets: expected a strided tensor, got a sparse_coo one",
    ),
    "nested source": ({"source": nested(False)}, "source: expected a padded tensor"),
    "jagged source": ({"source": nested(True)}, "source: expected a padded tensor"),
    "nested weight": ({"recurrent_weight": nested(False)}, "recurrent_weight: expected a padded"),
    "meta source": (
        {"source": state(T, N, 4 * H, **meta)},
        "recurrent_weight: expected a tensor on",
    ),
    "NumPy weight of a meta source": (
        {
            "source": state(T, N, 4 * H, **meta),
            "recurrent_weight": np.ones((4 * H, H)),
            "bias": None,
        },
        "recurrent_weight: expected a torch tensor like source, got numpy.ndarray",
    ),
    "meta weight": (
        {"recurrent_weight": state(4 * H, H, **meta)},
        "recurrent_weight: expected a t",
    ),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("changed", "message"), FUNCTIONAL.values(), ids=FUNCTIONAL.keys())
def test_the_functions_do_so_too(changed: dict[str, Any], message: str, grad: bool) -> None:
    bias = state(4 * H).requires_grad_(grad)
    with pytest.raises(RuntimeError, match=re.escape(f"[lstm] {message}")) as raised:
        operation(**{"bias": bias, **changed})
    assert isinstance(raised.value, zs.ZStateError)
    assert raised.value.__context__ is None or raised.value.__suppress_context__


@pytest.mark.parametrize("text", ["activation=softmax", "wrong", "wrong=tanh"])
def test_an_operator_s_text_is_refused_by_name(text: str) -> None:
    arguments = (state(T, N, 4 * H), state(4 * H, H), *(None,) * 7)
    with pytest.raises(zs.ZStateError, match=re.escape(text.partition("=")[0])):
        torch.ops.zstate.lstm(*arguments, text, None)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ((10, 0), "hidden_size"),
        ((0, 5), "input_size"),
        ((10, -1), "hidden_size"),
        ((-1, 5), "input_size"),
        ((3, 4, 0), "num_layers"),
        ((3, 4, -1), "num_layers"),
    ],
)
def test_layers_without_units_or_layers(kind: str, sizes: tuple[int, ...], name: str) -> None:
    for package in (torch.nn, zt):
        with pytest.raises(ValueError, match=name):
            getattr(package, kind)(*sizes)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("hidden_size", 2.0),
        ("input_size", "a"),
        ("num_layers", 1.0),
        ("bias", 1),
    ],
)
def test_options_of_another_type(kind: str, option: str, value: Any) -> None:
    options = {"input_size": 3, "hidden_size": 4, option: value}
    with pytest.raises(TypeError):
        getattr(torch.nn, kind)(**options)
    with pytest.raises(TypeError, match=option) as raised:
        getattr(zt, kind)(**options)
    assert isinstance(raised.value, RuntimeError)


@pytest.mark.parametrize("value", [True, "a", 1.5, -0.1, None, [0.1], np.array([0.1, 0.2])])
@pytest.mark.parametrize("option", ["dropout", "recurrent_dropout"])
def test_dropout_that_is_no_probability(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{option}: expected a number from 0 to 1"):
        zt.LSTM(3, 4, 2, **{option: value})


@pytest.mark.parametrize("kind", ["GRU", "GRUCell"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2.5, "expected 3 activations (update_gate_activation, reset_gate_activation, "),
        (["tanh"], "expected 3 activations"),
        ([[1], "tanh", "tanh"], "expected one of none, relu, tanh, sigmoid, hard_sigmoid, got [1]"),
        ({"reset_gate_activation": [1]}, "expected one of none, relu"),
    ],
)
def test_activations_of_another_type(kind: str, value: Any, message: str) -> None:
    with pytest.raises(zs.OptionError, match=re.escape(f"[{kind}] activations: {message}")):
        getattr(zt, kind)(3, 4, activations=value)


def test_integers_of_numpy_are_sizes() -> None:
    layer = zt.LSTM(np.int64(3), np.int32(4), np.int64(2), proj_size=np.int64(2))
    assert layer(X)[0].shape == (T, N, 2)
    assert type(layer.hidden_size) is int


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("sizes", [(10, 0), (0, 5), (0, 0)])
@pytest.mark.parametrize("batched", [True, False])
def test_cells_without_inputs_or_units(kind: str, sizes: tuple[int, int], batched: bool) -> None:
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(*sizes)
    torch.manual_seed(0)
    ours = getattr(zt, kind)(*sizes)
    x = torch.randn(N, sizes[0]) if batched else torch.randn(sizes[0])
    h = torch.randn(*x.shape[:-1], sizes[1])
    hx = (h, torch.randn_like(h)) if kind == "LSTMCell" else h
    for states in (None, hx):
        wanted, found = theirs(x, states), ours(x, states)
        pairs = zip(wanted, found, strict=True) if kind == "LSTMCell" else [(wanted, found)]
        for one, other in pairs:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("sizes", [(10, -1), (-1, 5)])
def test_cells_of_negative_size(kind: str, sizes: tuple[int, int]) -> None:
    for package in (torch.nn, zt):
        with pytest.raises(RuntimeError, match="negative dimension"):
            getattr(package, kind)(*sizes)


def test_a_list_of_two_states_is_a_pair() -> None:
    torch.manual_seed(0)
    theirs, ours = torch.nn.LSTM(I, H), zt.LSTM(I, H)
    ours.load_state_dict(theirs.state_dict())
    hx = [torch.randn(1, N, H), torch.randn(1, N, H)]
    torch.testing.assert_close(ours(X, hx)[0], theirs(X, hx)[0])


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("lengths", [[5, 2], (5, 2), np.array([5, 2]), [np.int64(5), 2]])
def test_lengths_need_not_be_a_tensor(kind: str, lengths: Any) -> None:
    layer = getattr(zt, kind)(I, H, bidirectional=True)
    assert torch.equal(layer(X, None, lengths)[0], layer(X, None, torch.tensor([5, 2]))[0])


def test_the_length_of_one_sequence_may_be_a_number() -> None:
    layer = zt.GRU(I, H)
    assert torch.equal(layer(X[:, 0], None, 3)[0], layer(X[:, 0], None, torch.tensor(3))[0])


def test_autocast_takes_what_it_casts() -> None:
    layer = zt.LSTM(I, H)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(X.bfloat16())[0].dtype == torch.bfloat16
        with pytest.raises(TypeError, match=r"\[LSTM\] input: expected float32"):
            layer(X.double())
