"""What each of several Plans did: the arms of a canary, or before and after another model was taken up."""

from __future__ import annotations

from headrace.base.formatting import quote_arg
from headrace.report.markup import Html, note, table, tag
from headrace.report.numbers import count, data, ratio, seconds
from headrace.report.section import Section
from headrace.runs.formats.profile import PlanAccount, ProfileDocument


def plans(document: ProfileDocument) -> Section | None:
    """Return the Plans side by side; None if one answered everything."""
    accounts = document.plan_accounts
    if len(accounts) < 2:
        return None
    head = ["Plan", "passages", "delivered", "failed", "latency, median", "latency p99"]
    rows = [
        [
            tag("code", one.plan_id),
            ratio(one.share),
            count(one.delivered),
            count(one.failed),
            seconds(one.latency.percentile(50)),
            seconds(one.latency.percentile(99)),
        ]
        for one in accounts
    ]
    first, second = (f"{document.run}@{one.plan_id}" for one in accounts[:2])
    command = f"headrace compare {quote_arg(first)} {quote_arg(second)} --metric latency"
    parts = [
        table(head, rows),
        _stages(accounts),
        note(
            "An arm with fewer jobs has smaller batches, so its items cost more even where the models are alike. "
            "Whether they differ by more than chance says, from the folder beside the run, ",
            tag("code", command),
            ".",
        ),
    ]
    return Section(anchor="plans", title="Plan by Plan", parts=parts)


def _stages(accounts: tuple[PlanAccount, ...]) -> Html:
    names = list(dict.fromkeys(name for one in accounts for name in one.stages))
    head = ["stage", *(f"{what}, {one.plan_id[:8]}" for one in accounts for what in ("per item", "mean batch"))]
    return table(head, [[name, *(cell for one in accounts for cell in _cells(one, name))] for name in names])


def _cells(account: PlanAccount, name: str) -> list[Html | None]:
    stage = account.stages.get(name)
    return [None, None] if stage is None else [seconds(stage.service), data(stage.mean_batch, "items")]
