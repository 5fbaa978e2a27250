"""A graph as Swift."""

from .source import to_swift

__all__ = ["to_swift"]
