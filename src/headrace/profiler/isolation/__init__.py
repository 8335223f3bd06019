"""Stages alone, and the pipeline with one part replaced: what each part could do, and what it costs the whole.

inputs.py      what every stage was really given, kept in memory
alone.py       one stage at several concurrencies (crew.py: its workers; curves.py: the arithmetic)
variations.py  the pipeline as it is, fed from memory, with warm and cold files, with an emulated device
page_cache.py  whether files are in memory
document.py    all of it (words.py: what it means; text.py: for people)
"""

from headrace.profiler.isolation.document import isolate
from headrace.profiler.isolation.page_cache import residency, resident_share
from headrace.profiler.isolation.text import as_text

__all__ = ["as_text", "isolate", "residency", "resident_share"]
