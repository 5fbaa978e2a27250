"""What the public operations promise: descriptors, decisions, refusals, the package itself."""
