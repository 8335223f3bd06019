"""Makes the virtual environments of the other servers: `python -m benchmarks.serve.environments [NAME ...]`.

They live outside the repository, each apart, so that their pins disturb neither headrace nor one another. What both sides use
(numpy, OpenCV, ONNX Runtime) has the version of the environment that runs this: no peer is to lose to an older one. One has
pins of its own: pytriton 0.7.0 takes no numpy 2, and Triton's stub ends in Python 3.11.7 of pyenv (`_thread.RLock` has no
attribute `_recursion_count`), and not in 3.11.2 of Debian.
"""

import argparse
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.paths import digest

SHARED = ("numpy", "opencv-python-headless", "onnxruntime", "simplejpeg")
PEERS = {
    "mosec": ("mosec==0.9.8",),
    "fastapi": ("fastapi==0.165.0", "uvicorn==0.54.0", "httptools==0.9.0", "uvloop==0.23.0"),
    "litserve": ("litserve==0.2.19",),
    "bentoml": ("bentoml==1.4.39",),
    "pytriton": ("nvidia-pytriton==0.7.0",),
}
#: Who has other versions of what both sides use, or none of it, and another interpreter.
_OWN_PINS = {"pytriton"}
_PYTHONS = {"pytriton": "/usr/bin/python3"}
HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-benchmarks"


def python_of(name: str, folder: Path) -> Path:
    """Return the interpreter of a peer's environment."""
    return folder / name / "bin" / "python"


def variables_of(name: str, folder: Path) -> dict[str, str]:
    """Return what a peer needs in the variables of its process: Triton looks for the libraries that its wheel brings."""
    libraries = sorted((folder / name).glob("lib/python3*/site-packages/nvidia_pytriton.libs"))
    return {"LD_LIBRARY_PATH": str(libraries[0])} if libraries else {}


def is_ready(name: str, folder: Path) -> bool:
    """Return whether a peer's environment has the packages that it is to have."""
    return _mark(name, folder).exists()


def create(name: str, folder: Path) -> None:
    """Make a peer's environment; repeating it does nothing."""
    if is_ready(name, folder):
        return
    python = python_of(name, folder)
    if not python.exists():
        subprocess.run([_PYTHONS.get(name, sys.executable), "-m", "venv", folder / name], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *_packages(name)], check=True)
    _mark(name, folder).touch()


def _packages(name: str) -> list[str]:
    shared = () if name in _OWN_PINS else SHARED
    return [*PEERS[name], *(f"{package}=={version(package)}" for package in shared)]


def _mark(name: str, folder: Path) -> Path:
    return folder / name / f"ready-{digest(_packages(name))}"


def add_folder_argument(parser: argparse.ArgumentParser) -> None:
    """Declare where the environments are."""
    parser.add_argument(
        "--environments", type=Path, default=HOME, metavar="FOLDER", help=f"of the other servers (default {HOME})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve.environments", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "names", nargs="*", choices=[[], *PEERS], metavar="NAME", help=f"of {', '.join(PEERS)}; default all"
    )
    add_folder_argument(parser)
    arguments = parser.parse_args()
    for name in arguments.names or PEERS:
        create(name, arguments.environments)
        print(f"ready: {arguments.environments / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
