"""What an incident says in a sentence."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.monitor.recorder.incident import _answer


def _state(latency: float | None, failed_share: float = 0.0) -> Any:
    return SimpleNamespace(latency=latency, failed_share=failed_share)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (_state(1.2), _state(0.9), "Nothing got slower: a job took 900 ms on average, and 1.20 s before."),
        (
            _state(0.9),
            _state(1.2),
            "A job took 1.20 s instead of 900 ms on average. Nothing that was compared explains it.",
        ),
        (_state(1.2), _state(0.9, 0.5), "A job took 900 ms instead of 1.20 s on average. Nothing that was"),
        (_state(1.2), _state(None, 1.0), "No job went all the way any more. Nothing that was"),
    ],
)
def test_what_did_not_get_worse_is_not_called_slow(before: Any, after: Any, says: str) -> None:
    """Whoever asks for a snapshot of a run that is well hears so; failures and jobs that never end are worse."""
    assert _answer(before, after, (), is_found=True).startswith(says)
