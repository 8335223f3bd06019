"""How the training thread's time is cut into stretches and phases."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.base.records import Span
from headrace.runs.training_phases import WHOLE, Kind, Phase, Stretch
from headrace.train import recorder as recorder_module
from headrace.train.recorder import METERED_FIRST, MOST_OWN_NS, OwnTime, Recorder


class Kept:
    """The stretches that a recorder wrote, and the loop's events as a loop would cause them."""

    def __init__(self) -> None:
        self.stretches: list[list[Span]] = []
        self.recorder = Recorder(lambda spans: self.stretches.append(list(spans)))

    def fetch(self, samples: int = 4) -> None:
        """A batch is asked for, and comes."""
        self.recorder.batch_wanted()
        self.recorder.batch_came(samples)

    def learn(self) -> None:
        """Forward and backward."""
        self.recorder.forward_begins(training=True)
        self.recorder.forward_ended()
        self.recorder.backward_begins()
        self.recorder.backward_ended()

    def update(self) -> None:
        """The optimizer."""
        self.recorder.update_begins()
        self.recorder.update_ended()

    def step(self) -> None:
        """All of them."""
        self.fetch()
        self.learn()
        self.update()

    def evaluate(self) -> None:
        """Forward without gradients."""
        self.recorder.forward_begins(training=False)
        self.recorder.forward_ended()

    def names(self) -> list[str]:
        """Units and numbers of the stretches."""
        return [f"{spans[0].unit} {spans[0].unit_id}" for spans in self.stretches]

    def wholes(self, unit: Stretch) -> list[Span]:
        """The span of each stretch of a unit."""
        return [spans[0] for spans in self.stretches if spans[0].unit == unit]


def test_a_step_is_cut_into_phases_that_add_up() -> None:
    """Each phase begins where the one before ended, and together they are the step."""
    kept = Kept()
    for _ in range(3):
        kept.step()
    kept.recorder.close()
    assert kept.names() == ["between 0", "step 0", "step 1", "step 2"]
    whole, *phases = kept.stretches[2]
    assert [span.stage for span in phases] == [
        *("wait", "prepare", "forward", "loss", "backward", "before_update", "optimizer", "after")
    ]
    assert (phases[0].started, phases[-1].ended) == (whole.started, whole.ended)
    assert all(one.ended == other.started for one, other in itertools.pairwise(phases))
    assert whole.stage == WHOLE
    assert whole.batch_size == 4


def test_stretches_have_no_gap_between_them() -> None:
    """Each stretch begins where the one before ended, whatever they are."""
    kept = Kept()
    for _ in range(2):
        kept.recorder.epoch_begins()
        kept.recorder.epoch_began()
        kept.step()
        kept.step()
        kept.recorder.batch_wanted()
        kept.recorder.batches_ended()
        kept.evaluate()
    kept.recorder.close()
    wholes = [spans[0] for spans in kept.stretches]
    assert all(one.ended == other.started for one, other in itertools.pairwise(wholes))
    kinds = [span.release_reason for span in kept.wholes(Stretch.STEP)]
    assert kinds == [Kind.EPOCH_START, None, Kind.EPOCH_START, None]


def test_accumulation_is_one_step_of_several_batches() -> None:
    """Batches before the update belong to the step, and each phase knows its batch."""
    kept = Kept()
    for _ in range(2):
        for _ in range(3):
            kept.fetch()
            kept.learn()
        kept.update()
    kept.recorder.close()
    steps = kept.wholes(Stretch.STEP)
    assert [step.batch_size for step in steps] == [12, 12]
    assert [step.release_reason for step in steps] == [None, None]
    batches = Counter(span.batch_id for span in kept.stretches[1] if span.stage == Phase.FORWARD)
    assert batches == {1: 1, 2: 1, 3: 1}


def test_validation_is_no_step_and_gives_back_the_batch_that_trains() -> None:
    """The same loader may serve both: what was fetched for a training step belongs to that step."""
    kept = Kept()
    kept.step()
    for _ in range(2):
        kept.fetch(100)
        kept.evaluate()
    kept.step()
    kept.recorder.close()
    assert [step.batch_size for step in kept.wholes(Stretch.STEP)] == [4, 4]
    assert [one.batch_size for one in kept.wholes(Stretch.VALIDATION)] == [100, 100]


def test_a_validation_without_a_loader_is_told_apart() -> None:
    """A batch kept by the program goes through the model after the update."""
    kept = Kept()
    kept.step()
    kept.evaluate()
    kept.step()
    kept.recorder.close()
    assert kept.names() == ["between 0", "step 0", "validation 0", "step 1"]


