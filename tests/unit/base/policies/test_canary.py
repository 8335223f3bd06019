"""What becomes of a canary."""

from __future__ import annotations

import msgspec
import pytest

from headrace.base.errors import SettingsError
from headrace.base.policies.canary import CanaryPolicy, Decision, Seen, judge
from headrace.base.policies.canary_watch import CanaryWatch
from headrace.base.policies.evidence import Counts

POLICY = CanaryPolicy()
SHADOW, HUNDREDTH, TENTH, HALF = range(4)
#: Twins that answered alike and took as long.
ALIKE = {"num_pairs": 100, "num_slower": 5, "num_compared": 2000, "num_changed": 1}


def good(share: float, num: int, **more: float) -> Seen:
    """Return what was seen of a canary that is all right, after so many jobs of both arms."""
    counts = Counts(stable=num * (1 - share), canary=num * share)
    return Seen(jobs={share: counts}, **{**ALIKE, **more})  # type: ignore[arg-type]


def verdicts(decision: Decision) -> dict[str, str]:
    """Return {metric: verdict}."""
    return {found.metric: found.verdict for found in decision.findings}


def test_an_honest_canary_goes_the_whole_way() -> None:
    """Shadow, 1 %, 10 %, 50 %, and then all."""
    assert judge(POLICY, Seen(**ALIKE), SHADOW, 60.0).action == "step"  # type: ignore[arg-type]
    assert judge(POLICY, good(0.01, 40_000), HUNDREDTH, 600.0).action == "step"
    assert judge(POLICY, good(0.1, 10_000), TENTH, 600.0).action == "step"
    assert judge(POLICY, good(0.5, 10_000), HALF, 600.0).action == "promote"


def test_no_data_is_a_verdict() -> None:
    """Nothing was seen: it is neither promoted nor rolled back, and the decision says what is missing."""
    decision = judge(POLICY, Seen(), TENTH, 3600.0)
    assert decision.action == "hold"
    assert verdicts(decision) == {"answers": "no data", "failures": "no data", "latency": "no data"}
    assert "no job fell to the canary yet" in decision.reason


def test_jobs_without_the_canary_are_no_data() -> None:
    """However well the other arm does."""
    seen = Seen(jobs={0.01: Counts(stable=50)}, **ALIKE)  # type: ignore[arg-type]
    assert verdicts(judge(POLICY, seen, HUNDREDTH, 60.0))["failures"] == "no data"


def test_a_canary_is_held_until_it_is_known_to_be_no_worse() -> None:
    """And it says when that will be."""
    decision = judge(POLICY, good(0.1, 2000), TENTH, 100.0)
    assert decision.action == "hold"
    found = next(one for one in decision.findings if one.metric == "failures")
    assert found.known_in_seconds == pytest.approx(200, abs=120)
    assert "more would tell" in found.says


def test_larger_shares_need_closer_evidence() -> None:
    """What suffices for 10 % does not for all: the harm to all jobs is what is bounded."""
    assert judge(POLICY, good(0.01, 15_000), HUNDREDTH, 60.0).action == "step"
    assert judge(POLICY, good(0.5, 1000), HALF, 60.0).action == "hold"


@pytest.mark.parametrize(
    ("metric", "more"),
    [
        ("failures", {"jobs": {0.1: Counts(stable=9000, canary=1000, bad_stable=90, bad_canary=50)}}),
        ("answers", {"num_changed": 200}),
        ("latency", {"num_slower": 90}),
        ("feedback", {"feedback": {0.1: Counts(stable=900, canary=100, bad_stable=9, bad_canary=30)}}),
    ],
)
def test_worse_in_one_metric_rolls_it_back(metric: str, more: dict[str, object]) -> None:
    """Whatever the others say, and the reason begins with the metric."""
    seen = msgspec.structs.replace(good(0.1, 10_000), **more)
    decision = judge(POLICY, seen, TENTH, 600.0)
    assert decision.action == "roll back"
    assert decision.reason.startswith(f"{metric}: ")
    assert verdicts(decision)[metric] == "worse"


def test_a_wrong_split_comes_before_all_other_figures() -> None:
    """A third of the jobs instead of a tenth: whatever fails, nothing can be believed."""
    seen = good(0.1, 1000)
    seen.drawn[0.1] = Counts(stable=667, canary=333)
    decision = judge(POLICY, seen, TENTH, 60.0)
    assert decision.action == "roll back"
    assert decision.reason.startswith("split: 33.30% of 1,000 jobs fell to the canary instead of 10.00%")


def test_what_several_workers_saw_adds_up() -> None:
    """Two workers that saw half each know as much as one that saw all."""
    half, whole = good(0.1, 5000, num_pairs=50, num_slower=2.5, num_compared=1000, num_changed=0.5), good(0.1, 10_000)
    both = half.plus(half)
    assert both == whole
    assert judge(POLICY, both, TENTH, 60.0) == judge(POLICY, whole, TENTH, 60.0)


def test_a_shadow_is_judged_by_its_answers_alone() -> None:
    """It serves nobody, and it gives way to others, so that its times say little."""
    assert set(verdicts(judge(POLICY, Seen(**ALIKE), SHADOW, 60.0))) == {"answers"}  # type: ignore[arg-type]
    changed = Seen(num_compared=100, num_changed=60)
    assert judge(POLICY, changed, SHADOW, 60.0).action == "roll back"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"alpha": 0.7}, "alpha = 0.7"),
        ({"shares": (0.1, 0.05, 1.0)}, "shares that grow"),
        ({"shares": (0.1, 0.5)}, "the last of them 1"),
        ({"max_disagreement": 0.5}, "at most 0.1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], says: str) -> None:
    """With the value and what is allowed."""
    with pytest.raises(SettingsError, match=says):
        CanaryPolicy(**settings)  # type: ignore[arg-type]


# --- What one worker sees


def test_a_job_that_fails_again_counts_once() -> None:
    """A poisonous job of the canary is one failure, however often it comes."""
    watch = CanaryWatch()
    for _ in range(100):
        watch.note_failed(0.1, "poison", canary=True, why="it is")
    assert watch.seen().jobs[0.1] == Counts(canary=1, bad_canary=1)
    assert not watch.has_tripped


def test_a_row_of_failures_trips() -> None:
    """Five at 1 %, with the reason of the last."""
    watch = CanaryWatch()
    watch.note_good(0.01, canary=False, num=500)
    for number in range(5):
        watch.note_failed(0.01, str(number), canary=True, why="process: no such layer")
    assert watch.has_tripped
    decision = judge(POLICY, watch.seen(), HUNDREDTH, 1.0)
    assert decision.action == "roll back"
    assert "5 jobs of the canary failed in a row" in decision.reason
    assert "no such layer" in decision.reason


def test_a_broken_answer_trips_unless_the_other_arm_has_them_too() -> None:
    """One NaN is enough; a model that has always answered with some is no worse for it."""
    watch = CanaryWatch()
    watch.note_broken(canary=True)
    assert judge(POLICY, watch.seen(), TENTH, 1.0).reason.startswith("broken: the canary answered with a NaN")
    usual = CanaryWatch()
    usual.note_broken(canary=False)
    usual.note_broken(canary=True)
    assert not usual.has_tripped


def test_feedback_counts_by_arm() -> None:
    """Good and bad, apart from the jobs themselves."""
    watch = CanaryWatch()
    for canary, bad in ((True, True), (True, False), (False, False)):
        watch.note_feedback(0.1, canary=canary, bad=bad)
    assert watch.seen().feedback == {0.1: Counts(stable=1, canary=2, bad_canary=1)}
