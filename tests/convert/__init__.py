"""Weights of other frameworks: each against the real one, round trips, refusals, files."""
