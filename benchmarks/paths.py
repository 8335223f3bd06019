"""Where the benchmarks keep things, relative to the repository."""

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "benchmarks" / ".cache"
RESULTS = ROOT / "benchmarks" / "results"
PHOTOGRAPHS = ROOT / "src" / "headrace" / "samples" / "photographs"
HEAVY_VENV = CACHE / "venv-peers"
HEAVY_PYTHON = HEAVY_VENV / "bin" / "python"


def digest(parameters: object) -> str:
    """Return a short hash of anything JSON can write; equal parameters give equal cache entries."""
    text = json.dumps(parameters, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
