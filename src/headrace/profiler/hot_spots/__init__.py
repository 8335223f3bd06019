"""Which Python lines of one stage cost most: sampled from outside with py-spy, or counted call by call with cProfile.

How this works. `StageSampler` watches a run; when the stage's items flow it has `sample_stage` start one py-spy for each
process in which workers of the stage live, and keeps the samples of those workers' threads that are within the stage's call:
whose stack goes through `pipeline.group`, which makes it. py-spy reads the interpreter's memory without stopping it
(`--nonblocking`): stopping it at each sample made programs with native threads several times slower. The price is samples whose
stack changed while it was read; those without any are counted. Threads that sleep or wait are left out by py-spy.

`CProfileInstrument` counts every call within one stage, exactly, and makes that stage slower. Each worker has a profiler of its
own that is on during the stage's calls alone. Workers in threads keep theirs in memory, workers in processes write them to
files; `collect`, called when the run is over, merges all.

Both give a `HotSpots` record and files in the folder: STAGE.json (the record), STAGE.speedscope.json, and STAGE.folded (stacks
of sampling, for flame graphs) or STAGE.pstats (for `python -m pstats`, SnakeViz).

References:
    py-spy issue 872 (slowdown without --nonblocking); Linux, Documentation/admin-guide/LSM/Yama.rst;
    speedscope's file format, sampled profiles over shared frames: https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

from headrace.profiler.hot_spots.counting import CProfileInstrument
from headrace.profiler.hot_spots.records import Frame, HotSpot, HotSpots, Stack, speedscope
from headrace.profiler.hot_spots.sampling import StageSampler, sample_stage

__all__ = [
    "CProfileInstrument",
    "Frame",
    "HotSpot",
    "HotSpots",
    "Stack",
    "StageSampler",
    "sample_stage",
    "speedscope",
]
