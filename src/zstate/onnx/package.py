"""The onnx package, imported when it is needed: zstate itself runs without it."""

from __future__ import annotations

from typing import Any


def onnx_package() -> Any:
    """The module ``onnx``, with what is used of it."""
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
        import onnx.shape_inference
    except ImportError as error:
        raise ImportError("zstate.onnx needs onnx: pip install 'zstate[onnx]'") from error
    return onnx
