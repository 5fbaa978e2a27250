"""What of the CUDA backend needs no GPU; tests/gpu has the rest."""
