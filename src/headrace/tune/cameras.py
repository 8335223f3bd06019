"""How many cameras a machine holds, from the profile of one run over clips or live streams: `headrace.cameras/1`.

Two things end first: the cores, or the pipeline's slowest stage. What a camera costs in cores is what the run used for
everything, reading and decoding with it, for each frame that was decoded; no model of the parts is needed for that. What the
stages can do, and whether the goal holds, says `capacity`. A clip is decoded by one thread and each camera by its own, so of a
clip the calls of the source are taken to need no time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.base.formatting import pluralize
from headrace.base.goals import LatencyGoal
from headrace.base.settings import check
from headrace.base.units import format_duration, format_rate
from headrace.diagnose.replay import CannotReplay
from headrace.runs.formats.cameras import CamerasDocument
from headrace.runs.formats.prediction import Change
from headrace.tune.capacity import Need, capacity_document

if TYPE_CHECKING:
    from headrace.diagnose.evidence import Evidence
    from headrace.diagnose.replay import Replay

#: Of the frames that were wanted: a run that dropped more did not work on what its cameras sent.
_MOST_DROPPED = 0.01
#: Roles of threads that only a profile has.
_OF_THE_PROFILER = ("profiling", "writing spans", "progress view")
_MOST_RATE = 1000.0
#: Of a clip's source, which is no limit of cameras: it takes no time.
_NO_DECODING = Change(speedups={"receiving": 1e6})
#: Where one of both does for so many times as many cameras as the other, it matters little that they share the cores.
_FAR = 2.0


def cameras_document(
    replay: Replay, camera_rate: float, slo: LatencyGoal | None, headroom: float, *, seed: int = 0
) -> CamerasDocument:
    """Return how many cameras the recorded machine holds.

    Args:
        replay: The recorded run, of video.
        camera_rate: Frames per second that one camera sends.
        slo: The goal for the time from a frame's receipt to its answer.
        headroom: Share to leave free.
        seed: Of the simulated arrivals.

    Raises:
        CannotReplay: If the run does not tell.
    """
    check(0 < camera_rate <= _MOST_RATE, "--cameras", f"{camera_rate:g}/s", f"more than 0, up to {_MOST_RATE:g}/s")
    evidence = replay.evidence
    decoded, given = _count_frames(evidence.summary.get("counters", {}).get("notes", {}))
    used_rate = camera_rate * given / decoded
    is_clip = evidence.info.source_work is not None
    need = Need(rate=used_rate, slo=slo, headroom=headroom)
    plan = capacity_document(replay, need, base=_NO_DECODING if is_clip else Change(), seed=seed)
    usable = plan.options[0].usable_throughput
    cpu, cores = _cpu_seconds(evidence) / decoded, _cores(evidence)
    by_cpu = (1 - headroom) * cores / (camera_rate * cpu)
    by_stages = None if usable is None else usable / used_rate
    cameras = None if by_stages is None else math.floor(min(by_cpu, by_stages))
    return CamerasDocument(
        run=plan.run,
        headrace_version=plan.headrace_version,
        pipeline=plan.pipeline,
        plan_id=plan.plan_id,
        camera_rate=camera_rate,
        used_rate=used_rate,
        cpu_seconds_per_decoded_frame=cpu,
        cores=cores,
        slo=plan.slo,
        headroom=headroom,
        by_cpu=by_cpu,
        by_stages=by_stages,
        cameras=cameras,
        says=_describe(
            camera_rate, used_rate, cpu, cores, headroom, by_cpu, by_stages, usable, plan.options[0].says, is_clip
        ),
        warnings=(*plan.warnings, *_warnings(by_cpu, by_stages), *_warn_of_fps(evidence)),
        refused="" if by_stages is not None else plan.options[0].refused,
        slo_met=plan.slo_met,
    )


def _count_frames(notes: Mapping[str, int]) -> tuple[int, int]:
    """Return how many frames were decoded, and how many of them went into the pipeline."""
    decoded, given = notes.get("video.decoded", 0), notes.get("video.given", 0)
    if not decoded or not given:
        raise CannotReplay(
            "the run is not of video (its notes have no video.decoded); profile a pipeline over headrace.video or "
            "headrace.live_video"
        )
    if notes.get("video.skipped_resumed"):
        raise CannotReplay(
            "the run was resumed, and decoded frames that it did not work on; profile a run from the start"
        )
    dropped = notes.get("video.dropped_newer", 0) + notes.get("video.dropped_late", 0)
    if dropped > _MOST_DROPPED * (given + dropped):
        raise CannotReplay(
            f"the run dropped {dropped:,} of {given + dropped:,} frames, so it used less than its cameras need; profile "
            "fewer cameras, or a clip"
        )
    return decoded, given


def _cpu_seconds(evidence: Evidence) -> float:
    profile = evidence.profiling
    if profile is None or not profile.process_cpu_seconds:
        raise CannotReplay(f"the CPU time of the run is not known: {evidence.why_no_profile}")
    return profile.process_cpu_seconds - sum(profile.thread_cpu_seconds.get(role, 0.0) for role in _OF_THE_PROFILER)


def _cores(evidence: Evidence) -> float:
    hardware = evidence.info.hardware
    return min(float(hardware.num_cores), hardware.cpu_quota or math.inf)


def _describe(
    camera_rate: float,
    used_rate: float,
    cpu: float,
    cores: float,
    headroom: float,
    by_cpu: float,
    by_stages: float | None,
    usable: float | None,
    why: str,
    is_clip: bool,
) -> tuple[str, ...]:
    counted = f"{1 - headroom:.0%} of {cores:g} cores"
    says = [
        f"A camera sends {format_rate(camera_rate)}, and {format_rate(used_rate)} of it go into the pipeline, as in the run.",
        f"A decoded frame costs {format_duration(cpu)} of CPU with all that follows it.",
        f"A camera needs {camera_rate * cpu:.3g} of a core; {counted} do for {by_cpu:.1f} cameras.",
    ]
    if by_stages is None or usable is None:
        return tuple(says)
    if is_clip:
        why += " The clip was decoded by one thread; a camera has its own, so that is no limit here."
    first = "cores" if by_cpu <= by_stages else "stages"
    held = pluralize(math.floor(min(by_cpu, by_stages)), "camera")
    return (
        *says,
        f"The stages: {why} That is {format_rate(usable)}, and does for {by_stages:.1f} cameras.",
        f"This machine holds {held}: its {first} end first.",
    )


def _warn_of_fps(evidence: Evidence) -> list[str]:
    left_out = evidence.summary.get("counters", {}).get("notes", {}).get("video.skipped_fps", 0)
    if not left_out:
        return []
    says = f"the run left out {left_out:,} frames by fps=, which is a rate and no share of what comes: this holds for cameras "
    return [f"{says}that send as many frames as what was profiled; of others profile a clip of that rate"]


def _warnings(by_cpu: float, by_stages: float | None) -> list[str]:
    if by_stages is None or not by_cpu / _FAR < by_stages < by_cpu * _FAR:
        return []
    return [
        "the stages were simulated without the decoding of so many cameras beside them: measure before you rely on it"
    ]
