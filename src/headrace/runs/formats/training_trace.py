"""What a trace of `torch.profiler` says of a training besides its steps: in `details` of `training/HOST-PID.json`.

Written by `headrace train read`. Times are seconds, means over the steps that `steps` counts unless it is said otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.base.documents import convert_document

#: Key of the record in `TrainingProcess.details`.
TRACE = "trace"


class TracedCall(msgspec.Struct, frozen=True, kw_only=True):
    """An operator, a kernel, or a call that waits for the device."""

    name: str
    count: float
    """In a step."""
    seconds: float
    """Of a step: for operators without those inside."""


class TracedSync(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the host waits for the device."""

    call: str
    """Of the runtime: `cudaStreamSynchronize`."""
    operator: str
    """The outermost operator around it, such as `aten::item`; empty: none, or it is not in the trace."""
    place: str
    """The innermost Python function of the program around it, as `FILE: FUNCTION`; empty: the trace has no stacks."""
    phase: str
    """Where most of these calls are; see `headrace.runs.training_phases.Phase`."""
    count: float
    """In a step."""
    seconds: float
    """That the host waits, in a step."""
    idle_seconds: float
    """That the device has nothing to do behind it, in a step."""


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """What the device did in a step: from the first work of one step on it to that of the next.

    `compute_seconds`, `exposed_communication_seconds`, `exposed_transfer_seconds`, `queued_seconds` and the sum of
    `idle_seconds` and `idle_after_sync_seconds` add up to `step_seconds`.
    """

    device: str
    """As the trace names it; `GPU 0, 3 streams`."""
    steps: int
    """That are counted: those which the trace has the beginning and the end of, on the device."""
    step_seconds: float
    compute_seconds: float
    """Kernels other than communication, copies within the device, fills: at least one of them."""
    communication_seconds: float
    """Kernels of NCCL and RCCL: at least one of them."""
    exposed_communication_seconds: float
    """... while nothing was computed."""
    transfer_seconds: float
    """Copies between host and device."""
    exposed_transfer_seconds: float
    """... while nothing was computed nor exchanged."""
    queued_seconds: float
    """Nothing runs though the next work was launched: what launching takes on the device, and waiting for another stream."""
    idle_seconds: dict[str, float]
    """{phase of the host: nothing runs, and the host has not launched the next work}."""
    idle_after_sync_seconds: float
    """The same behind a call that waited for the device, up to the next work: in no phase above."""
    kernels: float
    """In a step."""
    kernel_seconds: float
    """Mean duration of a kernel."""
    launch_seconds: float
    """Mean time from one launch to the next on the host, in phases of the model and the optimizer."""
    short_share: float
    """Kernels that take less than that, 0 to 1."""


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process in its traces."""

    files: tuple[str, ...]
    num_events: int
    num_bytes: int
    """Of JSON."""
    steps: int
    """Over which the lists below are means."""
    devices: tuple[DeviceTime, ...] = ()
    """Empty: the trace has no work of a device."""
    kernels: tuple[TracedCall, ...] = ()
    """The dearest ones."""
    operators: tuple[TracedCall, ...] = ()
    """The dearest ones on the host, by their own time."""
    syncs: tuple[TracedSync, ...] = ()
    """Those that cost most."""
    has_stacks: bool = False
    """Whether the trace says which Python function called what."""
    problems: tuple[str, ...] = ()
    """What could not be read, and what that means."""


def trace_record(details: dict[str, Any]) -> TraceRecord | None:
    """Return the record in the details of a process; None where there is none, or it is damaged."""
    if TRACE not in details:
        return None
    try:
        return convert_document(details[TRACE], TraceRecord)
    except msgspec.ValidationError:
        return None
