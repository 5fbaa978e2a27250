"""What the functions and methods of an operation take, by the table of operations.

functional.py writes the six signatures out, since a call takes a few microseconds. The functions on
jax arrays, the graph's methods and all of a further cell take their arguments by what is here;
keywords.py says the same to type checkers. A test compares all of them.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

from .operations import Operation

_PLACED = Parameter.POSITIONAL_OR_KEYWORD


def signature_of(
    operation: Operation, placed: tuple[str, ...], array: Any, result: Any, **further: Any
) -> Signature:
    """The signature for arrays of one type, and ``further`` options, which are None by default.

    Only the arguments in ``placed`` may be given without their names.
    """
    kinds = dict.fromkeys(operation.required, array)
    kinds |= dict.fromkeys(operation.optional, array | None)
    kinds |= {"heads": int, "descriptor": operation.cell.descriptor | None}
    kinds |= {name: kind | None for name, kind in further.items()}
    defaults = {**dict.fromkeys(operation.required, Parameter.empty), "heads": 1}
    parameters = [
        Parameter(
            name,
            _PLACED if name in placed else Parameter.KEYWORD_ONLY,
            default=defaults.get(name),
            annotation=kind,
        )
        for name, kind in kinds.items()
    ]
    return Signature(parameters, return_annotation=result)


def arguments_of(label: str, signature: Signature, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Every argument of a call by its name; other ones are refused as Python refuses them."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{label}() {error}") from None
    bound.apply_defaults()
    return bound.arguments


def sign(function: Any, signature: Signature, is_method: bool = False) -> None:
    """Let help() and inspect.signature show a signature in place of ``**inputs``."""
    each = signature.parameters
    first = [Parameter("self", _PLACED)] if is_method else []
    function.__signature__ = signature.replace(parameters=[*first, *each.values()])
    hints = {name: parameter.annotation for name, parameter in each.items()}
    function.__annotations__ = {**hints, "return": signature.return_annotation}
