"""Perturbs a running pipeline for short stretches and measures what each perturbation costs.

Read in this order:

1. `perturbations`   what is changed, how it is undone, and by how much it is expected to hurt
2. `burners`, `native_threads`   the two that are no matter of the pipeline: cores, and the threads of BLAS
3. `departures`      counts what leaves the stations, and how long they worked
4. `estimate`        pairs of stretches -> ratios, sensitivities, intervals; no clock, no threads
5. `pacing`          how long stretches are, and whether the next one can be afforded; no clock, no threads
6. `experimenter`    beside a run: turns the levers, until all is decided or the time is up
7. `running`         runs a pipeline for an experiment, and writes what came of it
"""
