"""The suite that every delivery passes whose results can be read back. Needs pytest.

    from headrace.testing.delivery_conformance import DeliveryConformance

    class TestMyDelivery(DeliveryConformance):
        @pytest.fixture
        def make_delivery(self, tmp_path):
            return lambda: MyDelivery(tmp_path / "results")  # each one to the same place

        def read_results(self):
            return {...}  # {id: result} of what another program finds there

`make_delivery` names a place without results at the start of each test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headrace.base.errors import DeliveryRejected
from headrace.base.protocols import DeliversMany, Recoverable
from headrace.base.records import Job
from headrace.pipeline.definition import check_delivery

Make = Callable[[], Any]


class DeliveryConformance:
    """What `Delivery` and `Recoverable` of `headrace.base.protocols` promise, one test per promise."""

    def read_results(self) -> Mapping[str, Any]:
        """Return {id: result} of what is there, read as another program would; override it."""
        raise NotImplementedError

    def deliver(self, delivery: Any, *ids: str) -> dict[str, bool]:
        """Deliver a result `{"id": ID}` for each id; return {id: whether it was durable at once}."""
        return {one: delivery.deliver(Job(one, b""), {"of": one}) for one in ids}

    def one_run(self, delivery: Any, *ids: str) -> dict[str, Any]:
        """Let a run deliver these and end; return its mark."""
        mark: dict[str, Any] = delivery.mark()
        delivery.open(None)
        self.deliver(delivery, *ids)
        delivery.close()
        return mark

    def test_has_every_method(self, make_delivery: Make) -> None:
        """It is a delivery whose results can be read back, and says where the state for that is kept."""
        delivery = make_delivery()
        check_delivery(delivery)
        assert delivery.flush_items >= 1
        assert delivery.flush_seconds >= 0
        assert isinstance(delivery, Recoverable)
        assert delivery.checkpoint is not None

    def test_what_is_flushed_is_there(self, make_delivery: Make) -> None:
        """A result is there once `deliver` said so, else after the next flush, while the delivery is still open."""
        delivery = make_delivery()
        assert not delivery.has_results
        delivery.mark()
        delivery.open(None)
        durable = self.deliver(delivery, "a", "b")
        assert {one for one, is_there in durable.items() if is_there} <= set(self.read_results())
        delivery.flush()
        assert self.read_results() == {"a": {"of": "a"}, "b": {"of": "b"}}
        delivery.flush()
        assert len(self.read_results()) == 2
        delivery.close()
        assert make_delivery().has_results

    def test_close_flushes(self, make_delivery: Make) -> None:
        """What was delivered last is there after `close`, and closing again does no harm."""
        delivery = make_delivery()
        self.one_run(delivery, "a", "b", "c")
        delivery.close()
        assert set(self.read_results()) == {"a", "b", "c"}

    def test_a_mark_separates_runs(self, make_delivery: Make) -> None:
        """The ids since a mark are those of its run; without one all results count."""
        self.one_run(make_delivery(), "old-1", "old-2")
        mark = self.one_run(make_delivery(), "new-1")
        assert make_delivery().recover(mark) == {"new-1"}
        assert make_delivery().recover({}) == {"old-1", "old-2", "new-1"}

    def test_a_run_goes_on(self, make_delivery: Make) -> None:
        """After a kill the ids that are there come back, what follows goes beside them, and the next resume finds both."""
        killed = make_delivery()
        mark = killed.mark()
        killed.open(None)
        self.deliver(killed, "a", "b")
        killed.flush()
        self.deliver(killed, "c")  # may be lost: nobody flushed
        again = make_delivery()
        found = again.recover(mark)
        assert {"a", "b"} <= found <= {"a", "b", "c"}
        again.open(None)
        self.deliver(again, *({"c", "d"} - found))
        again.close()
        assert set(self.read_results()) == {"a", "b", "c", "d"}
        assert make_delivery().recover(mark) == {"a", "b", "c", "d"}
        killed.close()  # what a kill would have let go of

    def test_a_result_that_comes_again_has_one_id(self, make_delivery: Make) -> None:
        """Delivery is at least once: the second one does no harm."""
        delivery = make_delivery()
        mark = delivery.mark()
        delivery.open(None)
        self.deliver(delivery, "a", "a")
        delivery.flush()
        self.deliver(delivery, "a")
        delivery.close()
        assert self.read_results() == {"a": {"of": "a"}}
        assert make_delivery().recover(mark) == {"a"}

    def test_a_result_that_cannot_be_written_is_refused_alone(self, make_delivery: Make) -> None:
        """At once, in `deliver`: in `flush` it would hold up the others."""
        delivery = make_delivery()
        delivery.mark()
        delivery.open(None)
        self.deliver(delivery, "a")
        with pytest.raises(DeliveryRejected):
            delivery.deliver(Job("bad", b""), object())
        self.deliver(delivery, "b")
        delivery.close()
        assert set(self.read_results()) == {"a", "b"}

    def test_several_at_once(self, make_delivery: Make) -> None:
        """They come to the same as one by one, and one that cannot be written is refused alone."""
        delivery = make_delivery()
        delivery.mark()
        delivery.open(None)
        names: dict[str, Any] = {"a": {"of": "a"}, "bad": object(), "b": {"of": "b"}}
        outcomes = _deliver_all(delivery, [(Job(name, b""), result) for name, result in names.items()])
        delivery.close()
        assert [type(outcome) for outcome in outcomes] == [bool, DeliveryRejected, bool]
        assert self.read_results() == {"a": {"of": "a"}, "b": {"of": "b"}}

    def test_texts_of_all_kinds(self, make_delivery: Make) -> None:
        """Ids and results keep quotes, line ends, other scripts and what SQL or JSON would take for its own."""
        names = ["o'clock", 'a"b', "line\nend", "züri/東京.jpg", "; drop table results; --", "%s :x ?", "a,b\\c"]
        mark = self.one_run(make_delivery(), *names)
        assert self.read_results() == {name: {"of": name} for name in names}
        assert make_delivery().recover(mark) == set(names)

    def test_results_that_are_gone_are_missed(self, make_delivery: Make) -> None:
        """Nothing was ever there."""
        with pytest.raises(FileNotFoundError):
            make_delivery().recover({})


def _deliver_all(delivery: Any, results: list[tuple[Job, Any]]) -> list[bool | Exception]:
    """Deliver at once what the delivery takes at once."""
    if isinstance(delivery, DeliversMany):
        return list(delivery.deliver_many(results))
    outcomes: list[bool | Exception] = []
    for job, result in results:
        try:
            outcomes.append(delivery.deliver(job, result))
        except DeliveryRejected as error:
            outcomes.append(error)
    return outcomes
