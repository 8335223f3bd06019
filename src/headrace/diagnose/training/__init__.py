"""Reads the run folder of a training: steps and what loading cost, as NumPy columns."""
