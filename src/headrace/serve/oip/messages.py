"""A request for inference and its response, as HTTP and gRPC both see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.serve.oip.failure import OipError

Parameters = Mapping[str, str | int | float | bool]

#: What Triton calls its priorities: 1 goes before 2, and 0 is the usual one.
PRIORITY_LEVELS = 2
#: Inputs, or outputs, of one request.
MOST_TENSORS = 256
_LONGEST_TIMEOUT_US = 10**15


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, coming or going."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: np.ndarray | list[bytes]
    """An array of this shape; of BYTES the elements in their order."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the client wants."""

    name: str
    is_binary: bool | None = None
    """Whether as bytes behind the JSON; None: as the request says of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """What a client asks of a model."""

    inputs: Sequence[Tensor]
    outputs: Sequence[RequestedOutput] = ()
    """Empty: all that there are."""
    id: str = ""
    """The client's own; comes back with the response."""
    is_binary: bool = False
    """Whether outputs go as bytes behind the JSON unless they say otherwise."""
    is_urgent: bool = False
    """Whether it goes before others."""
    timeout_us: int = 0
    """Time to the answer, us; 0: as the service says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferResponse:
    """What a model answers."""

    model: str
    version: str
    id: str
    outputs: Sequence[Tensor]
    plan_id: str = ""
    """The Plan that made it."""


def read_schedule(parameters: Parameters) -> tuple[bool, int]:
    """Return whether a request is urgent, and its time in us (0: none), by the extension `schedule_policy`.

    Raises:
        OipError: If they are impossible, or ask for a sequence, which is kept for no model.
    """
    if parameters.get("sequence_id"):
        raise OipError("oip.sequence", "parameter sequence_id is given, and no model here has a state; leave it out")
    priority = _read_whole(parameters, "priority", PRIORITY_LEVELS)
    return priority == 1, _read_whole(parameters, "timeout", _LONGEST_TIMEOUT_US)


def refuse_shared_memory(parameters: Parameters, tensor: str) -> None:
    """Raise OipError if a tensor is said to be in a memory region: nobody's memory is read but the request's."""
    if "shared_memory_region" in parameters:
        raise OipError(
            "oip.shared_memory", f"{tensor} names a shared memory region; bytes go with request and response"
        )


def check_numbers(num_inputs: int, num_outputs: int) -> None:
    """Raise OipError for more inputs or outputs than any model has, before they are looked at one by one."""
    for what, number in (("inputs", num_inputs), ("outputs", num_outputs)):
        if number > MOST_TENSORS:
            raise OipError(f"oip.{what}", f"the request has {number:,} {what}; at most {MOST_TENSORS}")


def refuse_extensions(parameters: Parameters, output: str) -> None:
    """Raise OipError if an output is asked for in a way that is not known here: its client would find something else.

    Raises:
        OipError: If it is to go into a memory region, or as the labels of the highest values.
    """
    refuse_shared_memory(parameters, f"output {output:.100}")
    if parameters.get("classification"):
        raise OipError(
            "oip.classification",
            f"output {output:.100} is asked for as labels (classification); ask for the output itself",
        )


def _read_whole(parameters: Parameters, name: str, largest: int) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(largest)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise OipError(
            "oip.parameter", f"parameter {name} is {value!r:.40}; expected a whole number from 0 to {largest}"
        )
    return value
