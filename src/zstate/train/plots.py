"""The pictures at the end of a run: the loss, the gates over a sentence, the flow of gradients."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from ..graph.storage import replacing
from ..inspection.models import of_run
from ..inspection.views import View, view
from .about import PICTURES
from .loop import Run
from .model import Settings

_GATES = {
    "lstm": {"i": "input gate", "f": "forget gate", "z": "cell candidate", "o": "output gate"},
    "gru": {"z": "update gate", "r": "reset gate", "o": "output candidate"},
    "rnn": {"z": "before the activation"},
}
_UNITS = 24  # rows of the heat map, at most
_SENTENCE = "The value of the expression is evaluated before the function is called."


def _pyplot() -> Any:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def draw_all(run: Run) -> list[Path]:
    """PICTURES in the run's folder."""
    plt, text = _pyplot(), _sentence(run)
    seen = view(of_run(run.folder, text, None, len(text) - 1))
    figures = (_loss(plt, run), _gates(plt, run, seen), _flow(plt, run, seen))
    paths = [run.folder / name for name in PICTURES]
    for figure, path in zip(figures, paths, strict=True):
        figure.tight_layout()
        with replacing(path) as file:
            figure.savefig(file, format="png", dpi=80)
        plt.close(figure)
    return paths


def fonts_for(text: str) -> tuple[list[str], set[str]]:
    """Families of installed fonts that have the characters, the usual one first; and the characters
    that none of them has."""
    fonts: Any = importlib.import_module("matplotlib.font_manager")
    families = ["DejaVu Sans"]
    boxes = "Last Resort"  # matplotlib's own: a box for each character there is
    missing = {c for c in text if c.isprintable()}
    missing -= _characters(fonts, fonts.findfont(families[0]))
    for entry in sorted(fonts.fontManager.ttflist, key=lambda each: (each.name, each.fname)):
        if not missing:
            break
        if entry.name not in families and not entry.name.startswith(boxes):
            found = missing & _characters(fonts, entry.fname)
            families += [entry.name] * bool(found)
            missing -= found
    return families, missing


def _characters(fonts: Any, path: str) -> set[str]:
    try:
        return set(map(chr, fonts.get_font(path).get_charmap()))
    except (OSError, RuntimeError):  # a font that cannot be read has none
        return set()


def _sentence(run: Run) -> str:
    """The characters that the pictures show: an English sentence if the alphabet has its letters,
    otherwise the start of the validation text, or of the training text if that is too short."""
    corpus, long = run.corpus, len(_SENTENCE)
    if set(_SENTENCE) <= set(corpus.alphabet):
        return _SENTENCE
    ids = corpus.valid if len(corpus.valid) >= long else corpus.train
    return corpus.decode(ids[:long])


def _loss(plt: Any, run: Run) -> Any:
    figure, axes = plt.subplots(figsize=(7, 3.6))
    steps, bits, _ = zip(*run.history, strict=True)
    axes.plot(steps, bits, linewidth=0.8, color="#94a3b8", label="training, each window")
    valid = [(step, value) for step, _, value in run.history if value is not None]
    axes.plot(*zip(*valid, strict=True), "o-", color="#dc2626", label="validation")
    axes.set(xlabel="step", ylabel="bits per character", title=f"{run.settings.cell}: loss")
    axes.set_ylim(0, min(max(bits), 7))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _gates(plt: Any, run: Run, seen: View) -> Any:
    """Each gate of the last layer over the characters: the same units, which vary most, in all."""
    names, sentence = _GATES[run.settings.cell], seen.subject.labels
    maps = [each for each in seen.layers[-1].maps if each.kind == "gate"]
    by_gate = np.stack([each.values for each in maps], axis=1)  # [T,G,H]
    units = np.argsort(-by_gate.std(axis=0).sum(axis=0), kind="stable")[:_UNITS]
    # Units that move together stand together, ordered along the main direction of movement.
    moved = (by_gate - by_gate.mean(axis=0))[:, :, units].reshape(-1, len(units))
    units = units[np.argsort(np.linalg.svd(moved, full_matrices=False)[2][0])]
    figure, rows = plt.subplots(
        len(maps), 1, figsize=(0.16 * len(sentence) + 2, 1.9 * len(maps) + 0.6), sharex=True
    )
    for gate, axes in zip(maps, np.atleast_1d(rows), strict=True):
        low = 0 if "gate" in names[gate.name] else -1
        image = axes.imshow(
            gate.values[:, units].T,
            aspect="auto",
            interpolation="nearest",
            cmap="viridis" if low == 0 else "RdBu_r",
            vmin=low,
            vmax=1,
        )
        axes.set(ylabel=names[gate.name], yticks=[])
        figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03)
    families, missing = fonts_for("".join(sentence))
    shown = [_shown(c, c in missing) for c in sentence]
    axes.set_xticks(range(len(sentence)), shown, family=families)
    figure.suptitle(_gates_title(run.settings))
    return figure


def _shown(character: str, is_missing: bool) -> str:
    if character == "\n":
        return "⏎"
    if not is_missing and character.isprintable():
        return character
    return "\n".join(f"{ord(character):x}")  # its code, no wider than a column


def _gates_title(settings: Settings) -> str:
    layer = f"{settings.cell}, layer {settings.layers} of {settings.layers}"
    if settings.hidden == 1:
        return f"{layer}: its only unit"
    if settings.hidden <= _UNITS:
        return f"{layer}: all {settings.hidden} units, in the same order in each gate"
    return f"{layer}: the {_UNITS} of {settings.hidden} units that vary most, the same in each gate"


def _flow(plt: Any, run: Run, seen: View) -> Any:
    figure, axes = plt.subplots(figsize=(7, 3.6))
    count, layers = len(seen.subject.labels), len(seen.layers)
    for k, layer in enumerate(seen.layers, 1):
        of_last_loss = np.maximum(layer.flow["h"][-1], 1e-12)  # [T]
        axes.semilogy(range(1 - count, 1), of_last_loss, label=f"layer {k} of {layers}")
    axes.set(
        xlabel="steps before the loss",
        ylabel="‖dL/dh[t]‖",
        title=f"{run.settings.cell}: how far back the gradient of one character reaches",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
