"""Print a graph, draw it, or export it as Swift, C or Core ML.

FILE is a file written by Graph.save or Executable.save, an .onnx model, or the folder of a
`zstate train` run, whose checkpoint holds the training graph. To write a run's model for use
elsewhere, see `zstate export`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ..errors import GraphError, OptionError, ShapeError, ZStateError, refusal
from ..graph import Executable, Graph, Tensor, pictures
from ..graph.drawing import Program, boxes_of, program_of
from ..graph.ops import PLACEHOLDER
from ..graph.outputs import outputs_of
from ..graph.placing import has_dagre
from ..graph.printing import to_dot
from ..graph.storage import replacing
from ..graph.swift.words import identifier
from ..layout import brackets
from .arguments import check_ending, check_writable, refuse_without

_Written = tuple[str, bytes, str]  # path, content, what it is
_PICTURES = ("html", "svg", "png", "dot")
_EXPORTS = ("swift", "coreml", "c")
# What can be written: what a file's name ends in, and the help.
_OUTPUTS = {
    "html": ((".html", ".htm"), "draw it as an HTML page with zoom and search, laid out by dagre"),
    "svg": ((".svg",), "draw it as SVG; laid out by dagre if zstate[draw] is installed"),
    "png": ((".png",), "draw it as PNG; needs matplotlib (zstate[train])"),
    "dot": ((".dot", ".gv"), "write it in Graphviz's DOT language"),
    "swift": ((".swift",), "write it as Swift that builds and runs it with MPSGraph"),
    "coreml": (
        (".mlpackage",),
        "write it as a Core ML package (.mlpackage), for inference; needs coremltools",
    ),
    "c": (
        (".h",),
        "write it as a C99 header (.h) that computes one step. For a run folder, the model takes a "
        "character and returns the logits of the next one",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and the output formats."""
    add = parser.add_argument
    add("file", metavar="FILE", help="a saved graph or program, an .onnx file, or a run folder")
    for name, (_, text) in _OUTPUTS.items():
        add(f"--{name}", metavar="OUT", help=text)
    program = (
        "the program of a run folder to draw: training (default), validation or sampling. An HTML "
        "page has all three, and shows this one first"
    )
    add("--program", metavar="NAME", help=program)
    weights = "with --c: the type of matrices and tables (default: float32)"
    add("--weights", choices=["float32", "int8"], help=weights)
    target = (
        "a tensor to compute or draw, with everything it needs; may be repeated (default: every "
        "tensor that no node reads; a picture then shows the whole graph)"
    )
    add("--target", metavar="NAME", action="append", help=target)
    shape = (
        "with --swift, --coreml or --c: sizes for a placeholder that has unknown ones, such as "
        "x=16,1,8; may be repeated. The Swift file then gets its own weights file. With --c, "
        "unknown sizes are otherwise 1"
    )
    add("--shape", metavar="NAME=SIZES", action="append", default=[], help=shape)
    unfold = "draw every node; otherwise large graphs are folded by layer and gradient"
    add("--unfold", action="store_true", help=unfold)


def run(options: argparse.Namespace) -> int:
    """Print the graph, or write the files."""
    _check_options(options)
    source = _Source(options)
    files = source.pictures()  # all are made before one is written
    if options.c is not None:
        files.append(source.c())
    if options.swift is not None:
        with _export_in_mind(options.file, "swift"):
            files.append(source.swift())
    if options.coreml is not None:
        from ..coreml import save

        with _export_in_mind(options.file, "coreml"):
            save(source.program(), options.coreml)
        print(f"wrote a Core ML package to {options.coreml}")
    if source.weights is not None:
        saved, place = source.weights
        saved.save(place)
    for path, content, what in files:
        with replacing(path) as file:
            file.write(content)
        print(f"wrote {what}")
    if not files and options.coreml is None:
        print(source.saved.graph if isinstance(source.saved, Executable) else source.saved)
    return 0


