"""``zstate.inspect``: one HTML page that shows what a recurrent network does."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

STEPS, MEGABYTES = 512, 4.0


def inspect(
    model: Any,
    source: Any = None,
    *,
    path: str | PathLike[str] = "page.html",
    labels: Sequence[str] | None = None,
    targets: Any = None,
    readout: Any = None,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    text: str | None = None,
    prompt: str | None = None,
    compare: str | PathLike[str] | None = None,
    steps: int = STEPS,
    megabytes: float = MEGABYTES,
) -> Path:
    """Write a page that shows a model at work on one sequence; docs/inspect.md explains the page.

    Args:
        model: a module of zstate.torch; a result of a graph's recurrent node; a layer as
            {"cell": "lstm", "recurrent_weight": R, "input_weight": W, …}, with the names of the
            functional call and arrays of any library, or a list of such layers; a
            zstate.convert.Layer; or the folder of a run of `zstate train`.
        source: the model's input, one sequence [T,I] or [T,1,I]; for a graph, its feeds; for a
            run, nothing.
        path: the file to write.
        labels: a label for every step, such as its character; None means numbers.
        targets: [T], the right class of every step; with ``readout``.
        readout: maps the last layer's output to one number per class: a weight [V,D·H], a pair of
            a weight and a bias [V], or a torch.nn.Linear.
        classes: the names of the V classes.
        name: the model's name on the page.
        text, prompt: for a run, the text to read, or a prompt that the model continues first; None
            means the part of its own text that it did not train on.
        compare: for a run, the folder of a second run, shown beside it on the same text.
        steps: for a run, how many characters to read.
        megabytes: the approximate size of the page; values have as many bits as fit, from 4 to 16.

    Returns:
        The path of the page.

    Example:
        >>> import numpy as np, tempfile, zstate as zs
        >>> rng = np.random.default_rng(0)
        >>> layer = {"cell": "gru", "recurrent_weight": rng.normal(size=(12, 4)),
        ...          "input_weight": rng.normal(size=(12, 3))}
        >>> folder = tempfile.mkdtemp()
        >>> zs.inspect(layer, rng.normal(size=(20, 3)), path=folder + "/page.html").name
        'page.html'
    """
    from ..errors import OptionError, refusal
    from ..graph.storage import replacing
    from ..layout import describe
    from .models import of_model
    from .views import run_views, view
    from .writing import page

    is_run = isinstance(model, str | PathLike)
    of_others = {"source": source, "labels": labels, "targets": targets, "readout": readout}
    of_others |= {"classes": classes, "name": name}
    of_runs = {"text": text, "prompt": prompt, "compare": compare}
    for option, value in (of_others if is_run else of_runs).items():
        if value is not None:
            expected = "None with the folder of a run" if is_run else "None without a run's folder"
            raise OptionError(refusal("inspect", option, expected, describe(value)))
    if is_run:
        views = run_views(Path(model), compare, text, prompt, steps)
    else:
        views = [view(of_model(model, source, labels, targets, readout, classes, name))]
    html = page(views, megabytes)
    with replacing(path) as file:
        file.write(html)
    return Path(path)
