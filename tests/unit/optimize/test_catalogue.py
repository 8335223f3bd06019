"""What can be tried is listed, with what it needs."""

from __future__ import annotations

import pytest

from headrace.cli import main
from headrace.optimize.catalogue import TECHNIQUES


def test_every_technique_is_listed_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Name, kind, needs, and what it is known to gain."""
    with pytest.raises(SystemExit) as ended:
        main(["optimize", "--techniques"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for one in TECHNIQUES:
        assert f"{one.name}: {one.kind}; needs {one.needs}\n" in told
    assert "int8: lossy; needs calibration data\n    static int8" in told


def test_names_are_not_given_twice() -> None:
    """The ledger knows techniques by their names."""
    names = [one.name for one in TECHNIQUES]
    assert len(set(names)) == len(names)
