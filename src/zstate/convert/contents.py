"""What a file holds, and which of it is converted: a stack of layers, or layers by their names.

A file is converted whole only if it is a stack: recurrent layers, each fed by the one before it,
and nothing else that computes. Anything else would become a different model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import OptionError, refusal, visible
from .objects import Piece

ROOT = "."  # how a layer is called whose arrays have no path in front of their names
_SHOWN = 12
_WHOLE = "To load a whole model, use zstate.onnx: "
_LOADED = "zstate.onnx.load reads this file"
_EXPORTED = "export it to ONNX and use zstate.onnx.load"


@dataclass
class Contents:
    """The recurrent layers of a file by name, in order, and what else there is."""

    layers: Mapping[str, Callable[[], list[Piece]]]
    others: list[str] = field(default_factory=list)  # what computes beside them, or may
    wiring: list[str] = field(default_factory=list)  # where one is not fed by the one before it
    passive: list[str] = field(default_factory=list)  # what leaves the results as they are
    separator: str = "/"

    def chosen(self, path: str, only: Sequence[str]) -> Chosen:
        """All layers as one stack, or those of these names one by one; else a refusal."""
        whole = _WHOLE + (_LOADED if path.lower().endswith(".onnx") else _EXPORTED)
        if not self.layers:
            got = shown(self.others) or "nothing"
            raise OptionError(refusal("convert", path, "recurrent layers", got) + f". {whole}")
        if only:
            return self._by_name(only)
        if self.others or self.wiring:
            obstacles = "; ".join(filter(None, [shown(self.others), *self.wiring]))
            raise OptionError(
                refusal("convert", path, "a stack of recurrent layers", obstacles)
                + f". Take layers one by one with --only ({shown(self._names())}). {whole}"
            )
        return Chosen(
            {"": [piece for make in self.layers.values() for piece in make()]}, self.passive
        )

    def _names(self) -> list[str]:
        return [name or ROOT for name in self.layers]

    def _by_name(self, only: Sequence[str]) -> Chosen:
        taken: dict[str, list[Piece]] = {}
        for wanted in only:
            found = [name for name in self.layers if self._begins(name, wanted)]
            if not found:
                expected = f"one of {shown(self._names())}"
                if "" in self.layers:
                    expected += f" ({ROOT} is the layer without a name)"
                raise OptionError(refusal("convert", "--only", expected, repr(wanted)))
            taken |= {name: self.layers[name]() for name in found if name not in taken}
        rest = [name or ROOT for name in self.layers if name not in taken]
        return Chosen(taken, rest + self.others + self.passive)

    def _begins(self, name: str, wanted: str) -> bool:
        if wanted == ROOT:
            return name in ("", ROOT)
        wanted = wanted.removesuffix(self.separator)
        return name == wanted or (bool(wanted) and name.startswith(wanted + self.separator))


@dataclass
class Chosen:
    """The layers to convert: stacks by name, a single one without name; and what is left out."""

    stacks: dict[str, list[Piece]]
    left_out: list[str]


def shown(names: Sequence[str]) -> str:
    """Names with commas, the first few of them."""
    more = len(names) - _SHOWN
    return ", ".join(map(visible, names[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
