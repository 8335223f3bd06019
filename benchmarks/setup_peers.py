"""Makes the virtual environment of the heavy peers (PyTorch DataLoader, Ray Data): ``python -m benchmarks.setup_peers``.

They live apart so that installing headrace's benchmarks never pulls gigabytes, and so that their pins cannot disturb the
environment in which headrace is measured. Packages both sides use are pinned to the versions of the environment that
runs this script: a peer must not lose to an older ONNX Runtime.
"""

import argparse
import subprocess
import sys
from importlib.metadata import version

from benchmarks.paths import CACHE, HEAVY_PYTHON, HEAVY_VENV

SHARED = (
    "numpy",
    "opencv-python-headless",
    "onnxruntime",
    "simplejpeg",
    "urllib3",
    "pycurl",
    "pyarrow",
    "aiohttp",
    "uvloop",
)
HEAVY = ("torch==2.13.0", "ray[data]==2.60.0")


def is_ready() -> bool:
    """Return whether the environment exists and both heavy packages import."""
    if not HEAVY_PYTHON.exists():
        return False
    check = "import importlib.util as u, sys; sys.exit(not (u.find_spec('torch') and u.find_spec('ray')))"
    return subprocess.run([HEAVY_PYTHON, "-c", check], check=False).returncode == 0


def create() -> None:
    """Create the environment and install the pinned packages; safe to repeat."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not HEAVY_PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", HEAVY_VENV], check=True)
    pins = [f"{name}=={version(name)}" for name in SHARED]
    subprocess.run([HEAVY_PYTHON, "-m", "pip", "install", "--quiet", *pins, *HEAVY], check=True)


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    if not is_ready():
        create()
    print(f"ready: {HEAVY_VENV.relative_to(CACHE.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
