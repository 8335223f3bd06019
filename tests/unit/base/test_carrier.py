"""One thread that carries many calls."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base import look_ups
from headrace.base.alarm import Alarm
from headrace.base.calls import Call, InThread, LookUp, Pause
from headrace.base.carrier import Carrier, Ended
from headrace.base.current_job import current_jobs, hands
from headrace.base.deadline import seconds_left
from headrace.base.look_ups import Unresolved


@pytest.fixture
def carrier() -> Iterator[Carrier]:
    """A carrier that is closed in the end."""
    carrier = Carrier()
    yield carrier
    carrier.close()


def pausing(seconds: float, value: Any = None) -> Call[Any]:
    """A call that pauses and returns a value."""
    yield Pause(seconds)
    return value


def looking_up(host: str, seconds: float = 5.0) -> Call[Any]:
    """A call that looks a host up."""
    return (yield LookUp(host, 80, seconds))


def wait_for(carrier: Carrier, number: int) -> list[Ended]:
    """Return the next calls that end, a number of them."""
    ended: list[Ended] = []
    while len(ended) < number:
        came = carrier.wait(60.0)
        assert came, "nothing ended within a minute"
        ended += came
    return ended


def test_pauses_run_side_by_side(carrier: Carrier) -> None:
    """Calls end in the order of their pauses, none too early, with token, value and time."""
    began = time.monotonic_ns()
    for milliseconds in (60, 20, 40):
        carrier.begin(pausing(milliseconds / 1000, -milliseconds), milliseconds)
    assert carrier.num_under_way == 3
    ended = wait_for(carrier, 3)
    assert [(call.token, call.value, call.error) for call in ended] == [
        (20, -20, None),
        (40, -40, None),
        (60, -60, None),
    ]
    assert all(call.ended_ns - began >= call.token * 10**6 for call in ended)
    assert carrier.num_under_way == 0


def test_a_call_without_waits_has_ended_when_it_is_waited_for(carrier: Carrier) -> None:
    """A call that returns or raises at once is told by the next wait, which does not wait."""

    def raising() -> Call[None]:
        raise KeyError("x")
        yield

    carrier.begin(pausing(0.0, "value"), 1)
    carrier.begin(raising(), 2)
    ended = {call.token: call for call in wait_for(carrier, 2)}
    assert ended[1].value == "value"
    assert isinstance(ended[2].error, KeyError)


def test_calls_that_end_at_once_do_not_hold_up_the_others(carrier: Carrier) -> None:
    """While calls end without waiting, one that waits gets its turn."""
    carrier.begin(pausing(0.01), "slow")
    tokens: set[Any] = set()
    give_up_at = time.monotonic() + 60
    while "slow" not in tokens:
        assert time.monotonic() < give_up_at
        carrier.begin(iter_at_once(), "quick")
        tokens |= {call.token for call in carrier.wait(None)}


def iter_at_once() -> Call[None]:
    """A call that waits for nothing."""
    return
    yield


def test_a_wait_has_a_limit(carrier: Carrier) -> None:
    """A wait of no length looks and returns; one with a length takes it."""
    carrier.begin(pausing(60.0), 1)
    assert carrier.wait(0.0) == []
    began = time.monotonic()
    assert carrier.wait(0.05) == []
    assert time.monotonic() - began >= 0.05


def test_it_is_woken_from_another_thread(carrier: Carrier) -> None:
    """`wake` ends a wait without limit, and if nobody waits the next one, once."""
    threading.Timer(0.05, carrier.wake).start()
    assert carrier.wait(None) == []
    carrier.wake()
    carrier.wake()
    assert carrier.wait(None) == []
    began = time.monotonic()
    assert carrier.wait(0.02) == []
    assert time.monotonic() - began >= 0.02


def test_no_wake_is_lost(carrier: Carrier) -> None:
    """Whatever was done before `wake` is seen by who waits: a thousand turns between two threads."""
    turns = [0]
    seen = threading.Event()

    def other() -> None:
        for number in range(1, 1001):
            turns[0] = number
            carrier.wake()
            assert seen.wait(60)
            seen.clear()

    thread = threading.Thread(target=other)
    thread.start()
    last, give_up_at = 0, time.monotonic() + 60
    while last < 1000 and time.monotonic() < give_up_at:
        carrier.wait(60.0)
        if turns[0] > last:
            last = turns[0]
            seen.set()
    thread.join()
    assert last == 1000


def test_a_cancelled_call_puts_away_what_it_has(carrier: Carrier) -> None:
    """Cancelling runs the finally blocks and ends the call without telling of it; the others go on."""
    left: list[str] = []

    def careful(wait: Any) -> Call[None]:
        try:
            yield wait
        finally:
            left.append("put away")

    carrier.begin(careful(Pause(0.01)), 1)
    carrier.begin(careful(LookUp("localhost", 80, 5.0)), 2)
    carrier.begin(pausing(0.02), 3)
    carrier.cancel(1)
    carrier.cancel(2)
    carrier.cancel("unknown")
    assert left == ["put away"] * 2
    assert [call.token for call in wait_for(carrier, 1)] == [3]
    assert carrier.wait(0.02) == []


def test_an_alarm_that_cannot_be_watched_leaves_nothing_open() -> None:
    """The timer of an epoll that refuses it is closed."""
    epoll = select.epoll()
    epoll.close()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ValueError, match="closed epoll"):
        Alarm(epoll)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("raised", [KeyError, SystemExit])
def test_closing_cancels(raised: type[BaseException]) -> None:
    """Whatever is under way is put away, also if one of the calls raises while it is closed."""
    left: list[int] = []

    def careful(number: int) -> Call[None]:
        try:
            yield Pause(60.0)
        finally:
            left.append(number)
            raise raised(number)

    other = Carrier()
    for number in range(3):
        other.begin(careful(number), number)
    other.close()
    assert left == [0, 1, 2]


def test_each_step_knows_its_deadline_and_its_jobs(carrier: Carrier) -> None:
    """Steps of calls that take turns see their own deadline and their own jobs, and nothing is left in the thread."""

    def noting() -> Call[list[Any]]:
        seen: list[Any] = []
        for _ in range(3):
            left = seconds_left()
            seen.append((current_jobs()[0].id, None if left is None else round(left, -2)))
            yield Pause(0.001)
        return seen

    for name, seconds in (("a", 1000), ("b", 2000), ("c", None)):
        deadline = None if seconds is None else time.monotonic_ns() + seconds * 10**9
        carrier.begin(noting(), name, deadline, (SimpleNamespace(job=SimpleNamespace(id=name)),))
    values = {call.token: call.value for call in wait_for(carrier, 3)}
    assert values == {"a": [("a", 1000.0)] * 3, "b": [("b", 2000.0)] * 3, "c": [("c", None)] * 3}
    assert seconds_left() is None


def test_names_are_looked_up(carrier: Carrier) -> None:
    """A look-up answers with addresses, and one that fails is thrown into its call."""
    carrier.begin(looking_up("localhost"), 1)
    carrier.begin(looking_up("nowhere.invalid"), 2)
    ended = {call.token: call for call in wait_for(carrier, 2)}
    assert any(address.is_loopback for address in ended[1].value)
    assert isinstance(ended[2].error, Unresolved)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A resolver that hangs on every host that begins with `hang`; remembers what it was asked."""
    asked: list[str] = []
    over = threading.Event()
    resolve = look_ups.socket.getaddrinfo

    def ask(host: bytes, *args: Any, **options: Any) -> Any:
        asked.append(host.decode())
        if host.startswith(b"hang"):
            over.wait()
            raise OSError(1, "it was over")
        return resolve(host, *args, **options)

    monkeypatch.setattr(look_ups.socket, "getaddrinfo", ask)
    yield asked
    over.set()
    for thread in threading.enumerate():
        if thread.name == "headrace-lookup":
            thread.join()


