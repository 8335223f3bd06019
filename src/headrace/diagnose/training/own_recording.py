"""What recording a training took of it, as the process measured that while it trained."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.units import format_duration
from headrace.runs.formats.training_profile import RankProfile
from headrace.runs.training_phases import Stretch

#: Recording that takes a larger share of the training than this is said.
WORTH_SAYING = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Seconds; 0 where nothing was measured."""

    step_seconds: float = 0.0
    """Of the training thread, in a step."""
    helper_seconds: float = 0.0
    """CPU time of headrace's own threads, in a step: beside it, or in its way where cores or the interpreter are short."""
    wait_seconds: float = 0.0
    """Of the training thread, while it waits for a batch."""

    def note(self, step_seconds: float) -> str | None:
        """Return a sentence where recording took much of a step; None otherwise."""
        if not step_seconds or self.step_seconds + self.helper_seconds < WORTH_SAYING * step_seconds:
            return None
        return (
            f"recording took {(self.step_seconds + self.helper_seconds) / step_seconds:.0%} of the step: "
            f"{format_duration(self.step_seconds)} of the training thread and {format_duration(self.helper_seconds)} of "
            "helper threads; without it steps are shorter by up to that"
        )


def read_recording(profile: RankProfile) -> Recording:
    """Return what a process measured; nothing where it did not, or where another program wrote its file."""
    found = {} if profile.about is None else profile.about.details.get("recording", {})
    try:
        thread, helper, wait = (float(found[f"{name}_seconds"]) for name in ("thread", "helper", "wait"))
    except (KeyError, TypeError, ValueError):
        return Recording()
    each = _share_of_steps(profile) / max(profile.steps, 1)
    return Recording(step_seconds=thread * each, helper_seconds=helper * each, wait_seconds=wait)


def _share_of_steps(profile: RankProfile) -> float:
    """Return the share of what was recorded that are steps: batches of a validation are recorded, too."""
    steps = profile.total_seconds * profile.steps_share
    validation = sum(one.seconds for one in profile.apart if one.what == Stretch.VALIDATION)
    return steps / (steps + validation) if steps else 1.0