def test_a_teacher_belongs_to_the_step() -> None:
    """A forward pass without gradients between fetch and training is part of the step."""
    kept = Kept()
    for _ in range(2):
        kept.fetch()
        kept.evaluate()
        kept.learn()
        kept.update()
    kept.recorder.close()
    assert [step.batch_size for step in kept.wholes(Stretch.STEP)] == [4, 4]
    assert not kept.wholes(Stretch.VALIDATION)


def test_a_loop_without_a_loader_has_steps_too() -> None:
    """Its steps begin where the model is called after an update."""
    kept = Kept()
    for _ in range(3):
        kept.learn()
        kept.update()
    kept.recorder.close()
    assert len(kept.wholes(Stretch.STEP)) == 3


def test_an_update_that_raised_ends_its_step_where_the_loop_goes_on() -> None:
    """Without a loader nothing is asked for in between: the same optimizer begins again after another backward pass."""
    kept = Kept()
    for is_raising in (False, True, True, False, False):
        kept.learn()
        kept.recorder.update_begins()
        if not is_raising:
            kept.recorder.update_ended()
    kept.recorder.close()
    steps = [spans for spans in kept.stretches if spans[0].unit == Stretch.STEP]
    assert [spans[0].outcome for spans in steps] == ["ok", "failed", "failed", "ok", "ok"]
    assert [span.stage for span in steps[3][1:]] == [
        *("forward", "loss", "backward", "before_update", "optimizer", "after")
    ]


def test_a_closure_belongs_to_its_update() -> None:
    """L-BFGS computes forward and backward within its step, several times."""
    kept = Kept()
    for _ in range(3):
        kept.recorder.update_begins()
        kept.learn()
        kept.learn()
        kept.recorder.update_ended()
    kept.recorder.close()
    assert [step.outcome for step in kept.wholes(Stretch.STEP)] == ["ok"] * 3


def test_batches_that_were_skipped_are_uneven() -> None:
    """A resume that throws batches away is not averaged with other steps."""
    kept = Kept()
    for _ in range(5):
        kept.fetch()
    kept.learn()
    kept.update()
    kept.step()
    kept.recorder.close()
    assert [step.release_reason for step in kept.wholes(Stretch.STEP)] == [Kind.UNEVEN, None]


def test_other_threads_are_left_out() -> None:
    """A loader that a background thread runs ahead is no wait of the training thread."""
    kept = Kept()
    kept.step()
    thread = threading.Thread(target=kept.fetch)
    thread.start()
    thread.join()
    kept.learn()
    kept.update()
    kept.recorder.close()
    assert sum(span.stage == Phase.WAIT for spans in kept.stretches for span in spans) == 1


