"""Pipelines with a fault: what a diagnosis is tried on, and where anybody can see what a fault looks like.

    from benchmarks.faults import FAULTS, SHAPES, run_case

    case = FAULTS["F8"].applied(SHAPES["decode_heavy"](), dose=2)
    run_case(case, "runs/large-images")  # then: headrace diagnose runs/large-images

or `python -m benchmarks.faults F8 --shape decode_heavy --dose 2 -o RUN`. What a diagnosis should say about them is not
written here, so that the two share nothing. A newcomer reads in this order:

    work        CPU time of a stated length, photographs of a stated size
    server      an image server in a process of its own, as slow as it is told
    sources     a list without end, a queue that is fed in time
    case        a pipeline with its surroundings, and how to change it
    shapes      four of them in good health
    fault       what a fault is
    *_faults    the faults by theme
    catalogue   all of them
    measuring   profiles a case; measures what a fault costs
"""

from benchmarks.faults.case import Case
from benchmarks.faults.catalogue import FAULTS
from benchmarks.faults.fault import DOSES, Fault
from benchmarks.faults.measuring import Cost, measure_cost, run_case, throughput
from benchmarks.faults.shapes import SHAPES

__all__ = ["DOSES", "FAULTS", "SHAPES", "Case", "Cost", "Fault", "measure_cost", "run_case", "throughput"]
