"""An array of preprocessed images that several processes see, so that none is pickled."""

from multiprocessing import shared_memory

import numpy as np

from benchmarks.peers.preprocess import SIDE


class SharedImages:
    """Slots of float32 (3, 224, 224) in shared memory; a context manager.

    Args:
        num_slots: Images it holds.
        name: None creates the memory (and removes it in the end); otherwise attaches to it.
    """

    def __init__(self, num_slots: int, name: str | None = None) -> None:
        shape = (num_slots, 3, SIDE, SIDE)
        self._owner = name is None
        self._memory = shared_memory.SharedMemory(name, create=self._owner, size=4 * int(np.prod(shape)))
        self.array: np.ndarray | None = np.ndarray(shape, np.float32, buffer=self._memory.buf)
        if self._owner:
            self.array[:] = 0  # first touch here: no page faults inside the measured time

    @property
    def name(self) -> str:
        """Name to attach with."""
        return self._memory.name

    def __enter__(self) -> "SharedImages":
        return self

    def __exit__(self, *_: object) -> None:
        self.array = None  # a memory with living views cannot be closed
        self._memory.close()
        if self._owner:
            self._memory.unlink()
