"""A compiled program as C99."""

from .header import Source, to_c

__all__ = ["Source", "to_c"]
