"""Reads traces of `torch.profiler` (Kineto) into a run folder, for who has a trace and cannot train again.

Read in this order: `events` (a file to events, a few megabytes at a time), `columns` (what is kept of them), `cutting` (the
training thread's time to steps and phases), `device` (what a GPU did meanwhile), `calls` (what the host called), `reading` (one
file after the other into one run folder). Nothing here needs PyTorch.
"""
