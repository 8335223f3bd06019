"""Reads a run folder and says where the time went, and whether its numbers can be believed.

Stands beside `pipeline` in the package's order: rests on `base` and `runs` alone, so that a run can be analysed later, on
another machine, by somebody else. `profile_document(read_run(path))` is the whole of it. Read in this order:

1. `span_columns`   spans as NumPy columns on one clock
2. `gauges`         resources and thread states as NumPy columns
3. `jobs`           spans put together again to jobs: arrival, end, latency
4. `evidence`       all that one run folder holds, and what is exact in it
5. `estimates`      means, percentiles and intervals
6. `steady_state`   where the warm-up ends, and whether the rest is steady
7. `accounting`     one account for each stage; with `blocked_split`, which says what a blocked thread waited for
8. `cpu_account`    where the processes' CPU time went
9. `overhead`       what profiling cost
10. `laws`, `span_checks`, `trust`   the checks, and which of them make a run untrusted
11. `environment`, `series`, `memory_growth`, `slow_item`   what else a report shows
12. `document`      all of it in one record
13. `analysis`      the same, and the run ready to be simulated: each made once
"""

from headrace.diagnose.document import profile_document

__all__ = ["profile_document"]
