"""What the arguments of ``zstate.inspect`` ask for: one or two views, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import OptionError, refusal
from ..layout import describe
from ..train.loop import checkpoint_of
from .models import of_model, of_run
from .views import View, view


def views_of(
    model: Any,
    source: Any,
    labels: Sequence[str] | None,
    targets: Any,
    readout: Any,
    classes: Sequence[str] | None,
    name: str | None,
    text: str | None,
    prompt: str | None,
    compare: Any,
    steps: int,
) -> list[View]:
    """The arguments are those of :func:`zstate.inspect`."""
    is_run = isinstance(model, str | PathLike)
    of_others = {"source": source, "labels": labels, "targets": targets, "readout": readout}
    of_others |= {"classes": classes, "name": name}
    of_runs = {"text": text, "prompt": prompt, "compare": compare}
    for option, value in (of_others if is_run else of_runs).items():
        if value is not None:
            expected = "None with the folder of a run" if is_run else "None without a run's folder"
            raise OptionError(refusal("inspect", option, expected, describe(value)))
    if is_run:
        return run_views(Path(model), compare, text, prompt, steps)
    return [view(of_model(model, source, labels, targets, readout, classes, name))]


def run_views(
    folder: Path,
    second: str | PathLike[str] | None,
    text: str | None,
    prompt: str | None,
    steps: int,
) -> list[View]:
    """A run, and perhaps a second one on the same text."""
    if text is not None and prompt is not None:
        raise OptionError(refusal("inspect", "text and prompt", "one of them", "both"))
    if not isinstance(steps, int) or steps < 1:
        raise OptionError(refusal("inspect", "steps", "at least 1", repr(steps)))
    if second is not None:
        checkpoint_of(Path(second))  # refused before the first one is computed
    found = [of_run(folder, text, prompt, steps)]
    if second is not None:
        first = found[0]
        assert first.classes is not None and first.targets is not None
        same = "".join(first.labels) + first.classes[first.targets[-1]]
        found.append(of_run(Path(second), same, None, steps))
    return [view(subject) for subject in found]
