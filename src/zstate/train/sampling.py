"""Writing text with a model, one character after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import OptionError, refusal
from ..types import Array
from .data import Alphabet
from .model import Model


class Sampler:
    """Draws characters from a model; the state is carried from one to the next."""

    def __init__(self, model: Model, alphabet: Alphabet) -> None:
        self.model, self.alphabet = model, alphabet
        self._program = model.sampling_program()

    def write(
        self,
        length: int,
        prompt: str,
        temperature: float,
        seed: int,
        show: Callable[[str], None] | None = None,
    ) -> str:
        """The prompt and ``length`` more characters; no prompt means the start of a line."""
        characters = self.alphabet.alphabet
        start = "\n" if "\n" in characters else characters[0]
        ids = list(self.alphabet.encode(prompt or start))
        rng = np.random.default_rng(seed)
        written: list[str] = []
        for k in range(len(ids) + length - 1):
            token = np.array([[ids[k]]], np.int32)
            (logits,) = self._program.run([token, np.asarray(np.float32(k > 0))])
            if k >= len(ids) - 1:
                ids.append(_draw(logits[0], temperature, rng))
                written.append(characters[ids[-1]])
                if show is not None:
                    show(written[-1])
        return prompt + "".join(written)


def _draw(logits: Array, temperature: float, rng: np.random.Generator) -> int:
    if not np.isfinite(logits).all():
        expected = "a model whose outputs are finite"
        raise OptionError(
            refusal("sample", "model", expected, str(logits[~np.isfinite(logits)][0]))
        )
    if temperature <= 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):  # near 0: the likeliest
        scaled = (logits.astype(np.float64) - logits.max()) / temperature
    weights = np.exp(scaled)
    return int(rng.choice(len(weights), p=weights / weights.sum()))
