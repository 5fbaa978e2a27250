"""JAX: the six operations on jax arrays and tracers, inside jit, with gradients, vmap and sharding.

    import zstate.jax as zj
    h, c, z = zj.lstm(x, R, input_weight=W, bias=b)

Arguments and results are those of the functional interface (zstate.lstm and so on), which takes jax
arrays too. The forward operations also take ``lengths``. See docs/jax.md.
"""

import warnings as _warnings

from ..backends.slow import SlowBackendWarning as _SlowBackendWarning
from .ffi import unavailable
from .functions import (
    gru,
    gru_gradients,
    lstm,
    lstm_gradients,
    single_gate_rnn,
    single_gate_rnn_gradients,
)
from .lengths import last_states

__all__ = [
    "gru",
    "gru_gradients",
    "last_states",
    "lstm",
    "lstm_gradients",
    "single_gate_rnn",
    "single_gate_rnn_gradients",
    "unavailable",
]

if unavailable() is not None:
    _warnings.warn(
        f"zstate.jax composes its operations of JAX's own, slowly: {unavailable()}. "
        "docs/jax.md says how to build the engine's handlers.",
        _SlowBackendWarning,
        stacklevel=2,
    )
