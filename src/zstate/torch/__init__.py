"""PyTorch: the six operations on torch tensors."""
