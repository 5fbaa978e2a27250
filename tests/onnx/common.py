"""What the tests of zstate.onnx share: onnxruntime's outputs of a model, and random RNN nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from zstate.types import Array

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def runtime(model: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """onnxruntime's outputs of a path, bytes or a ModelProto, by name."""
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        source if isinstance(source, bytes) else str(source),
        options,
        providers=["CPUExecutionProvider"],
    )
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def close(found: Mapping[str, Array], wanted: Mapping[str, Array], what: str = "") -> None:
    """Equal names, shapes, types, and numbers as near as float32 sums in two orders are."""
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].shape == array.shape, (what, name)
        assert found[name].dtype == array.dtype, (what, name)
        top = max(1.0, float(np.abs(array).max(initial=0))) if array.dtype.kind == "f" else 1
        np.testing.assert_allclose(
            found[name] / top, array / top, rtol=0, atol=5e-6, err_msg=f"{what} {name}"
        )


def value(name: str, array: Array, sizes: list[Any] | None = None) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, list(array.shape) if sizes is None else sizes)


def one_node(
    kind: str,
    arrays: Mapping[str, Array],
    outputs: list[str],
    *,
    fed: tuple[str, ...] = ("X",),
    unknown: bool = False,
    **attributes: Any,
) -> tuple[Any, dict[str, Array]]:
    """A model of one node whose inputs, in order, are ``arrays`` (empty: absent), and its feeds."""
    node = helper.make_node(
        kind,
        [n if a.size or n in fed else "" for n, a in arrays.items()],
        outputs,
        "the_node",
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "one",
        [value(n, arrays[n], [None] * arrays[n].ndim if unknown else None) for n in fed],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs if n],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in fed and a.size],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return model, {n: arrays[n] for n in fed}


class Drawn:
    """A random recurrent node."""

    def __init__(self, rng: np.random.Generator, kind: str | None = None, **forced: Any) -> None:
        self.kind = kind or str(rng.choice(["RNN", "LSTM", "GRU"]))
        steps, batch, size, hidden = (int(k) for k in rng.integers(1, 7, 4))
        word = str(rng.choice(["forward", "reverse", "bidirectional"]))
        count = 2 if word == "bidirectional" else 1
        rows = GATES[self.kind] * hidden

        def normal(*shape: int) -> Array:
            # Small: activations without a bound must not run away within a few steps.
            return (rng.normal(size=shape) * 0.25).astype(np.float32)

        def maybe(array: Array, chance: float = 0.6) -> Array:
            return array if rng.random() < chance else array[:0]

        lengths = rng.integers(0, steps + 1, batch).astype(np.int32)
        lengths[0] = steps
        self.arrays = {
            "X": normal(steps, batch, size),
            "W": normal(count, rows, size),
            "R": normal(count, rows, hidden),
            "B": maybe(normal(count, 2 * rows)),
            "sequence_lens": maybe(lengths, 0.4),
            "initial_h": maybe(normal(count, batch, hidden)),
        }
        self.outputs = ["Y", "Y_h"]
        if self.kind == "LSTM":
            self.arrays["initial_c"] = maybe(normal(count, batch, hidden))
            self.arrays["P"] = maybe(normal(count, 3 * hidden), 0.5)
            self.outputs.append("Y_c")
        self.attributes: dict[str, Any] = {"hidden_size": hidden, "direction": word}
        if rng.random() < 0.5:
            self._draw_activations(rng, count)
        if self.kind == "GRU":
            self.attributes["linear_before_reset"] = int(rng.integers(2))
        self.attributes |= forced
        fed = {
            "X",
            *(
                n
                for n in ("sequence_lens", "initial_h", "initial_c", "R", "P")
                if rng.random() < 0.3
            ),
        }
        self.fed = tuple(n for n, a in self.arrays.items() if n in fed and a.size)
        self.unknown = bool(rng.integers(2)) and not {"R", "P"} & set(self.fed)

    def _draw_activations(self, rng: np.random.Generator, count: int) -> None:
        places = {"RNN": 1, "LSTM": 3, "GRU": 2}[self.kind]
        words = rng.choice(["Relu", "Tanh", "Sigmoid", "HardSigmoid", "Affine"], places * count)
        self.attributes["activations"] = [str(word) for word in words]
        pairs = {"HardSigmoid": (0.2, 0.5), "Affine": (1.0, 0.0)}
        taken = [pairs[word] for word in words if word in pairs]
        if taken:
            self.attributes["activation_alpha"] = [alpha for alpha, _ in taken]
            self.attributes["activation_beta"] = [beta for _, beta in taken]

    def model(self) -> tuple[Any, dict[str, Array]]:
        return one_node(
            self.kind,
            self.arrays,
            self.outputs,
            fed=self.fed,
            unknown=self.unknown,
            **self.attributes,
        )
