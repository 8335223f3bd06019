"""What the files of a run folder are called."""

from __future__ import annotations

RUN_JSON = "run.json"
SPANS_FOLDER = "spans"
ERRORS_FILE = "errors.jsonl"
#: In the folder that holds the run folders of supervised workers.
SUPERVISED_FILE = "supervised.json"
#: Where `headrace report` writes unless told otherwise.
REPORT_FILE = "report.html"
HOT_SPOTS_FOLDER = "hot_spots"
#: What is written there, for each stage.
HOT_SPOTS_PATTERNS = ("*.json", "*.folded", "*.pstats")
#: Traces that torch.profiler recorded for headrace, and what is left of one that was cut off.
TRACES_FOLDER = "traces"
TRACES_PATTERNS = ("*_[0-9]*.[0-9]*.pt.trace.json.gz", ".*_[0-9]*.[0-9]*.pt.trace.json.gz")
