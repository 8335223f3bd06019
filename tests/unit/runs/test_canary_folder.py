"""The folder of a canary, in which anybody may have put anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.errors import RunFolderError
from headrace.base.plan import Plan
from headrace.base.policies.canary import CanaryPolicy
from headrace.runs.canary_folder import CanaryFolder, Feedback


@pytest.mark.parametrize("name", ["state.json", "lock", "seen-1.json", "call-node-7-ab", "feedback.jsonl"])
def test_pipes_are_waited_for_by_nobody(name: str, tmp_path: Path) -> None:
    """Whoever opens one waits for the other end: what needs it is refused, the rest is as it would be without."""
    folder = CanaryFolder(tmp_path)
    os.mkfifo(tmp_path / name)
    refused = []
    for act in (
        folder.read,
        lambda: folder.start(Plan(), CanaryPolicy()),
        lambda: folder.sum_seen("c1"),
        folder.find_dead,
    ):
        try:
            act()
        except RunFolderError:
            refused.append(act)
    assert len(refused) == {"state.json": 2, "lock": 1}.get(name, 0)


def test_feedback_is_not_put_into_pipes(tmp_path: Path) -> None:
    """Nor waited for."""
    folder = CanaryFolder(tmp_path)
    os.mkfifo(tmp_path / "feedback.jsonl")
    for act in (folder.hear, lambda: folder.pass_on(Feedback("a", True))):
        with pytest.raises(OSError, match=r"pipe|No such device"):
            act()
