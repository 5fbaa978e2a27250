"""The table of frameworks: one row each, with everything that conversion has to know.

Gates go by zstate's letters whatever a framework calls them: i, f, z, o of the LSTM (z is the cell
gate), z, r, o of the GRU (z is the update gate, o the candidate), z of the single-gate RNN.
``docs/convert.md`` shows this table; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..descriptors import Activation

RNN, LSTM, GRU = "single_gate_rnn", "lstm", "gru"
CELLS = (RNN, LSTM, GRU)

# How a format holds its biases:
#   one        one bias [G·H]
#   two        two of them, added
#   joined     both in one array [2·G·H]
#   rows       one bias [G·H]; with reset_after both, as [2,G·H]
#   candidate  one bias [G·H], and one [H] inside the GRU's reset
Bias = Literal["one", "two", "joined", "rows", "candidate"]

# Where the second direction is: in a suffix of the name, in a part of the path, on the first axis
# of every array, or nowhere.
Second = Literal["suffix", "part", "axis", ""]

# An array of the format, or several that lie behind each other along the gates: the last ones
# hold one gate each, the first one the others.
Names = tuple[str, ...]


@dataclass(frozen=True)
class Framework:
    """What one framework does; every field is a column of the table in docs/convert.md."""

    title: str
    gates: Mapping[str, str]  # by cell: the gates in the framework's order
    bias: Mapping[str, Bias]  # by cell
    reset_after: tuple[bool, ...]  # the forms of the GRU that it has, its default first
    names: Mapping[str, Mapping[str, Names]]  # by cell and role
    # By cell: the framework's word for an activation, and the fields of the descriptor it sets.
    # A field that no word sets keeps the descriptor's default, which is the framework's as well.
    activations: Mapping[str, Mapping[str, tuple[str, ...]]]
    words: Mapping[str, Activation]  # the framework's names of activations
    transposed: bool = False  # the kernels are [I,G·H] and [H,G·H]
    flip_z: bool = False  # False: z is the share of h[t-1], as in zstate without flip_z
    separator: str = "/"  # between the parts of a name
    second: Second = ""
    directions: tuple[str, str] = ("", "")  # around a name in a layer with two directions
    hard_words: Mapping[str, str] = field(default_factory=dict)  # by cell: its other name for one
    hard_sigmoid: str = ""  # why the framework's hard sigmoid is not zstate's, if it has one
    listed: bool = False  # the activations are one list, with their constants beside it
    number: str = ""  # what the number of a layer in a module follows
    always_bias: bool = False  # a layer has biases, if only zeros
    peephole: str = ""  # the gates that have a peephole, in order
    # The cell that the output gate's peephole looks at. Core ML's is in the equations of LSTMParams
    # (NeuralNetwork.proto); the page of MIL's lstm does not say.
    peephole_cell: str = "c[t]"
    forget_bias: float | None = None  # added to the forget gate's bias if no fact says
    reverse: str = ""  # the fact that reverses a layer and leaves its outputs in processing order
    bias_fact: str = ""  # the fact that says whether there is a bias
    reset_fact: str = ""  # the fact that says which form a GRU has
    # Facts with one value that zstate can express, and why others are refused.
    neutral: Mapping[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)  # names of arrays, and why
    bidirectional: tuple[str, ...] = CELLS  # the cells that run in both directions
    directed: str = ""  # the fact that says "forward", "reverse" or "bidirectional"
    ignored: tuple[str, ...] = ()  # facts that say nothing about what a layer computes
    # By cell: other names of the same arrays, which are read and never written.
    also: Mapping[str, tuple[Mapping[str, Names], ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The framework's name without its layers, for messages."""
        return self.title.partition(":")[0]

    @property
    def tells_cell(self) -> bool:
        """Whether arrays alone say which cell a layer is: a joint kernel's I + H does not."""
        return "joint" not in self.names[LSTM]

    def spellings(self, cell: str) -> tuple[Mapping[str, Names], ...]:
        """The names of a cell's arrays by role, those that are written first."""
        return (self.names[cell], *self.also.get(cell, ()))

    def stems(self, cell: str) -> set[str]:
        """All names of a cell's arrays."""
        return {
            name for roles in self.spellings(cell) for names in roles.values() for name in names
        }


def _all(value: Any) -> dict[str, Any]:
    return dict.fromkeys(CELLS, value)


def _names(**roles: str) -> dict[str, Names]:
    """The names of each role's arrays, with spaces between them."""
    return {role: tuple(names.split()) for role, names in roles.items()}


_LSTM_GATES = ("input_gate_activation", "forget_gate_activation", "output_gate_activation")
_GRU_GATES = ("update_gate_activation", "reset_gate_activation")


