"""Reads `incident.json` of a run folder that a flight recorder left."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.base.documents import decode_document
from headrace.runs.contained_files import own_file
from headrace.runs.formats.incident import FILE, IncidentDocument


def read_incident(folder: str | Path) -> IncidentDocument | None:
    """Return why it was slow; None where no recorder wrote the folder, or if the file cannot be read."""
    folder = Path(folder)
    try:
        return decode_document(own_file(folder, folder / FILE).read_bytes(), IncidentDocument)
    except (OSError, msgspec.DecodeError):
        return None
