"""Benchmarks of training: whether what headrace says of a step is right, and what saying it costs."""
