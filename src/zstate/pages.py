"""Self-contained pages: a template with places such as ``{{data}}``, filled once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def filled(template: str, parts: Mapping[str, str]) -> str:
    """The template with its parts. It is split before anything is filled in, so that what is
    filled in is never read as a template."""
    pieces = re.split(r"\{\{(\w+)\}\}", template)
    return "".join(parts[piece] if k % 2 else piece for k, piece in enumerate(pieces))


def script_data(value: Any) -> str:
    """JSON for a script element, in which only "</" and "<!--" mean something to HTML."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
