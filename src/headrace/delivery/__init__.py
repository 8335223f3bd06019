"""Where results go, each with its own idea of durable: a job is settled only when its result is.

    encoding.py   results -> JSON
    callback.py   HTTP POST to the address that the job names
    jsonl.py      one line per result
    parquet.py    columns, in closed files
    collect.py    a list in memory, for tests and notebooks

A new one implements `headrace.base.protocols.Delivery`.
"""
