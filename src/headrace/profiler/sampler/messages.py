"""What the profiled process and the sampler tell each other: one JSON object a line.

Towards the sampler, on its standard input: `{"threads": [[process, thread, name]]}` whenever the workers change, and
`{"close": true}`. From the sampler, on its standard output, once and last: a `Report`.

Plain `json` and dataclasses: msgspec would double the time that the sampler takes to start.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class ThreadPlace(NamedTuple):
    """A thread whose states are sampled."""

    process: int
    """Process id."""
    thread_id: int
    """The kernel's number of the thread, `threading.get_native_id()`."""
    name: str
    """The worker's name, as in the column `thread` of spans."""


@dataclass(frozen=True, kw_only=True)
class GilPlace:
    """Where the variable that holds the GIL lies, in a way that holds for every process of the same interpreter."""

    device: str
    """Device and inode of the object that defines `_PyRuntime`, as in `/proc/PID/maps`: `fe:00`."""
    inode: int
    offset: int
    """Bytes from the lowest mapping of that object."""
    size: int
    """Bytes."""
    holder: int | None = None
    """Bytes from the variable to the address of the state of the thread that had the GIL last, behind which stands whether it
    still has it; None: not looked for, or not found."""
    number: int = 0
    """Bytes from the state of a thread to the kernel's number of the thread."""


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """What the sampler is started with, as JSON in its command line."""

    folder: Path
    """The run folder."""
    process: int
    """The profiled process."""
    resource_hertz: float
    state_hertz: float
    gil: GilPlace | None
    gil_reason: str = ""
    """Why there is no `gil`."""

    def encode(self) -> str:
        """Return this as JSON."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @staticmethod
    def decode(text: str) -> SamplerSettings:
        """Return what `encode` made a text of."""
        table = json.loads(text)
        place = GilPlace(**table["gil"]) if table["gil"] else None
        return SamplerSettings(**(table | {"folder": Path(table["folder"]), "gil": place}))


@dataclass(kw_only=True)
class Report:
    """What the sampler tells at its end."""

    cpu_seconds: float
    """CPU time of the sampler."""
    state_samples_per_second: float | None
    lost_samples: int
    """That could not be written."""
    not_measured: dict[str, str] = field(default_factory=dict)
    """{what: why}."""
    outputs: dict[str, list[str]] = field(default_factory=dict)
    """{worker: pipes and terminals that it waited for somebody to read}."""

    def encode(self) -> str:
        """Return this as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def decode(text: str) -> Report:
        """Return what `encode` made a text of.

        Raises:
            ValueError, TypeError: If it is none.
        """
        return Report(**json.loads(text))
