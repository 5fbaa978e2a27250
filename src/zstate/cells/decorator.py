"""``@cells.cell``: a cell from its equations, at run time, on every engine.

The function runs once, on symbols, when it is defined. If it cannot be computed, that raises an
error with the line of its source. A call is an operation like the built-in ones.
T time, N batch, I input features, H hidden units, G gates, D directions.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import product
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from ..descriptors import Descriptor
from ..errors import DTypeError, EquationError, OptionError, refusal
from ..types import FLOAT_NAMES, as_integer
from .checks import OPTIONS, check_arguments, checked_initial, checked_label, names_in, with_line
from .definition import Cell, Parameter, State, state
from .program import program
from .tracing import Context, replayed

_defined: WeakSet[Cell] = WeakSet()
_listeners: list[Callable[[Cell], object]] = []


def tell_of_cells(listener: Callable[[Cell], object]) -> None:
    """Tell ``listener`` about every cell, already defined or defined later."""
    _listeners.append(listener)
    for each in defined_cells():
        listener(each)


def announce(cell: Cell) -> None:
    """Tell the listeners of a new cell."""
    _defined.add(cell)
    for listener in _listeners:
        listener(cell)


def defined_cells() -> list[Cell]:
    """The cells from equations that have been defined."""
    return list(_defined)


@dataclass(frozen=True, eq=True, unsafe_hash=False)
class CellDescriptor(Descriptor):
    """The options of every cell from equations."""

    reverse: bool = False
    bidirectional: bool = False
    training: bool = False
    heads: int = 1

    gives_every_state: ClassVar[bool] = True
    __hash__ = Descriptor.__hash__


# The same object each time, so that calls are recognised; torch.compile can look into a table.
_DESCRIPTORS = {chosen: CellDescriptor(*chosen) for chosen in product((False, True), repeat=3)}


def _descriptor(reverse: bool, bidirectional: bool, training: bool = False) -> CellDescriptor:
    if not (type(reverse) is type(bidirectional) is type(training) is bool):
        return CellDescriptor(reverse, bidirectional, training)  # which says what is wrong
    return _DESCRIPTORS[reverse, bidirectional, training]


def cell(
    gates: str,
    states: str = "h",
    parameters: str = "",
    steps: str = "",
    initial: Mapping[str, float] | None = None,
) -> Callable[[Callable[..., Any]], MadeCell]:
    """Make a cell from a function that computes one step.

    Args:
        gates: the names of the gates, in their order along the G axis.
        states: the names of the states; the first is the one that a layer passes to the next.
        parameters: the names of the cell's own parameters, [H] each.
        steps: the names of values that the caller passes for every step, [T,N,H] each or
            anything that broadcasts to it.
        initial: values of states before the first step, if not 0.

    The function takes x, R, every state before the step, every parameter and every value per step,
    with these names, and returns the states after the step in order.

    Example:
        >>> import numpy as np
        >>> import zstate.cells as cells
        >>> @cells.cell(gates="f z", states="h")
        ... def mgu(x, R, h):
        ...     f = cells.sigmoid(x.f + R.f @ h)
        ...     return (1 - f) * h + f * cells.tanh(x.z + R.z @ (f * h))
        >>> x, R = np.zeros((3, 1, 4)), np.ones((4, 2))
        >>> mgu(x, R, init_h=np.ones((1, 2))).h.shape
        (3, 1, 2)
    """

    if callable(gates):
        label = getattr(gates, "__name__", "cell")
        raise EquationError(f'[{label}] expected @cells.cell(gates="…"), got @cells.cell alone')

    def make(function: Callable[..., Any]) -> MadeCell:
        return MadeCell(function, gates, states, parameters, steps, initial or {})

    return make


class MadeCell:
    """A cell from equations: call it to run forward; ``.gradients`` runs backward."""

    def __init__(
        self,
        function: Callable[..., Any],
        gates: str,
        states: str,
        parameters: str,
        steps: str,
        initial: Mapping[str, float],
    ) -> None:
        label = checked_label(getattr(function, "__name__", "cell"))
        names = {"gates": gates, "states": states, "parameters": parameters, "steps": steps}
        listed = {what: names_in(label, what, text) for what, text in names.items()}
        for name in listed["steps"]:
            if name in listed["gates"]:
                raise EquationError(f"[{label}] steps: {name!r} is already the name of a gate")
        others = (*listed["parameters"], *listed["steps"])
        check_arguments(label, function, listed["states"], others)
        self.steps = listed["steps"]  # values per step: gates that no weight reaches
        self.initial = checked_initial(label, initial, listed["states"])
        self.__name__ = label
        self.__qualname__ = getattr(function, "__qualname__", label)
        self.__module__ = getattr(function, "__module__", __name__)
        self.__doc__ = function.__doc__
        self.definition = _defined_cell(label, function, listed, self.initial)
        self._pair: tuple[Any, Any] | None = None  # its operations, and the names of their inputs
        self._names: frozenset[str] = frozenset()
        announce(self.definition)

    def __call__(
        self,
        source: Any,
        recurrent_weight: Any,
        *,
        reverse: bool = False,
        bidirectional: bool = False,
        training: bool = False,
        backend: str | None = None,
        heads: int = 1,
        **tensors: Any,
    ) -> Any:
        """The forward operation.

        Args:
            source: x [T,N,I]; without input_weight already projected, [T,N,D·G·H].
            recurrent_weight: R [G·H,H], bidirectional [2,G·H,H]; with heads [heads,G·d,d] and
                [2,heads,G·d,d], H = heads·d.
            reverse, bidirectional, training, backend: as in :func:`zstate.lstm`'s descriptor.
            tensors: input_weight [D·G·H,I], bias [D·G·H], mask [T,N,D·H], init_<state> [N,D·H],
                resets [T,N] (true where step t starts a new sequence: see docs/cells.md),
                and the cell's own parameters by name, [D·H] each.

        Returns:
            Every state [T,N,D·H] by name, then training_state (None without training).
        """
        operation, _ = self._operations
        if type(source) is np.ndarray:
            self._quicken()
        tensors["source"], tensors["recurrent_weight"] = source, recurrent_weight
        options = _descriptor(reverse, bidirectional, training)
        given = self._accepted(0, self._inputs(tensors), options, heads)
        given |= self.initial_values(given, bidirectional is True, heads)
        inner = self._inner(given, bidirectional)
        found = _run(operation, tuple(map(inner.get, operation.inputs)), options, backend, heads)
        return _as_type(found, given["source"].dtype) if self.steps else found

    def gradients(
        self,
        source: Any,
        recurrent_weight: Any,
        out: Any,
        state_gradients: Mapping[str, Any],
        *,
        reverse: bool = False,
        bidirectional: bool = False,
        training: bool = True,
        backend: str | None = None,
        heads: int = 1,
        **tensors: Any,
    ) -> Any:
        """The gradients of a call, for every input that was passed except the mask.

        Args:
            source, recurrent_weight, reverse, bidirectional, backend, heads, tensors: as in the
                call.
            out: the result of the call, with training=True.
            state_gradients: the gradient of each state [T,N,D·H] by name; a missing one counts as
                zero.
            training: accepted, so that you can repeat the call's keywords, but ignored.
        """
        _, operation = self._operations
        self._check_results(out, state_gradients)
        tensors["source"], tensors["recurrent_weight"] = source, recurrent_weight
        given = self._inputs(tensors)
        for name, result in self.definition.fed_back.items():
            given[name] = getattr(out, result)
        for each in self.definition.states:
            given[each.gradient] = state_gradients.get(each.name)
        if given["source_gradient"] is None:
            given["source_gradient"] = _zeros_like(out[0])
        options = _descriptor(reverse, bidirectional)
        passed = {*given}
        given = self._accepted(1, given, options, heads)
        given |= self.initial_values(given, bidirectional is True, heads)
        inner = self._inner(given, bidirectional)
        found = _run(operation, tuple(map(inner.get, operation.inputs)), options, backend, heads)
        if self.steps:
            found = self._of_caller(bidirectional, given, found)
        filled = given.keys() - passed  # what the caller did not pass
        return found._replace(**dict.fromkeys(filled)) if filled else found

    def _quicken(self) -> None:
        """Let calls that look like an earlier one skip what is done here."""
        if type(self) is MadeCell and not self.steps:
            from .quick_calls import quickened

            self.__class__ = quickened(self, *self._operations, _descriptor)

    def _accepted(
        self, place: int, given: dict[str, Any], options: Any, heads: int
    ) -> dict[str, Any]:
        """A call's tensors; checked here where the operation takes others than the caller has."""
        if not self.steps and "recurrent_weight" in given:
            return given
        from ..functional import accepted
        from ..operations import calls_of

        return accepted(calls_of(self.definition)[place], given, options, heads)

    def _inner(self, given: dict[str, Any], bidirectional: bool) -> dict[str, Any]:
        """What the operation takes of a call's checked tensors."""
        if not self.steps:
            return given
        resets = {"resets": given["resets"]} if "resets" in given else {}
        others = {name: value for name, value in given.items() if name not in resets}
        inner: dict[str, Any] = self._step_values(bidirectional).inner(others)
        return inner | resets

    def _step_values(self, bidirectional: bool) -> Any:
        from ..step_values import StepValues

        count = len(self.definition.gates) - len(self.steps)
        return StepValues(self.steps, count, 2 if bidirectional else 1)

    def _of_caller(self, bidirectional: bool, given: Mapping[str, Any], found: Any) -> Any:
        """The gradients by the names of what the caller passed."""
        passed = {name: each for name, each in found._asdict().items() if each is not None}
        results = self._step_values(bidirectional).outer(given, passed)
        return self._gradients(*map(results.get, self._gradients._fields))

    @cached_property
    def _gradients(self) -> Any:
        """The type of the gradients, with those of values per step."""
        _, operation = self._operations
        return namedtuple(operation.result.__name__, (*operation.result._fields, *self.steps))

    @property  # not a cached one, whose lock torch.compile cannot take
    def _operations(self) -> tuple[Any, Any]:
        if self._pair is None:
            from ..operations import operations_of

            pair = operations_of(self.definition)
            # The pair last: to another thread it means that both are set.
            self._names = frozenset((*pair[0].inputs, *self.steps))
            self._pair = pair
        return self._pair

    def _inputs(self, given: dict[str, Any]) -> dict[str, Any]:
        """The tensors by name, without those that are None; unknown and missing ones refused."""
        forward, _ = self._operations
        if not given.keys() <= self._names:
            (name, *_) = (name for name in given if name not in self._names)
            known = ", ".join((*forward.optional, *self.steps, *OPTIONS))
            raise OptionError(refusal(self.__name__, name, f"one of {known}", "another name"))
        for each in self.definition.own:
            if given.get(each.name) is None:
                raise DTypeError(
                    refusal(self.__name__, each.name, "a parameter of [D·H], one per unit", "None")
                )
        for name in self.steps:
            if given.get(name) is None:
                expected = "an array that broadcasts to [T,N,D·H], a value per step"
                raise DTypeError(refusal(self.__name__, name, expected, "None"))
        return {name: value for name, value in given.items() if value is not None}

    def initial_values(
        self, given: Mapping[str, Any], bidirectional: bool, heads: int = 1
    ) -> dict[str, Any]:
        """The initial states that are not zero and are not among the arrays given."""
        if not self.initial:
            return {}
        missing = {
            each.initial: self.initial[each.name]
            for each in self.definition.states
            if each.name in self.initial and each.initial not in given
        }
        if not missing:
            return {}
        source: Any = given.get("source")
        weight: Any = given.get("recurrent_weight")
        count = as_integer(heads)
        rank = len(getattr(source, "shape", ()))
        shape: tuple[int, ...] = getattr(weight, "shape", ())
        if count is None or rank != 3 or (count not in shape[-3:-2] if count != 1 else not shape):
            return {}  # the operation itself refuses them
        if str(source.dtype).removeprefix("torch.") not in FLOAT_NAMES:
            return {}
        from ..arrays import namespace_of

        width = shape[-1] * count * (2 if bidirectional else 1)
        xp, kind = namespace_of(source), source.dtype
        zeros = xp.zeros((source.shape[1], width), kind)
        return {name: xp.astype(zeros + value, kind) for name, value in missing.items()}

    def _check_results(self, out: Any, gradients: Any) -> None:
        label, names = f"{self.__name__}.gradients", [each.name for each in self.definition.states]
        if not all(hasattr(out, name) for name in (*names, "training_state")):
            expected = f"the result of {self.__name__}(…, training=True)"
            raise DTypeError(refusal(label, "out", expected, type(out).__name__))
        if not isinstance(gradients, Mapping):
            expected = "a mapping from states to their gradients"
            raise DTypeError(refusal(label, "state_gradients", expected, type(gradients).__name__))
        for name in gradients:
            if name not in names:
                raise OptionError(
                    refusal(label, "state_gradients", f"names of {', '.join(names)}", repr(name))
                )

    def __str__(self) -> str:
        return str(self.definition)

    def __repr__(self) -> str:
        gates = " ".join(self.definition.gates)
        states = " ".join(each.name for each in self.definition.states)
        return f"<cell {self.__name__}: gates {gates}; states {states}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By its name, as functions are; by its equations where a name does not lead to it."""
        path: str = self.__qualname__
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is self:
            return path
        from .text import read_cell, write_cell

        return read_cell, (write_cell(self),)

    def __copy__(self) -> MadeCell:
        return self

    def __deepcopy__(self, _: Any) -> MadeCell:
        return self

    @property
    def __signature__(self) -> inspect.Signature:
        forward, _ = self._operations
        kind = inspect.Parameter
        own = {*(each.name for each in self.definition.own), *self.steps}
        options: dict[str, Any] = dict.fromkeys(("reverse", "bidirectional", "training"), False)
        options |= {"backend": None, "heads": 1}
        places = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in forward.required]
        named = [
            kind(name, kind.KEYWORD_ONLY, default=kind.empty if name in own else None)
            for name in (*forward.optional, *self.steps)
        ]
        others = [kind(n, kind.KEYWORD_ONLY, default=value) for n, value in options.items()]
        return inspect.Signature([*places, *named, *others])


