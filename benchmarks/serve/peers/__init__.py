"""Other servers with the same preprocessing, model and device; each is started as a module in an environment of its own.

All take raw bytes by POST and answer `{"label": ..., "score": ...}`. Their settings come in a variable of the environment; see
`common.Settings`.
"""
