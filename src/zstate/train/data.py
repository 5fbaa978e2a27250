"""Text as numbers, and the order in which training reads it."""

from __future__ import annotations

import codecs
import io
from pathlib import Path

import numpy as np

from ..errors import OptionError, refusal
from ..types import Array

VALID_PART = 0.05  # of the text, at its end, is for validation
_LEAST = 20  # characters; a shorter text teaches nothing
_PROMPT, _LONGEST_PROMPT = "The ", 12


def default_text() -> str:
    """The English text of pydoc_data.topics: the language reference that every Python carries."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | None, encoding: str = "utf-8") -> str:
    """The text in a file, or the default text; refuses files that hold no text."""
    if path is None:
        return default_text()
    _check_encoding(encoding)

    def refuse(expected: str, got: str) -> OptionError:
        return OptionError(refusal("train", repr(path), expected, got))

    file = Path(path)
    if not file.is_file():
        missing = "a directory" if file.is_dir() else "a device or a pipe"
        raise refuse("a text file", missing if file.exists() else "no such file")
    data = file.read_bytes()
    # A byte order mark is not part of the text.
    name = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    try:
        text = data.decode(name).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeError as error:
        is_wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if b"\0" in data and not is_wide:
            raise refuse("text", f"binary data (a zero byte at {data.index(0)})") from error
        likely = "utf-16" if is_wide else "latin-1"
        got = str(error)
        if isinstance(error, UnicodeDecodeError):
            got = f"byte 0x{data[error.start]:02x} at position {error.start}"
        expected = f"{encoding} text (or another encoding, such as --encoding {likely})"
        raise refuse(expected, got) from error
    check_text(text, repr(path))
    return text


def check_text(text: str, label: str) -> None:
    """Refuse a text that is empty, binary, too short, or made of a single character."""
    if not text:
        raise OptionError(refusal("train", label, "text", "an empty file"))
    if "\0" in text:
        got = f"binary data (a zero at character {text.index(chr(0))})"
        raise OptionError(refusal("train", label, "text", got))
    if len(text) < _LEAST:
        raise OptionError(
            refusal("train", label, f"at least {_LEAST} characters", f"{len(text)} characters")
        )
    if len(set(text)) < 2:
        got = f"only {text[0]!r}"
        raise OptionError(refusal("train", label, "at least two different characters", got))


def _check_encoding(encoding: str) -> None:
    expected = "a text encoding that Python knows, such as latin-1"
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    except (LookupError, ValueError) as error:
        raise OptionError(refusal("train", "--encoding", expected, repr(encoding))) from error


def split(characters: int) -> int:
    """The number of characters used for training; the rest is for validation."""
    return characters - max(int(characters * VALID_PART), 2)


def characters_for(steps: int, batch: int) -> int:
    """The length of the shortest text with one window of this many steps and streams."""
    wanted = steps * batch + 1
    length = int(wanted / (1 - VALID_PART))
    while split(length) < wanted:
        length += 1
    return length


class Alphabet:
    """Characters as numbers, in sorted order."""

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self._codes = _codes(alphabet)

    def encode(self, text: str, operation: str = "encode", name: str = "text") -> Array:
        """The numbers of characters, int32; an unknown one is refused."""
        codes = _codes(text)
        found = np.searchsorted(self._codes, codes).astype(np.int32)
        wrong = self._codes[np.minimum(found, len(self._codes) - 1)] != codes
        if wrong.any():
            expected = f"the {len(self.alphabet)} characters of the training text"
            unknown = text[int(wrong.argmax())]
            raise OptionError(refusal(operation, name, expected, repr(unknown)))
        return found

    def decode(self, ids: Array) -> str:
        return "".join(self.alphabet[k] for k in ids)


class Corpus(Alphabet):
    """A text and its alphabet, split into training and validation."""

    def __init__(self, text: str) -> None:
        super().__init__("".join(sorted(set(text))))
        ids = self.encode(text)
        cut = split(len(ids))
        self.train, self.valid = ids[:cut], ids[cut:]
        self.prompt = _prompt(text)


def _prompt(text: str) -> str:
    """What a sample begins with: "The " if the text has it, otherwise the text's first word."""
    if _PROMPT in text:
        return _PROMPT
    word = next(iter(text.split(maxsplit=1)), text[:1])
    start = text.index(word)
    return text[start : start + min(len(word) + 1, _LONGEST_PROMPT)]


def _codes(text: str) -> Array:
    """Code points, lone surrogates (undecodable bytes of an argument) included."""
    codes: Array = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return codes


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
