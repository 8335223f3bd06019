"""Batches are handed on in order, by a thread of their own or in place."""

from __future__ import annotations

import threading

from headrace.pipeline.finisher import Finisher


class Log:
    """What was handed on, and in which thread; the first waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.threads: list[str] = []
        self.may_go = threading.Event()
        self.errors: list[BaseException] = []

    def hand_on(self, batch: int) -> None:
        """Note a batch, or break at a negative one."""
        if batch == 0:
            assert self.may_go.wait(60)
        self.batches.append(batch)
        self.threads.append(threading.current_thread().name)
        if batch < 0:
            raise RuntimeError("broke")


def test_a_batch_is_handed_on_in_place_where_none_is_on_its_way() -> None:
    """The thread that calls does it itself, if it says so."""
    log = Log()
    with Finisher(log.hand_on, "device", log.errors.append) as finish:
        finish(1, in_place=True)
        assert log.threads == [threading.current_thread().name]


def test_no_batch_overtakes_one_that_is_on_its_way() -> None:
    """A batch that could go in place goes after the one that the finisher's thread still has."""
    log = Log()
    with Finisher(log.hand_on, "device", log.errors.append) as finish:
        finish(0)
        finish(1, in_place=True)
        assert log.batches == []
        log.may_go.set()
    assert log.batches == [0, 1]
    assert log.threads == ["device-finisher"] * 2


def test_what_breaks_is_said_and_the_rest_goes_on() -> None:
    """An error of handing on reaches who must know, and later batches are handed on all the same."""
    log = Log()
    with Finisher(log.hand_on, "device", log.errors.append) as finish:
        for batch in (-1, 2, 3):
            finish(batch)
    assert log.batches == [-1, 2, 3]
    assert [str(error) for error in log.errors] == ["broke"]
