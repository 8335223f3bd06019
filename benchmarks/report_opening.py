"""How long it takes to look at a run: making its report, and drawing the first chart in a headless Chromium."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.paths import ROOT

_COMMAND = "import sys; from headrace.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Opening:
    """Medians, in seconds."""

    making: float
    """`headrace report RUN` as a command, with the start of Python."""
    drawing: float
    """From the page's navigation to its first chart, in a browser that runs already."""


def seconds_to_first_chart(run_folder: Path, rounds: int) -> Opening:
    """Return how long it takes until the first chart of a run is to be seen.

    Raises:
        RuntimeError: If there is no Chromium on this machine, or the report cannot be made.
    """
    making, drawing = [], []
    browser_module = _load(ROOT / "tests" / "integration" / "report" / "chromium.py")
    command = browser_module.find_chromium()
    if command is None:
        raise RuntimeError("chromium is not installed; apt-get install chromium")
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary, "report.html")
        browser = browser_module.Chromium(command, Path(temporary, "profile"))
        try:
            for _ in range(rounds):
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-c", _COMMAND, "report", str(run_folder), "-o", str(page), "--force"],
                    check=True,
                    capture_output=True,
                )
                making.append(time.perf_counter() - began)
                browser.open(page)
                mark = browser.evaluate("performance.getEntriesByName('first-chart')[0].startTime")
                drawing.append(mark / 1e3)
        finally:
            browser.close()
    return Opening(statistics.median(making), statistics.median(drawing))


def _load(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{file} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
