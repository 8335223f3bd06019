"""What a hit of a cache costs, by where it keeps results.

Alone in a thread, warm, 3 kB to 1.5 MB took 5 us and 10 GB/s from memory, 60 us and 2 GB/s from disk (AMD EPYC of 2017). In a
run with 16 threads a hit of 372 kB from disk took 0.49 ms of CPU, twice that, so the disk's figures are doubled.
"""

from __future__ import annotations

#: What an entry takes beyond its content.
ENTRY_BYTES = 400
#: (CPU seconds, bytes a second that are copied, on disk read and checked, besides).
_MEMORY, _DISK = (5e-6, 1e10), (120e-6, 1e9)


def hit_seconds(num_bytes: float, *, on_disk: bool = False) -> float:
    """Return the CPU time of a hit."""
    seconds, rate = _DISK if on_disk else _MEMORY
    return seconds + num_bytes / rate
