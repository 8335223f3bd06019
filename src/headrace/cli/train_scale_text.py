"""What more ranks bring to a training, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, pluralize, wrap_lines
from headrace.base.units import format_duration, format_number, format_size
from headrace.cli.whatif_text import ratio_text
from headrace.runs.formats.scaling import Part

if TYPE_CHECKING:
    from headrace.runs.formats.scaling import MeasuredLink, PredictedRanks, ScalingDocument


def as_text(document: ScalingDocument) -> str:
    """Return the whole answer as plain text."""
    paragraphs = [
        [*_head(document), "", *_rungs(document)],
        _losses(document),
        _link(document.link) if document.link is not None else [],
        _predicted(document),
        wrap_lines(_proposals(document)),
        wrap_lines(f"warning: {warning}" for warning in document.warnings),
        wrap_lines([f"run folders and scaling.json: {document.folder}"]),
    ]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def _head(document: ScalingDocument) -> list[str]:
    most = document.rungs[-1]
    lines = [
        (
            f"{document.script}: {pluralize(most.rounds, 'round')} of {document.steps} steps, "
            f"{pluralize(document.threads, 'thread')} a rank, {document.num_cores:g} cores"
        )
    ]
    if most.ranks > 1:
        alone = document.rungs[0].samples_per_second
        times = most.samples_per_second / alone
        how = "SLOWER than one" if times < 1 else f"x{format_number(times)} of one"
        lines.append(f"{most.ranks} ranks are {how}: efficiency {most.efficiency.mid:.0%}")
    shared = [rung.ranks for rung in document.rungs if rung.ranks * document.threads > document.num_cores > 0]
    if shared:
        lines.append(
            f"{', '.join(map(str, shared))} ranks share {document.num_cores:g} cores: what is lost there as `no core` and "
            "`computing` says how few cores there are, not how the training scales"
        )
    return wrap_lines(lines)


def _rungs(document: ScalingDocument) -> list[str]:
    rows: list[tuple[str, ...]] = [("ranks", "samples/s", "step", "efficiency", "9 in 10 within", "predicted")]
    rows += [
        (
            str(rung.ranks),
            format_number(rung.samples_per_second),
            format_duration(rung.step_seconds),
            f"{rung.efficiency.mid:.0%}",
            "-" if rung.ranks == 1 else f"{rung.efficiency.low:.0%} to {rung.efficiency.high:.0%}",
            "-" if rung.predicted is None else f"{format_number(rung.predicted.mid)}/s",
        )
        for rung in document.rungs
    ]
    return align_columns(rows, num_left=0)


def _losses(document: ScalingDocument) -> list[str]:
    rungs = [rung for rung in document.rungs if rung.ranks > 1]
    if not rungs:
        return []
    rows: list[tuple[str, ...]] = [("efficiency lost to", *(pluralize(rung.ranks, "rank") for rung in rungs))]
    rows += [(str(part), *(f"{rung.losses[part]:+z.1%}" for rung in rungs)) for part in Part]
    rows.append(("together", *(f"{1 - rung.efficiency.mid:+z.1%}" for rung in rungs)))
    return align_columns(rows)


def _link(link: MeasuredLink) -> list[str]:
    says = (
        f"between {link.ranks} ranks of this machine that do nothing else: {format_duration(link.latency_seconds)} a message, "
        f"{format_size(link.bytes_per_second)}/s, {format_duration(link.byte_cpu_seconds * 1e9)} of a core for each GB (the "
        f"line is {link.error:.0%} off)"
    )
    return wrap_lines([says])


def _predicted(document: ScalingDocument) -> list[str]:
    if not document.predicted:
        return []
    alone = document.rungs[0].samples_per_second
    rows: list[tuple[str, ...]] = [
        ("ranks", "here, /s", "9 in 10 within", "apart, /s", "efficiency", "slower below", "90 % above")
    ]
    rows += [_predicted_row(one, alone) for one in document.predicted]
    size = format_size(document.gradient_bytes)
    apart = (
        "apart: each rank has a machine like this one. Below the one bandwidth of their link so many machines are slower than "
        "one; above the other it leaves 90 % of the efficiency"
    )
    return [
        *wrap_lines([f"predicted from the training of one rank and that link; {size} of gradients are exchanged"]),
        "",
        *align_columns(rows, num_left=0),
        "",
        *wrap_lines([apart]),
    ]


def _predicted_row(one: PredictedRanks, alone: float) -> tuple[str, ...]:
    return (
        str(one.ranks),
        format_number(one.here.mid),
        f"{format_number(one.here.low)} to {format_number(one.here.high)}",
        format_number(one.apart.mid),
        f"{one.apart.mid / one.ranks / alone:.0%}",
        "-" if one.slower_below is None else f"{format_size(one.slower_below)}/s",
        "-" if one.good_above is None else f"{format_size(one.good_above)}/s",
    )


def _proposals(document: ScalingDocument) -> Iterator[str]:
    if not document.rungs or document.rungs[-1].ranks == 1:
        return
    most = document.rungs[-1]
    if not document.proposals:
        yield f"what would help {most.ranks} ranks: nothing that was tried in the simulation brings 3 % for sure"
        return
    yield f"what would help {most.ranks} ranks, predicted from their own training:"
    for one in document.proposals:
        ratio = "" if one.ratio is None else f"{ratio_text(one.ratio)}: "
        yield f"  {ratio}{one.says}"
