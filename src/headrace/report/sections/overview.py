"""The top of the page: what ran, whether to believe it, and the figures that are asked for first."""

from __future__ import annotations

import re

from headrace.base.formatting import quote_arg
from headrace.report.markup import Html, bullets, join, tag
from headrace.report.numbers import count, rate, seconds
from headrace.runs.formats.profile import EMULATED, ProfileDocument, Quantile
from headrace.runs.rerun_command import profile_again

_SIGNS = {"TRUSTED": ("✓", "ok"), "NOT CHECKED": ("?", "open"), "UNTRUSTED": ("✗", "failed")}


def overview(document: ProfileDocument, kind: str = "profile") -> Html:
    """Return the header of the page; `kind` says what the run folder is."""
    return tag(
        "header",
        tag("p", f"headrace · {kind} of ", tag("b", document.run), class_="kicker"),
        tag("h1", *_breakable(document.pipeline or document.run)),
        *figures(document, is_part=kind == "incident"),
    )


def figures(document: ProfileDocument, *, is_part: bool = False) -> list[Html]:
    """Return whether to believe a run, and its figures that are asked for first.

    Args:
        document: Of the run.
        is_part: Whether it is some time of a run, whose own status says nothing of it.
    """
    more = _how_to_get_more(document)
    return [
        tag("p", *_marks(document, is_part), class_="marks"),
        _trust(document),
        tag("dl", *_tiles(document), class_="tiles"),
        *([more] if more else []),
    ]


def was_profiled(document: ProfileDocument) -> bool:
    """Return whether anything but spans was recorded: CPU time, or what the machine did."""
    has_cpu = document.cpu is not None or any(stage.cpu is not None for stage in document.stages)
    # Throughput and queue depths are known from spans too.
    return has_cpu or any(not series.scope.startswith(("run", "stage:")) for series in document.series)


def _breakable(name: str) -> list[str]:
    """Return a name that may go on in a new line behind a dot or a colon."""
    return [part for piece in re.split("(?<=[.:])", name) for part in (piece, tag("wbr"))]


def _marks(document: ProfileDocument, is_part: bool) -> list[Html]:
    shares = document.plan_shares or {document.plan_id: 1.0}
    marks = [
        tag("span", "Plan ", tag("code", plan_id), f", {share:.0%} of the passages" if len(shares) > 1 else "")
        for plan_id, share in shares.items()
    ]
    if document.is_emulated:
        marks.append(tag("span", EMULATED, class_="badge warning"))
    if document.environment.grade:
        noisy = document.environment.grade == "C"
        grade = f"machine graded {document.environment.grade}{': noisy' if noisy else ''}"
        marks.append(tag("span", grade, class_="badge warning" if noisy else None))
    if document.status != "finished" and not is_part:
        marks.append(tag("span", f"run {document.status}", class_="badge warning"))
    return marks


def _trust(document: ProfileDocument) -> Html:
    sign, kind = _SIGNS[document.trust]
    reasons = document.doubts or (document.checks_in_words,)
    says = tag("p", reasons[0]) if len(reasons) == 1 else bullets(reasons)
    return tag(
        "div",
        tag("p", tag("span", sign, aria_hidden="true"), f" {document.trust}", class_="verdict"),
        says,
        tag("a", "all checks", href="#checks"),
        class_=f"trust {kind}",
    )


def _tiles(document: ProfileDocument) -> list[Html]:
    since = "from the end of the warm-up" if document.window.from_seconds > 0 else "from the first arrival"
    tiles = [tile("throughput", rate(document.throughput), f"jobs delivered per second, {since} to the last outcome")]
    tiles += [_quantile_tile(quantile) for quantile in document.latency.percentiles]
    delivered = document.counters.get("delivered")
    if isinstance(delivered, int):
        last = tile("delivered", count(delivered), _other_outcomes(document))
    else:
        last = tile("delivered", None, "not counted")
    return [*tiles, tile("duration", seconds(document.elapsed_seconds), "first arrival to last outcome"), last]


def _quantile_tile(quantile: Quantile) -> Html:
    name = f"latency p{quantile.percent:g}"
    if quantile.value is None:
        return tile(name, None, f"needs {quantile.num_needed:,} samples")
    return tile(name, seconds(quantile.value), "arrival to settlement")


def tile(name: str, value: Html | None, says: str) -> Html:
    """Return one figure of the header, with what it is."""
    return tag("div", tag("dt", name), tag("dd", value or "-", class_="value"), tag("dd", says, class_="says"))


def _other_outcomes(document: ProfileDocument) -> str:
    names = ("rejected", "dead_lettered", "retried", "returned", "lost")
    told = [(name.replace("_", " "), document.counters.get(name)) for name in names]
    return ", ".join(f"{num:,} {name}" for name, num in told if isinstance(num, int) and num) or "nothing failed"


def _how_to_get_more(document: ProfileDocument) -> Html | None:
    messages = [*document.problems, *document.warnings]
    more = None
    profiled = f"{document.run}-profiled"
    if not was_profiled(document):
        more = tag(
            "p",
            "This run was recorded without the profiler: there are spans, but no CPU time, no resources and no split of waits. "
            "For those run ",
            tag("code", profile_again(document, "-o", profiled)),
            ", and then ",
            tag("code", f"headrace report {quote_arg(profiled)}"),
            ".",
        )
    if not messages and more is None:
        return None
    return tag("div", join([more, bullets(messages) if messages else None]), class_="callout")
