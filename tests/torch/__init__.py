"""Tensors, operators and modules of torch."""
