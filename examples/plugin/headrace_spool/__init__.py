"""Parts for headrace: a queue in a folder, a source that reads a file as a log, results in CSV, an engine for one matrix.

Each is found through an entry point of `pyproject.toml`; headrace knows nothing of this package.
"""
