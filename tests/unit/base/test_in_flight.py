"""What a worker has in its hands is readable by another process, also when the worker is killed."""

import os
import signal

from headrace.base.in_flight import InFlightTable
from headrace.base.records import OutcomeKind


def test_a_killed_process_leaves_its_messages() -> None:
    """After SIGKILL the parent reads what was in work, what waited, what was delivered, and not what had left."""
    table = InFlightTable(num_slots=8)
    pid = os.fork()
    if pid == 0:
        places = [table.enter(f"m{number}", f"receipt-{number}", 5.0 + number) for number in range(4)]
        table.work(places[1], 1)
        table.note_delivery(places[2])
        table.leave(places[3])
        table.count(OutcomeKind.DELIVERED)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    found = {message.id: message for message in table.messages()}
    assert sorted(found) == ["m0", "m1", "m2"]
    assert [found[name].in_work for name in sorted(found)] == [False, True, False]
    assert [found[name].delivered for name in sorted(found)] == [False, False, True]
    assert (found["m1"].receipt, found["m1"].lent_at) == ("receipt-1", 6.0)
    assert table.counts()[OutcomeKind.DELIVERED] == 1
    table.close()


def test_work_is_counted_for_each_stage() -> None:
    """A message is in work until as many stages are through with it as began, and a place is free again afterwards."""
    table = InFlightTable(num_slots=1)
    place = table.enter("m", "r", 0.0)
    table.work(place, 1)
    table.work(place, 1)
    table.work(place, -1)
    assert table.messages()[0].in_work
    table.work(place, -1)
    assert not table.messages()[0].in_work
    table.leave(place)
    table.work(place, 1)  # a thread that was left behind
    assert table.messages() == []
    table.enter("n", "r", 0.0)
    assert [message.in_work for message in table.messages()] == [False]
    table.close()


def test_what_has_no_room_is_left_out() -> None:
    """Messages beyond the slots, and with ids that do not fit, are not entered; a receipt that does not fit is left empty."""
    table = InFlightTable(num_slots=2)
    table.enter("x" * 1000, "r", 0.0)
    table.enter("a", "r" * 5000, 0.0)
    table.enter("b", "r", 0.0)
    table.enter("c", "r", 0.0)
    assert {message.id: message.receipt for message in table.messages()} == {"a": "", "b": "r"}
    table.close()


def test_signs_of_life_and_news_are_counted() -> None:
    """Signs of life, news and outcomes are counted apart."""
    table = InFlightTable(num_slots=1)
    table.beat()
    table.beat()
    table.note_news()
    table.count(OutcomeKind.RETURNED)
    assert (table.num_beats, table.num_heard) == (2, 1)
    assert {kind: number for kind, number in table.counts().items() if number} == {OutcomeKind.RETURNED: 1}
    table.close()
