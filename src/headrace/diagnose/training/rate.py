"""How many samples a training learns from in a second: one definition for all that say it."""

from __future__ import annotations

import math

import numpy as np

from headrace.diagnose.training.simulation_needs import Needs, needs_of, standing_for
from headrace.diagnose.training.steps import Array, RankSteps, Stretches
from headrace.runs.training_phases import Kind, Phase


def find_rate(rank: RankSteps) -> float:
    """Return samples (steps, where samples are not known) per second, without the first step; 0 if there is no other.

    Turns of epochs count; validation and checkpoints between steps do not. A whole step stands for one whose end was not seen.
    """
    walls, samples = step_walls(rank)[1:], rank.steps.samples[standing_for(rank.steps)][1:]
    seconds = float(walls.sum())
    return float(samples.sum() or len(samples)) / seconds if seconds else 0.0


def measure_rate(rank: RankSteps) -> tuple[float, float]:
    """Return the rate of four steps or more, and its standard error as a share."""
    walls, samples = step_walls(rank)[1:], rank.steps.samples[standing_for(rank.steps)][1:]
    return find_rate(rank), _noise(walls, samples)


def epoch_starts(steps: Stretches) -> Array:
    """Return the places of the steps that began an epoch: int64; the first is 0."""
    starts = [place for place, kind in enumerate(steps.kinds) if kind is Kind.EPOCH_START and place]
    return np.array([0, *starts], np.int64)


def step_walls(rank: RankSteps) -> Array:
    """Return what each step took, and with the first of each epoch the turn before it."""
    walls = np.array(rank.steps.wall[standing_for(rank.steps)])
    starts = epoch_starts(rank.steps)[1:]
    if len(starts):
        turn = epoch_turns(rank)
        walls[starts] += (turn.blocked + turn.cpu).sum() / len(starts)
    return walls


def epoch_turns(rank: RankSteps) -> Needs:
    """Return what the turns of epochs needed after the first step: starting workers and ending them."""
    later = rank.between.started > rank.steps.started[0]
    found = Needs(np.zeros(int(later.sum())), np.zeros(int(later.sum())))
    for phase in (Phase.EPOCH_START, Phase.WAIT):
        if phase in rank.between.phases:
            found = found + needs_of(rank.between.phases[phase])[later]
    return found


def _noise(walls: Array, samples: Array) -> float:
    """Return the standard error of the rate, as a share, by ten blocks of steps."""
    blocks = np.array_split(np.arange(len(walls)), min(10, len(walls) // 2))
    rates = np.array([(samples[block].sum() or len(block)) / walls[block].sum() for block in blocks])
    return float(rates.std(ddof=1) / rates.mean() / math.sqrt(len(rates)))