def test_a_look_up_that_hangs_holds_up_nobody(carrier: Carrier, hanging: list[str]) -> None:
    """Calls that wait for one such name end after their time, with one thread for all of them; the others go on meanwhile."""
    for number in range(50):
        carrier.begin(looking_up("hang.invalid", 0.2), number)
    carrier.begin(looking_up("localhost"), "other")
    ended = wait_for(carrier, 51)
    assert {type(call.error) for call in ended if call.token != "other"} == {Unresolved}
    assert "not resolved within 0.2 s" in str(next(call.error for call in ended if call.token == 0))
    carrier.begin(looking_up("hang.invalid", 0.01), "again")
    wait_for(carrier, 1)
    assert hanging.count("hang.invalid") == 1


def test_look_ups_beyond_the_limit_wait_for_a_place(
    carrier: Carrier, hanging: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every place taken a look-up ends after its time, and begins as soon as a place is free."""
    places = threading.BoundedSemaphore(1)
    monkeypatch.setattr(look_ups, "_places", places)
    places.acquire()
    carrier.begin(looking_up("localhost", 0.05), 1)
    (ended,) = wait_for(carrier, 1)
    assert "others hang" in str(ended.error)
    carrier.begin(looking_up("localhost"), 2)
    assert carrier.wait(0.02) == []
    places.release()
    (ended,) = wait_for(carrier, 1)
    assert ended.value


def test_look_ups_without_a_thread_fail(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no thread can be started each call is told so, and the places stay."""
    with monkeypatch.context() as patch:
        patch.setattr(look_ups, "_places", threading.BoundedSemaphore(1))

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", refuse)
        for number in range(3):
            carrier.begin(looking_up("localhost"), number)
            (ended,) = wait_for(carrier, 1)
            assert "can't start new thread" in str(ended.error)
        patch.undo()
        carrier.begin(looking_up("localhost"), "now")
        (ended,) = wait_for(carrier, 1)
        assert ended.value


def test_an_answer_after_the_end_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that ends when its carrier is closed writes to no descriptor that is another's by then."""
    over, ended = threading.Event(), threading.Event()

    def ask(*args: Any, **options: Any) -> Any:
        over.wait()
        ended.set()
        raise OSError(1, "it was over")

    monkeypatch.setattr(look_ups.socket, "getaddrinfo", ask)
    carrier = Carrier()
    carrier.begin(looking_up("hang.invalid", 0.01), 1)
    wait_for(carrier, 1)
    carrier.close()
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(8)]  # they get the numbers that the carrier had
    try:
        over.set()
        assert ended.wait(60)
        for thread in threading.enumerate():
            if thread.name == "headrace-lookup":
                thread.join()
        for other in others:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(other)
    finally:
        for other in others:
            os.close(other)