_functional_run: Any = None  # once it was needed: to import it in every call takes as long as one


def _run(*call: Any) -> Any:
    global _functional_run
    if _functional_run is None:
        from ..functional import run as _functional_run
    return _functional_run(*call)


def _zeros_like(value: Any) -> Any:
    from ..arrays import namespace_of

    return namespace_of(value).zeros_like(value)


def _as_type(result: Any, kind: Any) -> Any:
    """A result in the type of the source."""
    from ..arrays import namespace_of

    xp = namespace_of(result[0])
    return type(result)(*(None if v is None else xp.astype(v, kind, copy=False) for v in result))


def _defined_cell(
    label: str,
    function: Callable[..., Any],
    listed: Mapping[str, tuple[str, ...]],
    initial: Mapping[str, float],
) -> Cell:
    """The cell; its equations are read, and its step backward derived, before anybody calls it."""
    names, steps = listed["parameters"], listed["steps"]
    first, *others = listed["states"]

    @wraps(function)
    def written(at: Context, *before: Any) -> Any:
        x, R = at.x.without("x", steps), at.R.without("R", steps)
        own, values = (at.own[name] for name in names), (at.x[name] for name in steps)
        before[0].book.is_read = True
        try:
            return function(x, R, *before, *own, *values)
        finally:
            before[0].book.is_read = False

    def made(equations: Callable[..., Any], key: str = "") -> Cell:
        return Cell(
            label,
            (*listed["gates"], *steps),
            CellDescriptor,
            equations,
            states=(
                _first_state(first, initial.get(first, 0.0)),
                *(state(name, start=initial.get(name, 0.0)) for name in others),
            ),
            own=tuple(Parameter(name, required=True) for name in names),
            keeps_states="gives_every_state",
            values=steps,
            key=key,
        )

    draft = made(written)
    form = draft.usual, frozenset(names), False, False
    try:
        draft.backward(*form)
    except EquationError as error:
        raise with_line(label, str(error), error, function) from None
    except Exception as error:  # whatever another library says about a symbol
        expected = "expected numbers, values of the step and the functions of zstate.cells"
        refused = f"{expected}, got {type(error).__name__}: {error}"
        raise with_line(label, refused, error, function) from error
    read = draft.forward(*form)
    said = (*listed.values(), sorted(initial.items()), program([*read.states, *read.saved]))
    digest = hashlib.sha256(repr(said).encode()).hexdigest()[:12]
    key = f"{label}_{digest}".encode("ascii", "ignore").decode()  # torch accepts no other
    return made(replayed(read), key)


def _first_state(name: str, start: float) -> State:
    """The state that the layer gives, by its own name."""
    last = f"{name}_gradient"
    return State(name, f"init_{name}", f"{name}_output_fwd", "source_gradient", last, name, start)
