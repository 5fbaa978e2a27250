"""JAX: the six operations on jax arrays and tracers, inside jit, with gradients, vmap and sharding.

    import zstate.jax as zj
    h, c, z = zj.lstm(x, R, input_weight=W, bias=b)

Arguments and results are those of the functional interface (zstate.lstm and so on), which also
takes jax arrays. The forward operations here also take ``lengths``. See docs/jax.md.
"""

import typing as _typing
import warnings as _warnings

from ..backends.slow import SlowBackendWarning as _SlowBackendWarning
from ..hints import missing as _missing
from .ffi import unavailable
from .functions import (
    FURTHER as _FURTHER,
)
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
globals().update(_FURTHER)  # those of further cells
__all__ += list(_FURTHER)

if unavailable() is not None:
    _warnings.warn(
        f"zstate.jax builds its operations from JAX's own, which is slow: {unavailable()}. "
        "docs/jax.md says how to build the engine's handlers.",
        _SlowBackendWarning,
        stacklevel=2,
    )


def __dir__() -> list[str]:
    return sorted(__all__)


if not _typing.TYPE_CHECKING:  # a type checker would take any name to be there

    def __getattr__(name: str) -> object:
        raise _missing("zstate.jax", name, __all__)
