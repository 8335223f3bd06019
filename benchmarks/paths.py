"""Where the benchmarks keep things, relative to the repository."""

import fcntl
import hashlib
import json
from collections.abc import Callable
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


def kept(path: Path, write: Callable[[Path], object]) -> Path:
    """Return a file that is written once, to another name first: of processes that ask at the same time the others wait."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                partial = path.with_name(f"partial-{path.name}")  # its suffix says which container it is
                write(partial)
                partial.rename(path)
    return path
