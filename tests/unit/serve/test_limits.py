"""Connections never take the files that the run needs."""

import resource

import pytest

from headrace.serve.http.limits import Limits, fit_to_files


@pytest.mark.parametrize(("files", "connections"), [(256, 128), (1_000, 744), (100_000, 10_000)])
def test_connections_leave_files_to_the_run(monkeypatch: pytest.MonkeyPatch, files: int, connections: int) -> None:
    """All but those of the run, at least half, and no more than was asked for."""
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, files))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    assert fit_to_files(Limits()).connections == connections
    assert asked == [(files, files)]


def test_who_may_not_raise_the_limit_lives_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is no error."""

    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 1_024))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert fit_to_files(Limits()).connections == 32
