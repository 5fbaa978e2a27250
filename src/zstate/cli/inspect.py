"""Write an HTML page that shows what a trained model does, character by character.

RUN is the folder of a `zstate train` run. A second run is shown beside it, on the same text. The
page is a single file that needs no server and no network. To look at any other model, use
zstate.inspect in Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ..errors import ZStateError, within
from ..inspection import MEGABYTES, STEPS
from .arguments import (
    add_number,
    add_run,
    check_ending,
    check_writable,
    refuse_beside,
    refuse_without,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs, the text, and where the page goes."""
    add_run(parser)
    parser.add_argument("second", metavar="SECOND", nargs="?", help="a second run, to compare")
    source = parser.add_mutually_exclusive_group()
    text = "read this file (default: the part of the run's text that it did not train on)"
    source.add_argument("--text", metavar="FILE", help=text)
    source.add_argument("--prompt", help="show what the model writes after this text")
    parser.add_argument("--encoding", default="utf-8", help="encoding of FILE (default: utf-8)")
    add_number(parser, "--steps", "characters to read", STEPS)
    parser.add_argument("--out", metavar="PAGE", help="page to write (default: RUN/inspect.html)")
    size = "maximum page size; values get as many bits as fit"
    add_number(parser, "--megabytes", size, MEGABYTES)
    serve = "open the page in the browser and follow training live"
    parser.add_argument("--serve", action="store_true", help=serve)


def run(options: argparse.Namespace) -> int:
    """Write the page, or serve it until Ctrl-C."""
    from ..graph.storage import replacing
    from ..inspection.views import run_views
    from ..inspection.writing import page

    if options.text is None:
        refuse_without("inspect", "--text", options, ["encoding"])
    if options.serve:
        refuse_beside("inspect", "--serve", options, out=None)
    folder = Path(options.run_folder)
    path = folder / "inspect.html" if options.out is None else Path(options.out)
    check_ending("inspect", "--out", path, (".html", ".htm"))
    if options.out is not None:
        check_writable("inspect", "--out", path)
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
