"""Whole headrace workers on a Ray cluster (`headrace run --on ray`), and pipelines as steps of a Ray Dataset (`map_batches`).

    leases.py    what a worker is given to do, and how it says what came of it
    worker.py    lives in an actor; runs one process of headrace at a time
    crew.py      hands leases to the workers, and hands on what died
    cluster.py   the only module that imports Ray
    batches.py   the adapter for `Dataset.map_batches`

Nothing is imported here: an actor needs the worker alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.ray.batches import map_batches

__all__ = ["map_batches"]


if not TYPE_CHECKING:  # where types are checked, a name that is not above is an error

    def __getattr__(name: str) -> Any:
        if name != "map_batches":
            raise AttributeError(f"module 'headrace.ray' has no attribute {name!r}")
        from headrace.ray.batches import map_batches

        return map_batches
