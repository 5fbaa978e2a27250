"""Programs that live on a device: ``graph.compile(…, device="cuda")``.

Variables, constants and feeds have memory there that stays where it is. ``live.py`` runs the
program in it, from the second run on as one CUDA graph; ``namespace.py`` computes without waiting;
``groups.py`` finds what takes one launch.
"""

from .program import DeviceExecutable, device_named

__all__ = ["DeviceExecutable", "device_named"]
