"""What a worker on another machine is given to do, and how it says what came of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec

from headrace.sources.portions import Portion

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Lease:
    """A part of the work: one portion of a list, or one worker's place at a queue.

    Attributes:
        name: For people: `portion 2/8`.
        number: Which, from 0.
        args: Of `headrace run`, as parsed and for this part.
        attempt: How often it was begun before.
        place: Its checkpoint, which a process of a worker that died may still hold; empty: it has none.
    """

    name: str
    number: int
    args: argparse.Namespace
    attempt: int = 0
    place: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """What processes of workers share with the command that began them.

    Attributes:
        folder: The working folder.
        environment: Variables that they have in the place of the node's; None: not set.
        cores: That a worker may use.
        grace_seconds: How long it may take to finish what it has when it is asked to stop.
    """

    folder: str
    environment: Mapping[str, str | None] = field(default_factory=dict)
    cores: int = 1
    grace_seconds: float = 30.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a lease.

    Attributes:
        status: Exit status of its process; negative: the signal that killed it.
        host: The machine.
        document: The result of its run as JSON; empty: there is none.
        queue: Address of its queue, without secrets; empty: it has none.
        interrupted: Whether it was asked to stop, and did not do all; at a queue, not all that it had received.
        said: What it wrote since it was last asked.
        seconds: How long it took.
        pid: Of its process.
        is_death: Whether its process ended in the midst of it, such as by `os._exit`.
    """

    status: int
    host: str
    document: bytes = b""
    queue: str = ""
    interrupted: bool = False
    said: str = ""
    seconds: float = 0.0
    pid: int = 0
    is_death: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a lease leaves for its worker; see `Report`."""

    status: int
    document: bytes = b""
    queue: str = ""
    interrupted: bool = False


def encode(outcome: Outcome) -> bytes:
    """Return an outcome as bytes."""
    return msgspec.msgpack.encode(outcome)


def decode(data: bytes) -> Outcome | None:
    """Return an outcome; None: its process died before it had one."""
    try:
        return msgspec.msgpack.decode(data, type=Outcome)
    except msgspec.DecodeError:
        return None


def send_lease(stream: IO[bytes], lease: Lease, grace_seconds: float) -> None:
    """Send a lease to a process; functions among the arguments are those of the command itself."""
    values = {key: value for key, value in vars(lease.args).items() if not callable(value) and key != "log"}
    values["shard"] = str(values["shard"]) if values.get("shard") is not None else None
    sent = {"attempt": lease.attempt, "place": lease.place, "grace_seconds": grace_seconds, "args": values}
    content = msgspec.msgpack.encode(sent)
    stream.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
    stream.flush()


def receive_lease(stream: IO[bytes]) -> dict[str, Any] | None:
    """Wait for a lease and return what was sent; None: there is none any more."""
    length = stream.read(_LENGTH_BYTES)
    content = stream.read(int.from_bytes(length, "big"))
    if len(length) < _LENGTH_BYTES or len(content) < int.from_bytes(length, "big"):
        return None
    sent: dict[str, Any] = msgspec.msgpack.decode(content)
    shard = sent["args"].get("shard")
    sent["args"]["shard"] = None if shard is None else Portion.parse(shard)
    return sent
