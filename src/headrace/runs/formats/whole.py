"""A run of several processes and what limits it, `headrace.whole/1`: what `headrace diagnose --json` prints of one.

Made by `headrace.diagnose.whole.whole_document`. Version 1: 2026-11, first.
"""

from __future__ import annotations

import msgspec

from headrace.runs.formats.diagnosis import DiagnosisDocument

SCHEMA = "headrace.whole/1"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What one process did."""

    name: str
    """Of its run folder."""
    host: str
    status: str
    """As in `run.json`; `running` of one that was killed, too."""
    delivered: int
    failed: int
    from_seconds: float | None
    """First arrival, since that of the whole run; None: it has no spans."""
    to_seconds: float | None
    """Last outcome, since the same moment."""
    throughput: float | None
    """Jobs delivered per second in its steady part."""
    service: dict[str, float]
    """{stage: mean service seconds per item, a batch's divided among its items}."""
    trust: str
    """`TRUSTED`, `UNTRUSTED` or `NOT CHECKED`."""
    verdict: str
    """Title of its diagnosis, such as `DECODE in decode`; empty: it was not asked for."""
    death: str = ""
    """Of what it died, as its supervisor noted; empty: it did not, or nobody did."""

    def describe_limit(self) -> str:
        """Return what limited it, or ended it, in few words; empty: it was not asked for."""
        death = f"died: {self.death}" if self.death else ""
        is_doubted = self.trust != "TRUSTED" and not self.verdict.startswith(self.trust) and not death
        return ", ".join(text for text in (death, self.verdict, self.trust.lower() if is_doubted else "") if text)


class WholeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All members of a run, what differs between them, and the diagnosis of the one in the middle."""

    schema: str = SCHEMA
    run: str
    pipeline: str
    hosts: tuple[str, ...]
    members: tuple[Member, ...]
    """By their numbers."""
    delivered: int
    failed: int
    elapsed_seconds: float | None
    """From the first arrival to the last outcome of all."""
    throughput: float | None
    """All that was delivered, per second of these."""
    most_at_work: int
    """Members that worked at the same time, at most."""
    mean_at_work: float | None
    """The same in the mean."""
    notes: tuple[str, ...]
    """What only all members together show, a sentence each."""
    problems: tuple[str, ...]
    """What is missing from the folder."""
    middle: str
    """The member in the middle by its throughput, whose diagnosis this is."""
    diagnosis: DiagnosisDocument
