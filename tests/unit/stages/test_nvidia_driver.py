"""NVIDIA's driver is found as the loader finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def test_a_driver_that_only_ld_library_path_leads_to_is_found(tmp_path: Path) -> None:
    """As in containers whose ldconfig does not know the folder that the host's driver is mounted at."""
    mapped = Path("/proc/self/maps").read_text().split()
    some_library = next(one for one in mapped if "/libm.so" in one or "/libm-" in one)
    shutil.copy(some_library, tmp_path / "libcuda.so.1")
    done = subprocess.run(
        [sys.executable, "-c", "from headrace.stages.nvidia_driver import has_driver; print(has_driver())"],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"
