"""Numbers with a sign, as they are written to people."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "headrace"


def test_a_rounded_nothing_has_no_minus() -> None:
    """Each place that writes a sign and rounds has the `z`, which makes +0.00 of -0.00."""
    places = [
        (str(file.relative_to(SOURCE)), found)
        for file in sorted(SOURCE.rglob("*.py"))
        for found in re.findall(r":\+\.\d[f%]", file.read_text(encoding="utf-8"))
    ]
    assert places == []
