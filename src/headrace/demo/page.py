"""The demo's page: what each rung gained, what limits the last one, what to type next, and then the report of the last run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.base.formatting import quote_arg
from headrace.demo.ladder import Ladder, Rung, describe
from headrace.demo.workload import PIPELINE
from headrace.report.charts import horizontal_bars
from headrace.report.frame import make_page
from headrace.report.markup import DASH, Html, bullets, sentence, table, tag
from headrace.report.numbers import rate
from headrace.report.page import make_sections
from headrace.report.section import Section
from headrace.report.sections.diagnosis import diagnosis
from headrace.report.sections.overview import figures
from headrace.runs.formats.diagnosis import DiagnosisDocument
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.run_folder import headrace_version

#: By rung's name; a text says why there is none.
Diagnoses = Mapping[str, DiagnosisDocument | str]


def render_demo(
    ladder: Ladder, diagnoses: Diagnoses, document: ProfileDocument, folder: Path, delay_seconds: float
) -> str:
    """Return the page as an HTML document.

    Args:
        ladder: What ran.
        diagnoses: Of its rungs.
        document: The analysis of the last rung's run.
        folder: The demo's, in which the page stands.
        delay_seconds: The image server's.
    """
    first, last = ladder.rungs[0], ladder.rungs[-1]
    says, *details = map(sentence, describe(ladder, delay_seconds))
    gain = f"{last.rate_per_second / first.rate_per_second:.1f} times"
    header = tag(
        "header",
        tag("p", "headrace · demo", class_="kicker"),
        tag("h1", f"{gain} the images per second, by five Plans of one pipeline"),
        tag("p", says),
    )
    found = diagnosis(diagnoses[last.name], document)
    run_folder = str((last.result.run_folder or folder).relative_to(folder))
    sections = [
        _rungs(ladder, diagnoses, details),
        *([dataclasses.replace(found, title="Diagnosis: what limits the last Plan now")] if found else []),
        _next(folder),
        Section(anchor="last", title=f"The last run in detail: {last.name}", parts=figures(document)),
        *make_sections(document, folder=run_folder),
    ]
    footer = f"Made by headrace {headrace_version()}. A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    return make_page("headrace demo", header, sections, footer)


def name_limit(found: DiagnosisDocument | str | None) -> str | None:
    """Return what limits a run, as `DECODE in decode`; None where that is not known."""
    return found.first.title if isinstance(found, DiagnosisDocument) else None


def suggest_commands(folder: Path) -> dict[str, str]:
    """Return {what for: command to type next}, in the folder where the demo was started."""
    first, last = (quote_arg(folder / "runs" / name) for name in ("1-sequential", "5-decode-at-scale"))
    plan, own = quote_arg(folder / "plans" / "5-decode-at-scale.toml"), quote_arg(folder / "runs" / "own")
    return {
        "why the first run was slow": f"headrace diagnose {first}",
        "what more downloads at once would give it": f"headrace whatif {first} --set fetch.workers=8",
        "try a setting of your own": (
            f"headrace profile {quote_arg(folder / PIPELINE)}:pipeline --plan {plan} --set fetch.workers=8 -o {own}"
        ),
        "what it changed": f"headrace compare {last} {own}",
        "the page of another run": f"headrace report {first}",
    }


def _rungs(ladder: Ladder, diagnoses: Diagnoses, details: Sequence[str]) -> Section:
    chart = horizontal_bars(
        "ladder",
        "Images per second under each Plan",
        "images per second of each rung",
        [rung.name for rung in ladder.rungs],
        {"images per second": ("var(--c1)", [rung.rate_per_second for rung in ladder.rungs])},
        "/s",
        axis_name="images per second",
    )
    rows = [_row(ladder, rung, name_limit(diagnoses.get(rung.name))) for rung in ladder.rungs]
    head = ["Plan", "what it is", "against the step before", "what limits it", "images/s"]
    parts = [chart.element(), table(head, rows, text_columns=4, caption="What each step gained"), bullets(details)]
    return Section(anchor="ladder", title="What each step gained", parts=parts, charts=[chart])


def _row(ladder: Ladder, rung: Rung, limit: str | None) -> list[Html | str | None]:
    return [rung.name, sentence(rung.explanation), ladder.verdict(rung), limit, rate(rung.rate_per_second)]


def _next(folder: Path) -> Section:
    rows = [[sentence(what), tag("code", command)] for what, command in suggest_commands(folder).items()]
    about = tag("p", "In the folder where the demo was started, in this order:", class_="note")
    return Section(
        anchor="next", title="What to type next", parts=[about, table(["", "command"], rows, text_columns=2)]
    )
