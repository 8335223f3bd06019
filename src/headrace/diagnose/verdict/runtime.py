"""The runtime itself: handing items from worker to worker costs more than what is done with them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration
from headrace.diagnose.cpu_account import OUTSIDE
from headrace.diagnose.verdict.facts import Facts, StageView
from headrace.diagnose.verdict.proposal import WORTH_NAMING, Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import EvidenceLine, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import CpuAccount, RuntimeCost

#: Of the CPU time, from which on the runtime is worth a verdict where no stage takes more.
_RUNTIME = 0.25
#: Cores at work, and cores' worth of work that needs the GIL, from which on these are the limit.
_ALL_CORES, _ALL_GIL = 0.85, 0.70
#: Of the cores, used by the run: below it others are the ones that fill them.
_OWN = 0.5
#: Of a worker's time, that fused stages may take together.
_ROOM = 0.7
#: As candidates are simulated.
_FIFTH_MORE = 1.2


@dataclass(frozen=True, slots=True)
class _Account:
    """Who used the CPU time."""

    cpu: CpuAccount
    runtime: RuntimeCost

    def stage_seconds(self, view: StageView) -> float:
        """Return CPU seconds of a stage."""
        return next((one.seconds for one in self.cpu.lines if one.name == view.name and one.kind == "stage"), 0.0)

    def item_seconds(self, view: StageView) -> float:
        """Return CPU seconds of a stage for one item."""
        return self.stage_seconds(view) / max(1, view.account.items)

    def hop_seconds(self, facts: Facts) -> float:
        """Return CPU seconds that workers use for one item beside their stages: taking it and handing it on."""
        outside = sum(one.seconds for one in self.cpu.lines if one.name in OUTSIDE.values())
        hops = sum(view.account.items for view in facts.stages if view.account.station == view.name)
        return max(0.0, outside) / max(1, hops)


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose where cores or GIL are at their limit and headrace's own work is what fills them."""
    cpu, runtime = facts.document.cpu, facts.document.runtime
    if cpu is None or runtime is None or not facts.stages:
        return
    account = _Account(cpu, runtime)
    limit = _find_limit(facts, account)
    if limit is None:
        return
    hop, largest = account.hop_seconds(facts), max(facts.stages, key=account.stage_seconds)
    fusable = _find_fusable(facts, account, hop)
    is_largest = runtime.seconds >= account.stage_seconds(largest) and runtime.share >= _RUNTIME
    saved = hop * sum(view.account.items for view in fusable) / cpu.total_seconds
    share = max(runtime.share if is_largest else 0.0, saved)
    if share < WORTH_NAMING:
        return
    yield Proposal(
        verdict=VerdictClass.RUNTIME,
        stage=None,
        says=_says(account, largest, hop, fusable),
        rule=(
            f"at least {_ALL_CORES:.0%} of the cores are at work, {_OWN:.0%} by the run itself, or its Python code needs "
            f"{_ALL_GIL:.0%} of a core; and the runtime itself takes at least {_RUNTIME:.0%} of the CPU time and more than any "
            f"stage, or handing items to stages that cost less than that takes {WORTH_NAMING:.0%}"
        ),
        resources=(limit.name,),
        share=share,
        measured_gain=1 / (1 - share * (1 - 1 / _FIFTH_MORE)),
        evidence=(
            at_least("runtime", "share of the CPU time that the runtime itself takes", runtime.share, _RUNTIME),
            line("largest_stage", f"the stage with most CPU, {largest.name}: {_per_item(account, largest)}", None),
            limit,
            _hop_line(hop, fusable),
            _switches_line(runtime),
        ),
        advice=tuple(_advise(facts, fusable, limit)),
        removal=Change(settings=_settings(fusable)) if fusable else None,
        is_seen=True,
    )


