"""Prepared layers: packed weights, small weights, streams."""
