"""Worker processes let the sampler look at them."""

from __future__ import annotations

import os
import pickle

import pytest

from headrace.profiler.sampler import control
from headrace.profiler.sampler.control import Permission


def test_worker_processes_let_the_helper_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The permission travels to worker processes and is given there, not in the process that starts the sampler."""
    told: list[int] = []
    monkeypatch.setattr(control, "allow_tracing", told.append)
    permission = Permission()
    permission.helper_process = 77
    assert permission.wrap("work", "cpu", abs) is abs
    assert told == []
    sent = pickle.loads(pickle.dumps(permission))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert sent.wrap("work", "cpu", abs) is abs
    assert told == [77]


def test_without_a_helper_nobody_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the sampler could not be started a worker process gives no permission."""
    told: list[int] = []
    monkeypatch.setattr(control, "allow_tracing", told.append)
    permission = Permission()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    permission.wrap("work", "cpu", abs)
    assert told == []