def _two_words(gates: str, other: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """One word for the gates, one for the candidate and the output."""
    return {
        RNN: {other: ("activation",)},
        LSTM: {other: ("cell_gate_activation", "activation"), gates: _LSTM_GATES},
        GRU: {other: ("output_gate_activation",), gates: _GRU_GATES},
    }


_NO_LINEAR = {
    "relu": Activation.RELU,
    "tanh": Activation.TANH,
    "sigmoid": Activation.SIGMOID,
}
_WORDS = {"linear": Activation.NONE, **_NO_LINEAR}
_ALL_WORDS = {**_WORDS, "hard_sigmoid": Activation.HARD_SIGMOID}
_NO_CLIP = "zstate does not clip"
_SLOPE = "its slope is 1/6 and zstate's is 0.2"

_UNSETTLED = (
    "what Core ML computes with reset_after is not settled: its page and its own test disagree"
)

_IH_HH = _names(input="weight_ih", recurrent="weight_hh", bias="bias")
_IH_HH_TWICE = _names(input="weight_ih", recurrent="weight_hh", bias="bias_ih", second="bias_hh")
_KERNELS = _names(input="kernel", recurrent="recurrent_kernel", bias="bias")
_WRB = _names(input="W", recurrent="R", bias="B", init_state="initial_h")

_DENSE = _names(input="dense_i/kernel", recurrent="dense_h/kernel", bias="dense_i/bias")
_BY_GATE = _names(
    input="ii/kernel if/kernel ig/kernel io/kernel",
    recurrent="hi/kernel hf/kernel hg/kernel ho/kernel",
    bias="hi/bias hf/bias hg/bias ho/bias",
)
# flax.nnx: LSTMCell has a layer for each gate as linen's, the others one for all gates.
_NNX = {
    RNN: (_DENSE,),
    LSTM: (
        _BY_GATE | _names(input="ii/kernel if_/kernel ig/kernel io/kernel"),
        _DENSE | _names(bias="dense_h/bias"),
    ),
    GRU: (_DENSE,),
}

_KERAS = Framework(
    title="Keras 3: SimpleRNN, LSTM, GRU, Bidirectional",
    gates={RNN: "z", LSTM: "ifzo", GRU: "zro"},
    transposed=True,
    bias={RNN: "one", LSTM: "one", GRU: "rows"},
    reset_after=(True, False),
    names=_all(_KERNELS),
    second="part",
    directions=("forward_layer/", "backward_layer/"),
    activations=_two_words("recurrent_activation", "activation"),
    words=_WORDS,
    hard_sigmoid=_SLOPE,
    reverse="go_backwards",
    bias_fact="use_bias",
    reset_fact="reset_after",
    neutral={"merge_mode": (("concat",), "zstate concatenates the two directions")},
)

FRAMEWORKS: dict[str, Framework] = {
    "torch": Framework(
        title="PyTorch: torch.nn.RNN, LSTM, GRU and their cells",
        gates={RNN: "z", LSTM: "ifzo", GRU: "rzo"},
        bias=_all("two"),
        reset_after=(True,),
        names=_all(_IH_HH_TWICE) | {LSTM: _IH_HH_TWICE | _names(peephole="peephole")},
        separator=".",
        number="_l",
        second="suffix",
        directions=("", "_reverse"),
        activations={RNN: {"nonlinearity": ("activation",)}, LSTM: {}, GRU: {}},
        words={"tanh": Activation.TANH, "relu": Activation.RELU},
        peephole="ifzo",  # of zstate.torch.LSTM; torch.nn's has none
        peephole_cell="c[t-1]",
        bias_fact="bias",
        neutral={"proj_size": ((0,), "zstate has no projection of the state")},
        refused={"weight_hr": "zstate has no projection of the state (proj_size)"},
    ),
    "keras": _KERAS,
    "onnx": Framework(
        title="ONNX: RNN, LSTM, GRU",
        gates={RNN: "z", LSTM: "iofz", GRU: "zro"},
        bias=_all("joined"),
        reset_after=(False, True),
        names=_all(_WRB) | {LSTM: _WRB | _names(init_cell="initial_c", peephole="P")},
        second="axis",
        activations={
            RNN: {"f": ("activation",)},
            LSTM: {"f": _LSTM_GATES, "g": ("cell_gate_activation",), "h": ("activation",)},
            GRU: {"f": _GRU_GATES, "g": ("output_gate_activation",)},
        },
        words={
            "Affine": Activation.NONE,
            "Relu": Activation.RELU,
            "Tanh": Activation.TANH,
            "Sigmoid": Activation.SIGMOID,
            "HardSigmoid": Activation.HARD_SIGMOID,
        },
        listed=True,
        peephole="iof",
        reset_fact="linear_before_reset",
        neutral={
            "clip": ((None,), _NO_CLIP),
            "input_forget": ((0,), "zstate does not couple the input and the forget gate"),
        },
        refused={"sequence_lens": "the lengths belong to a call, not to a layer"},
        directed="direction",
        ignored=("hidden_size", "layout"),
    ),
    "flax": Framework(
        title="Flax: SimpleCell, LSTMCell, OptimizedLSTMCell, GRUCell of linen and nnx",
        gates={RNN: "z", LSTM: "ifzo", GRU: "rzo"},
        transposed=True,
        bias={RNN: "one", LSTM: "one", GRU: "candidate"},
        reset_after=(True,),
        names={
            RNN: _names(input="i/kernel", recurrent="h/kernel", bias="i/bias"),
            LSTM: _BY_GATE,
            GRU: _names(
                input="ir/kernel iz/kernel in/kernel",
                recurrent="hr/kernel hz/kernel hn/kernel",
                bias="ir/bias iz/bias in/bias",
                second="hn/bias",
            ),
        },
        second="part",
        directions=("forward_rnn/cell/", "backward_rnn/cell/"),
        activations=_two_words("gate_fn", "activation_fn"),
        words=_NO_LINEAR,
        hard_sigmoid=_SLOPE,
        always_bias=True,
        reverse="reverse",
        neutral={
            "keep_order": (
                (False,),
                "zstate's reverse leaves outputs in the order in which it made them",
            ),
            "residual": ((False,), "zstate adds no residual"),
        },
        also=_NNX,
    ),
    "mlx": Framework(
        title="MLX: nn.RNN, nn.LSTM, nn.GRU",
        gates={RNN: "z", LSTM: "ifzo", GRU: "rzo"},
        bias={RNN: "one", LSTM: "one", GRU: "candidate"},
        reset_after=(True,),
        names={
            RNN: _names(input="Wxh", recurrent="Whh", bias="bias"),
            LSTM: _names(input="Wx", recurrent="Wh", bias="bias"),
            GRU: _names(input="Wx", recurrent="Wh", bias="b", second="bhn"),
        },
        separator=".",
        bidirectional=(),
        activations={RNN: {"nonlinearity": ("activation",)}, LSTM: {}, GRU: {}},
        words=_NO_LINEAR,
        hard_sigmoid="MLX has none",
        bias_fact="bias",
    ),
    "coreml": Framework(
        title="Core ML: MIL's rnn, lstm, gru",
        gates={RNN: "z", LSTM: "ifoz", GRU: "roz"},
        bias=_all("one"),
        reset_after=(False,),
        names=_all(_IH_HH) | {LSTM: _IH_HH | _names(peephole="peephole")},
        second="suffix",
        directions=("", "_back"),
        activations=_two_words("recurrent_activation", "activation")
        | {
            LSTM: {
                "recurrent_activation": _LSTM_GATES,
                "cell_activation": ("cell_gate_activation",),
                "activation": ("activation",),
            }
        },
        words=_ALL_WORDS,
        hard_words=dict.fromkeys((RNN, GRU), "sigmoid_hard"),
        peephole="ifo",
        neutral={"clip": ((None,), _NO_CLIP), "reset_after": ((None, False), _UNSETTLED)},
        refused={"input_bias": _UNSETTLED},
        bidirectional=(LSTM,),
        directed="direction",
        ignored=("output_sequence",),
    ),
    "tensorflow": replace(
        _KERAS,
        title="TensorFlow: tf.keras (Keras 2), tf-keras",
        # tf.keras.experimental.PeepholeLSTMCell has the peepholes.
        names=_all(_KERNELS)
        | {
            LSTM: _KERNELS
            | _names(
                peephole="input_gate_peephole_weights forget_gate_peephole_weights "
                "output_gate_peephole_weights"
            )
        },
        words=_ALL_WORDS,
        hard_sigmoid="",
        peephole="ifo",
    ),
    "tensorflow1": Framework(
        title="TensorFlow 1: tf.compat.v1.nn.rnn_cell's BasicRNNCell, LSTMCell, GRUCell",
        gates={RNN: "z", LSTM: "izfo", GRU: "rzo"},
        transposed=True,
        bias=_all("one"),
        reset_after=(False,),
        names={
            RNN: _names(joint="kernel", bias="bias"),
            LSTM: _names(joint="kernel", bias="bias", peephole="w_i_diag w_f_diag w_o_diag"),
            GRU: _names(joint="gates/kernel candidate/kernel", bias="gates/bias candidate/bias"),
        },
        second="part",
        directions=("fw/", "bw/"),
        activations={
            RNN: {"activation": ("activation",)},
            LSTM: {"activation": ("cell_gate_activation", "activation")},
            GRU: {"activation": ("output_gate_activation",)},
        },
        words=_ALL_WORDS,
        always_bias=True,
        peephole="ifo",
        forget_bias=1.0,
        refused={"projection/kernel": "zstate has no projection of the state (num_proj)"},
    ),
}