class _Source:
    """What a command reads: the graph or program of a file or a run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.path = options, Path(options.file)
        self.file = self.path  # in a folder, its checkpoint
        self.outputs: Mapping[str, Tensor] = {}  # of an ONNX model, by its names
        # The name of the file of its arrays, None where it has none that Swift could read.
        self.arrays: str | None = None
        self.weights: tuple[Graph | Executable, Path] | None = None
        self.saved = self._loaded()
        self.is_whole_run = self.path.is_dir() and not options.target

    def _loaded(self) -> Graph | Executable:
        path, ending = self.path, self.path.suffix.lower()
        if ending == ".onnx":
            from ..onnx import load

            model = load(path)
            self.outputs = model.outputs
            return model.graph
        if ending in (".keras", ".h5", ".pt", ".pth"):
            expected = "a saved graph or program, an .onnx model or a run folder"
            got = f"{str(path)!r}, a model that can be exported to ONNX"
            raise OptionError(refusal("graph", "FILE", expected, got))
        if path.is_dir():
            from ..train.loop import checkpoint_of

            path = self.file = checkpoint_of(path)
        self.arrays = path.name
        try:
            return Graph.load(path)
        except GraphError as error:
            if "got a saved executable" not in str(error):
                raise
            return Executable.load(path)

    def pictures(self) -> list[_Written]:
        """Every picture asked for, of one program."""
        options = self.options
        if not any(getattr(options, kind) for kind in _PICTURES):
            return []
        programs = self._drawn()
        chosen = next(p for p in programs if p.name == (options.program or programs[0].name))
        fold = False if options.unfold else None
        folded = len(boxes_of(chosen, fold)) < len(boxes_of(chosen, False))
        what = f"{len(chosen.nodes)} nodes" + (f" of {chosen.name}" if chosen.name else "")
        note = ", folded (--unfold shows all)" if folded else ""
        layout = "" if has_dagre() else "; in rows, pip install 'zstate[draw]' for dagre's layout"
        made: dict[str, tuple[Callable[[], str | bytes], str]] = {
            "html": (lambda: pictures.to_html(programs, chosen.name, bool(options.unfold)), ""),
            "svg": (lambda: pictures.to_svg(chosen, fold), layout),
            "png": (lambda: _png(chosen, fold), layout),
            "dot": (lambda: to_dot(chosen, fold), ""),
        }
        files = []
        for kind, (make, hint) in made.items():
            path = getattr(options, kind)
            if path is not None:
                content = make()
                data = content.encode() if isinstance(content, str) else content
                said = what if kind == "html" else what + note
                files.append((path, data, f"{said} to {path}{hint}"))
        return files

    def _drawn(self) -> list[Program]:
        """The programs of a run, that of a saved one, or a graph: what its targets need."""
        saved, asked = self.saved, self.options.program
        if self.is_whole_run:
            from ..train.loop import programs_of

            programs = [program_of(each, name) for name, each in programs_of(self.path).items()]
            if asked not in (None, *(each.name for each in programs)):
                expected = "one of " + ", ".join(each.name for each in programs)
                raise OptionError(refusal("graph", "--program", expected, repr(asked)))
            return programs
        if asked:
            got = "--target" if self.path.is_dir() else repr(self.options.file)
            raise OptionError(refusal("graph", "--program", "a run folder without --target", got))
        if isinstance(saved, Executable):
            self._refuse_targets()
            return [program_of(saved)]
        if self.options.target is not None:
            return [program_of(saved, "", self._targets(saved))]
        names = {tensor: [name] for name, tensor in self.outputs.items()}
        return [replace(program_of(saved), results=names)]

    def swift(self) -> _Written:
        """The arrays of an ONNX model, and of a program for the sizes given, become ``weights``, to
        be written where the text looks for them."""
        path = Path(self.options.swift)
        place = path.with_suffix(".safetensors")
        is_new = self.arrays is None or bool(self.options.shape)
        beside = place.name if is_new or self.arrays is None else self.arrays
        saved = self.saved
        if isinstance(saved, Executable) or self.options.shape:
            saved = self.program()
            text = saved.to_swift(identifier(path.stem), weights=beside)
        else:
            targets = self._targets(saved) or None
            text = saved.to_swift(identifier(path.stem), targets=targets, weights=beside)
        if is_new:
            if place.exists() and place.samefile(self.file):
                raise OptionError(
                    f"[graph] --swift {path}: its weights would overwrite {str(self.file)!r}; "
                    "choose another name"
                )
            self.weights = saved, place
        what = f"{len(text.splitlines())} lines of Swift to {path}; it reads {beside} beside it"
        return self.options.swift, text.encode(), what

    def c(self) -> _Written:
        """A header."""
        from ..graph.c import to_c
        from ..graph.c.words import identifier as c_identifier

        path = self.options.c
        name = c_identifier(Path(path).stem)
        if self.is_whole_run:
            if self.options.shape:
                expected = "a saved graph or an .onnx model"
                raise OptionError(refusal("graph", "--shape", expected, "the model of a run"))
            from ..train.loop import load_model

            program = load_model(self.path)[0].stepping_program()
        else:
            program = self.program(unknown=1)
        found = to_c(program, name, self.options.weights or "float32")
        size = f"{found.flash} bytes of flash, {found.ram} bytes of RAM"
        return path, found.text.encode(), f"{name}_step in C to {path}: {size}"

    def program(self, unknown: int | None = None) -> Executable:
        """A graph is compiled for its targets and the sizes given. ``unknown``: the size of axes
        without one, None to refuse them."""
        saved = self.saved
        if isinstance(saved, Executable):
            self._refuse_targets()
            return saved
        targets = self._targets(saved) or outputs_of(saved)
        nodes = (node for node in saved.needed(targets) if node.op is PLACEHOLDER)
        fed = {node.name: node.results[0] for node in nodes}
        sizes = {
            name: tuple(unknown if size is None else size for size in tensor.shape)
            for name, tensor in fed.items()
        }
        for text in self.options.shape:
            name, _, numbers = text.partition("=")
            if name not in fed or not re.fullmatch(r"\d{1,9}(,\d{1,9})*", numbers):
                expected = f"NAME=SIZES with a NAME of {', '.join(fed)}"
                if name in fed:
                    expected = f"sizes with commas between them, such as {name}=16,1,8"
                raise OptionError(refusal("graph", "--shape", expected, repr(text)))
            sizes[name] = tuple(map(int, numbers.split(",")))
        for name, shape in sizes.items():
            if None in shape:
                label, got = f"placeholder {name!r}", brackets(shape)
                raise ShapeError(refusal("graph", label, f"known sizes (--shape {name}=…)", got))
        feeds = {fed[name]: (shape, fed[name].dtype) for name, shape in sizes.items()}
        return saved.compile(cast(Any, feeds), targets)

    def _targets(self, graph: Graph) -> list[Tensor]:
        """What was asked for, else the outputs of an ONNX model under its names, else nothing; a
        node's name stands for its first result."""
        if self.options.target is None:
            pairs = self.outputs.items()
            return [t if t.name == name else graph.identity(t, name=name) for name, t in pairs]
        by_name: dict[str, Tensor] = {}
        for node in graph.nodes:
            by_name.setdefault(node.name, node.results[0])
            by_name.update((tensor.name, tensor) for tensor in node.results)
        for name in self.options.target:
            if name not in by_name:
                expected = "the name of a tensor (`zstate graph FILE` prints them)"
                raise OptionError(refusal("graph", "--target", expected, repr(name)))
        return [by_name[name] for name in self.options.target]

    def _refuse_targets(self) -> None:
        if self.options.target is not None or self.options.shape:
            raise OptionError(
                "[graph] --target and --shape are for graphs: a saved program has its own targets "
                "and sizes"
            )


