"""A character language model, trained through the graph: what `zstate train` runs."""

from .data import Corpus, default_text
from .loop import Run
from .model import Model, Settings

__all__ = ["Corpus", "Model", "Run", "Settings", "default_text"]


def __dir__() -> list[str]:
    return sorted(__all__)
