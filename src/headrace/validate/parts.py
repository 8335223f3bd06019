"""A pipeline over other items, whose results are dropped."""

from __future__ import annotations

from headrace.base.protocols import Delivery
from headrace.pipeline.definition import Pipeline
from headrace.sources.finite import FiniteSource
from headrace.validate.blocks import CpuClock, Noted


def over(pipeline: Pipeline, source: FiniteSource, *, deliver: bool = False) -> Pipeline:
    """Return the pipeline with another source; the stages are the same objects.

    Args:
        pipeline: What is done.
        source: Where its items come from.
        deliver: Hand results to the pipeline's own delivery; else they are dropped.
    """
    delivery: Delivery = pipeline.delivery if deliver else Noted(None, CpuClock())
    other = pipeline.delivering_to(delivery)
    other.source = source
    return other
