"""The recurrent selectors: 20 methods from one table of argument lists."""

from __future__ import annotations

from collections.abc import Iterator

# Every published argument list after the source tensor, by operation, in letters.
_ARGUMENT_LISTS: dict[str, tuple[str, ...]] = {
    "single_gate_rnn": ("R W b h0 m", "R W b h0", "R h0"),
    "single_gate_rnn_gradients": (
        "R dY z dS W b h0 m",
        "R dY z W b h0 m",
        "R dY z W b h0",
        "R dY z h0",
    ),
    "lstm": ("R W b h0 c0 m p", "R W b h0 c0", "R h0 c0"),
    "lstm_gradients": (
        "R dY z c dS dC W b h0 c0 m p",
        "R dY z c W b h0 c0 m",
        "R dY z c W b h0 c0",
        "R dY z c",
    ),
    "gru": ("R W b h0 m b2", "R W b h0", "R W b"),
    "gru_gradients": ("R dY z hFwd dS W b h0 m b2", "R dY z hFwd W b h0", "R dY z hFwd W b"),
}

# A letter's Objective-C label and its keyword in zstate.Graph.
_LABELS: dict[str, tuple[str, str]] = {
    "R": ("recurrentWeight", "recurrent_weight"),
    "dY": ("sourceGradient", "source_gradient"),
    "z": ("zState", "z_state"),
    "c": ("cellOutputFwd", "cell_output_fwd"),
    "hFwd": ("outputFwd", "output_fwd"),
    "dS": ("stateGradient", "state_gradient"),
    "dC": ("cellGradient", "cell_gradient"),
    "W": ("inputWeight", "input_weight"),
    "b": ("bias", "bias"),
    "h0": ("initState", "init_state"),
    "c0": ("initCell", "init_cell"),
    "m": ("mask", "mask"),
    "p": ("peephole", "peephole"),
    "b2": ("secondaryBias", "secondary_bias"),
}

_FAMILIES = {
    "single_gate_rnn": "singleGateRNN",
    "single_gate_rnn_gradients": "singleGateRNNGradients",
    "lstm": "LSTM",
    "lstm_gradients": "LSTMGradients",
    "gru": "GRU",
    "gru_gradients": "GRUGradients",
}


def selectors() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(selector in PyObjC's spelling, operation, keywords after source) of all 20 methods."""
    for operation, lists in _ARGUMENT_LISTS.items():
        for letters in lists:
            labels, keywords = zip(*(_LABELS[letter] for letter in letters.split()), strict=True)
            parts = (f"{_FAMILIES[operation]}WithSourceTensor", *labels, "descriptor", "name")
            yield "_".join(parts) + "_", operation, keywords
