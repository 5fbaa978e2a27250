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
from collections.abc import Iterator, Mapping, Sequence
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
from .arguments import check_ending, refuse_without

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
    saved, outputs, weights = _load(Path(options.file))
    graph = saved.graph if isinstance(saved, Executable) else saved
    files = _pictures(saved, outputs, options)  # all are made before one is written
    if options.swift is not None:
        with _export_in_mind(options.file, "swift"):
            text, beside = _swift(saved, outputs, options, weights)
        what = f"{len(text.splitlines())} lines of Swift to {options.swift}"
        files.append((options.swift, text.encode(), f"{what}; it reads {beside} beside it"))
    if options.c is not None:
        files.append(_c(saved, outputs, options))
    if options.coreml is not None:
        from ..coreml import save

        with _export_in_mind(options.file, "coreml"):
            save(_program(saved, outputs, options), options.coreml)
        print(f"wrote a Core ML package to {options.coreml}")
    for path, content, what in files:
        with replacing(path) as file:
            file.write(content)
        print(f"wrote {what}")
    if not files and options.coreml is None:
        print(graph)
    return 0


def _pictures(
    saved: Graph | Executable, outputs: Mapping[str, Tensor], options: argparse.Namespace
) -> list[tuple[str, bytes, str]]:
    """(path, content, what it is) of every picture asked for, of one program."""
    if not any(getattr(options, kind) for kind in _PICTURES):
        return []
    programs = _drawn(saved, outputs, options)
    chosen = next(p for p in programs if p.name == (options.program or programs[0].name))
    fold = False if options.unfold else None
    folded = len(boxes_of(chosen, fold)) < len(boxes_of(chosen, False))
    what = f"{len(chosen.nodes)} nodes" + (f" of {chosen.name}" if chosen.name else "")
    note = ", folded (--unfold shows all)" if folded else ""
    layout = "" if has_dagre() else "; in rows, pip install 'zstate[draw]' for dagre's layout"
    files = []
    if options.html is not None:
        page = pictures.to_html(programs, chosen.name, bool(options.unfold))
        files.append((options.html, page.encode(), f"{what} to {options.html}"))
    if options.svg is not None:
        picture = pictures.to_svg(chosen, fold).encode()
        files.append((options.svg, picture, f"{what}{note} to {options.svg}{layout}"))
    if options.png is not None:
        if importlib.util.find_spec("matplotlib") is None:
            raise ImportError("[graph] --png needs matplotlib: pip install 'zstate[train]'")
        buffer = io.BytesIO()
        pictures.to_png(chosen, buffer, fold)
        files.append((options.png, buffer.getvalue(), f"{what}{note} to {options.png}{layout}"))
    if options.dot is not None:
        files.append((options.dot, to_dot(chosen, fold).encode(), f"{what}{note} to {options.dot}"))
    return files


def _drawn(
    saved: Graph | Executable, outputs: Mapping[str, Tensor], options: argparse.Namespace
) -> list[Program]:
    """The programs of a run, that of a saved one, or a graph: what its targets need."""
    folder = Path(options.file)
    if folder.is_dir() and not options.target:
        from ..train.loop import programs_of

        programs = [program_of(each, name) for name, each in programs_of(folder).items()]
        if options.program not in (None, *(each.name for each in programs)):
            expected = "one of " + ", ".join(each.name for each in programs)
            raise OptionError(refusal("graph", "--program", expected, repr(options.program)))
        return programs
    if options.program:
        got = "--target" if folder.is_dir() else repr(options.file)
        raise OptionError(refusal("graph", "--program", "a run folder without --target", got))
    if isinstance(saved, Executable):
        if options.target is not None:
            raise OptionError("[graph] --target is for graphs: a saved program has its own targets")
        return [program_of(saved)]
    if options.target is not None:
        return [program_of(saved, "", _targets(saved, options.target))]
    return [replace(program_of(saved), results={t: [name] for name, t in outputs.items()})]


def _swift(
    saved: Graph | Executable,
    outputs: Mapping[str, Tensor],
    options: argparse.Namespace,
    weights: str | None,
) -> tuple[str, str]:
    """The text, and the name of the file of its arrays; those of an ONNX model, and of a program
    for the sizes given, are written where the text looks for them."""
    path = Path(options.swift)
    place = path.with_suffix(".safetensors")
    is_new = weights is None or bool(options.shape)
    beside = place.name if is_new or weights is None else weights
    if isinstance(saved, Executable) or options.shape:
        saved = _program(saved, outputs, options)
        text = saved.to_swift(identifier(path.stem), weights=beside)
    else:
        targets = _chosen(saved, outputs, options) or None
        text = saved.to_swift(identifier(path.stem), targets=targets, weights=beside)
    if is_new:
        if place.exists() and place.samefile(options.file):
            raise OptionError(
                f"[graph] --swift {options.swift}: its weights would overwrite {options.file!r}; "
                "choose another name"
            )
        saved.save(place)
    return text, beside


