"""Checks of MPSGraph itself, proven on frameworks that differ from it on purpose."""
