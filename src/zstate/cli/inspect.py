"""Write an HTML page that shows what a trained model does, character by character.

RUN is the folder of a `zstate train` run. A second run is shown beside it, on the same text. The
page is a single file that needs no server and no network. To look at any other model, use
zstate.inspect in Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ..errors import OptionError, ZStateError, refusal, within
from ..inspection import MEGABYTES, STEPS
from . import at_least_one, at_least_zero


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs, the text, and where the page goes."""
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run, such as runs/lstm")
    parser.add_argument("second", metavar="SECOND", nargs="?", help="a second run, to compare")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--text",
        metavar="FILE",
        help="read this file (default: the part of the run's text that it did not train on)",
    )
    source.add_argument("--prompt", help="read what the model writes after this text")
    parser.add_argument("--encoding", default="utf-8", help="encoding of FILE (default: utf-8)")
    parser.add_argument(
        "--steps",
        type=at_least_one(int),
        default=STEPS,
        metavar="N",
        help="characters to read (default: %(default)s)",
    )
    parser.add_argument("--out", metavar="PAGE", help="page to write (default: RUN/inspect.html)")
    parser.add_argument(
        "--megabytes",
        type=at_least_zero(float),
        default=MEGABYTES,
        metavar="X",
        help="maximum page size; values get as many bits as fit (default: %(default)g)",
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="open the page in the browser and follow training live",
    )


def run(options: argparse.Namespace) -> int:
    """Write the page, or serve it until Ctrl-C."""
    from ..graph.storage import replacing
    from ..inspection.asking import run_views
    from ..inspection.writing import page

    folder = Path(options.run_folder)
    path = Path(options.out) if options.out else folder / "inspect.html"
    if path.suffix not in (".html", ".htm"):
        expected = "a name that ends in .html"
        raise OptionError(refusal("inspect", "--out", expected, repr(str(path))))
    text = _text(options)

    def make(version: str | None) -> bytes:
        views = run_views(folder, options.second, text, options.prompt, options.steps)
        return page(views, options.megabytes, version)

    if options.serve:
        return _serve(options, make)
    html = make(None)
    with replacing(path) as file:
        file.write(html)
    print(f"wrote {path} ({len(html) / 1e6:.1f} MB); open it in a browser")
    return 0


def _text(options: argparse.Namespace) -> str | None:
    if options.text is None:
        return None
    from ..train.data import read_text

    try:
        return read_text(options.text, options.encoding)
    except ZStateError as error:
        raise within("[inspect] --text", error) from error


def _serve(options: argparse.Namespace, make: Callable[[str], bytes]) -> int:
    import webbrowser

    from ..inspection.serving import Server
    from ..train.loop import checkpoint_of

    folders = [Path(each) for each in (options.run_folder, options.second) if each]

    def version() -> str:
        return " ".join(str(checkpoint_of(each).stat().st_mtime_ns) for each in folders)

    with Server(version, make) as server:
        print(f"{server.address} (Ctrl-C to stop)", flush=True)
        webbrowser.open(server.address)
        server.serve_forever()
    return 0
