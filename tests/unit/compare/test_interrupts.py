"""Signals are noticed whoever handles them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

import headrace as hr
from headrace.base.errors import Interrupted
from headrace.base.plan import Plan
from headrace.compare.blocks import Contender, SameItems
from headrace.compare.contenders import Blocks, measure_contenders
from headrace.compare.interrupts import noticing


@pytest.fixture
def ignoring() -> Iterator[None]:
    """Let another handler take Ctrl-C and say nothing about it."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignoring")
def test_a_signal_that_another_handler_took_is_noticed() -> None:
    """Ctrl-C is seen after it came and from then on, and not before."""
    with noticing() as has_come:
        assert not has_come()
        signal.raise_signal(signal.SIGINT)
        assert has_come()
        assert has_come()
    with noticing() as has_come:
        assert not has_come()


def test_the_wakeup_file_of_others_comes_back() -> None:
    """Whoever had set one has it again."""
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with noticing():
        pass
    after = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(after)
    assert after == before


def test_other_threads_notice_nothing() -> None:
    """Outside the main thread, where Python handles no signals, nothing is set up and nothing breaks."""
    found: list[bool] = []

    def work() -> None:
        with noticing() as has_come:
            found.append(has_come())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.usefixtures("ignoring")
def test_a_block_that_breaks_because_of_the_signal_is_an_interrupt() -> None:
    """Ctrl-C may end workers in processes before the run hears of it: their death is no defect of the side that ran."""
    pipeline = hr.Pipeline(hr.folder("."), stages=[hr.stage("one", str)])
    broken = Contender(name="a", pipeline=pipeline, plan=Plan().with_settings(["two.workers=1"]))

    def interrupt(line: str) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        measure_contenders({"A": broken, "B": broken}, SameItems(hr.folder(".")), Blocks(), interrupt)
