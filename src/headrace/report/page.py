"""The report: one HTML file that needs no network, no server and, for its numbers, no JavaScript.

How it is kept safe: everything that comes from a run is text and escaped by `markup`; the charts' data stand in a JSON element
without `<`; and the page's Content Security Policy lets nothing run but the two scripts of this package, named by their hashes,
and nothing be loaded from anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.report.frame import make_page
from headrace.report.markup import DASH
from headrace.report.section import Section
from headrace.report.sections.batches import batches
from headrace.report.sections.checks import checks
from headrace.report.sections.comparing import comparing
from headrace.report.sections.cpu import cpu
from headrace.report.sections.diagnosis import diagnosis
from headrace.report.sections.environment import environment, hot_spots, not_measured
from headrace.report.sections.experiment import experiment
from headrace.report.sections.failures import failures, matters
from headrace.report.sections.incident import incident as show_incident
from headrace.report.sections.isolation import isolation
from headrace.report.sections.latency import latency
from headrace.report.sections.layers import layers
from headrace.report.sections.members import members
from headrace.report.sections.over_time import resources, work_over_time
from headrace.report.sections.overview import overview
from headrace.report.sections.plans import plans
from headrace.report.sections.slow_item import slow_item
from headrace.report.sections.stages import stages
from headrace.report.sections.streams import streams
from headrace.runs.formats.comparison import ComparisonDocument
from headrace.runs.formats.diagnosis import DiagnosisDocument
from headrace.runs.formats.failures import FailureReason
from headrace.runs.formats.incident import IncidentDocument
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.formats.whole import WholeDocument


def render_report(
    document: ProfileDocument,
    comparison: ComparisonDocument | None = None,
    *,
    diagnosed: DiagnosisDocument | str | None = None,
    failed: Sequence[FailureReason] = (),
    incident: IncidentDocument | None = None,
    whole: WholeDocument | None = None,
    folder: str = ".",
) -> str:
    """Return the report of one run as an HTML document.

    Args:
        document: The analysis of the run.
        comparison: Adds what changed between two variants.
        diagnosed: Adds what limits the run; a text says why that could not be told.
        failed: What failed in the run; stands first where it matters.
        incident: Why it was slow, where a flight recorder wrote the folder; stands first.
        whole: All processes of the run, of which this is one; stands first.
        folder: The way from the page to the run folder, for links to files in it.
    """
    sections = make_sections(document, comparison, diagnosed, folder)
    what_failed = failures(failed, document)
    if what_failed is not None:
        sections.insert(0 if matters(failed, document) else 1, what_failed)
    if (why := show_incident(incident)) is not None:
        sections.insert(0, why)
    if whole is not None:
        sections.insert(0, members(whole))
    footer = (
        f"Made by headrace {document.headrace_version} from the run folder {document.run}. "
        f"A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    )
    kind = "profile" if incident is None else "incident"
    header = overview(
        document, kind if whole is None else f"one of {len(whole.members)} processes of {whole.run}: profile"
    )
    return make_page(document.run, header, sections, footer)


def make_sections(
    document: ProfileDocument,
    comparison: ComparisonDocument | None = None,
    diagnosed: DiagnosisDocument | str | None = None,
    folder: str = ".",
) -> list[Section]:
    """Return the parts of a run's report; arguments as of `render_report`."""
    found = [
        diagnosis(diagnosed, document),
        experiment(document),
        comparing(comparison, document),
        plans(document),
        stages(document),
        streams(document),
        latency(document),
        work_over_time(document),
        resources(document),
        batches(document),
        slow_item(document),
        cpu(document),
        isolation(document),
        layers(document),
        hot_spots(document, folder),
        checks(document),
        environment(document),
        not_measured(document),
    ]
    return [section for section in found if section is not None]
