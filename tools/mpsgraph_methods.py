"""Write docs/mpsgraph-methods.md from the table of published signatures.

python tools/mpsgraph_methods.py
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from zstate.mpsgraph import published
from zstate.pyobjc import operation_selectors, selectors

PAGE = Path(__file__).parents[1] / "docs" / "mpsgraph-methods.md"
HEAD = """# Published methods, one by one

<!-- Written by tools/mpsgraph_methods.py from src/zstate/mpsgraph/published.tsv: change that. -->

Everything Apple publishes about MPSGraph and the classes around it, and which of it the facade
`zstate.pyobjc` has. The [guide](mpsgraph.md) explains how to use it. In Python, write a selector
with `_` for every `:`. The Swift declarations are from developer.apple.com; `?` marks arguments
that may be nil. The number is the macOS version that introduced a method.

The same table is available as data, and the facade is tested against it:

```python
from zstate.mpsgraph import published

row = published.method("MPSGraph", "reshapeTensor:withShape:name:")
assert row.kind == "offered" and row.pyobjc == "reshapeTensor_withShape_name_"
assert [(p.label, p.type, p.optional) for p in row.parameters] == [
    ("", "MPSGraphTensor", False), ("shape", "[NSNumber]", False), ("name", "String", True)]
assert (row.returns, row.op) == ("MPSGraphTensor", "reshape")
```

A published selector that the facade lacks raises an error that says so; a misspelt selector raises
an error that suggests the nearest one.
"""


def graph_methods() -> dict[str, str]:
    """The call behind each selector of MPSGraph."""
    found = {name: f"`g.{operation}`" for name, operation, _ in selectors()}
    for name, target, _ in operation_selectors():
        found[name] = f"`g.{target}`" if isinstance(target, str) else "yes"
    return found


def page() -> str:
    """The text of the page."""
    calls, parts = graph_methods(), [HEAD]
    rows = sorted(published.methods(), key=lambda row: row.owner != "MPSGraph")
    for owner, group in groupby(rows, key=lambda row: row.owner):
        members = list(group)
        offered = [row for row in members if row.kind == "offered"]
        parts.append(f"\n## {owner}\n")
        if offered:
            parts.append('\n<div class="declarations" markdown>\n')
            parts.append("\n| selector | here | macOS | Swift |\n|---|---|---|---|\n")
        for row in offered:
            sign = "+" if row.class_method else ""
            swift = f"`` {row.swift} ``" if "`" in row.swift else f"`{row.swift}`"
            here = calls.get(row.pyobjc, "yes") if owner == "MPSGraph" else "yes"
            cells = [f"`{sign}{row.selector}`", here, row.since, swift if row.swift else ""]
            parts.append(f"| {' | '.join(cells)} |\n")
        if offered:
            parts.append("\n</div>\n")
        for kind, text in {
            "refused": "Raises an error with the reason",
            "absent": "Not here",
        }.items():
            names = [f"`{row.selector}`" for row in members if row.kind == kind]
            if names:
                parts.append(f"\n{text}: {', '.join(names)}.\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
