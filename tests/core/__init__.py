"""What the public operations promise: descriptors, refusals, the package itself."""
