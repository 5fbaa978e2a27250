"""What Apple publishes about MPSGraph, as data: see :mod:`zstate.mpsgraph.published`."""