def _in_thread(what: Callable[[], object]) -> None:
    """Do it in another thread, which has ended when this returns."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(what).result()


def test_a_thread_that_makes_no_update_does_not_hide_the_loop() -> None:
    """It computes gradients first, for the data say, and lives on: the loop counts from its first update on."""
    kept = Kept()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(kept.learn).result()
        for _ in range(3):
            kept.step()
            threads.submit(kept.learn).result()
        kept.recorder.close()
    steps = kept.wholes(Stretch.STEP)
    assert [(step.batch_size, step.release_reason) for step in steps] == [(4, None)] * 2
    phases = [span.stage for span in kept.stretches[-1][1:]]
    assert phases == ["wait", "prepare", "forward", "loss", "backward", "before_update", "optimizer", "after"]
    assert all(one[0].ended == other[0].started for one, other in itertools.pairwise(kept.stretches))


def test_a_thread_that_has_ended_does_not_hide_the_loop() -> None:
    """It trained to warm up, and the loop trains in another thread: both are recorded, one after the other."""
    kept = Kept()
    _in_thread(lambda: [kept.step() for _ in range(2)])
    blocker = ThreadPoolExecutor(
        1
    )  # takes the id of the thread that has ended, so that this one is not mistaken for it
    blocker.submit(int).result()
    kept.step()
    kept.step()
    kept.recorder.close()
    blocker.shutdown()
    assert len(kept.wholes(Stretch.STEP)) == 4
    assert all(one[0].ended == other[0].started for one, other in itertools.pairwise(kept.stretches))


def test_a_second_thread_that_makes_updates_is_said() -> None:
    """Its steps are left out, and what is left out is named."""
    kept = Kept()
    kept.step()
    _in_thread(kept.step)
    kept.step()
    kept.recorder.close()
    assert len(kept.wholes(Stretch.STEP)) == 2
    assert "two threads" in kept.recorder.not_measured["training in another thread"]


def test_an_update_that_a_thread_has_begun_is_not_that_of_another() -> None:
    """The thread whose update has not ended is not waited for."""
    kept = Kept()
    _in_thread(lambda: (kept.learn(), kept.recorder.update_begins()))
    for _ in range(3):
        kept.step()
    kept.recorder.close()
    assert len(kept.wholes(Stretch.STEP)) == 3


def test_a_step_that_an_exception_ended_is_marked() -> None:
    """Its whole span says failed, and what was measured of it is kept."""
    kept = Kept()
    kept.step()
    kept.fetch()
    kept.recorder.forward_begins(training=True)
    kept.recorder.close(failed=True)
    assert [step.outcome for step in kept.wholes(Stretch.STEP)] == ["ok", "failed"]


def test_a_step_whose_end_was_not_seen_is_cut() -> None:
    """Another thread ends the recording, as the end of a process does: what the loop did after the update is not known."""
    kept = Kept()
    kept.step()
    kept.step()
    thread = threading.Thread(target=kept.recorder.close)
    thread.start()
    thread.join()
    assert [step.release_reason for step in kept.wholes(Stretch.STEP)] == [None, Kind.CUT]


def test_batches_that_were_all_asked_for_first_are_one_step() -> None:
    """The Trainer of Hugging Face fetches what an update accumulates before its first forward pass: a plain step of as many."""
    kept = Kept()
    for _ in range(2):
        for _ in range(4):
            kept.fetch()
        for _ in range(4):
            kept.learn()
        kept.update()
    kept.recorder.close()
    steps = kept.wholes(Stretch.STEP)
    assert [(step.batch_size, step.release_reason) for step in steps] == [(16, None)] * 2
    last = [spans for spans in kept.stretches if spans[0].unit == Stretch.STEP][-1]
    assert [span.batch_id for span in last if span.stage == Phase.FORWARD] == [5, 6, 7, 8]


def test_a_first_forward_pass_counts_while_another_thread_loads() -> None:
    """Until one trains, the phase is that of the thread that asked the loader: a call of the model is no part of its wait."""
    kept = Kept()
    thread = threading.Thread(target=kept.recorder.batch_wanted)
    thread.start()
    thread.join()
    assert kept.recorder.takes_forward
    kept.learn()
    kept.update()
    kept.recorder.close()
    phases = [span.stage for span in kept.stretches[-1][1:]]
    assert phases[:3] == ["forward", "loss", "backward"]


def test_of_short_steps_one_in_four_has_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once enough were metered; the others have wall times without a gap."""
    monkeypatch.setattr(recorder_module, "SHORT_NS", 1 << 60)  # on a busy machine too
    kept = Kept()
    for _ in range(METERED_FIRST + 41):
        kept.step()
    steps = [spans for spans in kept.stretches if spans[0].unit == Stretch.STEP]
    is_metered = [all(span.cpu is not None for span in spans) for spans in steps]
    assert all(is_metered[:METERED_FIRST])
    assert sum(is_metered[METERED_FIRST:]) == 10
    for whole, *phases in steps:
        assert sum(one.ended - one.started for one in phases) == whole.ended - whole.started
    assert all(spans[0].ended == other[0].started for spans, other in itertools.pairwise(steps))


def test_long_steps_all_have_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is long pays for its clocks."""
    monkeypatch.setattr(recorder_module, "SHORT_NS", 0)
    kept = Kept()
    for _ in range(METERED_FIRST + 20):
        kept.step()
    assert all(span.cpu is not None for spans in kept.stretches for span in spans)


def test_the_last_batches_of_an_epoch_belong_to_the_step_that_learns_from_them() -> None:
    """Trainer asks for all batches of a step first; where the loader ends meanwhile, the step has those that came."""
    kept = Kept()
    for _ in range(2):
        for count in (4, 2):
            for _ in range(count):
                kept.fetch()
            if count < 4:
                kept.recorder.batch_wanted()
                kept.recorder.batches_ended()
            for _ in range(count):
                kept.learn()
            kept.update()
    kept.recorder.close()
    steps = [spans[0] for spans in kept.stretches if spans[0].unit == Stretch.STEP]
    assert [one.batch_size for one in steps] == [16, 8, 16, 8]


def test_batches_that_nobody_learns_from_are_no_step() -> None:
    """A pass through the data, for its mean: more batches than a step has."""
    kept = Kept()
    kept.step()
    for _ in range(5):
        kept.fetch()
    kept.recorder.batch_wanted()
    kept.recorder.batches_ended()
    kept.step()
    kept.recorder.close()
    steps = [spans[0] for spans in kept.stretches if spans[0].unit == Stretch.STEP]
    assert [one.batch_size for one in steps] == [4, 4]


def test_a_core_that_others_had_is_no_recording() -> None:
    """Of a mark in which this process waited for a core a millisecond counts; the others are taken for marks like it."""
    own = OwnTime()
    own.note_batch(20_000, 5_000)
    own.num_batches, own.num_marks = 1, 4
    assert own.describe() == {"thread_seconds": 40e-6, "wait_seconds": 20e-6}
    own.note_batch(10**9, 10**9)
    own.note_wait(10**9)
    assert own.describe()["wait_seconds"] == (20_000 + 2 * MOST_OWN_NS) / 2e9
