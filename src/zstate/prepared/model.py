"""``prepare``: layers whose weights are packed once, for inference.

T time, N batch, I input features, H hidden units of the last layer, D its directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..backends import native
from ..convert.layer import Layer
from ..errors import DTypeError, OptionError, ShapeError, refusal
from ..layout import brackets, describe, dtype_name, is_torch_tensor
from ..types import Array
from .libraries import Library, in_words
from .packing import NativeStack, refusal_of
from .parts import MATRICES, WEIGHTS, Part, copied, parts_of
from .reference import ReferenceStack
from .report import Report, compare
from .streams import Stream


def prepare(
    layers: Layer | Sequence[Layer], weights: str = "float32", *, backend: str | None = None
) -> Prepared:
    """Pack the weights of layers once, for inference.

    Args:
        layers: a :class:`zstate.convert.Layer`, or a list of them, each fed by the one before it.
        weights: the type of the stored matrices: "float32"; "bfloat16", which halves what a step
            reads; or "int8", with one scale per output row, where inputs and states are quantised
            row by row as they are multiplied. Everything else is float32.
        backend: None, "native", or "reference" (NumPy: slow, but works on any machine).

    Example:
        >>> import numpy as np, zstate as zs, zstate.convert as zc
        >>> rng = np.random.default_rng(0)
        >>> tensors = {"recurrent_weight": rng.normal(size=(32, 8)),
        ...            "input_weight": rng.normal(size=(32, 4))}
        >>> layer = zc.Layer("lstm", zs.LSTMDescriptor(), tensors)
        >>> model = zs.prepare(layer, weights="int8")
        >>> output, states = model(np.ones((10, 3, 4), np.float32))
        >>> output.shape, states.cell.shape
        ((10, 3, 8), (3, 8))
        >>> stream = model.stream()
        >>> stream.step(np.ones((1, 4), np.float32)).shape
        (1, 8)
    """
    check_weights(weights)
    own = copied(layers)
    parts = parts_of(own)
    return Prepared(own, parts, weights, _chosen(backend, parts))


def check_weights(weights: str) -> None:
    """Reject an unknown type of weights."""
    if weights not in WEIGHTS:
        expected = ", ".join(map(repr, WEIGHTS))
        raise OptionError(refusal("prepare", "weights", f"one of {expected}", repr(weights)))


def _chosen(backend: str | None, parts: list[Part]) -> str:
    if backend not in (None, "native", "reference"):
        expected = "None, 'native' or 'reference'"
        raise OptionError(refusal("prepare", "backend", expected, repr(backend)))
    if backend == "reference":
        return backend
    reason = native.unavailable() or refusal_of(parts)
    if reason is None:
        return "native"
    if backend == "native":
        raise OptionError(refusal("prepare", "backend", "one that serves these layers", reason))
    return "reference"


class Prepared:
    """Layers with packed weights, made by :func:`zstate.prepare`: call it, or create a stream."""

    def __init__(
        self, layers: Layer | list[Layer], parts: list[Part], weights: str, backend: str
    ) -> None:
        self.layers = layers
        self.weights = weights
        self.backend = backend
        self._parts = parts
        stack: Any = NativeStack if backend == "native" else ReferenceStack
        self._stack = stack(parts, weights, isinstance(layers, Layer))
        quick = backend == "native" and all(part.begins_plainly for part in parts)
        self._quick: Any = self._stack.call if quick else None

    @property
    def inputs(self) -> int:
        """I, the number of input features."""
        return self._parts[0].inputs

    @property
    def width(self) -> int:
        """D·H, the number of output features."""
        return self._parts[-1].width

    @property
    def state_names(self) -> list[tuple[str, ...]]:
        """The names of each layer's states."""
        return [tuple(each.name for each in part.cell.states) for part in self._parts]

    @property
    def state_starts(self) -> list[tuple[float, ...]]:
        """What each layer's states begin with."""
        return [tuple(each.start for each in part.cell.states) for part in self._parts]

    @property
    def weight_bytes(self) -> int:
        """The bytes of the stored matrices and their scales."""
        each = {"float32": 4, "bfloat16": 2, "int8": 1}[self.weights]
        sizes = [
            part.tensors[name] for part in self._parts for name in MATRICES if name in part.tensors
        ]
        scales = sum(array.size // array.shape[-1] for array in sizes) if each == 1 else 0
        return sum(array.size for array in sizes) * each + 4 * scales

    def __call__(self, x: Any, states: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """The output [T,N,D·H] of the last layer, and the states after each row's last step.

        Args:
            x: [T,N,I] float32, a NumPy array or a torch tensor on the CPU; results are of the same
                kind.
            states: as a call returned them; None means the layers' initial values. A single layer
                takes one tuple of states [N,D·H] by name, a list of layers a list of tuples. A
                state that is None starts at its initial value.
            lengths: [N] integers: how many steps of each row count; the output past them is zero.
        """
        if self._quick is not None and lengths is None:
            found: tuple[Any, Any] | None = self._quick(x, states)
            if found is not None:
                return found
        like = Library(x)
        source, initial, counts = self.checked(like, x, states, lengths)
        masks = [part.mask_for(*source.shape[:2]) for part in self._parts]
        output, last = self._run(source, initial, masks, counts)
        return like.back(output), self._named(last, like)

    def stream(self, batch: int = 1) -> Stream:
        """A stream of steps with ``batch`` rows, which keeps the states between steps."""
        if isinstance(batch, bool) or not isinstance(batch, int | np.integer):
            raise DTypeError(refusal("stream", "batch", "an integer", describe(batch)))
        if batch < 1:
            raise OptionError(refusal("stream", "batch", "at least 1", str(batch)))
        for number, part in enumerate(self._parts):
            if part.directions == 2 or part.descriptor.reverse:
                got = "two directions" if part.directions == 2 else "reverse"
                expected = "one direction that reads forward, because the other begins at the end"
                raise OptionError(refusal("stream", f"layer {number}", expected, got))
        return Stream(self, int(batch))

    def report(self, x: Any, projection: Any = None) -> Report:
        """Compare the output for this x [T,N,I] with that of float32 weights.

        ``projection``: [classes,D·H], or a pair of it and a bias [classes]; the report then says
        how often the top class is the same.
        """
        like = Library(x)
        source = self._input(like.array(x, "x"), 3)
        exact = prepare(self.layers, "float32", backend=self.backend)
        return compare(self.weights, exact(source)[0], self(source)[0], projection)

    def __reduce__(self) -> Any:
        """Copies and pickles pack the weights again."""
        return partial(prepare, backend=self.backend), (self.layers, self.weights)

    def __repr__(self) -> str:
        shown = ", ".join(f"{part.cell.name} {part.inputs}→{part.width}" for part in self._parts)
        return f"<Prepared {shown}; {self.weights}, {self.weight_bytes:,} bytes, {self.backend}>"

    def checked(
        self, like: Library, x: Any, states: Any, lengths: Any
    ) -> tuple[Array, list[list[Array]], list[int] | None]:
        """A call's x [T,N,I], the states that each layer begins with, and the lengths or None."""
        source = self._input(like.array(x, "x"), 3)
        steps, batch = source.shape[:2]
        initial = self._states(states, batch, like)
        return source, initial, self._lengths(lengths, steps, batch)

    # ---- what calls and streams share ----

    def _run(
        self,
        x: Array,
        initial: list[list[Array]],
        masks: list[Array | None],
        lengths: list[int] | None,
    ) -> tuple[Array, list[list[Array]]]:
        steps, batch = x.shape[:2]
        if steps == 0 or batch == 0:
            empty = np.zeros((steps, batch, self.width), np.float32)
            return empty, [[each.copy() for each in states] for states in initial]
        if self.backend == "native":
            found: tuple[Array, list[list[Array]]] = self._stack.run(x, initial, masks, lengths)
            return found
        output, last = self._stack.run(x, initial, masks, lengths or [steps] * batch)
        return output, last

    def _input(self, x: Array, rank: int) -> Array:
        axes = ("T", "N")[3 - rank :]
        fits = x.ndim == rank and x.shape[-1] == self.inputs
        return _float32(x, "x" if rank == 3 else "x_t", fits, brackets((*axes, self.inputs)))

    def _lengths(self, lengths: Any, steps: int, batch: int) -> list[int] | None:
        if lengths is None:
            return None
        try:
            given = lengths.cpu().numpy() if is_torch_tensor(lengths) else np.asarray(lengths)
        except Exception as error:
            raise DTypeError(
                refusal("prepare", "lengths", "integers", in_words(lengths))
            ) from error
        if given.dtype.kind not in "iu" and given.size:
            raise DTypeError(refusal("prepare", "lengths", "integers", in_words(lengths)))
        if given.shape != (batch,):
            expected = f"[N] = [{batch}]"
            raise ShapeError(refusal("prepare", "lengths", expected, brackets(given.shape)))
        found = [int(each) for each in given]
        for each in found:
            if not 0 <= each <= steps:
                raise OptionError(refusal("prepare", "lengths", f"0 to T = {steps}", str(each)))
        for number, part in enumerate(self._parts):
            if part.directions == 1 and part.descriptor.reverse:
                expected = f"no reverse layer with lengths (layer {number})"
                raise OptionError(refusal("prepare", "lengths", expected, "reverse"))
        return found

    def _states(self, states: Any, batch: int, like: Library) -> list[list[Array]]:
        first = [part.first_states(batch) for part in self._parts]
        if states is None:
            return first
        single = isinstance(self.layers, Layer)
        listed = [states] if single else states
        if not isinstance(listed, Sequence) or len(listed) != len(self._parts):
            expected = f"a list of {len(self._parts)}, one per layer"
            raise DTypeError(refusal("prepare", "states", expected, describe(states)))
        found = []
        for number, (part, given) in enumerate(zip(self._parts, listed, strict=True)):
            names = [each.name for each in part.cell.states]
            if given is None:
                found.append(first[number])
                continue
            if not isinstance(given, Sequence) or len(given) != len(names):
                expected = f"a tuple of {', '.join(names)}"
                label = "states" if single else f"states of layer {number}"
                raise DTypeError(refusal("prepare", label, expected, describe(given)))
            found.append(
                [
                    default if value is None else self._state(part, name, value, batch, like)
                    for name, value, default in zip(names, given, first[number], strict=True)
                ]
            )
        return found

    def _state(self, part: Part, name: str, value: Any, batch: int, like: Library) -> Array:
        expected = f"[N,{part.width}] = [{batch},{part.width}]"
        array = like.array(value, name)
        return _float32(array, name, array.shape == (batch, part.width), expected)

    def _named(self, last: list[list[Array]], like: Library) -> Any:
        pairs = zip(self._parts, last, strict=True)
        found = [part.states(*map(like.back, states)) for part, states in pairs]
        return found[0] if isinstance(self.layers, Layer) else found


def _float32(array: Array, name: str, fits: bool, shape: str) -> Array:
    """Contiguous and aligned numbers, as the engine reads them."""
    if dtype_name(array.dtype) != "float32":
        raise DTypeError(refusal("prepare", name, "float32", dtype_name(array.dtype)))
    if not fits:
        raise ShapeError(refusal("prepare", name, shape, brackets(array.shape)))
    # The engine knows NumPy's own types alone: neither a float32 that was pickled nor a memmap.
    return np.require(array, requirements=["C", "A"]).view(np.float32, np.ndarray)
