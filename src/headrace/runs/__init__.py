"""Writes and reads run folders: what happened in one run, for everything that is asked afterwards.

Second in the package's order: rests on `base` alone. Only here are spans, resources and errors written and read. In this order:

1. `hardware`    what the run had to work with: cores, memory, kernel, versions
2. `run_folder`  the folder and its `run.json`
3. `span_files`  spans as closed, rotated Parquet files that survive a SIGKILL
4. `errors_log`  `errors.jsonl`, one line for each delivery of a job that did not succeed
5. `reader`      all of it back, naming what could not be read
"""
