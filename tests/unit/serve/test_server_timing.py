"""`Server-Timing` of an answer."""

from headrace.base.passage import Passage
from headrace.serve.server_timing import tell_timing


def test_each_stage_is_told_in_order_with_its_batch() -> None:
    """Milliseconds by stage in the order in which they began, and the batch where there was one."""
    passages = [Passage("process", 3_000_000, 6_100_000, 4), Passage("decode", 1_000_000, 2_200_000, None)]
    assert tell_timing(passages, 7_000_000) == (
        "Server-Timing",
        'decode;dur=1.200, process;dur=3.100;desc="batch of 4", total;dur=7.000',
    )


def test_several_passages_through_a_stage_are_one() -> None:
    """Parts of a fan-out: from the first begin to the last end, with the largest batch."""
    passages = [Passage("process", 2_000_000, 4_000_000, 2), Passage("process", 1_000_000, 3_000_000, 8)]
    assert tell_timing(passages, 5_000_000)[1] == 'process;dur=3.000;desc="batch of 8", total;dur=5.000'


def test_names_of_stages_end_no_header() -> None:
    """What may not stand in a header's token is replaced."""
    assert tell_timing([Passage('a b\r\nX: "1', 0, 0, None)], 0)[1].startswith("a_b__X___1;dur=0.000")