def _c(
    saved: Graph | Executable, outputs: Mapping[str, Tensor], options: argparse.Namespace
) -> tuple[str, bytes, str]:
    """(path, content, what it is) of a header."""
    from ..graph.c import to_c
    from ..graph.c.words import identifier as c_identifier

    folder, name = Path(options.file), c_identifier(Path(options.c).stem)
    if folder.is_dir() and not options.target:
        if options.shape:
            expected = "a saved graph or an .onnx model"
            raise OptionError(refusal("graph", "--shape", expected, "the model of a run"))
        from ..train.loop import load_model

        program = load_model(folder)[0].stepping_program()
    else:
        program = _program(saved, outputs, options, unknown=1)
    found = to_c(program, name, options.weights or "float32")
    size = f"{found.flash} bytes of flash, {found.ram} bytes of RAM"
    return options.c, found.text.encode(), f"{name}_step in C to {options.c}: {size}"


def _program(
    saved: Graph | Executable,
    outputs: Mapping[str, Tensor],
    options: argparse.Namespace,
    unknown: int | None = None,
) -> Executable:
    """The program of a file; a graph is compiled for its targets and the sizes given. ``unknown``:
    the size of axes without one, None to refuse them."""
    if isinstance(saved, Executable):
        _refuse_targets(options)
        return saved
    targets = _chosen(saved, outputs, options) or outputs_of(saved)
    fed = {node.name: node.results[0] for node in saved.needed(targets) if node.op is PLACEHOLDER}
    sizes = {
        name: tuple(unknown if size is None else size for size in tensor.shape)
        for name, tensor in fed.items()
    }
    for text in options.shape:
        name, _, numbers = text.partition("=")
        if name not in fed or not re.fullmatch(r"\d{1,9}(,\d{1,9})*", numbers):
            expected = f"NAME=SIZES with a NAME of {', '.join(fed)}"
            if name in fed:
                expected = f"sizes with commas between them, such as {name}=16,1,8"
            raise OptionError(refusal("graph", "--shape", expected, repr(text)))
        sizes[name] = tuple(map(int, numbers.split(",")))
    for name, shape in sizes.items():
        if None in shape:
            expected = f"known sizes (--shape {name}=…)"
            raise ShapeError(refusal("graph", f"placeholder {name!r}", expected, brackets(shape)))
    feeds = {fed[name]: (shape, fed[name].dtype) for name, shape in sizes.items()}
    return saved.compile(cast(Any, feeds), targets)


def _chosen(
    graph: Graph, outputs: Mapping[str, Tensor], options: argparse.Namespace
) -> list[Tensor]:
    """What was asked for, else the outputs of an ONNX model under its names, else nothing."""
    if options.target is not None:
        return _targets(graph, options.target)
    return [t if t.name == name else graph.identity(t, name=name) for name, t in outputs.items()]


def _targets(graph: Graph, names: Sequence[str]) -> list[Tensor]:
    """The tensors of these names; a node's name stands for its first result."""
    by_name: dict[str, Tensor] = {}
    for node in graph.nodes:
        by_name.setdefault(node.name, node.results[0])
        by_name.update((tensor.name, tensor) for tensor in node.results)
    for name in names:
        if name not in by_name:
            expected = "the name of a tensor (`zstate graph FILE` prints them)"
            raise OptionError(refusal("graph", "--target", expected, repr(name)))
    return [by_name[name] for name in names]


@contextlib.contextmanager
def _export_in_mind(file: str, to: str) -> Iterator[None]:
    """A run's graph trains, with what other runtimes lack: a refusal names the other command."""
    try:
        yield
    except ZStateError as error:
        if not Path(file).is_dir():
            raise
        hint = f"to export only the run's model: zstate export {file} --to {to}"
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
        if getattr(options, name) is not None:
            check_ending("graph", f"--{name}", getattr(options, name), ("", *endings))


def _refuse_targets(options: argparse.Namespace) -> None:
    if options.target is not None or options.shape:
        raise OptionError(
            "[graph] --target and --shape are for graphs: a saved program has its own targets and "
            "sizes"
        )


def _load(path: Path) -> tuple[Graph | Executable, Mapping[str, Tensor], str | None]:
    """The graph or program of a file or a run; the outputs of an ONNX model by its names; and
    the name of the file of its arrays, None where it has none that a Swift program could read."""
    if path.suffix.lower() == ".onnx":
        from ..onnx import load

        model = load(path)
        return model.graph, model.outputs, None
    if path.suffix.lower() in (".keras", ".h5", ".pt", ".pth"):
        expected = "a saved graph or program, an .onnx model or a run folder"
        got = f"{str(path)!r}, a model that can be exported to ONNX"
        raise OptionError(refusal("graph", "FILE", expected, got))
    if path.is_dir():
        from ..train.loop import checkpoint_of

        path = checkpoint_of(path)
    try:
        return Graph.load(path), {}, path.name
    except GraphError as error:
        if "got a saved executable" not in str(error):
            raise
        return Executable.load(path), {}, path.name
