"""What a framework cannot express, or zstate cannot, is refused by name, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.convert as zc
import zstate.torch as zt
from zstate.types import Array

from .common import ACT, H, random_layer, random_stack

_ALL = list(zc.FRAMEWORKS)


def _with(layer: zc.Layer, **tensors: Array) -> zc.Layer:
    return zc.Layer(layer.cell, layer.descriptor, {**layer.tensors, **tensors})


@pytest.mark.parametrize("target", _ALL)
def test_a_mask(target: str, rng: np.random.Generator) -> None:
    layer = _with(random_layer(rng, "lstm"), mask=np.ones((1, 1, H), np.float32))
    with pytest.raises(zs.OptionError, match="mask: expected no mask"):
        zc.save(layer, target=target)


@pytest.mark.parametrize("target", _ALL)
def test_no_input_weight(target: str, rng: np.random.Generator) -> None:
    layer = random_layer(rng, "lstm")
    only = zc.Layer(
        "lstm", layer.descriptor, {"recurrent_weight": layer.tensors["recurrent_weight"]}
    )
    with pytest.raises(zs.OptionError, match="input_weight.*already projected"):
        zc.save(only, target=target)


@pytest.mark.parametrize("target", [name for name in _ALL if name != "onnx"])
def test_an_initial_state(target: str, rng: np.random.Generator) -> None:
    layer = _with(random_layer(rng, "lstm"), init_cell=np.ones((2, H), np.float32))
    with pytest.raises(zs.OptionError, match="init_cell: expected no initial state"):
        zc.save(layer, target=target)


@pytest.mark.parametrize("target", _ALL)
def test_a_peephole(target: str, rng: np.random.Generator) -> None:
    layer = _with(random_layer(rng, "lstm"), peephole=np.ones(4 * H, np.float32))
    sees_new = target in ("onnx", "coreml", "tensorflow", "tensorflow1")
    message = "peephole_on_new_cell: expected True" if sees_new else "expected no peephole"
    with pytest.raises(zs.OptionError, match=message):
        zc.save(layer, target=target)


@pytest.mark.parametrize("target", _ALL)
def test_flip_z(target: str, rng: np.random.Generator) -> None:
    layer = random_layer(rng, "gru", flip_z=True)
    with pytest.raises(zs.OptionError, match="flip_z: expected flip_z=False"):
        zc.save(layer, target=target)


@pytest.mark.parametrize("target", _ALL)
def test_activations_by_gate(target: str, rng: np.random.Generator) -> None:
    layer = random_layer(rng, "lstm", forget_gate_activation=ACT.RELU)
    with pytest.raises(zs.OptionError, match="forget_gate_activation"):
        zc.save(layer, target=target)
    layer = random_layer(
        rng,
        "gru",
        reset_after=zc.FRAMEWORKS[target].reset_after[0],
        reset_gate_activation=ACT.TANH,
    )
    with pytest.raises(zs.OptionError, match="reset_gate_activation"):
        zc.save(layer, target=target)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("torch", "activation: expected one of tanh, relu.*got hard_sigmoid"),
        ("keras", "no such hard sigmoid in Keras 3.*slope is 1/6"),
        ("flax", "no such hard sigmoid in Flax.*slope is 1/6"),
        ("mlx", "no such hard sigmoid in MLX"),
    ],
)
def test_a_hard_sigmoid(target: str, message: str, rng: np.random.Generator) -> None:
    with pytest.raises(zs.OptionError, match=message):
        zc.save(random_layer(rng, "single_gate_rnn", activation=ACT.HARD_SIGMOID), target=target)


@pytest.mark.parametrize("target", ["torch", "flax", "mlx"])
def test_no_activation(target: str, rng: np.random.Generator) -> None:
    with pytest.raises(zs.OptionError, match="activation: expected one of .*got none"):
        zc.save(random_layer(rng, "single_gate_rnn", activation=ACT.NONE), target=target)


@pytest.mark.parametrize("target", ["coreml", "tensorflow1"])
def test_a_second_bias(target: str, rng: np.random.Generator) -> None:
    layer = random_layer(rng, "gru", reset_after=True)
    with pytest.raises(zs.OptionError, match="reset_after.*second bias"):
        zc.save(layer, target=target)


@pytest.mark.parametrize("target", ["torch", "flax", "mlx"])
def test_a_reset_before_the_product(target: str, rng: np.random.Generator) -> None:
    with pytest.raises(zs.OptionError, match="reset_after: expected reset_after=True"):
        zc.save(random_layer(rng, "gru"), target=target)


@pytest.mark.parametrize("target", ["torch", "onnx", "mlx", "coreml", "tensorflow1"])
def test_reverse(target: str, rng: np.random.Generator) -> None:
    with pytest.raises(zs.OptionError, match="reverse: expected no reverse layer"):
        zc.save(random_layer(rng, "lstm", reverse=True), target=target)


@pytest.mark.parametrize(
    ("target", "cell"), [("mlx", "lstm"), ("mlx", "gru"), ("coreml", "gru"), ("coreml", "lstm")]
)
def test_two_directions(target: str, cell: str, rng: np.random.Generator) -> None:
    options = {"reset_after": target == "mlx"} if cell == "gru" else {}
    layer = random_layer(rng, cell, bidirectional=True, **options)
    if (target, cell) == ("coreml", "lstm"):
        assert "weight_hh_back" in zc.save(layer, target=target)
        return
    with pytest.raises(
        zs.OptionError, match="expected one direction of (lstm|gru) for (MLX|Core ML), got two"
    ):
        zc.save(layer, target=target)


def test_a_stack_that_is_no_module_of_torch(rng: np.random.Generator) -> None:
    stacks = [
        [random_layer(rng, "lstm"), random_layer(rng, "lstm", inputs=H, hidden=2)],
        [random_layer(rng, "lstm"), random_layer(rng, "lstm", inputs=H, bias=False)],
        [random_layer(rng, "lstm"), random_layer(rng, "lstm", inputs=2)],
        [random_layer(rng, "lstm"), random_layer(rng, "gru", inputs=H, reset_after=True)],
        [random_layer(rng, "lstm"), random_layer(rng, "lstm", inputs=H, bidirectional=True)],
        random_stack(rng, "single_gate_rnn", 1, activation=ACT.TANH)
        + random_stack(rng, "single_gate_rnn", 1, activation=ACT.RELU),
    ]
    for stack in stacks:
        with pytest.raises(zs.OptionError, match="layer 1: expected layers of one module"):
            zc.save(stack, target="torch")
    with pytest.raises(zs.OptionError, match="at least one layer"):
        zc.save([], target="torch")


_KERNEL = np.ones((8, 2))
_KERNELS = {"weight_ih_l0": np.ones((8, 3)), "weight_hh_l0": np.ones((8, 2))}


@pytest.mark.parametrize(
    ("weights", "arguments", "message"),
    [
        (_KERNELS, {"source": "caffe"}, "source: expected one of torch"),
        (_KERNELS, {"cell": "lsmt"}, "cell: expected 'single_gate_rnn'"),
        (_KERNELS, {"cell": "gru"}, "cell: expected gru in the layer, got lstm"),
        (
            _KERNELS,
            {"nonlinearity": "relu"},
            "facts: expected those of PyTorch for lstm: bias, proj_size, got nonlinearity",
        ),
        (_KERNELS, {"bias": True}, "bias=True: the arrays have no bias"),
        (_KERNELS, {"proj_size": 2}, "proj_size=2: zstate has no projection"),
        ({**_KERNELS, "weight_hr_l0": np.ones((1, 2))}, {}, "no projection of the state"),
        ({**_KERNELS, "linear.weight": np.ones(2)}, {}, "got 'linear.weight'"),
        ({**_KERNELS, "bias_ih_l0": np.ones(8)}, {}, "bias_hh: expected an array"),
        ({**_KERNELS, "bias_hh_l0": np.ones(8)}, {}, "bias_ih: expected an array"),
        ({**_KERNELS, "weight_hh_l0_reverse": np.ones((8, 2))}, {}, "same arrays in both"),
        ({"weight_ih_l0": np.ones((8, 3))}, {}, "cell: cannot tell the cell of the layer"),
        ({"weight_ih_l0": np.ones((7, 3)), "weight_hh_l0": np.ones((8, 2))}, {}, "4 blocks of H"),
        ({}, {}, "weights: expected arrays of PyTorch"),
        ({"weight_ih_l0": np.ones((8, 3), int), "weight_hh_l0": np.ones((8, 2))}, {}, "int64"),
        ({"weight_ih_l0": "x", "weight_hh_l0": np.ones((8, 2))}, {}, "weight_ih_l0: expected"),
        (3, {}, "weights: expected a mapping of names to arrays.*got int"),
        ({"weight_ih_l0_reverse": np.ones((8, 3))}, {}, "cell: cannot tell the cell of"),
        (
            {**_KERNELS, "weight_ih_l0_reverse": np.ones((8, 4)), "weight_hh_l0_reverse": _KERNEL},
            {},
            r"input: expected \[8,3\] in both directions",
        ),
    ],
)
def test_what_load_refuses(weights: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        zc.load(weights, **{"source": "torch", **arguments})


_RESET_AFTER = {"Wh": np.ones((6, 2)), "b": np.ones(6)}
_KERAS = {"kernel": np.ones((3, 8)), "recurrent_kernel": np.ones((2, 8))}
_GATES = {
    **{f"i{gate}/kernel": np.ones((3, 2)) for gate in "ifgo"},
    **{f"h{gate}/kernel": np.ones((2, 2)) for gate in "ifgo"},
}


@pytest.mark.parametrize(
    ("weights", "arguments", "message"),
    [
        # Their sum fits, the gates do not.
        (
            _GATES | {"ii/kernel": np.ones((3, 1)), "if/kernel": np.ones((3, 3))},
            {"source": "flax"},
            "ii/kernel: expected 2 axes that fit the other gates'",
        ),
        (_GATES | {"ii/kernel": np.ones(())}, {"source": "flax"}, "ii/kernel: expected 2 axes"),
        (
            {"W": np.ones((1, 8, 3)), "R": np.ones((1, 8, 2))},
            {"source": "onnx", "layout": "x"},
            "layout: expected a number, got 'x'",
        ),
        (
            {"W": np.ones((1, 8, 3)), "R": np.ones((1, 8, 2))},
            {"source": "onnx", "activations": 3},
            "activations: expected a list, got 3",
        ),
        (
            {"W": np.ones((1, 8, 3)), "R": np.ones((1, 8, 2))},
            {"source": "onnx", "activation_alpha": ["x"]},
            "activation_alpha: expected a number",
        ),
        (
            {"kernel": np.ones((5, 8)), "bias": np.ones(8)},
            {"source": "tensorflow1", "cell": "lstm", "forget_bias": "x"},
            "forget_bias: expected a number",
        ),
        (
            {"W": np.ones((1, 8, 3)), "R": np.ones((1, 8, 2))},
            {"source": "onnx", "layout": 2},
            "layout: expected 0 or 1, got 2",
        ),
        (
            {"W": np.ones((1, 8, 3)), "R": np.ones((1, 8, 2)), "initial_h": np.ones(2)},
            {"source": "onnx", "layout": 1},
            "initial_h: expected 3 axes",
        ),
        (
            {"W": np.ones((1, 8, 3)), "R": np.ones((1, 8, 2))},
            {"source": "onnx", "clip": np.ones(2)},
            "clip=.*zstate does not clip",
        ),
        (
            {"W": np.ones((1, 8, 3)), "R": np.ones((1, 8, 2))},
            {"source": "onnx", "hidden_size": np.ones(2)},
            "hidden_size: expected a number",
        ),
        # A second bias of the other kind: [H] inside the reset, or one for all gates.
        (
            _RESET_AFTER | {"Wx": np.ones((6, 3)), "bhn": np.ones(6)},
            {"source": "mlx"},
            r"second bias: expected \[H\] = \[2\], got \[6\]",
        ),
        (
            {
                "weight_ih": np.ones((6, 3)),
                "weight_hh": np.ones((6, 2)),
                "bias_ih": np.ones(6),
                "bias_hh": np.ones(2),
            },
            {"source": "torch"},
            "second bias: expected 3 blocks of H = 2",
        ),
        (
            {
                f"{mark}_layer/{name}": array
                for mark in ("forward", "backward")
                for name, array in _KERAS.items()
            },
            {"source": "keras", "go_backwards": True},
            "go_backwards: expected False for a layer with two directions",
        ),
    ],
)
def test_odd_arrays_and_facts(
    weights: dict[str, Array], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        zc.load(weights, **arguments)


def test_arguments_of_other_types() -> None:
    layer = zc.load(_KERNELS, source="torch")
    for wrong in (["torch"], np.ones(2), None):
        with pytest.raises(zs.OptionError, match="source: expected one of torch"):
            zc.load(_KERNELS, source=wrong)  # type: ignore[arg-type]
        with pytest.raises(zs.OptionError, match="target: expected one of torch"):
            zc.save(layer, target=wrong)  # type: ignore[arg-type]
    with pytest.raises(zs.OptionError, match="cell: expected 'single_gate_rnn'"):
        zc.load(_KERNELS, source="torch", cell=np.array(["rnn", "gru"]))  # type: ignore[arg-type]
    for odd in (None, 3, _KERNELS, [layer, 3]):
        with pytest.raises(
            zs.DTypeError, match="save. layer: expected a zstate.convert.Layer, got"
        ):
            zc.save(odd, target="torch")  # type: ignore[arg-type]
        with pytest.raises(zs.DTypeError, match="facts. layer: expected a zstate.convert.Layer"):
            zc.facts(odd, target="torch")  # type: ignore[arg-type]


@pytest.mark.parametrize("fact", ["reset_after", "go_backwards", "use_bias"])
def test_a_word_is_no_truth(fact: str) -> None:
    """`--fact go_backwards=no` comes as text, which Python would take for True."""
    arrays = {"kernel": np.ones((3, 6)), "recurrent_kernel": np.ones((2, 6))}
    with pytest.raises(zs.ZStateError, match=f"{fact}: expected True or False, got"):
        zc.load(arrays, source="keras", **{"reset_after": 1, fact: "no"})


def test_a_function_of_ones_own_is_not_taken_by_its_name() -> None:
    def relu(x: Array) -> Array:
        return np.maximum(x, 0.1 * x)

    arrays = {"i/kernel": np.ones((3, 2)), "h/kernel": np.ones((2, 2)), "i/bias": np.ones(2)}
    with pytest.raises(zs.OptionError, match=f"activation_fn: .*, got '{__name__}.relu'"):
        zc.load(arrays, source="flax", activation_fn=relu)
    zc.load(arrays, source="flax", activation_fn=torch.nn.functional.relu)


def test_two_types_in_one_layer_are_refused() -> None:
    mixed = _KERNELS | {"weight_hh_l0": np.ones((8, 2), np.float32)}
    with pytest.raises(zs.DTypeError, match="one float type in a layer, got float32, float64"):
        zc.load(mixed, source="torch")
    biases = {"bias_ih_l0": np.ones(8), "bias_hh_l0": np.ones(8, np.float32)}
    with pytest.raises(zs.DTypeError, match="one float type in a layer, got float32, float64"):
        zc.load(_KERNELS | biases, source="torch")


def test_a_name_twice_is_refused() -> None:
    weights = {"kernel": np.ones((3, 8)), "recurrent_kernel": np.ones((2, 8))}
    twice = {**weights, "bias": np.ones(8), "bias:0": np.ones(8)}
    with pytest.raises(zs.OptionError, match="bias:0: duplicate bias of one layer"):
        zc.load(twice, source="keras")
    nested = {"a": _KERNELS, "a.weight_hh_l0": np.zeros((8, 2))}
    with pytest.raises(zs.OptionError, match=r"a.weight_hh_l0: duplicate array name"):
        zc.load(nested, source="torch")


def test_a_layer_missing_from_a_module_is_refused() -> None:
    """Layer 2 would otherwise be fed by layer 0."""
    third = {name.replace("l0", "l2"): np.ones((8, 2)) for name in _KERNELS}
    with pytest.raises(zs.OptionError, match="expected layer 1 of the module before layer 2"):
        zc.load(_KERNELS | third, source="torch")
    assert isinstance(zc.load(third, source="torch"), zc.Layer)


@pytest.mark.parametrize(
    ("bias", "facts", "message"),
    [
        (np.ones((2, 6)), {"reset_after": False}, "reset_after=False: the bias has two rows"),
        (np.ones(6), {"reset_after": True}, "reset_after=True: the bias has one row"),
        (np.ones((3, 6)), {}, r"bias: expected \[3H\] or \[2,3H\]"),
        (np.ones((1, 2, 6)), {}, "bias: expected one axis"),
    ],
)
def test_the_biases_of_keras_gru(bias: Array, facts: dict[str, Any], message: str) -> None:
    weights = {"kernel": np.ones((3, 6)), "recurrent_kernel": np.ones((2, 6)), "bias": bias}
    with pytest.raises(zs.ZStateError, match=message):
        zc.load(weights, source="keras", **facts)


def test_the_joint_kernel_of_tensorflow_1_needs_the_cell() -> None:
    weights = {"kernel": np.ones((7, 4)), "bias": np.ones(4)}
    with pytest.raises(zs.OptionError, match="single_gate_rnn or lstm"):
        zc.load(weights, source="tensorflow1")


@pytest.mark.parametrize("path", ["model.keras", Path("model.pt")])
def test_a_path_says_what_reads_files(path: Any) -> None:
    with pytest.raises(zs.DTypeError, match=r"`zstate convert` reads files\), got 'model"):
        zc.load(path, source="keras")


def test_modules_that_are_not_recurrent_are_refused() -> None:
    model = torch.nn.Sequential(torch.nn.LSTM(2, 3), torch.nn.Linear(3, 1))
    with pytest.raises(zs.OptionError, match=r"only recurrent modules .*, got 1 \(Linear\)"):
        zc.load(model, source="torch")

    class LSTM(torch.nn.LSTM):
        """May compute anything."""

    with pytest.raises(zs.OptionError, match=r"zstate.torch, got the model \(LSTM\)"):
        zc.load(LSTM(2, 3), source="torch")
    with pytest.raises(zs.OptionError, match="projection"):
        zc.load(torch.nn.LSTM(2, 3, proj_size=1), source="torch")
    packed, _ = zt.prepare(torch.nn.Sequential(torch.nn.LSTM(2, 3).eval()))
    packed.append(torch.nn.LSTM(3, 3))
    with pytest.raises(zs.OptionError, match=r"zstate.torch, got 0 \(PreparedLayers\)"):
        zc.load(packed, source="torch")
    with pytest.raises(zs.OptionError, match="recurrent modules.*got none in Dropout"):
        zc.load(torch.nn.Dropout(), source="torch")


@pytest.mark.parametrize(
    ("cell", "tensors", "message"),
    [
        ("tanh", {}, "cell: expected 'single_gate_rnn'"),
        ("lstm", {}, "recurrent_weight: expected a tensor"),
        ("lstm", {"recurrent_weight": np.ones((8, 2)), "source": np.ones((1, 1, 8))}, "'source'"),
        ("lstm", {"recurrent_weight": np.ones((8, 3))}, "recurrent_weight: expected"),
        ("lstm", {"recurrent_weight": torch.ones(8, 2)}, "a NumPy array, got torch.Tensor"),
        (
            "gru",
            {"recurrent_weight": np.ones((6, 2)), "secondary_bias": np.ones(2)},
            "secondary_bias",
        ),
    ],
)
def test_what_is_no_layer(cell: str, tensors: dict[str, Array], message: str) -> None:
    descriptor = zs.GRUDescriptor() if cell == "gru" else zs.LSTMDescriptor()
    with pytest.raises(zs.ZStateError, match=message):
        zc.Layer(cell, descriptor, tensors)
