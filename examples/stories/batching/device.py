"""The accelerator of this story, emulated: a call takes 17.5 ms, and 0.1 ms more for each image in it; one call at a time."""

from __future__ import annotations

from headrace.engines.emulated import EmulatedModel, EmulatedOptions

LAUNCH_SECONDS, ITEM_SECONDS = 0.0175, 0.0001


def open_device() -> EmulatedModel:
    """Return the device; all that are opened in one process are the same."""
    return EmulatedModel(EmulatedOptions(launch_seconds=LAUNCH_SECONDS, item_seconds=ITEM_SECONDS))
