"""What all machines of a fleet share, from `--limit NAME=AMOUNT[:PER_JOB]` and from what the run shows of it.

The amount's unit says what is counted: `1000/s`, `3M/h` are calls; `100MB/s`, `10Gbit/s` are bytes. What one job uses of it is
read from the run where it shows that: a job is fetched once, so many bytes; it is called back once; a queue is called for as
many jobs at a time as the Plan says.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.errors import SettingsError
from headrace.base.goals import parse_rate
from headrace.base.units import format_number, format_rate, format_size, parse_bandwidth, parse_size
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.formats.machines import SharedLimit

if TYPE_CHECKING:
    from headrace.diagnose.replay import Replay
    from headrace.runs.formats.diagnosis import DiagnosisDocument
    from headrace.runs.formats.profile import ProfileDocument

#: Of which the run tells what a job uses.
KNOWN = ("queue", "store", "network", "receiver")
#: More calls or bytes of one job are a slip of the hand.
_MOST_PER_JOB = 1e12
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_EXPECTED = "NAME=AMOUNT or NAME=AMOUNT:PER_JOB, such as receiver=500/s, store=1GB/s or database=2000/s:3"


def parse_limit(text: str, replay: Replay) -> SharedLimit:
    """Return what `--limit` names.

    Raises:
        SettingsError: If it is no limit, or the run does not tell what a job uses of it.
    """
    name, equals, amount = text.partition("=")
    name = name.strip()
    amount, colon, each = amount.partition(":")
    if not equals or not _NAME.fullmatch(name):
        raise SettingsError(f"--limit: expected {_EXPECTED}; got {text!r}")
    per_second, unit = _parse_amount(amount, text)
    per_job, source = (_parse_each(each, unit, text), "given") if colon else _read_each(name, unit, replay)
    if not per_job > 0:
        raise SettingsError(
            f"--limit {text}: what one job uses of it is not known: {source}; say it, as in {name}={amount.strip()}:"
            f"{'50kB' if unit == 'bytes' else '1'}"
        )
    has, uses = _in_words(per_second, unit), format_size(per_job) if unit == "bytes" else _calls(per_job)
    return SharedLimit(
        name=name,
        per_second=per_second,
        unit=unit,
        per_job=per_job,
        jobs_per_second=per_second / per_job,
        says=f"{name}: {has}, and a job uses {uses} ({source}): {format_rate(per_second / per_job)} of all machines.",
    )


def seen_limits(diagnosis: DiagnosisDocument, profile: ProfileDocument) -> list[SharedLimit]:
    """Return the limits that the run itself ran into: a service that answers so many a second, whoever asks."""
    found = []
    for finding in (diagnosis.first, diagnosis.runner_up):
        if finding is None or finding.verdict is not VerdictClass.RATE_LIMIT or finding.stage is None:
            continue
        rate = profile.throughput
        if rate:
            found.append(
                SharedLimit(
                    name=finding.stage,
                    per_second=rate,
                    unit="calls",
                    per_job=1.0,
                    jobs_per_second=rate,
                    says=f"{finding.stage}: what it calls answers {format_rate(rate)}, as the run itself shows.",
                )
            )
    return found


def _parse_amount(amount: str, text: str) -> tuple[float, str]:
    with contextlib.suppress(ValueError):
        return parse_rate(amount), "calls"
    if re.search("[a-zA-Z]", amount.strip().removesuffix("/s")):  # a bare number says neither calls nor bytes
        with contextlib.suppress(ValueError):
            return parse_bandwidth(amount), "bytes"
    raise SettingsError(f"--limit {text}: expected an amount a second such as 500/s, 3M/h, 100MB/s or 10Gbit/s")


def _parse_each(each: str, unit: str, text: str) -> float:
    try:
        value = float(parse_size(each)) if unit == "bytes" else float(each)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MOST_PER_JOB:
        kind = "a size such as 50kB" if unit == "bytes" else "a number of calls such as 1 or 0.2"
        raise SettingsError(f"--limit {text}: expected {kind} for what one job uses")
    return value


def _read_each(name: str, unit: str, replay: Replay) -> tuple[float, str]:
    """Return what one job uses, and how that is known; or 0 and why it is not."""
    if name not in KNOWN:
        return 0.0, f"only of {', '.join(KNOWN)} the run tells"
    if unit == "bytes":
        return _read_bytes(name, replay.document)
    if name == "queue":
        together = replay.plan.source.receive_batch
        return 2 / together, f"received and acknowledged {together} at a time, by source.receive_batch"
    return (1.0, "a call for each job") if name != "network" else (0.0, "a network has bytes, such as 10Gbit/s")


def _read_bytes(name: str, profile: ProfileDocument) -> tuple[float, str]:
    jobs = max(1, int(profile.counters.get("delivered", 0)))
    works = {"store": ("download",), "receiver": ("deliver",), "network": ("download", "deliver")}.get(name, ())
    total = 0.0
    for stage in profile.stages:
        size = stage.bytes_out if stage.work == "download" else stage.bytes_in
        if stage.work in works and size:
            total += size * stage.items / jobs
    return total, "as measured" if total else f"the run shows no bytes of {' or '.join(works) or 'it'}"


def _in_words(per_second: float, unit: str) -> str:
    return f"{format_size(per_second)}/s" if unit == "bytes" else f"{format_number(per_second)} calls/s"


def _calls(number: float) -> str:
    return "1 call" if number == 1 else f"{number:g} calls"


def check_names(limits: Sequence[SharedLimit]) -> None:
    """Raise SettingsError if two limits have one name."""
    names = [limit.name for limit in limits]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise SettingsError(f"--limit names {twice!r} twice; give each its own name")
