"""Where requests of every protocol are let in as jobs, or refused; see `headrace.serve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from headrace.base.passage import Passage


class Ended(msgspec.Struct, frozen=True):
    """How a job ended that came in by the door."""

    id: str
    result: Any = None
    """What the module returned for it, as `Work.prepare` left it; None where `code` is set."""
    code: str = ""
    """Why there is no result, such as `decode.corrupt` or `deadline.passed`; empty: there is one."""
    reason: str = ""
    status: int = 200
    """The HTTP status that says the same."""
    plan_id: str = ""
    """The Plan that made the answer."""


class Refused(msgspec.Struct, frozen=True):
    """Work that was not let in."""

    status: int
    """429 (busy), 503 (starting, draining), 504 (its deadline cannot be met)."""
    code: str
    reason: str
    retry_after_seconds: float = 1.0


class Work(msgspec.Struct, kw_only=True, eq=False):
    """What a request asks for."""

    payload: Any
    """Bytes of an image, a URL, an array: what the module's input takes."""
    on_end: Callable[[Ended], object]
    """Called exactly once if the work was let in, from any thread; must not block."""
    prepare: Callable[[Any], Any] | None = None
    """Makes what the answer needs of the module's result, in the delivery's thread and before the job ends; may raise an
    ItemError. None: the result itself."""
    id: str = ""
    """The caller's own; empty: one is made."""
    task: str = ""
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    deadline_ns: int | None = None
    """On the host's monotonic clock; None: the Plan's default, counted from `received_ns`."""
    received_ns: int = 0
    """When the first byte of its request came, on the same clock; 0: now."""
    priority: int = 1
    """0: before all others; 1: normal."""
    has_company: bool = False
    """Others of the same request come with it."""
    is_own: bool = False
    """The service tries itself with it: nobody is refused where it is."""
    passages: list[Passage] | None = None
    """Takes a note of each passage through a stage; None: nobody asked."""


class Ticket(Protocol):
    """Work that was let in."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...

    def cancel(self) -> None:
        """Note that nobody waits for it any more: no stage begins to work on it. Any thread; repeating it does nothing."""
        ...


class Door(Protocol):
    """What the routes see of the run."""

    def submit(self, work: Work) -> Ticket | Refused:
        """Let work in, or say why not; never blocks, any thread."""
        ...


class ForeseeingDoor(Door, Protocol):
    """The same, for routes that know by the head of a request what it asks for."""

    @property
    def is_refusing(self) -> bool:
        """Whether `foresee` is worth asking: work was refused a moment ago, or none is let in."""
        ...

    def foresee(self, work: Work) -> Refused | None:
        """Say why work would not be let in of which only the head has come; None: that shows when all of it is there."""
        ...
