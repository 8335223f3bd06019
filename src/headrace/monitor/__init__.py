"""Watching what runs: know before the users do, and have the evidence when it breaks.

One folder per concern; they do not import one another's insides, except `board`, which shows what the others write. What
watches a run from the command line is joined to it in `cli/companions.py`.
"""
