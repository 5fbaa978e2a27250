"""A framework as a Mac may have it: it aborts on a bad shape, hangs on a mask of two axes, has no
GRU, flips nothing else, and prints while it works. Children import it by its name."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from zstate import pyobjc
from zstate.pyobjc import *  # noqa: F403 (the names of the facade, but for those below)

del MPSGraphGRUDescriptor  # noqa: F821


class MPSGraph(pyobjc.MPSGraph):
    """The facade's graph, worse."""

    def placeholderWithShape_dataType_name_(self, shape: Any, kind: int, name: Any) -> Any:
        print("on standard output, where the answers go")
        if name == "recurrent_weight" and len(shape) == 2 and shape[0] % shape[1]:
            print("MPSGraph.mm: failed assertion 'a shape'", file=sys.stderr, flush=True)
            os.abort()
        if name == "mask" and len(shape) == 2:
            time.sleep(600)
        return super().placeholderWithShape_dataType_name_(shape, kind, name)
