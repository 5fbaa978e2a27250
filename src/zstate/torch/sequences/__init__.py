"""How the steps of N sequences lie in a batch: whole, padded, or packed without their padding."""
