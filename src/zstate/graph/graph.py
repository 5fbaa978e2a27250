"""The graph: built once, differentiated, compiled, run with feeds, saved and printed."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import NUMPY, is_array, namespace_of
from ..errors import DTypeError, GraphError, ShapeError, refusal
from ..hints import is_public, missing
from ..layout import brackets, describe
from ..types import Array
from . import gradients as reverse
from . import printing
from .compiling import compile_graph, fits
from .drawing import Program, program_of
from .executable import ARRAY, Executable
from .methods import Recurrent, Statistics
from .methods.core import checked_value, listed
from .ops import ASSIGN, PLACEHOLDER, VARIABLE
from .outputs import outputs_of
from .tensor import Node, Tensor

_FOR_METHODS = (  # what the methods, and programs that write graphs, use to add nodes
    "add_node add_node_named apply apply_many check_fit needed note_assign own training_twin"
).split()
_MOST_PROGRAMS = 32  # kept by run(): a bound, not a policy


class NoTargetError(GraphError, KeyError):
    """A run has no such result."""

    __str__ = GraphError.__str__  # KeyError would show the message in quotes


class Results(dict[Tensor, Array]):
    """{tensor: array}: what a run returns. Its keys are the targets, not their names."""

    def __missing__(self, key: object) -> NoTargetError:
        expected = f"one of the targets: {printing.listed(list(self))}"
        got = f"{key!r}, a name: results[tensor] takes the tensor" if isinstance(key, str) else key
        raise NoTargetError(refusal("run", "results", expected, str(got)))


class Graph(Statistics, Recurrent):
    """A graph of operations, built once and run with feeds.

    Methods return Tensors without data; a wrong shape or type raises an error when the node is
    added. The recurrent methods return lists in the published order; an absent input has no slot.

    Example:
        >>> import numpy as np
        >>> g = Graph()
        >>> x = g.placeholder(shape=(None, 1, 3), dtype="float64", name="x")
        >>> R = g.constant(np.eye(3))
        >>> (h,) = g.single_gate_rnn(x, recurrent_weight=R)
        >>> h
        <Tensor single_gate_rnn_2:state float64[?,1,3]>
        >>> g.run(feeds={x: np.ones((2, 1, 3))}, targets=[h])[h][-1]
        array([[2., 2., 2.]])
    """

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[Any, Executable] = {}

    if not TYPE_CHECKING:  # a type checker would accept any method

        def __getattr__(self, name: str) -> Any:
            raise missing("Graph", name, dir(type(self)))

    def __copy__(self) -> Graph:
        """A graph with its own nodes, tensors and variables, like copy.deepcopy's."""
        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_programs": {}, "_numbers": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _numbers=itertools.count(len(state["nodes"])))

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if is_public(name) and name not in _FOR_METHODS]

    def run(
        self,
        feeds: Mapping[Tensor, Array],
        targets: Iterable[Tensor],
        operations: Iterable[Tensor] = (),
    ) -> dict[Tensor, Array]:
        """Compute the targets from the feeds: {tensor: array}.

        Every placeholder that a target depends on must be fed, with an array of its type and
        shape: NumPy arrays, or torch tensors on one device. ``operations`` are assigns to run
        without returning their values. The results belong to the caller. Several threads may run a
        graph.
        """
        wanted = listed("run", "targets", targets)
        effects = listed("run", "operations", operations)
        if not isinstance(feeds, Mapping):
            expected = "{placeholder: array}"
            raise DTypeError(refusal("run", "feeds", expected, describe(feeds)))
        for target in wanted:
            self.own("run", "targets", target)
        for effect in effects:
            self.own("run", "operations", effect)
        for tensor, array in feeds.items():
            self._check_feed(tensor, array)
        for node in self.needed([*wanted, *effects]):
            if node.op is PLACEHOLDER and node.results[0] not in feeds:
                (tensor,) = node.results
                expected = f"an array {tensor.dtype}{brackets(tensor.shape)}"
                raise GraphError(refusal("run", f"feed {tensor.name!r}", expected, "nothing"))
        shapes = {tensor: namespace_of(array).info(array) for tensor, array in feeds.items()}
        key = (tuple(shapes.items()), tuple(wanted), tuple(effects))
        # Threads share this dict. Every access is one operation on it, so it needs no lock, which
        # a forked child could find held forever.
        program = self._programs.get(key)
        if program is None:
            program = self._programs.setdefault(key, compile_graph(self, shapes, wanted, effects))
            for oldest in list(self._programs)[:-_MOST_PROGRAMS]:
                self._programs.pop(oldest, None)
        return Results(zip(wanted, program.run(list(feeds.values())), strict=True))

    def compile(
        self,
        feeds: Mapping[Tensor, tuple[Sequence[int], str]],
        targets: Iterable[Tensor],
        operations: Iterable[Tensor] = (),
        *,
        device: str | None = None,
    ) -> Executable:
        """A program for feeds of known shapes: {placeholder: (shape, dtype)}.

        Compiling fixes shapes, folds constants, merges equal nodes, drops nodes that no target
        needs, and frees buffers after their last reader. ``program.run([array, …])`` takes the
        feeds in the order given here and returns the targets in theirs. It shares this graph's
        variables.

        ``device``: "cuda" or "cuda:1" makes a program that lives on that GPU, with the graph's
        variables. None runs where the feeds are.

        Example:
            >>> import numpy as np
            >>> g = Graph()
            >>> x = g.placeholder(shape=(None,), dtype="float64")
            >>> program = g.compile(feeds={x: ((3,), "float64")}, targets=[g.square(x) + 1.0])
            >>> program.run([np.arange(3.0)])
            [array([1., 2., 5.])]
        """
        from .on_device import DeviceExecutable, device_named

        found = None if device is None else device_named("compile", device)
        if found is None:
            return compile_graph(self, feeds, targets, operations)
        made = partial(DeviceExecutable, device=found[0], kernels=found[1])
        return compile_graph(self, feeds, targets, operations, made)

    def gradients(self, of: Tensor, with_respect_to: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """{tensor: the gradient of ``of`` with respect to it}, as new nodes of this graph.

        ``of`` is usually a scalar; for a larger tensor you get the gradient of the sum of its
        elements. For a tensor that ``of`` does not depend on, you get zeros of its shape. You need
        not turn on training: the graph adds a twin of a recurrent node that keeps its training
        state, and compiling merges the two.

        Example:
            >>> import numpy as np
            >>> g = Graph()
            >>> x = g.placeholder(shape=(3,), dtype="float64")
            >>> dx = g.gradients(of=g.reduction_sum(g.square(x)), with_respect_to=[x])[x]
            >>> g.run({x: np.arange(3.0)}, [dx])[dx]
            array([0., 2., 4.])
        """
        wanted = listed("gradients", "with_respect_to", with_respect_to)
        return reverse.gradients(self, of, wanted)

    def variables(self) -> dict[str, Array]:
        """Copies of the variables' values, by name."""
        return {
            node.name: np.array(NUMPY.asarray(node.attributes["store"].value))
            for node in self.nodes
            if node.op is VARIABLE
        }

    def set_variables(self, values: Mapping[str, Array]) -> None:
        """Set variables by name; if one value does not fit, nothing changes."""
        if not isinstance(values, Mapping):
            raise DTypeError(refusal("set_variables", "values", "{name: array}", describe(values)))
        nodes = {node.name: node for node in self.nodes if node.op is VARIABLE}
        arrays = {}
        for name, value in values.items():
            if name not in nodes:
                expected = "the name of a variable"
                raise GraphError(refusal("set_variables", "values", expected, repr(name)))
            info = nodes[name].results[0].info
            array = checked_value("set_variables", value, None, None)
            if (array.shape, array.dtype.name) != info:
                expected = f"{info.dtype}{brackets(info.shape)}"
                got = f"{array.dtype.name}{brackets(array.shape)}"
                raise ShapeError(refusal("set_variables", name, expected, got))
            arrays[name] = array
        for name, array in arrays.items():
            nodes[name].attributes["store"].value = array

    def save(self, path: str | PathLike[str]) -> None:
        """Write the graph, its constants and the values of its variables to one file."""
        from .files import save_graph

        save_graph(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Graph:
        """Load a graph from a file that :meth:`save` wrote, and check everything in it."""
        from .files import load_graph

        return load_graph(path)

    def to_dot(self, fold: bool | None = None, *, targets: Iterable[Tensor] | None = None) -> str:
        """The graph in Graphviz's language; ``fold`` and ``targets`` as in :meth:`to_svg`."""
        return printing.to_dot(self._drawn("to_dot", targets), fold)

    def to_svg(self, fold: bool | None = None, *, targets: Iterable[Tensor] | None = None) -> str:
        """The graph as a picture: boxes with the operation, its name and its results' shapes.

        Args:
            fold: True draws one box per part of the graph: a layer, a loss, the gradient of one,
                all updates. None folds graphs of more than 60 nodes; False draws every operation.
            targets: draw only what these need; None means the whole graph.

        With the package quickjs (extra ``draw``), dagre lays the boxes out, as :meth:`to_html` does
        in the browser; without it they stand in rows.
        """
        from .pictures import to_svg

        return to_svg(self._drawn("to_svg", targets), fold)

    def to_html(self, *, targets: Iterable[Tensor] | None = None) -> str:
        """The picture as an HTML page: one file with zoom, search and folding, which needs no
        network.
        """
        from .pictures import to_html

        return to_html([self._drawn("to_html", targets)])

    def _drawn(self, label: str, targets: Iterable[Tensor] | None) -> Program:
        if targets is None:
            return program_of(self)
        wanted = listed(label, "targets", targets)
        return program_of(self, "", [self.own(label, "targets", tensor) for tensor in wanted])

    def to_swift(
        self,
        name: str,
        *,
        targets: Iterable[Tensor] | None = None,
        operations: Iterable[Tensor] | None = None,
        weights: str | None = None,
    ) -> str:
        """The same graph as Swift: a file that builds it with MPSGraph and runs one step.

        Args:
            name: the name of the struct in the file.
            targets: what a step returns; None means every tensor that nothing reads.
            operations: assigns that a step runs; None means all of them if ``targets`` is None,
                otherwise none.
            weights: the name of the file that :meth:`save` writes, which the Swift program reads;
                None means ``name`` with ".safetensors".

        An operation that MPSGraph lacks raises an error that names the node.

        Example:
            >>> g = Graph()
            >>> y = g.tanh(g.placeholder(shape=(2, 3), name="x"), name="y")
            >>> lines = g.to_swift("Model").splitlines()
            >>> print(*[line.strip() for line in lines if "tanh" in line])
            let y = graph.tanh(with: x, name: "y")  // float32[2,3]
        """
        wanted = outputs_of(self) if targets is None else listed("to_swift", "targets", targets)
        effects = listed("to_swift", "operations", operations or ())
        for operand, tensors in (("targets", wanted), ("operations", effects)):
            for tensor in tensors:
                self.own("to_swift", operand, tensor)
        nodes = self.nodes
        if targets is not None or operations is not None:
            nodes = self.needed([*wanted, *effects])
        from .swift import to_swift

        # If there are several assigns to a variable, the last one added counts.
        assigns = {node.inputs[0].node: node for node in nodes if node.op is ASSIGN}
        return to_swift(
            name,
            nodes,
            {node: f"n{number}" for number, node in enumerate(self.nodes)},
            [(tensor.name, tensor) for tensor in wanted],
            [(node.name, variable, node.inputs[1]) for variable, node in assigns.items()],
            weights or f"{name}.safetensors",
        )

    def __str__(self) -> str:
        return printing.to_text(self)

    def __repr__(self) -> str:
        fed = [node.results[0] for node in self.nodes if node.op is PLACEHOLDER]
        variables = sum(node.op is VARIABLE for node in self.nodes)
        return (
            f"<Graph of {len(self.nodes)} nodes: feeds {printing.listed(fed)}, "
            f"{variables} variables>"
        )

    def needed(self, targets: Iterable[Tensor]) -> list[Node]:
        """The nodes that the targets depend on, in the order in which they were added."""
        needed: set[Node] = set()
        waiting = [target.node for target in targets]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting.extend(tensor.node for tensor in node.inputs)
        return [node for node in self.nodes if node in needed]

    def _check_feed(self, tensor: object, value: Any) -> None:
        tensor = self.own("run", "feeds", tensor)
        label = f"feed {tensor.name!r}"
        if tensor.node.op is not PLACEHOLDER:
            got = f"the result of {tensor.node.op.name}"
            raise GraphError(refusal("run", label, "a placeholder", got))
        if not is_array(value):
            raise DTypeError(refusal("run", label, ARRAY, describe(value)))
        shape, dtype = namespace_of(value).info(value)
        if dtype != tensor.dtype:
            raise DTypeError(refusal("run", label, tensor.dtype, dtype))
        if not fits(shape, tensor.shape):
            expected, got = brackets(tensor.shape), brackets(shape)
            raise ShapeError(refusal("run", label, expected, got))
