"""The stage benchmark: each stage alone, and the pipeline with one part replaced. So each part shows its limit and its cost.

Read in this order:

inputs.py          what every stage really gets, recorded in memory (pipeline_parts.py: how one stage is opened)
scaling.py         one stage at several concurrencies (stage_run.py: its workers; curves.py: the arithmetic)
variations.py      the pipeline as it is, fed from memory, with warm and cold files, with an emulated device
variation_runs.py  their throughput, in turn (background.py: how the runtime runs all this)
document.py        all of it (words.py: what it means; text.py: for people)
"""

from headrace.base.page_cache import residency
from headrace.profiler.stage_bench.document import isolate
from headrace.profiler.stage_bench.text import as_text

__all__ = ["as_text", "isolate", "residency"]
