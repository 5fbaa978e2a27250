"""The exceptions of zstate and their one message format.

Every refusal reads ``[operation] tensor: expected <what>, got <what>``, so that a user sees in
one line which call, which argument, what was wanted and what came.
"""

from __future__ import annotations


class ZStateError(RuntimeError):
    """Base of every exception that zstate raises on purpose.

    A RuntimeError, as torch's own refusals are: code written for torch.nn catches that.
    """


class ShapeError(ZStateError, ValueError):
    """A tensor has the wrong rank or size."""


class DTypeError(ZStateError, TypeError):
    """A tensor has the wrong element type, or is no tensor at all."""


class OptionError(ZStateError, ValueError):
    """A tensor or an option has no meaning in this call."""


class DescriptorError(ZStateError, TypeError, ValueError):
    """A descriptor was given a wrong type, an unknown field, or an activation outside the five."""


class BackendError(ZStateError):
    """A backend that was asked for by name cannot serve the call."""


class GraphError(ZStateError, ValueError):
    """A graph was built or run with something that does not belong there."""


def refusal(operation: str, tensor: str, expected: str, got: str) -> str:
    """The message ``[operation] tensor: expected …, got …``."""
    return f"[{operation}] {tensor}: expected {expected}, got {got}"
