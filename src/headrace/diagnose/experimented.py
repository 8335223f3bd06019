"""What an experiment on the running pipeline comes to: the one resource that limits it. No simulation, no recording.

How this works: a sensitivity above half says that the resource is the limit, one below that it has room. The questions go
from the most particular to the most general, so that what is left over is known: BLAS's own threads, the workers of a
stage, the GIL, the cores. Where a stage's workers are busy all the time, and neither a delay nor fewer of them costs
anything, the limit is beyond the stage: who it calls gives so much, however many ask. Where nothing inside costs anything,
a delay of the receivers tells whether the source is slow or jobs do not come faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.runs.formats.experiment import ExperimentDocument, Perturbation, StationState

Limit = Literal["native_threads", "workers", "gil", "cores", "beyond", "receiving", "arrivals"]

_THRESHOLD = 0.5
#: {kind of perturbation: the resource that all stages share}.
_SHARED = {"gil": "the GIL", "cores": "the cores", "receiving": "the source"}
#: From this on workers count as busy all the time.
_ALWAYS_BUSY = 0.85
#: More throughput with one thread in BLAS, from which on its threads are the limit.
_WORTH = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What limits the pipeline, by what was measured."""

    limit: Limit
    station: str | None
    """Where it is the workers of one, or what it calls."""
    stages: tuple[str, ...]
    """Of this station."""
    says: str
    """In words, with the figures."""
    shows: str
    """What the figures come to: a clause that goes on after "shows that"."""
    more: Perturbation | None = None
    """What more workers of the station gave, where that was measured."""


def conclude(document: ExperimentDocument) -> Conclusion | None:
    """Return what limits the pipeline; None where the experiment did not decide it."""
    made = {one.name: one for one in document.perturbations if one.ratio is not None}
    native = made.get("native_threads")
    if (
        native is not None
        and native.ratio is not None
        and native.decided
        and native.ratio.low > 1
        and (native.ratio.mid >= _WORTH)
    ):
        says = f"{native.says}: the throughput is x{native.ratio}. Its threads are in one another's way"
        shows = "the threads of BLAS are in one another's way"
        return Conclusion(limit="native_threads", station=None, stages=(), says=says, shows=shows)
    limiting = [(answer, state) for state in document.stations if (answer := _limit_of(state, made)) is not None]
    if limiting:
        return _workers(*max(limiting, key=lambda pair: _mid(pair[0])), made)
    if is_limit(made.get("receiving")):
        return _intake(made)
    gil, cores = is_limit(made.get("gil")), is_limit(made.get("cores"))
    if cores:
        return _conclude("cores", _says(made["cores"]), "the cores are the limit")
    if gil and cores is False:
        why = f"{_says(made['gil'])}, and {_says(made['cores'])}"
        return _conclude("gil", why, "the GIL is the limit, and the cores are not")
    if gil is None or cores is None:
        return None
    return _beyond(document, made) or _intake(made)


def in_words(document: ExperimentDocument) -> str:
    """Return the conclusion as a sentence; where there is none, what the experiment rules out."""
    found = conclude(document)
    if found is not None:
        return f"The experiment shows that {found.shows}."
    answers: dict[str, set[bool | None]] = {}
    for one in document.perturbations:
        resource = f"the workers of {one.station}" if one.kind in ("delay", "fewer") else _SHARED.get(one.kind)
        if resource is not None:
            answers.setdefault(resource, set()).add(is_limit(one))
    room = [resource for resource, known in answers.items() if False in known and True not in known]
    ruled_out = f"; it rules out {' and '.join(room)}" if room else ""
    return f"The experiment does not show what limits this pipeline{ruled_out}."


def is_limit(one: Perturbation | None) -> bool | None:
    """Return whether the resource of a perturbation is the limit; None where that was not decided."""
    if one is None or one.sensitivity is None or not one.decided:
        return None
    return one.sensitivity.mid > _THRESHOLD


def _limit_of(state: StationState, made: Mapping[str, Perturbation]) -> Perturbation | None:
    """Return the perturbation that shows the workers of a station to be the limit; None if none does."""
    for kind in ("delay", "fewer"):
        one = made.get(f"{kind}:{state.name}")
        if (answer := is_limit(one)) is not None:
            return one if answer else None
    return None


def _workers(one: Perturbation, state: StationState, made: Mapping[str, Perturbation]) -> Conclusion:
    shows = f"the {state.num_workers} workers of {state.name} are the limit"
    if state.num_workers == 1:
        shows = f"the one worker of {state.name} is the limit"
    says = f"{_says(one)}: {shows}"
    more = made.get(f"more:{state.name}")
    if more is not None and more.ratio is not None:
        says += f"; {more.says}: x{more.ratio} of the throughput"
    return Conclusion(limit="workers", station=state.name, stages=state.stages, says=says, shows=shows, more=more)


def _beyond(document: ExperimentDocument, made: Mapping[str, Perturbation]) -> Conclusion | None:
    for state in document.stations:
        delay, fewer = made.get(f"delay:{state.name}"), made.get(f"fewer:{state.name}")
        asked = [one for one in (delay, fewer) if one is not None]
        if state.utilization < _ALWAYS_BUSY or not asked or any(is_limit(one) is not False for one in asked):
            continue
        says = "; ".join(_says(one) + _shorter(one) for one in asked)
        rate = f"{document.throughput:.3g}/s" if document.throughput is not None else "so much"
        shows = f"what {state.name} calls gives {rate}, however many ask: more workers would only wait longer"
        says += f". W{shows[1:]}"
        return Conclusion(limit="beyond", station=state.name, stages=state.stages, says=says, shows=shows)
    return None


def _shorter(one: Perturbation) -> str:
    if one.service is None:
        return ""
    return f", and its calls take x{one.service:.2f} as long"


def _intake(made: Mapping[str, Perturbation]) -> Conclusion | None:
    receiving = is_limit(made.get("receiving"))
    if receiving is None:
        return None
    says = _says(made["receiving"])
    if receiving:
        return _conclude("receiving", says, "the calls of the source are the limit")
    return _conclude("arrivals", f"{says}, and nothing inside costs anything", "jobs do not come faster")


def _conclude(limit: Limit, why: str, shows: str) -> Conclusion:
    """Return a conclusion about what all stages share."""
    return Conclusion(limit=limit, station=None, stages=(), says=f"{why}: {shows}", shows=shows)


def _says(one: Perturbation) -> str:
    """Return a perturbation and what it cost in words."""
    assert one.sensitivity is not None
    if one.sensitivity.high < _THRESHOLD:
        cost = "costs little or nothing"
    else:
        cost = "costs throughput"
    return f"{one.says}: that {cost} (sensitivity {one.sensitivity})"


def _mid(one: Perturbation) -> float:
    return one.sensitivity.mid if one.sensitivity is not None else 0.0
