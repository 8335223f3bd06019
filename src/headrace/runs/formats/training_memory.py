"""Memory of a training process: what it says of itself in `training/HOST-PID.json`, and what a profile makes of that."""

from __future__ import annotations

import msgspec


class OwnedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What the model and its optimizer hold, counted from their tensors."""

    parameters: int
    gradients: int
    """Of the parameters that learn: each has one between `backward()` and `zero_grad()`."""
    buffers: int
    """Tensors of the model that do not learn, such as the statistics of batch normalization."""
    optimizer: int
    """State of the optimizers: momentum, and the like."""


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one process, as columns of equal length; evenly spaced in time, but for the load of the machine."""

    at_ns: tuple[int, ...]
    """On the clock of the host."""
    steps: tuple[int, ...]
    """That had ended."""
    phases: tuple[str, ...]
    """Of the training thread."""
    resident_bytes: tuple[int, ...]
    swapped_bytes: tuple[int, ...]
    """Of this process, in swap."""
    major_faults: tuple[int, ...]
    """Pages of this process that had to be read from a disk, since it began."""
    stalled_us: tuple[int, ...] | None = None
    """Time in which some process waited for memory (PSI, `some`), since the machine began; None: the kernel does not tell."""
    owned: OwnedBytes | None = None
    """None: not counted."""
    peak_bytes: int | None = None
    """Largest resident memory since the process began."""
    device_peak_bytes: int | None = None
    """Most that PyTorch had allocated on the CUDA devices; None: none was used."""


class MemoryProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a process while it trained."""

    num_samples: int
    limit_bytes: int | None
    """Memory of the machine, or the control group's limit where that is less; None: not known."""
    peak_bytes: int
    """Largest resident memory; the largest sample where the kernel does not tell."""
    resident_bytes: dict[str, int]
    """{phase: median of the samples in it}; of phases with samples enough."""
    swapped_bytes: int
    """Most that was in swap."""
    major_faults_per_second: float
    stalled_share: float | None
    """Share of the time in which some process waited for memory (PSI); None: the kernel does not tell."""
    growth_bytes_per_step: float | None
    """Median slope of resident memory over steps; None: it does not grow steadily, or there are too few samples."""
    owned: OwnedBytes | None
    device_peak_bytes: int | None
