"""What tells requests apart of which one may kill its process."""

import numpy as np
import pytest

from headrace.serve.shared_source import digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", b"x"), ("b", b"x")),
        (("", b"a" * 600 + b"KILL" + b"a" * 2_396), ("", b"a" * 600 + b"GOOD" + b"a" * 2_396)),
        (("", "http://x/1"), ("", "http://x/2")),
        (("", np.zeros(9)), ("", np.eye(3))),
        (("a", b""), ("", b"a")),
    ],
)
def test_what_differs_anywhere_is_another_request(one: tuple[str, object], other: tuple[str, object]) -> None:
    """An innocent request is never taken for the one that kills."""
    assert digest(*one) == digest(*one)
    assert digest(*one) != digest(*other)
