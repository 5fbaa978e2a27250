"""Calls of a cell from equations that look like an earlier one, without its general checks.

A call of one time step takes the native engine two microseconds. To collect a call's tensors by
name and to check them takes as long, so a cell that is called with arrays gets methods of its own
arguments, compiled from the text below. They look for the call in the engine's table of known
calls, where only checked ones are, and hand all others to MadeCell's methods. No tensor's name
begins with an underscore, so those of the text's own names do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .decorator import MadeCell

_METHODS = """
def __call__(
    self, source, recurrent_weight, *, {arguments}, reverse=False, bidirectional=False,
    training=False, backend=None, heads=1, **_others
):
    if {is_plain}:
        _options = _descriptor(reverse, bidirectional, training)
        _found = _run_known(_forward, ({inputs},), _options)
        if _found is not None:
            return _found
    return _call(
        self, source, recurrent_weight, reverse=reverse, bidirectional=bidirectional,
        training=training, backend=backend, heads=heads, {passed}, **_others
    )

def gradients(
    self, source, recurrent_weight, out, state_gradients, *, {arguments}, reverse=False,
    bidirectional=False, training=True, backend=None, heads=1, **_others
):
    if (
        {is_plain} and _type(out) is _result and _type(state_gradients) is _dict
        and state_gradients.keys() <= _states
    ):
        _options = _descriptor(reverse, bidirectional)
        _found = _run_known(_backward, ({gradient_inputs},), _options)
        if _found is not None:
            return _found
    return _all_gradients(
        self, source, recurrent_weight, out, state_gradients, reverse=reverse,
        bidirectional=bidirectional, backend=backend, heads=heads, {passed}, **_others
    )
"""
_IS_PLAIN = (
    "_type(source) is _array and backend is resets is None and _type(heads) is _int and heads == 1 "
    "and not _others"
)


def quickened(made: MadeCell, forward: Any, backward: Any, descriptor: Any) -> type[MadeCell]:
    """The class of one cell, which has the same methods, and those below in front."""
    from ..backends import run_known

    general, cell, names = type(made), made.definition, forward.optional
    results = {name: f"out.{result}" for name, result in cell.fed_back.items()}
    results |= {name: f"state_gradients.get({each!r})" for name, each in cell.incoming.items()}
    own = {*forward.required, *names}
    text = _METHODS.format(
        arguments=", ".join(f"{name}=None" for name in names),
        inputs=", ".join(forward.inputs),
        gradient_inputs=", ".join(
            name if name in own else results.get(name, "None") for name in backward.inputs
        ),
        passed=", ".join(f"{name}={name}" for name in names),
        is_plain=_IS_PLAIN,
    )
    known = {
        "_type": type,
        "_dict": dict,
        "_int": int,
        "_array": np.ndarray,
        "_descriptor": descriptor,
        "_run_known": run_known,
        "_forward": forward,
        "_backward": backward,
        "_result": forward.result,
        "_states": frozenset(cell.incoming.values()),
        "_call": general.__call__,
        "_all_gradients": general.gradients,
    }
    methods: dict[str, Any] = {}
    exec(compile(text, f"<calls of {made.__name__}>", "exec"), known, methods)
    for name, method in methods.items():
        method.__doc__ = getattr(general, name).__doc__
    return type(general.__name__, (general,), {**methods, "__module__": general.__module__})
