"""What the run ran on and with, how quiet it was there, and what was not measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.report.markup import Html, bullets, fold, note, sentence, side_by_side, table, tag
from headrace.report.numbers import count, ratio, size
from headrace.report.section import Section
from headrace.report.sections.overview import was_profiled
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.rerun_command import profile_again

_GRADES = {
    "A": "Machine graded A: quiet.",
    "B": "Machine graded B: some noise.",
    "C": "Machine graded C: noisy, so that comparisons are doubtful.",
    None: "How quiet the machine was is not known.",
}


def environment(document: ProfileDocument) -> Section:
    """Return the grade of the machine, hardware, versions, models and the Plan."""
    quiet = document.environment
    facts: list[tuple[str, str | None]] = [
        ("run delay, share of service", ratio(quiet.run_delay_share)),
        ("cores used by others", None if quiet.other_cpu_cores is None else f"{quiet.other_cpu_cores:.2f}"),
        ("CPU pressure", ratio(quiet.cpu_pressure)),
        ("stolen by the hypervisor", ratio(quiet.steal_share)),
        ("throttled by quota", ratio(quiet.throttled_share)),
        ("page cache", quiet.page_cache),
    ]
    return Section(
        anchor="environment",
        title="Environment",
        parts=[
            note(tag("b", _GRADES[quiet.grade]), " ", sentence("; ".join(reason.rstrip(".") for reason in quiet.reasons))),
            side_by_side(
                table(["how quiet the machine was", "value"], facts),
                _facts("hardware", document.hardware),
            ),
            fold("Versions", table(["package", "version"], [
                ("headrace", document.headrace_version), *document.versions.items()])),
            *(fold(f"Model {index}", _facts("of the model", told)) for index, told in enumerate(document.variants, start=1)),
            fold(f"Plan {document.plan_id} as TOML", tag("pre", tag("code", plan_text(document.plan)))),
            fold("Counters", _facts("counter", document.counters)),
        ],
    )  # fmt: skip


def hot_spots(document: ProfileDocument, folder: str) -> Section | None:
    """Return links to the profiles inside Python; `folder` is the way from the page to the run folder."""
    if not document.hot_spots:
        return None
    links = [
        tag("a", f"{stage}: {file}", href=quote(f"{folder.rstrip('/')}/{file}"), rel="noreferrer")
        for stage, file in document.hot_spots.items()
    ]
    return Section(
        anchor="hot-spots",
        title="Inside Python",
        parts=[
            bullets(links),
            note("Files ending in .speedscope.json open in speedscope, which also runs without network: ",
                 tag("code", "npx speedscope FILE"), "."),
        ],
    )  # fmt: skip


def not_measured(document: ProfileDocument) -> Section | None:
    """Return what is missing, why, and how to get it."""
    missing = {name.replace("_", " "): why for name, why in document.not_measured.items()}
    again = profile_again(document)
    if document.layers is None:
        missing.setdefault("layers of the model", f"not asked for: {again} --layers")
    if document.isolation is None:
        missing.setdefault("stages alone", f"not asked for: {again} --isolate")
    if not was_profiled(document):
        again = profile_again(document, "-o", f"{document.run}-profiled")
        missing.setdefault("CPU time, resources, splits of waits", f"the run was not profiled: {again}")
    return Section(anchor="not-measured", title="Not measured", parts=[
        table(["what", "why"], list(missing.items()), text_columns=2)]) if missing else None  # fmt: skip


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return a Plan as TOML, or as JSON where this headrace does not know its form."""
    try:
        return Plan.from_table(plan).as_toml()
    except (SettingsError, ValueError, TypeError):
        return json.dumps(plan, indent=2, default=str)


def _facts(title: str, told: Mapping[str, Any]) -> Html | None:
    return table([title, "value"], [(_words(key), _fact(key, value)) for key, value in told.items()]) if told else None


def _fact(key: str, value: Any) -> str | None:
    if value is None or value == "" or value == [] or value == ():
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return size(value) if key.endswith("_bytes") else count(value) if isinstance(value, int) else f"{value:g}"
    if isinstance(value, str):
        return value
    return tag("code", json.dumps(value, default=str, ensure_ascii=False))


def _words(key: str) -> Html:
    return tag("span", key.removesuffix("_bytes").removeprefix("num_").replace("_", " "))
