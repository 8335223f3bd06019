"""From a run folder to a simulation of it, as it was or under another Plan.

Read in this order: `whole_jobs` (which recorded jobs are replayed), `demands` (what each of them needed), `costs` (what a
batch costs), `machine` (what was shared), `plans` (the changed Plan), `decoding` (another scale), `structure` (all of it as a
description for the simulator), `jobs` (which come, and when), `simulations` (of any Plan), `calibration` (so that the run as
recorded comes out as it was), `replay` (the door).
"""

from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.replay.replay import Replay
from headrace.diagnose.replay.simulations import Simulated

__all__ = ["CannotReplay", "Replay", "Simulated"]
