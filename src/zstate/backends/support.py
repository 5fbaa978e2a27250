"""What a compiled engine lacks for a call, in words: new cells and activations begin in Python."""

from __future__ import annotations

from ..cells.functions import ACTIVATIONS
from ..layout import Layout


def lacks(layout: Layout, cells: tuple[str, ...]) -> str | None:
    """Why an engine with these cells, and csrc/equations/activations.h, cannot serve a call."""
    cell = layout.cell_kind
    if cell.short not in cells:
        return f"it has no cell {cell.short!r}; it has {', '.join(cells)}"
    for kind in layout.descriptor.activations:
        if not ACTIVATIONS[kind].compiled:
            has = ", ".join(each.name.lower() for each, row in ACTIVATIONS.items() if row.compiled)
            return f"it has no activation {kind.name.lower()!r}; it has {has}"
    return None
