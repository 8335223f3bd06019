"""Watches a run and measures where its time goes; what it finds goes into the run folder.

Stands after `pipeline` in the package's order: it attaches to a run from outside, and no folder before it knows of it.
"""
