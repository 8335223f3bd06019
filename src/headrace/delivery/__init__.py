"""Where results go. A job is settled only when its result is durable, and each delivery defines when that is.

    encoding.py   results -> JSON
    callback.py   HTTP POST to the address that the job names
    jsonl.py      one line per result
    parquet.py    columns, in closed files
    only.py       some results alone, to one of these, and the pictures that they are of
    collect.py    a list in memory, for tests and notebooks

A new one implements `headrace.base.protocols.Delivery`.
"""
