"""Names from other libraries: the error for a missing attribute suggests the right one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import close_name

_TRAINING = (
    "a training step is a program: graph.gradients, graph.assign and "
    "graph.compile(…, operations=…), as docs/graph.md shows"
)
# Of torch, NumPy, Keras, JAX, ONNX and older files.
ELSEWHERE = {
    "zstate": {
        **dict.fromkeys(("rnn", "simple_rnn", "vanilla_rnn"), "single_gate_rnn"),
        **dict.fromkeys(("RNNDescriptor", "SimpleRNNDescriptor"), "SingleGateRNNDescriptor"),
        **{name: f"zstate.torch has {name}" for name in ("LSTM", "GRU", "RNN", "replace")},
        **{name: f"zstate.onnx and zstate.convert have {name}" for name in ("load", "save")},
        **{
            f"{cell}_{word}": f"{cell}_gradients"
            for cell in ("single_gate_rnn", "lstm", "gru")
            for word in ("grad", "grads", "backward", "vjp")
        },
        **{
            name: f"it is a module: import zstate.{name}"
            for name in ("cells", "convert", "coreml", "jax", "onnx", "pyobjc", "torch", "train")
        },
    },
    "zstate.jax": {
        **dict.fromkeys(("rnn", "RNN", "simple_rnn", "vanilla_rnn"), "single_gate_rnn"),
        **{
            name: f"zstate has {name}"
            for name in ("Activation", "GRUDescriptor", "LSTMDescriptor", "SingleGateRNNDescriptor")
        },
        "GRU": "gru",
        "LSTM": "lstm",
    },
    "zstate.pyobjc": {
        **dict.fromkeys(("NSArray", "NSMutableArray"), "pass a list, as PyObjC takes one"),
        **dict.fromkeys(
            ("NSDictionary", "NSMutableDictionary"), "pass a dict, as PyObjC takes one"
        ),
        "NSNumber": "pass a number, as PyObjC takes one",
        "NSMutableData": "read into a bytearray or an array, as PyObjC takes them",
    },
    "Graph": {
        **dict.fromkeys(("fit", "train", "backward", "step", "minimize"), _TRAINING),
        **dict.fromkeys(("matmul", "mm", "dot", "gemm"), "matrix_multiplication"),
        **dict.fromkeys(("concat", "cat", "concatenate"), "concat_tensors"),
        **dict.fromkeys(("rnn", "simple_rnn"), "single_gate_rnn"),
        **dict.fromkeys(("cross_entropy", "softmax_cross_entropy"), "soft_max_cross_entropy"),
        **dict.fromkeys(("parameter", "param", "weight"), "variable"),
        **dict.fromkeys(("grad", "gradient"), "gradients"),
        **dict.fromkeys(("permute", "swapaxes", "T"), "transpose"),
        **dict.fromkeys(("embedding", "take", "lookup"), "gather"),
        **dict.fromkeys(("input", "feed"), "placeholder"),
        **dict.fromkeys(("eval", "execute", "forward", "item", "numpy", "tolist"), "run"),
        **dict.fromkeys(("astype", "to"), "cast"),
        **dict.fromkeys(("ravel", "flatten", "view"), "reshape"),
        **dict.fromkeys(("dense", "linear"), "matrix_multiplication"),
        **dict.fromkeys(("batch_norm", "layer_norm"), "normalization"),
        **dict.fromkeys(("reduce_mean", "reduction_mean"), "mean"),
        **{f"reduce_{word}": f"reduction_{word}" for word in ("sum", "and", "or")},
        **dict.fromkeys(("reduce_max", "reduce_maximum"), "reduction_maximum"),
        **dict.fromkeys(("reduce_min", "reduce_minimum"), "reduction_minimum"),
        **dict.fromkeys(("onnx", "to_onnx"), "zstate.onnx.save writes a graph as ONNX"),
        **dict.fromkeys(("coreml", "to_coreml"), "zstate.coreml.save writes a program as Core ML"),
        "summary": "print(graph) lists its nodes",
        "swift": "to_swift",
        "abs": "absolute",
        "add": "addition",
        "argmax": "reduction_arg_maximum",
        "argmin": "reduction_arg_minimum",
        "clip": "clamp",
        "const": "constant",
        "cumsum": "cumulative_sum",
        "div": "division",
        "exp": "exponent",
        "log": "logarithm",
        "max": "reduction_maximum",
        "min": "reduction_minimum",
        "mul": "multiplication",
        "neg": "negative",
        "pad": "pad_tensor",
        "pow": "power",
        "prod": "reduction_product",
        "rsqrt": "reciprocal_square_root",
        "sgd": "stochastic_gradient_descent",
        "slice": "slice_tensor",
        "softmax": "soft_max",
        "sqrt": "square_root",
        "sub": "subtraction",
        "sum": "reduction_sum",
        "unsqueeze": "expand_dims",
        "var": "variance",
        "where": "select",
    },
}
ELSEWHERE["Tensor"] = ELSEWHERE["Graph"]  # a tensor has operators, its graph the methods


def missing(owner: str, name: str, known: Iterable[str], start: str = "") -> AttributeError:
    """The error for an attribute that ``owner``, a key of ELSEWHERE, does not have; ``start`` is a
    prefix for the suggested name."""
    names = [each for each in known if is_public(each)]
    snake = re.sub("[A-Z]+", lambda letters: f"_{letters[0].lower()}", name).lstrip("_")
    meant = ELSEWHERE[owner].get(name) or (snake if snake in names else close_name(name, names))
    hint = ""
    if meant is not None:
        hint = f"; did you mean {start + meant!r}?" if meant in names else f": {meant}"
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")


def is_public(name: str) -> bool:
    """Whether autocompletion should show a name: not one with an underscore, but Python's own."""
    return not name.startswith("_") or name.startswith("__")
