"""Whatever a user's code raises or returns, it is the failure of its items and never the end of the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.records import OutcomeKind
from headrace.pipeline.batch_buffer import BatchBuffer

Run = Callable[..., Any]
DEAD = {OutcomeKind.DEAD_LETTERED}


class NoText(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Lies:
    """Has one length, and other members: a pandas DataFrame has as many as it has columns."""

    def __init__(self, length: int, members: list[Any]) -> None:
        self._length = length
        self._members = members

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members)


class CannotBeGoneThrough(Lies):
    """Raises when somebody wants its members."""

    def __iter__(self) -> Iterator[Any]:
        raise SystemExit("no members")


@pytest.mark.parametrize(
    "error", [NoText(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError()], ids=repr
)
@pytest.mark.parametrize("kind", ["cpu", "device"])
@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_what_it_raises(run: Run, error: BaseException, kind: str, executor: str) -> None:
    """One item fails, named by its type; the others are delivered."""

    def work(value: Any) -> Any:
        if 3 in (value if kind == "device" else [value]):
            raise error
        return value

    plan = {"stages": {"work": {"executor": executor, "batch": 4 if kind == "device" else None}}}
    ran = run([hr.stage("work", work, kind=kind)], range(8), plan, source={"max_receives": 1})
    assert sorted(ran.results.values()) == [0, 1, 2, 4, 5, 6, 7]
    assert ran.ids(OutcomeKind.DEAD_LETTERED) == {"3"}
    assert type(error).__name__ in ran.reason("3")


@pytest.mark.parametrize(
    "what", [lambda n: Lies(n, []), lambda n: Lies(n, [1] * (n + 1)), lambda n: CannotBeGoneThrough(n, [])]
)
def test_results_whose_members_are_others(run: Run, what: Callable[[int], Any]) -> None:
    """A batch whose results cannot be told apart fails, and says what it returned."""
    stage = hr.stage("work", lambda batch: what(len(batch)), kind="device")
    plan = {"stages": {"work": {"batch": 3}}, "run": {"brake_after": 0}}  # all of them fail
    ran = run([stage], range(6), plan, source={"max_receives": 1})
    assert ran.ids(OutcomeKind.DEAD_LETTERED) == set("012345")
    assert "length is 1 and which has" in ran.reason("0") or "no members" in ran.reason("0")


def test_a_fan_whose_members_are_others(run: Run) -> None:
    """As many children go on as there are, whatever the length says: a parent that waits for others would wait for ever."""
    stages = [
        hr.fan_out(
            "cut", lambda value: hr.Fan(Lies(5, [value, value])) if value else hr.Fan(CannotBeGoneThrough(2, []))
        ),
        hr.stage("each", lambda value: value + 1),
        hr.join("gather", lambda joined: sum(joined.results)),
    ]
    ran = run(stages, [0, 1, 2], source={"max_receives": 1})
    assert ran.results == {"1": 4, "2": 6}
    assert "no members" in ran.reason("0")


class Leaves(hr.Stage):
    """Cannot be opened."""

    kind = "cpu"

    def __init__(self, error: BaseException) -> None:
        super().__init__("work")
        self.error = error

    def open(self, context: Any) -> Any:
        """Raise the error."""
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_what_it_raises_when_it_is_opened(run: Run, error: BaseException, executor: str) -> None:
    """The run ends with an error that names the place: no job was received, and nobody pressed Ctrl-C."""
    with pytest.raises(hr.HeadraceError, match=f"stage work could not be opened: {type(error).__name__}") as caught:
        run([Leaves(error)], range(3), {"stages": {"work": {"executor": executor}}})
    assert caught.value.origin is not None
    assert caught.value.origin.place.endswith(f"test_users_code.py:{Leaves.open.__code__.co_firstlineno + 2}")
    assert not isinstance(caught.value.__cause__ or caught.value.__context__, KeyboardInterrupt)


def test_leaving_in_the_setup_is_an_error_of_the_stage(run: Run) -> None:
    """A module that calls `sys.exit` when it is set up ends the run with an error that names the stage."""

    class Leaves(hr.Module):
        def load(self, context: Any) -> None:
            """Leave."""
            raise SystemExit(3)

        def process(self, batch: Any) -> Any:
            """Never called."""
            return batch

    with pytest.raises(hr.HeadraceError, match=r"stage faces\.process could not be opened: SystemExit: 3"):
        run(None, [b"x"], modules={"faces": Leaves()})


def test_results_that_the_stage_overwrites(run: Run) -> None:
    """A list that a stage fills again for each batch is taken as it was when it was returned."""
    out: list[int] = []
    handed_on = threading.Semaphore(0)

    def work(batch: Any) -> list[int]:
        out[:] = [int(value) for value in batch]
        return out

    stages = [hr.stage("work", work, kind="device"), hr.stage("after", lambda value: (handed_on.release(), value)[1])]
    ran = run(stages, [np.array(number) for number in range(64)], {"stages": {"work": {"batch": 4}}})
    assert sorted(ran.results.values()) == list(range(64))


class TestDetached:
    """Which results are copied out of a batch's memory."""

    def buffer(self) -> tuple[BatchBuffer, Any]:
        """Return a buffer and the batch in it."""
        buffer = BatchBuffer(2)
        return buffer, buffer.stack([np.arange(3.0), np.arange(3.0)])

    def test_views_are_copied_wherever_they_are(self) -> None:
        """Also beside numbers and text, in lists, tuples and dicts."""
        buffer, batch = self.buffer()
        results = [[0.5, "cat", batch[0]], {"box": (1, batch[1][:2])}]
        detached = buffer.detached(results)
        batch[:] = -1
        assert detached[0][:2] == [0.5, "cat"]
        assert detached[0][2].tolist() == [0, 1, 2]
        assert detached[1]["box"][0] == 1
        assert detached[1]["box"][1].tolist() == [0, 1]

    def test_what_holds_no_view_stays_as_it_is(self) -> None:
        """A mask as a list of lists of numbers is not made anew member by member."""
        buffer, batch = self.buffer()
        mask = batch.tolist()
        other = np.zeros(3)
        detached = buffer.detached([mask, other])
        assert [id(row) for row in detached[0]] == [id(row) for row in mask]
        assert detached[1] is other
