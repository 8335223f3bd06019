"""Whether NVIDIA's driver is here: asked of the loader, as whoever uses it will."""

from __future__ import annotations

import ctypes


def has_driver() -> bool:
    """Return whether the driver's library can be loaded.

    `ctypes.util.find_library` asks ldconfig, which does not know what LD_LIBRARY_PATH alone leads to, as in many containers.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
