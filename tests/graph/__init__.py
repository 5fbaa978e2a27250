"""The graph: its operations, gradients, programs and files."""