def in_thread(function: Callable[[], Any]) -> Call[Any]:
    """A call that waits for a function."""
    return (yield InThread(function))


def test_functions_run_side_by_side(carrier: Carrier) -> None:
    """Functions that wait for one another end, each in a thread of its own, which later ones use again."""
    before = aside()
    for round_ in range(3):
        together = threading.Barrier(5, timeout=60)
        for number in range(5):
            carrier.begin(in_thread(together.wait), number)
        assert sorted(call.value for call in wait_for(carrier, 5)) == [0, 1, 2, 3, 4], round_
    assert len(aside() - before) == 5


def aside() -> set[threading.Thread]:
    """Return the threads that run functions; those of an earlier test may be about to end."""
    return {thread for thread in threading.enumerate() if thread.name == "headrace-aside"}


def test_what_a_function_raises_is_thrown_into_its_call(carrier: Carrier) -> None:
    """The call can catch it; what it leaves alone is its error."""

    def catching() -> Call[str]:
        try:
            yield InThread({}.popitem)
        except KeyError:
            yield Pause(0.0)
            return "caught"
        return ""

    carrier.begin(catching(), 1)
    carrier.begin(in_thread({}.popitem), 2)
    ended = {call.token: call for call in wait_for(carrier, 2)}
    assert ended[1].value == "caught"
    assert isinstance(ended[2].error, KeyError)


def test_a_function_that_hangs_holds_up_nobody(carrier: Carrier) -> None:
    """Others run meanwhile; once its call is cancelled nobody learns of its end, and no place is lost."""
    before = aside()
    over = threading.Event()
    carrier.begin(in_thread(over.wait), "hangs")
    for number in range(20):
        carrier.begin(in_thread(lambda: "quick"), number)
        assert [call.value for call in wait_for(carrier, 1)] == ["quick"]
    carrier.cancel("hangs")
    over.set()
    for number in range(20):
        carrier.begin(in_thread(lambda: "quick"), number)
        assert [call.value for call in wait_for(carrier, 1)] == ["quick"]
    assert len(aside() - before) == 2


def test_a_function_knows_its_deadline_and_its_jobs(carrier: Carrier) -> None:
    """In the other thread, too, and nothing of it is left there."""

    def note() -> tuple[Any, bool]:
        return [job.id for job in current_jobs()], seconds_left() is not None

    item = SimpleNamespace(job=SimpleNamespace(id="a"))
    carrier.begin(in_thread(note), 1, time.monotonic_ns() + 10**12, (item,))
    assert [call.value for call in wait_for(carrier, 1)] == [(["a"], True)]
    carrier.begin(in_thread(lambda: (hands.items, seconds_left())), 2)
    assert [call.value for call in wait_for(carrier, 1)] == [((), None)]


def test_threads_of_functions_end_with_the_carrier() -> None:
    """Closing sends them away."""
    carrier = Carrier()
    carrier.begin(in_thread(int), 1)
    wait_for(carrier, 1)
    carrier.close()
    give_up_at = time.monotonic() + 60
    while aside():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def test_it_gives_its_descriptors_back() -> None:
    """A carrier that was used leaves no descriptor behind."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        carrier = Carrier()
        carrier.begin(pausing(0.0), 1)
        wait_for(carrier, 1)
        carrier.close()
    assert len(os.listdir("/proc/self/fd")) == before
