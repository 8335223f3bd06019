"""The page of a search for a cheaper variant: accuracy against speed, what was tried, and why each was accepted or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.report.frame import make_page
from headrace.report.markup import DASH, Html, bullets, sentence, table, tag
from headrace.report.section import Section
from headrace.report.variants.layers import layers_section
from headrace.report.variants.layouts import layouts_section
from headrace.report.variants.pareto import pareto_section
from headrace.report.variants.slices import slices_section
from headrace.report.variants.steps import end_to_end_section, steps_section
from headrace.report.variants.tried import reasons_section, tried_section
from headrace.report.variants.worst import worst_section
from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.optimization import OptimizationDocument
from headrace.runs.formats.variants import WorstItem
from headrace.runs.run_folder import headrace_version


def render_variants(
    document: OptimizationDocument, decisions: Sequence[Decision] = (), pictures: Mapping[WorstItem, str] | None = None
) -> str:
    """Return the page of one search as an HTML document.

    Args:
        document: The search.
        decisions: Of the ledger, the newest first.
        pictures: {item of the golden set: picture as a `data:` address}.
    """
    sections = [
        pareto_section(document), steps_section(document), end_to_end_section(document.end_to_end), tried_section(document),
        slices_section(document), layouts_section(document), layers_section(document),
        worst_section(document, pictures or {}),
        reasons_section(document), _show_skipped(document), _show_decisions(decisions),
    ]  # fmt: skip
    footer = (
        f"Made by headrace {headrace_version()} for the model {document.model.sha256[:16]}. "
        f"A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    )
    name = document.baseline.name
    return make_page(
        name, _overview(document, name), [section for section in sections if section], footer, pictures=bool(pictures)
    )


def _overview(document: OptimizationDocument, name: str) -> Html:
    has_better = document.recommended is not None
    return tag(
        "header",
        tag("p", "headrace · variants of ", tag("b", name), class_="kicker"),
        tag("h1", "A better variant was found and proved" if has_better else "No better variant was proved"),
        tag("p", sentence(document.says)),
        tag("p", tag("b", sentence(document.business.says))) if document.business else None,
        bullets(document.warnings) if document.warnings else None,
        tag("p", "interrupted: the same command goes on", class_="note") if document.interrupted else None,
    )


def _show_skipped(document: OptimizationDocument) -> Section | None:
    if not document.skipped:
        return None
    said = bullets(f"{skipped.technique}: {skipped.why}" for skipped in document.skipped)
    return Section(anchor="skipped", title="Not tried", parts=[said])


def _show_decisions(decisions: Sequence[Decision]) -> Section | None:
    if not decisions:
        return None
    rows = [[f"d{one.number}", one.action, one.plan, one.who, one.why] for one in decisions]
    return Section(
        anchor="decisions",
        title="Decisions",
        parts=[
            table(["", "action", "Plan", "who", "why"], rows, text_columns=5, caption="Which Plan took whose place")
        ],
    )
