"""Watches a run and measures where its time goes; what it finds goes into the run folder.

Stands after `pipeline` in the package's order: it attaches to a run from outside, and no folder before it knows of it.

Begin with `profile`, the command. `sampler` samples resources and thread states in a helper process; `blocks` measures what
profiling costs, `span_cost` what a span does. Each for itself: `hot_spots` (Python lines), `layers` (inside the model),
`stage_bench` (each stage alone) and `experiment` (the running pipeline, perturbed).
"""
