"""Text as numbers, and the order in which training reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import OptionError, refusal
from ..types import Array

VALID_PART = 0.05  # of the text, at its end, is for validation


def default_text() -> str:
    """The English text of pydoc_data.topics: the language reference that every Python carries."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | None) -> str:
    """The text of a file, or the default one."""
    return default_text() if path is None else Path(path).read_text(encoding="utf-8")


class Corpus:
    """A text, its characters as numbers in sorted order, split into training and validation."""

    def __init__(self, text: str, alphabet: str | None = None) -> None:
        self.alphabet = "".join(sorted(set(text))) if alphabet is None else alphabet
        self._numbers = {character: k for k, character in enumerate(self.alphabet)}
        ids = self.encode(text)
        cut = len(ids) - max(int(len(ids) * VALID_PART), 2)
        self.train, self.valid = ids[:cut], ids[cut:]

    def encode(self, text: str) -> Array:
        """The numbers of characters, int32; an unknown one is refused."""
        try:
            return np.array([self._numbers[character] for character in text], np.int32)
        except KeyError as error:
            expected = f"the {len(self.alphabet)} characters of the training text"
            raise OptionError(refusal("encode", "text", expected, repr(error.args[0]))) from error

    def decode(self, ids: Array) -> str:
        return "".join(self.alphabet[k] for k in ids)


class Windows:
    """A text as N parallel streams, cut into windows of T steps that follow each other.

    Window k continues window k - 1 in every stream, so that a carried state fits; ``targets`` are
    the inputs one step later.
    """

    def __init__(self, ids: Array, steps: int, batch: int) -> None:
        self.count = (len(ids) - 1) // (steps * batch)
        if self.count < 1:
            expected = f"at least {steps * batch + 1} characters for {batch} streams of {steps}"
            raise OptionError(refusal("train", "text", expected, str(len(ids))))
        length = self.count * steps
        self._steps = steps
        self._inputs = ids[: batch * length].reshape(batch, length).T
        self._targets = ids[1 : batch * length + 1].reshape(batch, length).T

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        """Inputs and targets [T,N] of a window; the index wraps around."""
        start = index % self.count * self._steps
        window = slice(start, start + self._steps)
        return (
            np.ascontiguousarray(self._inputs[window]),
            np.ascontiguousarray(self._targets[window]),
        )
