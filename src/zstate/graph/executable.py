"""A compiled graph: one pass over its nodes, each buffer freed after its last reader."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arrays import NUMPY, Namespace, is_array, namespace_of
from ..errors import DTypeError, GraphError, ShapeError, refusal
from ..hints import is_public
from ..layout import brackets, describe
from ..types import Array, float_dtype
from . import printing
from .ops import CONSTANT, PLACEHOLDER, VARIABLE
from .ops.base import known
from .tensor import Node, Tensor

if TYPE_CHECKING:
    from .graph import Graph


ARRAY = "a NumPy array (np.asarray makes one)"  # what a feed must be


class Memory(NamedTuple):
    """Bytes of a program's tensors, not counting what an operation uses while it runs.

    ``peak`` is the most that the nodes' results take at one time, ``without_reuse`` what they would
    take if none were freed; ``weights`` counts constants and variables, ``feeds`` the arrays fed.
    """

    peak: int
    without_reuse: int
    weights: int
    feeds: int


class _Step(NamedTuple):
    node: Node
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    dead: tuple[int, ...]  # the slots that no later step reads


class Bound(NamedTuple):
    """A node and its function of one array library, which gives an array or a tuple of them."""

    node: Node
    function: Callable[..., Any]
    is_tuple: bool


class Executable:
    """A program: feeds and results are lists in the order that ``Graph.compile`` was given.

    It shares the variables of the graph it was compiled from; a program loaded from a file has its
    own.
    """

    def __init__(
        self,
        graph: Graph,
        feeds: Sequence[Tensor],
        targets: Sequence[Tensor],
        updates: Sequence[tuple[Node, Tensor]],
        names: Sequence[str],
    ) -> None:
        self.graph = graph
        self.feeds, self.targets, self.updates = list(feeds), list(targets), list(updates)
        self.target_names = list(names)
        kept = [*self.targets, *(tensor for _, tensor in self.updates)]
        self.nodes = graph.needed(kept)
        self._slots: dict[Tensor, int] = {}
        for tensor in self.feeds:
            self._slots[tensor] = len(self._slots)
        for node in self.nodes:
            for tensor in node.results:
                self._slots.setdefault(tensor, len(self._slots))
        self._roots = _roots(self.nodes, self.feeds)
        self._steps = self._plan(kept)
        self.memory = self._measure()
        self._target_slots = [
            (self._slots[tensor], is_copied)
            for tensor, is_copied in zip(self.targets, self._copies(), strict=True)
        ]
        self._variable_slots = [
            (slot, tensor.node.attributes["store"])
            for tensor, slot in self._slots.items()
            if tensor.node.op is VARIABLE
        ]
        # Each entry is completed before it is stored, so that threads share it without a lock.
        self._bound: dict[Namespace, tuple[list[Any], list[Any]]] = {}

    @property
    def variables(self) -> dict[str, Array]:
        """The current values of the variables that the program reads or updates, by name."""
        nodes = [node for node in self.nodes if node.op is VARIABLE]
        nodes += [node for node, _ in self.updates if node not in nodes]
        return {node.name: NUMPY.asarray(node.attributes["store"].value) for node in nodes}

    def run(self, feeds: Sequence[Any]) -> list[Any]:
        """Compute the targets, then store the assigned values.

        The feeds are all NumPy arrays, or all torch tensors on one device; so are the results,
        which belong to the caller. Several threads may run one program.
        """
        return self.run_checked(self._check(feeds), feeds)

    def run_checked(self, xp: Namespace, feeds: Sequence[Any]) -> list[Any]:
        """``run`` on feeds of one array library that are known to have the right shapes and types.

        For callers that look up programs by these: checking again would cost a microsecond.
        """
        bound = self._bound.get(xp)
        if bound is None:
            bound = self._bound.setdefault(xp, self._bind(xp))
        steps, constants = bound
        values = constants.copy()
        asarray = xp.asarray
        for slot, array in enumerate(feeds):
            values[slot] = asarray(array)
        for slot, store in self._variable_slots:
            values[slot] = asarray(store.value)
        for function, inputs, results, dead in steps:
            found = function(*[values[slot] for slot in inputs])
            if results.__class__ is int:
                values[results] = found
            else:
                for slot, array in zip(results, found, strict=True):
                    values[slot] = array
            for slot in dead:
                values[slot] = None
        out = [
            xp.copy(values[slot]) if is_copied else xp.result(values[slot])
            for slot, is_copied in self._target_slots
        ]
        if self.updates:
            kept = [(node, self._kept(xp, tensor, values)) for node, tensor in self.updates]
            for node, array in kept:
                node.attributes["store"].value = array
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bound": {}}

    def __dir__(self) -> list[str]:
        hidden = ("bound_to", "check_feeds", "run_checked", "saved_nodes", "updates")
        return [name for name in super().__dir__() if is_public(name) and name not in hidden]

    def __repr__(self) -> str:
        return (
            f"<Executable of {len(self.nodes)} nodes: {printing.listed(self.feeds)} -> "
            f"{printing.listed(self.targets, self.target_names)}, {len(self.variables)} variables>"
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the program, its constants and the values of its variables to one file."""
        from .files import save_executable

        save_executable(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Executable:
        """Load a program from a file that :meth:`save` wrote, and check everything in it."""
        from .files import load_executable

        return load_executable(path)

    def to_swift(self, name: str, *, weights: str | None = None) -> str:
        """The program in Swift; see :meth:`zstate.Graph.to_swift`."""
        from .swift import to_swift

        nodes = self.saved_nodes()
        return to_swift(
            name,
            nodes,
            {node: f"n{number}" for number, node in enumerate(nodes)},
            list(zip(self.target_names, self.targets, strict=True)),
            [(f"assign_{node.name}", node, tensor) for node, tensor in self.updates],
            weights or f"{name}.safetensors",
        )

    def saved_nodes(self) -> list[Node]:
        """The nodes that belong to the program, in the order in which they were made."""
        kept = {*self.nodes, *(t.node for t in self.feeds), *(n for n, _ in self.updates)}
        return [node for node in self.graph.nodes if node in kept]

    def _plan(self, kept: Sequence[Tensor]) -> list[_Step]:
        last: dict[Tensor, Node] = {}
        for node in self.nodes:
            for tensor in (*node.inputs, *node.results):
                last[tensor] = node
        ends: dict[Node, list[int]] = {}
        stays = {*kept, *(t for t in last if t.node.op in (CONSTANT, VARIABLE, PLACEHOLDER))}
        for tensor, node in last.items():
            if tensor not in stays:
                ends.setdefault(node, []).append(self._slots[tensor])
        return [
            _Step(
                node,
                tuple(self._slots[tensor] for tensor in node.inputs),
                tuple(self._slots[tensor] for tensor in node.results),
                tuple(ends.get(node, ())),
            )
            for node in self.nodes
            if node.op.prepare is not None
        ]

    def _measure(self) -> Memory:
        tensors = {slot: tensor for tensor, slot in self._slots.items()}
        alive: dict[Tensor, int] = {}  # how many live tensors share a buffer
        now = peak = total = 0
        for step in self._steps:
            for slot in step.results:
                root = self._roots[tensors[slot]]
                if root.node.op in (CONSTANT, VARIABLE, PLACEHOLDER):
                    continue
                if root not in alive:
                    alive[root] = 0
                    now += _size(root)
                    total += _size(root)
                alive[root] += 1
            peak = max(peak, now)
            for slot in step.dead:
                root = self._roots[tensors[slot]]
                alive[root] = alive.get(root, 0) - 1
                if alive[root] == 0:
                    now -= _size(root)
        stored = [node.results[0] for node in self.nodes if node.op in (CONSTANT, VARIABLE)]
        weights = sum(map(_size, stored))
        return Memory(peak, total, weights, sum(map(_size, self.feeds)))

    def _copies(self) -> list[bool]:
        """Which targets must be copied, so that the caller alone owns them."""
        given: set[Tensor] = {self._roots[tensor] for _, tensor in self.updates}
        copied = []
        for tensor in self.targets:
            root = self._roots[tensor]
            shared = root in given or root.node.op in (CONSTANT, VARIABLE, PLACEHOLDER)
            given.add(root)
            copied.append(shared)
        return copied

    def _kept(self, xp: Namespace, tensor: Tensor, values: list[Any]) -> Any:
        array = values[self._slots[tensor]]
        root = self._roots[tensor]
        # A view would keep its whole buffer; a fed array belongs to the caller.
        if root is not tensor or root.node.op is PLACEHOLDER:
            return xp.copy(array)
        return xp.result(array)

    def bound_to(self, xp: Namespace) -> tuple[list[Bound], dict[Tensor, Any]]:
        """The nodes with their functions of an array library, and its copies of the constants."""
        bound = []
        for step in self._steps:
            assert step.node.op.prepare is not None
            infos = [tensor.info for tensor in step.node.inputs]
            function = step.node.op.prepare(xp, infos, step.node.attributes)
            # A row that names its results returns a tuple of them, any other an array.
            bound.append(Bound(step.node, function, step.node.results[0].name != step.node.name))
        constants = {
            tensor: xp.asarray(tensor.node.attributes["store"].value)
            for tensor in self._slots
            if tensor.node.op is CONSTANT
        }
        return bound, constants

    def _bind(self, xp: Namespace) -> tuple[list[Any], list[Any]]:
        """The steps with their functions of this array library, and its copy of the constants."""
        bound, constants = self.bound_to(xp)
        steps = [
            (
                each.function,
                step.inputs,
                step.results if each.is_tuple else step.results[0],
                step.dead,
            )
            for step, each in zip(self._steps, bound, strict=True)
        ]
        values: list[Any] = [None] * len(self._slots)
        for tensor, array in constants.items():
            values[self._slots[tensor]] = array
        return steps, values

    def check_feeds(self, feeds: Sequence[Any]) -> None:
        """Refuse feeds that are missing, too many, or of a wrong shape or type."""
        if not isinstance(feeds, list | tuple) or len(feeds) != len(self.feeds):
            names = ", ".join(tensor.name for tensor in self.feeds)
            count = _arrays(len(feeds)) if isinstance(feeds, list | tuple) else describe(feeds)
            expected = f"a list of {_arrays(len(self.feeds))} [{names}]"
            raise GraphError(refusal("run", "feeds", expected, count + self._odd_one(feeds)))
        for tensor, array in zip(self.feeds, feeds, strict=True):
            if not is_array(array):
                label = f"feed {tensor.name!r}"
                raise DTypeError(refusal("run", label, ARRAY, describe(array)))
            shape, dtype = namespace_of(array).info(array)
            if dtype != tensor.dtype:
                raise DTypeError(refusal("run", f"feed {tensor.name!r}", tensor.dtype, dtype))
            if shape != tensor.shape:
                expected, got = brackets(tensor.shape), brackets(shape)
                raise ShapeError(refusal("run", f"feed {tensor.name!r}", expected, got))

    def _check(self, feeds: Sequence[Any]) -> Namespace:
        """The library and device that all feeds are of."""
        self.check_feeds(feeds)
        xp: Namespace | None = None
        for tensor, array in zip(self.feeds, feeds, strict=True):
            found = namespace_of(array)
            if xp is not None and found is not xp:
                expected = f"an array from the same library and device as {self.feeds[0].name!r}"
                got = type(array).__module__
                raise DTypeError(refusal("run", f"feed {tensor.name!r}", expected, got))
            xp = found
        return NUMPY if xp is None else xp

    def _odd_one(self, feeds: object) -> str:
        """Which feeds are missing, or how many are too many."""
        if not isinstance(feeds, list | tuple):
            return ""
        if len(feeds) < len(self.feeds):
            missing = ", ".join(repr(tensor.name) for tensor in self.feeds[len(feeds) :])
            return f", without {missing}"
        return f", {len(feeds) - len(self.feeds)} too many"


def _roots(nodes: Sequence[Node], feeds: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """The tensor in whose buffer each lies: its own, or for a view that of its first input."""
    roots = {tensor: tensor for tensor in feeds}
    for node in nodes:
        for tensor in node.results:
            roots[tensor] = roots[node.inputs[0]] if node.op.view else tensor
    return roots


def _size(tensor: Tensor) -> int:
    shape = known(tensor.shape)
    assert shape is not None
    return math.prod(shape) * float_dtype(tensor.dtype).itemsize


def _arrays(number: int) -> str:
    return "1 array" if number == 1 else f"{number} arrays"
