"""What an incident says of a worker that died: why, with what in hand, and what it said last; not why it was slow."""

from __future__ import annotations

import msgspec

from headrace.monitor.recorder.log_lines import KIND, join_repeated
from headrace.monitor.recorder.recording import Recording
from headrace.runs.formats.incident import IncidentDocument

_MOST_LINES = 3


def explain_death(document: IncidentDocument, recording: Recording) -> IncidentDocument:
    """Return the document of a death with an answer to why it died; any other as it is."""
    if document.trigger.kind != "death":
        return document
    said = join_repeated([event.says for event in recording.events if event.kind == KIND])[-_MOST_LINES:]
    lines = f" Last it logged: {' | '.join(said)}." if said else " It logged no warning before."
    says = f"{document.trigger.says[:1].upper()}{document.trigger.says[1:]}.{lines} Until then: {document.says}"
    return msgspec.structs.replace(document, says=says)
