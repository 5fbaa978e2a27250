"""Small calls over the ways over the chip that are named, to be run under compute-sanitizer."""

from __future__ import annotations

import sys
from dataclasses import replace

import harness
import pytest
import torch

from zstate import backends, verify
from zstate.backends.cuda.placement import STEPS
from zstate.errors import BackendError

_OWN = {"lstm": "peephole on new cell", "gru": "reset after"}


def main() -> None:
    ran, patch = 0, pytest.MonkeyPatch()
    for mode in map(int, sys.argv[1]):
        harness.choose(patch, lambda plan, mode=mode: plan.mode == mode)
        torch.backends.cuda.matmul.allow_tf32 = mode == STEPS  # it does not go in full float32
        for cell, cases in verify.CASES.items():
            for title, dtype, sizes in (
                ("bidirectional", "bfloat16", (4, 19, 8, 40)),  # products in one launch
                ("all inputs", "float32", (3, 3, 5, 17)),
                (_OWN.get(cell, "reverse"), "float16", (3, 1, 5, 24)),
                *((("reset after", "bfloat16", (4, 37, 8, 72)),) if cell == "gru" else ()),
                ("all inputs", "bfloat16", (4, 37, 8, 72)),
            ):
                case = next(case for case in cases if case.title == title)
                case = replace(case, sizes=sizes, extra={})
                backends.PREPARED.clear()
                fed = {
                    name: torch.from_numpy(array).to("cuda", harness.TYPES[dtype])
                    for name, array in verify.make_inputs(case, 0).items()
                }
                try:
                    harness.run_both(case, fed, dtype, harness.ENGINE)
                except BackendError:
                    continue  # this chip has no such way
                torch.cuda.synchronize()
                ran += 1
    assert ran >= 9, ran
    print(ran, "calls ran")


if __name__ == "__main__":
    main()
