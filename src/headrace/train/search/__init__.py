"""How a model trains best on this machine: batch size, accumulation, checkpointing, precision; each tried in a child process.

Read `recipe` first (what the user gives), then `children` (how one thing is tried, and outlived) and `child` (the other side of
it), `step_trial` (one batch size), `sizes` (which size comes next), `batch_search` (the whole search).
"""
