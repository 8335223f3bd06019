"""Which steps are plain, and what the others are: found from the run, not from a constant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.diagnose.training.steps import Array, Stretches
from headrace.runs.training_phases import Kind, Phase

#: A first step belongs to the warm-up if it takes so many times the step of the later half.
_SLOWER = 1.25
#: ... and lies so many standard deviations of that half above it.
_DEVIATIONS = 4.0
#: Standard deviations per median absolute deviation, where deviations are normal.
_PER_MAD = 1.4826
#: Steps of which a larger share makes a checkpoint are no exception: then those that do are plain, too.
_MOST_SAVE = 0.5
#: At most this share of the steps is warm-up: a run that gets faster throughout has none that could be told apart.
_MOST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Each step is in one of these: bool arrays, as long as there are steps."""

    plain: Array
    warm_up: Array
    failed: Array
    recompiled: Array
    epoch_start: Array
    uneven: Array
    checkpoint: Array
    """A checkpoint was made in it, as in few of them."""
    profiled: Array
    """torch.profiler ran in it."""
    cut: Array
    """Its end was not seen."""

    def apart(self) -> dict[str, Array]:
        """Return {name: steps} of those that are not plain."""
        names = ("warm_up", "epoch_start", "recompiled", "uneven", "profiled", "checkpoint", "cut", "failed")
        return {name: getattr(self, name) for name in names}


def select(steps: Stretches) -> Selection:
    """Return what each step is; what makes it differ most counts."""
    left = np.ones(len(steps), bool)

    def take(mask: Array) -> Array:
        nonlocal left
        taken, left = left & mask, left & ~mask
        return np.asarray(taken)

    def of_kind(kind: Kind) -> Array:
        return np.array([one is kind for one in steps.kinds], bool)

    saved = steps.phases.get(Phase.CHECKPOINT)
    failed, recompiled = take(steps.is_failed), take(of_kind(Kind.RECOMPILED))
    profiled, cut = take(of_kind(Kind.PROFILED)), take(of_kind(Kind.CUT))
    epoch_start, uneven = take(of_kind(Kind.EPOCH_START)), take(of_kind(Kind.UNEVEN))
    saves = np.zeros(len(steps), bool) if saved is None else left & (saved.wall > 0)
    checkpoint = take(saves & (saves.sum() <= _MOST_SAVE * left.sum()))
    warm_up = take(_warm_up(steps.wall, left))
    return Selection(
        plain=left, warm_up=warm_up, failed=failed, recompiled=recompiled, epoch_start=epoch_start, uneven=uneven,
        checkpoint=checkpoint, profiled=profiled, cut=cut,
    )  # fmt: skip


def _warm_up(wall: Array, candidates: Array) -> Array:
    """Return the first of the candidates that are slower than all usual ones later on."""
    found = np.zeros(len(wall), bool)
    at = np.flatnonzero(candidates)
    most = int(len(at) * _MOST)
    if most < 1:
        return found
    later = wall[at[most:]]
    median = float(np.median(later))
    spread = _PER_MAD * float(np.median(np.abs(later - median)))
    is_usual = wall[at[:most]] <= max(_SLOWER * median, median + _DEVIATIONS * spread)
    # Up to the first two usual ones in a row: a single quick step does not end a warm-up, a single slow one is none.
    settled = np.flatnonzero(is_usual & np.append(is_usual[1:], True))
    found[at[: int(settled[0]) if len(settled) else most]] = True
    return found
