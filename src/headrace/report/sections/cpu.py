"""Where the CPU time of all processes of the run went."""

from __future__ import annotations

from headrace.report.charts import horizontal_bars
from headrace.report.markup import DASH, note, table
from headrace.report.numbers import data, ratio, seconds
from headrace.report.section import Section
from headrace.runs.formats.profile import CpuAccount, CpuLine, ProfileDocument, RuntimeCost

_COLORS = {
    "stage": "var(--cpu)",
    "headrace": "var(--run-delay)",
    "native": "var(--disk)",
    "unattributed": "var(--unknown)",
}


def cpu(document: ProfileDocument) -> Section | None:
    """Return the account of the processes' CPU time."""
    account = document.cpu
    if account is None:
        return None
    lines = sorted(account.lines, key=lambda line: (line.kind == "unattributed", -line.seconds))
    chart = horizontal_bars(
        "cpu-account",
        "CPU time of the run, by who used it",
        "share of the CPU time of all processes, percent",
        [line.name for line in lines],
        # One series for each kind, stacked so that a row holds one bar only.
        {
            kind: (color, [100 * line.share if line.kind == kind else None for line in lines])
            for kind, color in _COLORS.items()
            if any(line.kind == kind for line in lines)
        },
        "%",
        axis_name="% of the CPU time",
        stacked=True,
    )
    return Section(
        anchor="cpu",
        title="CPU account",
        parts=[
            note(*_says(account)),
            *([note(*_of_runtime(document.runtime))] if document.runtime else []),
            chart.element(),
            table(*_rows(account, lines), text_columns=2),
        ],
        charts=[chart],
    )


def _says(account: CpuAccount) -> list[str | None]:
    available = account.num_cores * account.elapsed_seconds
    used = ratio(account.total_seconds / available) if available > 0 else None
    return [
        seconds(account.total_seconds), " of CPU time in ", seconds(account.elapsed_seconds),
        f" on {account.num_cores:g} cores (", used or DASH, " of them). Explained: ", ratio(account.explained_share), ".",
    ]  # fmt: skip


def _of_runtime(cost: RuntimeCost) -> list[str | None]:
    switches = cost.voluntary_switches_per_item
    sleeping = [] if switches is None else ["; threads go to sleep ", data(switches, ""), " times per item"]
    if switches is not None and cost.handoff_cpu_seconds:
        sleeping += [", and waking one costs ", seconds(cost.handoff_cpu_seconds), " of CPU time here"]
    return [
        "The runtime itself takes ", seconds(cost.seconds_per_item), " of CPU time per item, ", ratio(cost.share),
        " of the CPU time and ", ratio(cost.core_share), " of the cores", *sleeping, ".",
    ]  # fmt: skip


def _rows(account: CpuAccount, lines: list[CpuLine]) -> tuple[list[str], list[list[str | None]]]:
    rows: list[list[str | None]] = [[line.name, line.kind, seconds(line.seconds), ratio(line.share)] for line in lines]
    rows.append(["all processes", "", seconds(account.total_seconds), ratio(1.0)])
    return ["used by", "kind", "CPU time", "share"], rows
