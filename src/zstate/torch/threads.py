"""Let the engine compute on the threads that torch computes on.

torch's OpenMP threads spin for some milliseconds after each of its operations, as the engine's own
do: two sets of them on the same cores slow both libraries down several times over in a model that
alternates between the two. With one set, there is nothing to take turns on.
"""

from __future__ import annotations

import ctypes

import torch

from ..backends import native

_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def share_threads() -> bool:
    """Whether it could be done: torch computes with OpenMP, and its runtime can be found."""
    if native.unavailable() is not None or "OpenMP" not in torch.__config__.parallel_info():
        return False
    try:
        process = ctypes.CDLL(None)
        found = [ctypes.cast(getattr(process, name), ctypes.c_void_p) for name in _FUNCTIONS]
    except (AttributeError, OSError, TypeError):  # another runtime, or another system
        return False
    native.use_openmp(*(function.value or 0 for function in found))
    return True