def _find_limit(facts: Facts, account: _Account) -> EvidenceLine | None:
    """Return what is at its limit by the run's own work, the candidate's name first: cores, or the GIL; None if nothing is."""
    busy, own = facts.core_utilization, facts.own_cores
    if busy is not None and own is not None and busy >= _ALL_CORES and own >= _OWN * facts.cores:
        says = f"the run used {own:.2f} of {facts.cores:g} cores, {busy:.0%} of them are at work"
        return line("cores", says, busy, _ALL_CORES, True, "utilization law")
    here = [view for view in facts.stages if not view.releases_gil and view.account.executor != "process"]
    python = account.runtime.seconds + sum(account.stage_seconds(view) for view in here)
    held = python / account.cpu.elapsed_seconds
    if held < _ALL_GIL:
        return None
    says = f"the runtime and stages that keep the GIL computed {held:.2f} s a second; with one GIL it cannot be more than 1"
    return line("gil", says, held, _ALL_GIL, True, "utilization law")


def _find_fusable(facts: Facts, account: _Account, hop: float) -> list[StageView]:
    """Return stages that could run in the workers of the stage before, and that take less than a hop."""
    found: list[StageView] = []
    infos = {stage.name: stage for stage in facts.info.stages}
    group: list[StageView] = []
    for before, view in itertools.pairwise(facts.stages):
        group = [*(group if before in found else [before]), view]
        is_alike = infos[view.name].role == "map" and infos[view.name].task == infos[before.name].task
        has_threads = _has_threads(view) and (before in found or _has_threads(before))
        if has_threads and is_alike and account.item_seconds(view) < hop and _fits_together(facts, group):
            found.append(view)
    return found


def _fits_together(facts: Facts, group: list[StageView]) -> bool:
    """Return whether fusing loses nothing: the stages keep the GIL, so only one runs at a time, or the workers have time."""
    busy = sum(_undisturbed_seconds(view) for view in group) * facts.throughput / group[0].workers
    return busy < _ROOM or not any(view.releases_gil for view in group)


def _undisturbed_seconds(view: StageView) -> float:
    """Return the mean service without waiting for the GIL or for a core, which fused stages do not wait for in turn."""
    return view.service * (1 - (view.waits("gil") or 0.0) - (view.delay_share or 0.0))


def _has_threads(view: StageView) -> bool:
    """Return whether a stage computes, in threads of its own."""
    return view.account.kind == "cpu" and view.account.executor == "thread" and view.account.station == view.name


def _says(account: _Account, largest: StageView, hop: float, fusable: list[StageView]) -> str:
    says = (
        f"the runtime itself takes {format_duration(account.runtime.seconds_per_item)} of CPU time per item, "
        f"{account.runtime.share:.0%} of all; of the stages {largest.name} takes most, {_per_item(account, largest)}"
    )
    if not fusable:
        return says
    return f"{says}; handing on costs {format_duration(hop)} each time, and {_listed(fusable)} take less than that"


def _per_item(account: _Account, view: StageView) -> str:
    return f"{format_duration(account.item_seconds(view))} per item"


def _listed(views: list[StageView]) -> str:
    return ", ".join(view.name for view in views)


def _hop_line(hop: float, fusable: list[StageView]) -> EvidenceLine:
    cheap = f"; cheaper than that: {_listed(fusable)}" if fusable else "; no stage that could be fused is cheaper"
    return line("hop", f"handing an item on costs {format_duration(hop)} of CPU time{cheap}", hop, None, bool(fusable))


def _switches_line(runtime: RuntimeCost) -> EvidenceLine:
    switches, price = runtime.voluntary_switches_per_item, runtime.handoff_cpu_seconds
    says = "not measured" if switches is None else f"{switches:.3g} times per item"
    here = f"; waking one costs {format_duration(price)} of CPU time here" if price else ""
    return line("switches", f"threads go to sleep, to be woken by others: {says}{here}", switches)


def _settings(fusable: list[StageView]) -> tuple[str, ...]:
    return tuple(f"{view.name}.executor=inline" for view in fusable)


def _advise(facts: Facts, fusable: list[StageView], limit: EvidenceLine) -> Iterator[Advice]:
    runs_processes = limit.name == "gil" and facts.reads_queue
    if fusable:
        into = pluralize(len(fusable), "stage")
        yield Advice(
            says=f"fuse {into} with the one before: no queue between them, and no thread to wake",
            settings=_settings(fusable),
        )
    if runs_processes:
        yield Advice(says="run several processes, each with a GIL of its own: headrace run --supervise N")
    either = "or " if fusable or runs_processes else ""
    yield Advice(says=f"{either}put more work into one item: several records or images in a job, handled together")