def _png(program: Program, fold: bool | None) -> bytes:
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("[graph] --png needs matplotlib: pip install 'zstate[train]'")
    buffer = io.BytesIO()
    pictures.to_png(program, buffer, fold)
    return buffer.getvalue()


@contextlib.contextmanager
def _export_in_mind(file: str, to: str) -> Iterator[None]:
    """A run's graph trains, with what other runtimes lack: a refusal names the other command."""
    try:
        yield
    except ZStateError as error:
        if not Path(file).is_dir():
            raise
        hint = f"to export only the run's model: zstate export {shlex.quote(file)} --to {to}"
        raise type(error)(f"{error}; {hint}") from error


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that no output asked for reads, and files whose endings say otherwise."""
    for name, readers in (
        ("target", (*_PICTURES, *_EXPORTS)),
        ("shape", _EXPORTS),
        ("weights", ("c",)),
        ("unfold", _PICTURES),
        ("program", _PICTURES),
    ):
        if not any(getattr(options, reader) for reader in readers):
            needed = " or ".join(f"--{reader}" for reader in readers)
            refuse_without("graph", needed, options, [name])
    for name, (endings, _) in _OUTPUTS.items():
        path = getattr(options, name)
        if path is not None:
            check_ending("graph", f"--{name}", path, ("", *endings))
        if path is not None and name != "coreml":  # which is a folder
            check_writable("graph", f"--{name}", Path(path))
