"""The exceptions of zstate and their one message format.

Every message reads ``[operation] tensor: expected <what>, got <what>``, so that one line tells the
user which call and which argument was wrong, what it should have been and what it was.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ZStateError(RuntimeError):
    """Base of every exception that zstate raises on purpose.

    A RuntimeError, like torch's own errors, because code written for torch.nn catches that.
    """


class ShapeError(ZStateError, ValueError):
    """A tensor has the wrong rank or size."""


class DTypeError(ZStateError, TypeError):
    """A tensor has the wrong element type, or is not a tensor at all."""


class OptionError(ZStateError, ValueError):
    """A tensor or an option has no meaning in this call."""


class DescriptorError(ZStateError, TypeError, ValueError):
    """A descriptor got a wrong type, an unknown field, or an activation outside the five."""


class BackendError(ZStateError):
    """The backend that the caller named cannot serve the call."""


class GraphError(ZStateError, ValueError):
    """A graph was built or run with something that does not belong in it."""


class EquationError(ZStateError, ValueError):
    """The equations of a cell cannot be read, or an engine could not compute them."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put where it happened in front of the text of an error that is raised inside."""
    try:
        yield
    except (ZStateError, ImportError) as error:
        named = type(error)(f"{where}: {error}")
        vars(named).update(vars(error))  # what it holds besides its text
        raise named from error


def visible(text: str) -> str:
    """Text with unprintable characters escaped, so that a name from a file cannot end its line,
    move the terminal's cursor, or break the text around it."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def close_name(name: str, known: Iterable[str]) -> str | None:
    """The name that this one misspells, or None if it is another word: "gelu" is
    close to "relu" and not meant by it, so the first letters must agree, and so must digits."""
    word = name.lower()
    alike = [
        each for each in known if each[:1].lower() == word[:1] and _digits(each) == _digits(word)
    ]
    turned = [each for each in alike if sorted(each.lower()) == sorted(word)]
    if turned:
        return turned[0]
    low = {each.lower(): each for each in reversed(alike)}
    found = difflib.get_close_matches(word, low, n=1, cutoff=0.8)
    return low[found[0]] if found else None


def _digits(text: str) -> list[str]:
    return [c for c in text if c.isdigit()]


def within(where: str, error: ZStateError) -> ZStateError:
    """The same error with ``where`` in place of its own label: a message has only one label."""
    inner = re.sub(r"^\[[^]]*\] ", "", str(error))
    return type(error)(f"{where}: {inner}")


def refusal(operation: str, tensor: str, expected: str, got: str) -> str:
    """The message ``[operation] tensor: expected …, got …``."""
    return f"[{operation}] {tensor}: expected {expected}, got {got}"
