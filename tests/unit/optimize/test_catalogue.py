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
        assert f"{one.name}: {one.kind}; needs {one.needs}{f'; only with {one.option}' if one.option else ''}\n" in told
    assert "int8: lossy; needs calibration data\n    static int8" in told


@pytest.mark.parametrize(
    ("technique", "option"),
    [("as-given", "--plan"), ("input-160", "--input-sizes"), ("also-NAME", "--also"), ("pruned-input", "--input-sizes"),
     ("torch", "--pipeline")],
)  # fmt: skip
def test_what_an_option_adds_is_listed_with_it(capsys: pytest.CaptureFixture[str], technique: str, option: str) -> None:
    """And the option is one of the command's."""
    with pytest.raises(SystemExit):
        main(["optimize", "--techniques"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{technique}: "))
    assert line.endswith(f"; only with {option}")
    with pytest.raises(SystemExit):
        main(["optimize", "--help"])
    assert f"{option} " in capsys.readouterr().out


def test_names_are_not_given_twice() -> None:
    """The ledger knows techniques by their names."""
    names = [one.name for one in TECHNIQUES]
    assert len(set(names)) == len(names)
