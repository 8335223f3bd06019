"""What was predicted, tried and decided, kept in one SQLite file; rests on `base` and `runs` alone.

Begin with `ledger`, the whole of it. `database` opens the file; `entries`, `attempts` and `events` are its tables;
`track_record`, `remedies` and `mlflow_export` read it.
"""
