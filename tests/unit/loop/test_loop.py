"""What a loop does next, when it ends, how it goes on after it was killed, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import HeadraceError, Interrupted, SettingsError
from headrace.loop.folder import LoopFolder, plan_sha256, read_loop
from headrace.loop.goals import parse_goals
from headrace.loop.policy import Next, choose_next, choose_proof, find_least, list_kept
from headrace.loop.runner import Watched, run_loop
from headrace.runs.formats.loop import LoopAsked, LoopDocument, LoopStep
from headrace.runs.formats.profile import Estimate

PLAN = "[stages.work]\nworkers = 1\n"
ASKED = LoopAsked(pipeline="a:b", source="", goals=("throughput=30/s",), rate=30.0, plan_sha256=plan_sha256(PLAN))
WITH_GOLDEN = msgspec.structs.replace(ASKED, golden="held_out", data="train", model="net.onnx")


def step(kind: Any, outcome: Any = "done", before: str = "p1", after: str = "", **fields: Any) -> LoopStep:
    """Return a step; it leaves the Plan as it was unless `after` is given."""
    return LoopStep(
        number=1, kind=kind, command="", began_unix_seconds=0.0, seconds=1.0, outcome=outcome, plan_before=before,
        plan_after=after or before, **fields,
    )  # fmt: skip


def look(before: str = "p1", **fields: Any) -> list[LoopStep]:
    """Return a profile and its diagnosis, with a goal that is missed."""
    return [
        step("profile", before=before),
        step("diagnose", before=before, **{"verdict": "DECODE", "is_met": False, **fields}),
    ]


def choose(*steps: LoopStep, asked: LoopAsked = ASKED, left: float | None = None) -> tuple[str | None, str]:
    """Return the next step and the reason of an end."""
    chosen = choose_next(asked, steps, left)
    return chosen.kind, chosen.stop


def test_it_begins_by_looking() -> None:
    """profile, then diagnose, then tune: which costs no accuracy."""
    assert choose() == ("profile", "")
    assert choose(step("profile")) == ("diagnose", "")
    assert choose(*look(), asked=WITH_GOLDEN) == ("tune", "")


def test_what_was_found_is_looked_at_again() -> None:
    """A better Plan or variant is profiled: another thing limits now."""
    assert choose(*look(), step("tune", "better", after="p2")) == ("profile", "")
    tried = step("tune", "nothing better"), step("optimize", "better", after="p2")
    assert choose(*look(), *tried, asked=WITH_GOLDEN) == ("profile", "")


def test_a_plan_is_tuned_once_and_again_only_if_that_is_predicted_to_gain() -> None:
    """What is predicted to gain less than 3 % is not tried; what nobody predicted is."""
    first = [*look(), step("tune", "better", after="p2")]
    assert choose(*look(), step("tune", "nothing better")) == (None, "nothing left")
    assert choose(*first, *look("p2", plan_gain=1.02)) == (None, "nothing left")
    assert choose(*first, *look("p2", plan_gain=1.04)) == ("tune", "")
    assert choose(*first, *look("p2", plan_gain=None)) == ("tune", "")


def test_what_was_interrupted_is_done_again() -> None:
    """A search that Ctrl-C ended has not looked at everything."""
    assert choose(*look(), step("tune", "interrupted")) == ("tune", "")
    tried = step("tune", "nothing better"), step("optimize", "interrupted")
    assert choose(*look(), *tried, asked=WITH_GOLDEN) == ("optimize", "")


def test_the_model_is_optimized_only_with_a_golden_set_and_where_it_matters() -> None:
    """Once, when tuning found nothing more; not where a free model would gain nothing."""
    tuned = step("tune", "nothing better")
    assert choose(*look(), tuned, asked=WITH_GOLDEN) == ("optimize", "")
    assert choose(*look(model_gain=2.0), tuned, asked=WITH_GOLDEN) == ("optimize", "")
    assert choose(*look(model_gain=1.01), tuned, asked=WITH_GOLDEN) == (None, "nothing left")
    assert choose(*look(model_gain=2.0), tuned) == (None, "nothing left")
    tried = step("optimize", "nothing better")
    assert choose(*look(), tuned, tried, asked=WITH_GOLDEN) == (None, "nothing left")


def test_it_ends_when_the_goals_are_met() -> None:
    """Even if more could be gained."""
    assert choose(*look(is_met=True, plan_gain=3.0)) == (None, "goal met")


def test_it_ends_when_jobs_fail() -> None:
    """A Plan is not what helps them."""
    assert choose(*look(verdict="FAILURES")) == (None, "jobs fail")


def test_a_doubtful_run_is_profiled_once_more() -> None:
    """Then tuning decides, which measures by itself."""
    doubtful = look(verdict="UNTRUSTED")
    assert choose(*doubtful) == ("profile", "")
    assert choose(*doubtful, *doubtful) == ("tune", "")


def test_a_plan_that_decodes_otherwise_is_validated() -> None:
    """If answers changed it is taken back, and the next search leaves the scale alone."""
    better = step("tune", "better", after="p2", changes_answers=True)
    assert choose(*look(), better, asked=WITH_GOLDEN) == ("validate", "")
    agreed = step("validate", before="p2")
    assert choose(*look(), better, agreed, asked=WITH_GOLDEN) == ("profile", "")
    refused = step("validate", "refused", before="p2", after="p1")
    chosen = choose_next(WITH_GOLDEN, [*look(), better, refused], None)
    assert (chosen.kind, chosen.keep) == ("tune", ("decode.scale",))


@pytest.mark.parametrize(("golden", "kept"), [("", 1), ("held_out", 0), ("golden.npz", 1)])
def test_without_a_golden_folder_decoding_stays(golden: str, kept: int) -> None:
    """Arrays are decoded already, and cannot say what another decoding changes."""
    assert len(list_kept(msgspec.structs.replace(ASKED, golden=golden), [])) == kept


def test_the_budget_ends_it() -> None:
    """A step that cannot fit is not begun, nor one whose proof cannot; looking at a run is never too much."""
    assert choose(left=21.0) == (None, "budget")
    assert choose(left=22.0) == ("profile", "")
    assert choose(step("profile"), left=0.0) == ("diagnose", "")
    # A search: a profile of 1 s as before, 13 s of predicting, 20 blocks of 1 s; then a look, 1 s each, and 40 s of blocks.
    assert choose(*look(), left=75.0) == (None, "budget")
    assert choose(*look(), left=76.0) == ("tune", "")
    changed = step("tune", "better", before="p0", after="p1")
    assert choose(changed, left=61.0) == (None, "budget")
    assert choose(changed, left=62.0) == ("profile", "")
    assert "tune takes at least 34.0 s" in choose_next(ASKED, look(), 30.0).why


def test_a_search_leaves_time_for_its_proof() -> None:
    """What it finds is profiled, diagnosed and compared within the budget; without a budget it takes what it needs."""
    assert choose_next(ASKED, look(), 300.0).seconds == 300.0 - 1.0 - 1.0 - 40.0
    assert choose_next(ASKED, look(), None).seconds is None


def test_a_search_that_may_change_answers_leaves_time_to_look_at_them() -> None:
    """With a golden folder it may decode otherwise, which is validated."""
    assert choose_next(WITH_GOLDEN, look(), 300.0).seconds == 300.0 - 30.0 - 1.0 - 1.0 - 40.0
    assert choose_next(msgspec.structs.replace(WITH_GOLDEN, golden="golden.npz"), look(), 300.0).seconds == 258.0


def test_steps_are_expected_to_take_what_their_blocks_take() -> None:
    """Blocks of 3 s, by what was asked or by what a profile saw, and those of a base that is much slower than what it gains."""
    asked = msgspec.structs.replace(ASKED, block_seconds=3.0)
    seen = [step("profile", block_seconds=3.0), *look()[1:]]
    for steps, of in ((look(), asked), (seen, ASKED)):
        assert find_least(of, "tune", steps) == 1.0 + 13.0 + 20 * 3.0
        assert find_least(of, "compare", steps) == 20 * 3.0
    assert choose(*seen, left=135.0) == (None, "budget")
    assert choose(*seen, left=136.0) == ("tune", "")
    # Six times as fast: a block of the slower side lasts four times as long.
    assert find_least(ASKED, "tune", look(plan_gain=6.0)) == 1.0 + 13.0 + 8 * 5 + 4
    assert choose_next(ASKED, look(plan_gain=6.0), 300.0).seconds == 300.0 - 1.0 - 1.0 - 60.0
    faster = [*look(), step("tune", "better", after="p2", ratio=Estimate(5.0, 6.0, 7.0))]
    assert find_least(ASKED, "compare", faster) == 8 * 5 + 4
    assert choose_proof(ASKED, faster, 43.0).kind is None
    assert choose_proof(ASKED, faster, 44.0).kind == "compare"


def test_a_search_for_a_variant_leaves_time_for_its_own_comparison() -> None:
    """Half of what it usually takes, and 40 s in which the pipeline is measured with what it found."""
    assert find_least(WITH_GOLDEN, "optimize", look()) == 150.0 + 40.0


def test_what_ran_out_of_time_is_done_again() -> None:
    """With more time the same loop goes on with that step."""
    assert choose(step("profile", "out of time")) == ("profile", "")
    assert choose(*look(), step("tune", "out of time")) == ("tune", "")


# --- goals


def test_goals_are_read() -> None:
    """A rate, a latency, and a cost that becomes a rate by the price."""
    goals = parse_goals(["throughput=30/s", "p99=80ms"], None)
    assert (goals.rate, goals.slo and goals.slo.seconds, goals.slo_text) == (30.0, 0.08, "p99=80ms")
    assert parse_goals(["cost=2/M"], 0.72).rate == pytest.approx(100.0)
    assert parse_goals([], None).rate is None


@pytest.mark.parametrize(
    ("texts", "price"),
    [
        (["fast"], None), (["throughput="], None), (["throughput=0/s"], None), (["p101=1s"], None), (["cost=2/M"], None),
        (["cost=0/M"], 1.0), (["cost=2"], 1.0), (["cost=2/M"], 0.0), (["throughput=1/s", "cost=2/M"], 1.0),
        (["p50=1s", "p99=2s"], None),
    ],
)  # fmt: skip
def test_what_is_no_goal_is_refused(texts: list[str], price: float | None) -> None:
    """With what is expected."""
    with pytest.raises(SettingsError, match="--goal"):
        parse_goals(texts, price)


@pytest.mark.parametrize(
    ("text", "expected"), [("nonsense=3", "throughput=30/s"), ("p99=fast", "p99=200ms"), ("throughput=fast", "/s")]
)
def test_one_expectation_is_said(text: str, expected: str) -> None:
    """Of the kind of goal that was typed; of all where it is none of them."""
    with pytest.raises(SettingsError) as refused:
        parse_goals([text], None)
    assert expected in str(refused.value)
    assert str(refused.value).count("expected") == 1


# --- the folder and the runner


class Steps:
    """Takes steps as a script says, and notes which.

    Args:
        folder: Of the loop.
        script: {kind: fields of each step of this kind, in order}; "plan" becomes the Plan; an exception is raised.
    """

    def __init__(self, folder: LoopFolder, script: dict[str, list[Any]]) -> None:
        self._folder = folder
        self._script = script
        self.taken: list[str] = []

    def __call__(self, chosen: Next, document: LoopDocument) -> LoopStep:
        """Take one."""
        assert chosen.kind
        self.taken.append(chosen.kind)
        fields = self._script.get(chosen.kind, [{}])
        one = fields.pop(0) if len(fields) > 1 else fields[0]
        if isinstance(one, BaseException):
            raise one
        if "plan" in one:
            self._folder.plan.write_text(one["plan"])
        return step(chosen.kind, **{key: value for key, value in one.items() if key != "plan"})


MISSED, MET = (
    {"verdict": "DECODE", "is_met": is_met, "throughput": rate} for is_met, rate in ((False, 10.0), (True, 40.0))
)
FOUND = {"outcome": "better", "plan": "[stages.work]\nworkers = 4\n"}


def begin(tmp_path: Path) -> tuple[LoopFolder, LoopDocument]:
    """Return a new loop."""
    folder = LoopFolder(tmp_path / "loop")
    return folder, folder.begin(ASKED, PLAN, budget_seconds=None, ledger="ledger.sqlite")


def run(
    folder: LoopFolder, document: LoopDocument, script: dict[str, list[Any]], seconds: int = 1
) -> tuple[LoopDocument, list[str]]:
    """Run the loop by a script, each step in so many seconds; return it and the steps that were taken."""
    steps, clock = Steps(folder, script), iter(range(0, 10_000, seconds))
    return run_loop(
        folder, document, steps, Watched(say=lambda line: None, now=lambda: float(next(clock)))
    ), steps.taken


def test_the_whole_way_to_the_goal(tmp_path: Path) -> None:
    """Look, tune, look again, and prove the end against the beginning; all of it is in the file."""
    proof = {"ratio": Estimate(3.8, 4.0, 4.2)}
    ended, taken = run(*begin(tmp_path), {"diagnose": [MISSED, MET], "tune": [FOUND], "compare": [proof]})
    assert taken == ["profile", "diagnose", "tune", "profile", "diagnose", "compare"]
    assert (ended.stopped, ended.is_met, ended.throughput_before, ended.throughput_after) == (
        "goal met",
        True,
        10.0,
        40.0,
    )
    assert ended.ratio == proof["ratio"]
    assert ended.changed == ("work.workers=4",)
    assert ended.plan_file
    assert read_loop(tmp_path / "loop" / "loop.json") == ended


def test_what_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    """Each step takes 12 s here: after a look there is no time for a search, and that is said; nothing ran for longer."""
    folder, document = begin(tmp_path)
    document = msgspec.structs.replace(document, budget_seconds=40.0)
    ended, taken = run(folder, document, {"diagnose": [MISSED], "tune": [FOUND]}, seconds=12)
    assert taken == ["profile", "diagnose"]
    assert (ended.stopped, ended.is_met, sum(one.seconds for one in ended.steps)) == ("budget", False, 24.0)
    assert "tune takes at least 45.0 s" in ended.says[0]  # a profile of 12 s, 13 s, and 20 blocks of a second


def test_without_time_for_it_the_last_comparison_is_not_begun(tmp_path: Path) -> None:
    """A search that took longer than it was given leaves none; the Plan that it proved is kept."""
    folder, document = begin(tmp_path)
    document = msgspec.structs.replace(document, budget_seconds=240.0)
    ended, taken = run(folder, document, {"diagnose": [MISSED], "tune": [FOUND]}, seconds=75)
    assert (taken, ended.stopped, bool(ended.plan_file)) == (["profile", "diagnose"], "budget", False)
    document = msgspec.structs.replace(ended, budget_seconds=460.0, stopped="")
    ended, taken = run(folder, document, {"tune": [FOUND]}, seconds=300)
    assert (taken, ended.stopped, bool(ended.plan_file)) == (["tune"], "budget", True)
    assert "was not compared with the first" in ended.says[0]


def test_a_step_that_sees_that_it_cannot_end_in_time_ends_the_loop(tmp_path: Path) -> None:
    """As it says itself; the loop goes on with it when it gets more time."""
    late = {"outcome": "out of time", "says": ("measuring takes about 2.0 min",)}
    folder, document = begin(tmp_path)
    ended, taken = run(folder, document, {"diagnose": [MISSED], "tune": [late]})
    assert (taken, ended.stopped) == (["profile", "diagnose", "tune"], "budget")
    assert ended.says[0].startswith("measuring takes about 2.0 min; 3 steps")
    known = folder.resume(ASKED, budget_seconds=None)
    assert known is not None
    assert run(folder, known, {"diagnose": [MET], "tune": [FOUND]})[1] == ["tune", "profile", "diagnose", "compare"]


def test_a_plan_whose_answers_nobody_compared_is_named(tmp_path: Path) -> None:
    """Ctrl-C came before that; it stays in the file, since the loop may go on."""
    folder, document = begin(tmp_path)
    script: dict[str, list[Any]] = {
        "diagnose": [MISSED],
        "tune": [{**FOUND, "changes_answers": True}],
        "validate": [KeyboardInterrupt()],
    }
    ended, _ = run(folder, document, script)
    assert (ended.stopped, bool(ended.plan_file)) == ("interrupted", True)
    assert "its answers were not compared with those before" in ended.says[0]


def test_nothing_better_changes_nothing(tmp_path: Path) -> None:
    """There is no Plan to use, nothing to compare, and the goal is missed."""
    ended, taken = run(*begin(tmp_path), {"diagnose": [MISSED], "tune": [{"outcome": "nothing better"}]})
    assert taken == ["profile", "diagnose", "tune"]
    assert (ended.stopped, ended.is_met, ended.plan_file, ended.changed) == ("nothing left", False, "", ())


def test_a_killed_loop_goes_on_with_its_step(tmp_path: Path) -> None:
    """Steps that ended are not taken again; the one at work is."""
    folder, document = begin(tmp_path)
    killed = RuntimeError("SIGKILL")  # nothing of the runner's gets to run
    with pytest.raises(RuntimeError):
        run(folder, document, {"diagnose": [MISSED], "tune": [killed]})
    known = folder.resume(ASKED, budget_seconds=200.0)
    assert known is not None
    assert [one.kind for one in known.steps] == ["profile", "diagnose"]
    ended, taken = run(folder, known, {"diagnose": [MET], "tune": [FOUND]})
    assert taken == ["tune", "profile", "diagnose", "compare"]
    assert ended.stopped == "goal met"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("stopped"), HeadraceError("no room")])
def test_what_was_found_is_kept_when_it_is_interrupted_or_fails(error: BaseException, tmp_path: Path) -> None:
    """The better Plan stands, and the loop may go on later."""
    folder, document = begin(tmp_path)
    ended, taken = run(folder, document, {"diagnose": [MISSED], "tune": [FOUND], "profile": [{}, error]})
    assert taken == ["profile", "diagnose", "tune", "profile"]
    assert ended.stopped == ("failed" if "room" in str(error) else "interrupted")
    assert ended.plan_file
    assert ended.is_met is None
    assert folder.resume(ASKED, budget_seconds=None) is not None


def test_a_first_step_that_fails_is_an_error(tmp_path: Path) -> None:
    """Nothing was measured: a pipeline that cannot run is no loop."""
    with pytest.raises(SettingsError, match="cannot be read"):
        run(*begin(tmp_path), {"profile": [SettingsError("the source cannot be read")]})


def test_another_question_is_refused(tmp_path: Path) -> None:
    """And so is a loop that has ended, a Plan that somebody changed, and a folder of somebody else."""
    folder, document = begin(tmp_path)
    with pytest.raises(SettingsError, match="asked otherwise"):
        folder.resume(msgspec.structs.replace(ASKED, goals=(), rate=None), budget_seconds=None)
    with pytest.raises(SettingsError, match=r"\(plan\)"):
        folder.resume(msgspec.structs.replace(ASKED, plan_sha256="0"), budget_seconds=None)
    folder.plan.write_text("# mine\n")
    with pytest.raises(SettingsError, match="was changed"):
        folder.resume(ASKED, budget_seconds=None)
    folder.plan.write_text(PLAN)
    folder.save(msgspec.structs.replace(document, stopped="goal met"))
    with pytest.raises(SettingsError, match="has ended"):
        folder.resume(ASKED, budget_seconds=None)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").write_text("")
    with pytest.raises(SettingsError, match="holds no loop"):
        LoopFolder(tmp_path / "theirs").resume(ASKED, budget_seconds=None)


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"schema": 3}', "\x00"])
def test_a_damaged_loop_is_an_error_in_words(text: str, tmp_path: Path) -> None:
    """Never a traceback."""
    folder, _ = begin(tmp_path)
    (folder.path / "loop.json").write_text(text)
    with pytest.raises(SettingsError, match=r"loop\.json is no loop"):
        folder.resume(ASKED, budget_seconds=None)
