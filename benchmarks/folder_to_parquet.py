"""A folder of real JPEGs, a MobileNetV2-like model on the CPU, labels and scores into Parquet.

python -m benchmarks.folder_to_parquet [--quick] [--json] [--write]
"""

from __future__ import annotations

import sys
from functools import partial

from benchmarks import comparison
from benchmarks.peers import FolderBench

TITLE = "Folder to Parquet: MobileNetV2-like on the CPU"

if __name__ == "__main__":
    run = partial(comparison.compare, FolderBench, "folder_to_parquet.toml")
    sys.exit(comparison.main("folder_to_parquet", TITLE, run, __doc__.splitlines()[0]))
