"""zstate.jax: the operations on jax arrays and tracers."""
