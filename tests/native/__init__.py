"""The native engine."""
