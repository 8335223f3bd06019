"""Waiting for disks and for readers: reading the data, writing logs, and memory that has to be read back."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.base.units import format_duration, format_size
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import EvidenceLine, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.rerun_command import profile_again

#: Memory pressure (PSI) from which on stalls for memory count.
_PRESSURE = 0.10
#: Bytes a second below which the disk was not used.
_SOME_BYTES = 10_000
#: States of a thread that writes, and may hold the lock of a logging handler meanwhile.
_WRITING = ("output", "disk")


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose for stages that wait for disks, or for somebody who reads what they write."""
    for view in facts.stages:
        waits = view.waits("disk") or 0.0
        if waits >= WORTH_NAMING and _is_memory_short(facts):
            yield _memory(facts, view, waits)
        elif waits >= WORTH_NAMING and _reads(facts, view):
            yield _disk(facts, view, waits)
        elif view.account.executor != "process":  # whose threads write to their own processes
            yield from _propose_logging(facts, view)


def _is_memory_short(facts: Facts) -> bool:
    pressure, swap = (
        facts.machine.get("machine.memory_pressure_ratio"),
        facts.machine.get("machine.swap_in_bytes_per_second"),
    )
    return (pressure or 0.0) >= _PRESSURE or (swap or 0.0) >= _SOME_BYTES


def _reads(facts: Facts, view: StageView) -> bool:
    """Return whether the stage reads the data: by its work, or because the run reads more than it writes.

    Where that was not measured, DISK says no more than was seen; LOGGING would say that something is written.
    """
    read, written = (facts.machine.get(f"processes.{way}_bytes_per_second") for way in ("read", "write"))
    if view.work in ("download", "deliver") or read is None or written is None:
        return True
    return read >= max(_SOME_BYTES, written)


def _disk_lines(facts: Facts, view: StageView, waits: float) -> list[EvidenceLine]:
    found = [
        at_least("disk", f"share of {view.name}'s service waiting for a disk", waits, WORTH_NAMING),
        line("samples", f"from {view.samples:,} samples of blocked threads", float(view.samples), 10, None),
    ]
    for way in ("read", "write"):
        rate = facts.machine.get(f"processes.{way}_bytes_per_second")
        text = "not measured" if rate is None else f"{format_size(rate)}/s"
        found.append(line(f"{way}_bytes", f"the run's {way}s from and to storage: {text}", rate))
    faults = facts.machine.get("processes.major_faults_per_second")
    text = "not measured" if faults is None else f"{faults:,.1f} a second"
    return [*found, line("major_faults", f"page faults that waited for a disk: {text}", faults)]


def _disk(facts: Facts, view: StageView, waits: float) -> Proposal:
    cache = facts.document.environment.page_cache
    return Proposal(
        verdict=VerdictClass.DISK,
        stage=view.name,
        says=(
            f"{view.name} waits for the disk {waits:.0%} of its {format_duration(view.service)} per item"
            + (f"; the page cache was {cache} when the run began" if cache else "")
        ),
        rule=(
            f"at least {WORTH_NAMING:.0%} of the service is waiting for a disk, in a stage that reads data, or where bytes "
            "read and written were not measured"
        ),
        resources=view.resources,
        share=waits,
        evidence=(
            *_disk_lines(facts, view, waits),
            line("page_cache", f"page cache: {cache}", float(cache == "warm"), None, cache != "warm")
            if cache
            else line("page_cache", "page cache: not measured", None),
        ),
        advice=(
            Advice(
                says="read from a faster disk, or read ahead into memory; a second pass over warm files shows what is left",
                change=Change(speedups={view.name: 1 / max(0.05, 1 - waits)}),
                command="" if facts.reads_queue or facts.info.served else profile_again(facts.info, "--isolate"),
            ),
            Advice(
                says="more workers keep more requests under way",
                settings=(f"{view.account.station}.workers={2 * view.workers}",),
            ),
        ),
        removal=Change(speedups={view.name: 4.0}),
    )


def _propose_logging(facts: Facts, view: StageView) -> Iterator[Proposal]:
    disk, output = view.waits("disk") or 0.0, view.waits("output") or 0.0
    behind = facts.lock_wait_while(view, *_WRITING)
    share = output + behind + (0.0 if _reads(facts, view) else disk)
    if share < WORTH_NAMING:
        return
    is_output = output + behind > disk
    where = "until somebody reads what it writes to a pipe or terminal" if is_output else "for the disk"
    lock = f", {behind:.0%} of it at the lock of whoever writes" if behind >= WORTH_NAMING else ""
    yield Proposal(
        verdict=VerdictClass.LOGGING,
        stage=view.name,
        says=(
            f"{view.name} does not read the data, yet waits {where} {share:.0%} of its {format_duration(view.service)} per "
            f"item{lock}: it writes something down, such as a log, and waits until it is there"
        ),
        rule=(
            f"at least {WORTH_NAMING:.0%} of the service of a stage that does not read data is waiting for a disk, for a pipe "
            "or terminal to take what is written, or for a lock while another worker waits for one of these"
        ),
        resources=view.resources,
        share=share,
        evidence=(
            at_least(
                "output", f"share of {view.name}'s service waiting for a reader of its output", output, WORTH_NAMING
            ),
            at_least("lock_of_writer", "share of it waiting for a lock while another writes", behind, WORTH_NAMING),
            *_disk_lines(facts, view, disk),
        ),
        advice=(
            Advice(
                says="log less, or through a queue (logging.handlers.QueueHandler), and do not call fsync per item",
                change=Change(speedups={view.name: 1 / max(0.05, 1 - share)}),
            ),
        ),
        removal=Change(speedups={view.name: 4.0}),
        # A pipe holds 64 KiB: while writers wait for room in it again and again, its reader always has more to read.
        sets_pace=is_output,
        is_seen=True,
    )


def _memory(facts: Facts, view: StageView, waits: float) -> Proposal:
    pressure, swap = (
        facts.machine.get("machine.memory_pressure_ratio"),
        facts.machine.get("machine.swap_in_bytes_per_second"),
    )
    return Proposal(
        verdict=VerdictClass.MEMORY_PRESSURE,
        stage=view.name,
        says=(
            f"memory is short: {view.name} waits {waits:.0%} of its {format_duration(view.service)} per item for pages that "
            "were put out and must be read again"
        ),
        rule=f"waiting for a disk, with memory pressure of at least {_PRESSURE:.0%} or pages coming from swap",
        resources=view.resources,
        share=waits,
        evidence=(
            at_least(
                "memory_pressure", "share of the time that something waited for memory (PSI)", pressure, _PRESSURE
            ),
            line(
                "swap_in",
                "read back from swap: " + ("not measured" if swap is None else f"{format_size(swap)}/s"),
                swap,
                _SOME_BYTES,
                (swap or 0.0) >= _SOME_BYTES,
            ),
            *_disk_lines(facts, view, waits),
        ),
        advice=(
            Advice(says="give the run more memory, or smaller queues (queue_bytes) and batches"),
            Advice(
                says="hold fewer jobs at once",
                settings=(f"source.max_in_flight={max(1, (facts.plan.source.max_in_flight or 64) // 2)}",),
            ),
        ),
        removal=Change(speedups={view.name: 4.0}),
        is_seen=True,
    )
