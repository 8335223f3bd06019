"""The page of a training: what limits it, the step as a bar, steps over time, loading, epochs, ranks, and what is apart."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.formatting import pluralize
from headrace.report.charts import Chart, horizontal_bars, over_time
from headrace.report.frame import make_page
from headrace.report.markup import DASH, Html, bullets, note, sentence, table, tag
from headrace.report.numbers import count, digits, ratio, seconds, time_scale
from headrace.report.section import Section
from headrace.report.sections.diagnosis import diagnosis
from headrace.report.sections.overview import tile
from headrace.report.training_memory import memory_section
from headrace.report.training_trace import trace_section
from headrace.runs.formats.diagnosis import DiagnosisDocument
from headrace.runs.formats.training_profile import (
    LayerTime,
    LoadingProfile,
    RankProfile,
    TrainingDocument,
    layer_costs,
)

_PHASES = {
    "wait": "var(--c6)", "prepare": "var(--c1)", "forward": "var(--c3)", "loss": "var(--c4)", "backward": "var(--c5)",
    "exchange": "var(--c7)", "before_update": "var(--c8)", "optimizer": "var(--c2)", "after": "var(--blocked-put)",
    "epoch_start": "var(--muted)", "checkpoint": "var(--muted)", "outside": "var(--muted)",
}  # fmt: skip
_APART = {
    "warm_up": "warm-up", "epoch_start": "first step of an epoch", "recompiled": "compiled again",
    "profiled": "a profiler at work", "uneven": "batches skipped or fetched ahead", "checkpoint": "with a "
    "checkpoint", "cut": "end not seen", "failed": "ended by an error",
    "validation": "validation", "between": "between steps",
}  # fmt: skip
#: Epochs that are drawn, and ranks.
_MOST_ROWS = 24


def render_training(document: TrainingDocument, diagnosed: DiagnosisDocument) -> str:
    """Return the page as an HTML document."""
    first = document.ranks[0] if document.ranks else None
    made = [diagnosis(diagnosed, None)]
    if first is not None:
        made += [
            _step(document),
            trace_section(first.trace),
            _layers(first.layers),
            _course(first),
            _loading(first),
            memory_section(first.memory),
        ]
        made += [_epochs(first), _together(document), _apart(first)]
    made.append(_checks(document))
    footer = (
        f"Made by headrace {document.headrace_version} from the run folder {document.run}. "
        f"A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    )
    return make_page(document.run, _overview(document, first), [one for one in made if one is not None], footer)


def _overview(document: TrainingDocument, first: RankProfile | None) -> Html:
    kind, sign = ("ok", "✓") if document.trusted else ("failed", "✗")
    says = document.distrust or ("phases add up to each step, and clocks agree",)
    trust = tag(
        "div",
        tag("p", tag("span", sign, aria_hidden="true"), f" {document.trust}", class_="verdict"),
        tag("p", sentence(says[0])) if len(says) == 1 else bullets(says),
        class_=f"trust {kind}",
    )
    return tag(
        "header",
        tag("p", "headrace · training of ", tag("b", document.run), class_="kicker"),
        tag("h1", document.pipeline or document.run),
        tag("p", _about(document, first), class_="note"),
        trust,
        tag("dl", *_tiles(first, len(document.ranks)), class_="tiles") if first is not None else None,
        note(
            f"Of {len(document.ranks)} ranks; where none is named, figures are those of rank {document.ranks[0].rank}."
        )
        if len(document.ranks) > 1
        else None,
    )


def _about(document: TrainingDocument, first: RankProfile | None) -> str:
    about = None if first is None else first.about
    ranks = f"{len(document.ranks)} ranks; " if len(document.ranks) > 1 else ""
    if about is None:
        return f"{ranks}{document.status}"
    modules = ", ".join(about.modules) or "no module"
    return (
        f"{ranks}{modules} with {about.num_parameters:,} parameters on {about.device or 'cpu'}, "
        f"{', '.join(about.optimizers) or 'no optimizer'}, PyTorch {about.torch_version} with "
        f"{pluralize(about.threads, 'thread')}; {document.status}"
    )


def _tiles(rank: RankProfile, num_ranks: int) -> list[Html]:
    step, rate = rank.step, rank.samples_per_second
    shown = None if rate is None else tag("data", digits(rate), value=repr(rate))
    return [
        tile("step", seconds(step.median), f"median of {step.count:,} plain steps"),
        tile("step p95", seconds(step.p95), "of the same steps"),
        tile("step p99", seconds(step.p99), "of the same steps"),
        tile(
            "samples per second", shown, f"{f'of rank {rank.rank}, ' if num_ranks > 1 else ''}with the turns of epochs"
        ),
        tile("steps", count(rank.steps), "all of them"),
        tile("in steps", ratio(rank.steps_share), "of the whole time"),
        tile("duration", seconds(rank.total_seconds), "of the training"),
    ]


def _layers(layers: Sequence[LayerTime]) -> Section | None:
    """Return the parts of the model."""
    if not layers:
        return None
    factor, unit = time_scale(layer_costs(layers)[1])
    backward = [None if one.backward_seconds is None else one.backward_seconds * factor for one in layers]
    series: dict[str, tuple[str, Sequence[float | None]]] = {
        "forward": (_PHASES["forward"], [one.forward_seconds * factor for one in layers]),
        "backward": (_PHASES["backward"], backward),
    }
    chart = horizontal_bars(
        "layers", "Parts of the model", "forward and backward of each part, one after the other",
        [one.name for one in layers], series, unit, axis_name=f"of a step, {unit}", stacked=True,
    )  # fmt: skip
    head = ["part", "class", "forward", "backward", "parameters"]
    rows = [
        [one.name, one.module, seconds(one.forward_seconds), seconds(one.backward_seconds), count(one.parameters)]
        for one in layers
    ]
    says = note(
        "The middle of eight steps. Parts without parameters, and what a module does itself, are in none of them."
    )
    return Section(
        anchor="layers", title="Parts of the model", charts=[chart],
        parts=[says, chart.element(), table(head, rows, text_columns=2)],
    )  # fmt: skip


def _step(document: TrainingDocument) -> Section | None:
    ranks = [one for one in document.ranks if one.phases][:_MOST_ROWS]
    if not ranks:
        return None
    factor, unit = time_scale([one.step.mean for one in ranks])
    names = list(dict.fromkeys(phase.phase for one in ranks for phase in one.phases))
    parts = {one.rank: {phase.phase: phase.seconds * factor for phase in one.phases} for one in ranks}
    chart = horizontal_bars(
        "step",
        "A plain step",
        "mean time of each phase, one after the other",
        [f"rank {one.rank}" for one in ranks] if len(ranks) > 1 else ["step"],
        {name: (_PHASES[name], [parts[one.rank].get(name) for one in ranks]) for name in names},
        unit,
        axis_name=f"mean of the plain steps, {unit}",
        stacked=True,
    )
    has_device = any(phase.host_seconds is not None for phase in ranks[0].phases)
    rows = [
        [
            phase.phase,
            seconds(phase.seconds),
            ratio(phase.share),
            seconds(phase.cpu_seconds),
            seconds(phase.run_delay_seconds),
            seconds(phase.blocked_seconds),
            seconds(phase.p95_seconds),
            *([seconds(phase.host_seconds)] if has_device else []),
        ]
        for phase in ranks[0].phases
    ]
    head = [
        "phase",
        "mean",
        "of the step",
        "= CPU",
        "+ run delay",
        "+ blocked",
        "p95",
        *(["in the host"] if has_device else []),
    ]
    whose = (
        f" They are by the clock of {ranks[0].clock}, for which the training thread launches work."
        if has_device
        else ""
    )
    about = note(
        f"Phases have no gap and do not overlap.{whose} Run delay is time in which the training thread had no core."
    )
    return Section(
        anchor="step",
        title="The step",
        parts=[
            chart.element(),
            about,
            table(head, rows, caption=f"Phases of rank {ranks[0].rank}"),
            *_lines(ranks[0]),
        ],
        charts=[chart],
    )


def _lines(rank: RankProfile) -> list[Html]:
    rows = [[phase, line, ratio(share)] for phase, found in rank.lines.items() for line, share in found[:5]]
    if not rows:
        return []
    caption = "Lines of your code, by phase of the training thread"
    return [
        tag("h3", "Lines of your code"),
        note("Where the training thread was seen in each phase; workers: where those of the loader were."),
        table(["phase", "line", "of its samples"], rows, text_columns=2, caption=caption),
    ]


def _course(rank: RankProfile) -> Section | None:
    if len(rank.course) < 2:
        return None
    factor, unit = time_scale([one.mean_seconds for one in rank.course])
    last = rank.course[-1]
    until = last.at_seconds + last.steps * last.mean_seconds

    def course(*phases: str) -> list[tuple[float, float | None]]:
        return [(one.at_seconds, factor * sum(one.phases.get(name, 0.0) for name in phases)) for one in rank.course]

    lines: dict[str, list[tuple[float, float | None]]] = {
        "longest step": [(one.at_seconds, factor * one.longest_seconds) for one in rank.course],
        "step": [(one.at_seconds, factor * one.mean_seconds) for one in rank.course],
        "wait": course("wait"),
        "forward and backward": course("forward", "backward"),
    }
    if all(one.steps == 1 for one in rank.course):
        del lines["longest step"]
    chart = over_time("course", "Steps over time", lines, unit, until=until)
    says = (
        f"Each point is {pluralize(max(one.steps for one in rank.course), 'step')}; all steps are here, also those that are "
        "apart."
    )
    return Section(anchor="course", title="Over time", parts=[chart.element(), note(says)], charts=[chart])


def _loading(rank: RankProfile) -> Section | None:
    loading = rank.loading
    if loading is None:
        return None
    chart = _work(loading)
    rows = [
        [
            one.work,
            seconds(one.seconds),
            seconds(one.cpu_seconds),
            seconds(one.run_delay_seconds),
            seconds(one.blocked_seconds),
        ]
        for one in loading.work
    ]
    where = f"{loading.workers:,} workers" if loading.workers else "the training thread"
    busy = "" if loading.busy_share is None else f" Workers are busy {loading.busy_share:.0%} of the time."
    says = f"Recorded where it is done, in {where}, whether or not the training waits for it.{busy}"
    return Section(
        anchor="loading",
        title="Loading",
        parts=[
            chart.element(),
            note(says),
            table(["work", "mean of a batch", "= CPU", "+ run delay", "+ blocked"], rows, caption="Work of loading"),
        ],
        charts=[chart],
    )


def _work(loading: LoadingProfile) -> Chart:
    factor, unit = time_scale([loading.seconds])
    series = {one.work: (f"var(--c{index % 8 + 1})", [one.seconds * factor]) for index, one in enumerate(loading.work)}
    return horizontal_bars(
        "loading",
        "A batch",
        "mean time of each kind of work",
        ["batch"],
        series,
        unit,
        axis_name=f"mean of a batch, {unit}",
        stacked=True,
    )


def _epochs(rank: RankProfile) -> Section | None:
    if len(rank.epochs) < 2:
        return None
    shown = rank.epochs[:_MOST_ROWS]
    factor, unit = time_scale([one.seconds for one in shown])
    chart = horizontal_bars(
        "epochs",
        "Epochs",
        "the first step of each epoch, and the others",
        [f"epoch {index + 1}" for index in range(len(shown))],
        {
            "first step": ("var(--c6)", [one.first_seconds * factor for one in shown]),
            "other steps": ("var(--c3)", [(one.seconds - one.first_seconds) * factor for one in shown]),
        },
        unit,
        axis_name=f"time in steps, {unit}",
        stacked=True,
    )
    rows = [
        [str(index + 1), count(one.steps), seconds(one.seconds), seconds(one.first_seconds)]
        for index, one in enumerate(shown)
    ]
    more = [note(f"The first {len(shown)} of {len(rank.epochs):,} epochs.")] if len(rank.epochs) > len(shown) else []
    parts = [chart.element(), *more, table(["epoch", "steps", "in steps", "first step"], rows, caption="Epochs")]
    return Section(anchor="epochs", title="Epochs", parts=parts, charts=[chart])


def _together(document: TrainingDocument) -> Section | None:
    judged = document.together.judged
    if judged is None:
        return None
    rows = judged.rows[:_MOST_ROWS]
    factor, unit = time_scale([judged.step_seconds])
    chart = horizontal_bars(
        "ranks",
        "Ranks",
        "own work, waiting for the last rank, and the exchange itself",
        [f"rank {one.rank}" for one in rows],
        {
            "own work": ("var(--c3)", [one.own_seconds * factor for one in rows]),
            "waits for the last": ("var(--c6)", [one.wait_seconds * factor for one in rows]),
            "exchange": ("var(--c7)", [one.rest_seconds * factor for one in rows]),
        },
        unit,
        axis_name=f"mean of {judged.num_steps:,} steps, {unit}",
        stacked=True,
    )
    cells = [
        [str(one.rank), seconds(one.own_seconds), seconds(one.wait_seconds), seconds(one.rest_seconds), ratio(one.share_last)]
        for one in rows
    ]  # fmt: skip
    head = ["rank", "own work", "waits for the last", "exchange", "last in"]
    says = "The rank that waits least is the one that the others wait for."
    parts = [chart.element(), note(says), table(head, cells, caption="Ranks")]
    return Section(anchor="ranks", title="Ranks", parts=parts, charts=[chart])


def _apart(rank: RankProfile) -> Section | None:
    rows: list[Sequence[str | None]] = [
        [_APART.get(one.what, one.what), count(one.count), seconds(one.seconds)] for one in rank.apart
    ]
    if not rows:
        return None
    parts = [
        note(
            "Each moment of the training is in one of these or in a plain step; none of these is averaged with plain steps."
        ),
        table(["what", "count", "sum"], rows, caption="Apart from plain steps"),
    ]
    if rank.checkpoints:
        parts.append(tag("p", "Checkpoints: ", count(rank.checkpoints), " in ", seconds(rank.checkpoint_seconds), "."))
    return Section(anchor="apart", title="Apart from plain steps", parts=parts)


def _checks(document: TrainingDocument) -> Section | None:
    listed = [*document.distrust, *document.unchecked, *document.warnings]
    if document.together.why_not:
        listed.append(f"ranks are not compared: {document.together.why_not}")
    for rank in document.ranks:
        missing = {} if rank.about is None else rank.about.not_measured
        listed += [f"not measured in rank {rank.rank}: {what}: {why}" for what, why in missing.items()]
    if not listed:
        return None
    return Section(anchor="checks", title="Checks, and what was not measured", parts=[bullets(map(sentence, listed))])
