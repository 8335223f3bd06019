"""The search: what is tried, what is asked, what is kept, and what it ends with."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from headrace.base.errors import EngineError, SettingsError
from headrace.cli.optimization_text import as_text
from headrace.engines.onnx_engine import OnnxModel
from headrace.ledger.ledger import Ledger
from headrace.optimize.alpha_budget import AlphaBudget
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.catalogue import Methods
from headrace.optimize.conditions import Conditions
from headrace.optimize.goal import Goal
from headrace.optimize.golden_test import GoldenTest, verdict_of
from headrace.optimize.search import optimize
from headrace.optimize.techniques import LADDER
from headrace.runs.formats.optimization import Attempt, OptimizationDocument
from headrace.runs.formats.variants import Gate
from headrace.validate import measuring
from headrace.validate.answer_cache import AnswerCache
from headrace.validate.golden import Golden, read_golden
from headrace.validate.variants import PARITY_ITEMS, validate_variants

pytestmark = pytest.mark.usefixtures("speeds")


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    """An empty ledger."""
    with Ledger(tmp_path / "ledger.sqlite") as made:
        yield made


def searched(case: Any, ledger: Ledger | None, tmp_path: Path, **changes: Any) -> OptimizationDocument:
    """Search with a goal that 600 items can prove."""
    arguments: dict[str, Any] = {"calibration": case.calibration, "golden": case.golden, **changes}
    goal = arguments.pop("goal", Goal(max_drop=0.02, batch=8))
    memory = ledger.attempts if ledger else None
    return optimize(case.model, store=ArtifactStore(tmp_path / "artifacts"), goal=goal, memory=memory, **arguments)


def attempt(document: OptimizationDocument, technique: str, engine: str) -> Attempt:
    """Return one attempt."""
    return next(one for one in document.attempts if (one.technique, one.settings["engine"]) == (technique, engine))


def test_the_fastest_that_is_still_right_is_recommended(case: Any, ledger: Ledger, tmp_path: Path) -> None:
    """int8 on OpenVINO, accepted by the golden set; the slower engine was never asked there."""
    document = searched(case, ledger, tmp_path)
    chosen = attempt(document, "int8", "openvino")
    assert document.recommended == chosen.candidate
    assert (chosen.verdict, chosen.gate) == ("accept", None)
    assert [gate.name for gate in chosen.validation.gates] == [
        "static",
        "census",
        "parity",
        "batches",
        "extremes",
        "speed",
        "accuracy",
    ]
    assert chosen.drop is not None
    assert chosen.drop.high <= 0.02 + 1e-9
    slow = attempt(document, "openvino", "openvino")
    assert (slow.verdict, slow.gate, slow.drop) == ("reject", "speed", None)
    assert not document.interrupted
    assert document.front[0] == chosen.candidate


def test_int8_that_is_wrong_is_repaired(twin: Any, ledger: Ledger, tmp_path: Path) -> None:
    """Rejected for its answers, by a named gate; equalized it is accepted, and nothing is put back to float32."""
    document = searched(twin, ledger, tmp_path)
    broken = attempt(document, "int8", "onnx")
    assert broken.verdict == "reject"
    assert broken.gate in ("parity", "accuracy")
    mended = attempt(document, "int8-equalized", "openvino")
    assert document.recommended == mended.candidate
    assert mended.artifact.technique == "int8-equalized"
    assert mended.artifact.data_sha256 == twin.calibration.sha256
    assert "int8-reverted" not in {one.technique for one in document.attempts}


def test_the_same_is_not_tried_twice(case: Any, ledger: Ledger, tmp_path: Path) -> None:
    """A second search answers from the ledger; another margin is another question."""
    first = searched(case, ledger, tmp_path)
    again = searched(case, ledger, tmp_path)
    assert all(one.is_recalled for one in again.attempts)
    assert again.recommended == first.recommended
    assert len(ledger.attempts.attempts()) == len(first.attempts)
    other = searched(case, ledger, tmp_path, goal=Goal(max_drop=0.03, batch=8))
    assert not any(one.is_recalled for one in other.attempts)


def test_one_variant_is_one_attempt(case: Any, ledger: Ledger, tmp_path: Path) -> None:
    """Also where two techniques come to the same: the second recalls what was written down of the first."""
    document = searched(case, ledger, tmp_path, goal=Goal(max_drop=0.02, batch=8, also=(case.model,)))
    candidates = [one.candidate for one in document.attempts]
    assert len(candidates) == len(set(candidates))
    assert any(one.is_recalled for one in document.attempts)


@pytest.mark.full
def test_a_repair_is_recalled_too(twin: Any, ledger: Ledger, tmp_path: Path) -> None:
    """The second search ends with the same variant, and what its files are called today."""
    first = searched(twin, ledger, tmp_path)
    again = searched(twin, ledger, tmp_path)
    assert again.recommended == first.recommended
    assert "int8-equalized" in {one.technique for one in again.attempts if one.is_recalled}


@pytest.mark.full
def test_another_objective_is_another_question(case: Any, ledger: Ledger, tmp_path: Path) -> None:
    """What was found for speed is asked anew for size, for which a file that is no smaller is no gain."""
    searched(case, ledger, tmp_path)
    document = searched(case, ledger, tmp_path, goal=Goal(max_drop=0.02, batch=8, objective="size"))
    assert not any(one.is_recalled for one in document.attempts)
    assert all(one.artifact.num_bytes >= document.model.num_bytes for one in document.attempts)  # so small a network
    assert document.recommended is None


def test_what_the_model_does_not_take_is_said_before(case: Any, tmp_path: Path) -> None:
    """A set of another shape is misuse, not a result; so is a file that is no model."""
    np.savez(tmp_path / "wide.npz", inputs=np.zeros((40, 3, 5), np.float32))
    with pytest.raises(SettingsError, match="does not take the items"):
        searched(case, None, tmp_path, calibration=read_golden(tmp_path / "wide.npz"))
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(EngineError):
        optimize(tmp_path / "text.onnx", store=ArtifactStore(tmp_path / "artifacts"), goal=Goal())


def test_without_a_golden_set_nothing_is_recommended(case: Any, tmp_path: Path) -> None:
    """Nobody knows what is still right."""
    document = searched(case, None, tmp_path, golden=None)
    assert document.recommended is None
    assert "--golden" in document.says
    assert "accept" not in {one.verdict for one in document.attempts}


def test_without_calibration_data_int8_is_not_tried(case: Any, tmp_path: Path) -> None:
    """It says what is missing."""
    document = searched(case, None, tmp_path, calibration=None)
    assert "int8" not in {one.technique for one in document.attempts}
    assert "--data" in next(skipped.why for skipped in document.skipped if skipped.technique == "int8")


def test_calibration_and_golden_sets_share_no_item(case: Any, tmp_path: Path) -> None:
    """What a model was made from cannot judge it."""
    both = np.concatenate([case.calibration.inputs, case.inputs[:3]])
    np.savez(tmp_path / "both.npz", inputs=both)
    with pytest.raises(SettingsError, match=r"3 items of --data .* are in --golden"):
        searched(case, None, tmp_path, calibration=read_golden(tmp_path / "both.npz"))


def test_where_candidates_were_compared_is_said(case: Any, tmp_path: Path) -> None:
    """On the golden set itself, where there is nothing else; with calibration data there is nothing to say."""
    at_once = Goal(max_drop=0.02, batch=8, budget_seconds=1e-9)
    assert any(
        "without --data" in one for one in searched(case, None, tmp_path, goal=at_once, calibration=None).warnings
    )
    assert not any("without --data" in one for one in searched(case, None, tmp_path, goal=at_once).warnings)


def test_sets_of_one_camera_are_refused(case: Any, tmp_path: Path) -> None:
    """Before anything is tried: other frames are no other scene."""
    sets = {
        name: replace(one, sources=np.array(["cam1"] * len(one)))
        for name, one in (("calibration", case.calibration), ("golden", case.golden))
    }
    with pytest.raises(SettingsError, match=r"--data .* and --golden .* share 1 source \(cam1\)"):
        searched(case, None, tmp_path, **sets)


def test_what_is_not_faster_is_not_chosen(case: Any, tmp_path: Path, speeds: dict[tuple[str, bool], float]) -> None:
    """Then the model stays as it is, and the golden set is not asked."""
    speeds.update(dict.fromkeys(speeds, 0.6))
    document = searched(case, None, tmp_path)
    assert document.recommended is None
    assert "keep the model as it is" in document.says
    assert document.front == ("baseline",)
    assert all(one.drop is None for one in document.attempts)


@pytest.mark.full
def test_an_interrupted_search_keeps_what_it_knows(case: Any, ledger: Ledger, tmp_path: Path) -> None:
    """And goes on from there the next time."""
    confirmed: list[str] = []

    def interrupted(a: Any, b: Any, *rest: Any, **named: Any) -> Any:
        confirmed.append(b.text)
        if len(confirmed) == 2:
            raise KeyboardInterrupt
        return validate_variants(a, b, *rest, **named)

    document = searched(case, ledger, tmp_path, methods=Methods(evaluate=interrupted))
    assert document.interrupted
    assert document.says.startswith("interrupted")
    kept = {one.candidate for one in ledger.attempts.attempts()}
    assert confirmed[0] in kept
    assert confirmed[1] not in kept
    again = searched(case, ledger, tmp_path)
    assert kept == {one.candidate for one in again.attempts if one.is_recalled}
    assert again.recommended == confirmed[0]
    assert not again.interrupted


def test_the_model_as_given_answers_the_golden_set_once(
    case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are held against it, of which this search asks about two at least."""
    asked: list[int] = []
    call = OnnxModel.__call__

    def counted(model: OnnxModel, batch: np.ndarray) -> Any:
        if "int8" not in model.variant["artifact"]:
            asked.append(len(batch))
        return call(model, batch)

    monkeypatch.setattr(OnnxModel, "__call__", counted)
    document = searched(case, None, tmp_path)
    assert sum(one.drop is not None for one in document.attempts) >= 2
    whole = len(case.golden)
    assert whole + PARITY_ITEMS <= sum(asked) < 2 * whole  # and batches that show whether it runs at all


def test_artifacts_are_kept_by_their_content(case: Any, tmp_path: Path) -> None:
    """The same file twice is one; a record tells where it came from."""
    store = ArtifactStore(tmp_path / "artifacts")
    first, second = store.add(case.model), store.add(case.model, technique="other")
    assert first == second
    assert Path(first.file).read_bytes() == case.model.read_bytes()
    changed = tmp_path / "changed.onnx"
    changed.write_bytes(case.model.read_bytes() + b"\x00\x00")
    third = store.add(changed, parent=first, technique="none", parameters={"a": 1})
    assert (third.parent, third.parameters) == (first.sha256, {"a": 1})
    assert len(list((tmp_path / "artifacts").iterdir())) == 2


def test_a_budget_ends_the_search(case: Any, tmp_path: Path) -> None:
    """No new candidate is begun after it, and it is said which were not."""
    document = searched(case, None, tmp_path, goal=Goal(max_drop=0.02, batch=8, budget_seconds=1e-6))
    assert document.attempts == ()
    assert all("budget" in skipped.why for skipped in document.skipped)


def test_a_budget_is_shared_between_trying_and_the_golden_set(case: Any, tmp_path: Path) -> None:
    """Where timing the candidates alone would take all of it, what was timed in the first half is judged."""
    seconds = [0.0]
    timed = measuring.current().measure_speed

    def slowly(*args: Any, **options: Any) -> Any:
        seconds[0] += 20.0
        return timed(*args, **options)

    goal = Goal(max_drop=0.02, batch=8, budget_seconds=70.0, began=0.0, now=lambda: seconds[0])
    with measuring.using(measure_speed=slowly):
        document = searched(case, None, tmp_path, goal=goal)
    judged = [one for one in document.attempts if one.drop is not None]
    assert judged
    assert len({one.candidate for one in judged}) == len(judged)
    assert seconds[0] > 70.0 / 2


@pytest.mark.parametrize(("spent", "is_time"), [(19.0, False), (31.0, True), (61.0, False)])
def test_half_of_what_was_left_is_for_trying(spent: float, is_time: bool) -> None:
    """Of 100 seconds 40 were gone when trying began; with none left, or no budget, there is nothing to share."""
    goal = Goal(budget_seconds=100.0, began=0.0, now=lambda: 40.0 + spent)
    assert goal.is_time_to_test(40.0) == is_time
    assert not replace(goal, budget_seconds=None).is_time_to_test(40.0)


@pytest.mark.parametrize(("again", "command"), [(False, "the same command,"), (True, "without --again,")])
def test_what_goes_on_after_a_budget_is_told(
    case: Any, ledger: Ledger, tmp_path: Path, again: bool, command: str
) -> None:
    """With --again the same command would begin anew each time, and never come to its end."""
    searched(case, ledger, tmp_path, goal=Goal(max_drop=0.02, batch=8, budget_seconds=1e-6, again=again))
    told = {one.would_change for one in ledger.events.events("skip") if "budget" in one.says}
    assert told
    assert all(f"{command} which goes on" in one for one in told)


def test_a_budget_counts_from_the_start_of_the_command(case: Any, tmp_path: Path) -> None:
    """What was done before the search, such as reading sets and converting a network, took of it too."""
    goal = Goal(max_drop=0.02, batch=8, budget_seconds=60.0, began=time.monotonic() - 61.0)
    assert searched(case, None, tmp_path, goal=goal).attempts == ()


def test_a_limit_for_parts_is_checked() -> None:
    """Before anything is tried, by the option's name."""
    with pytest.raises(SettingsError, match="--max-slice-drop"):
        Goal(max_slice_drop=1.5)


def test_why_the_golden_set_is_asked_no_more_is_said() -> None:
    """That so many were asked is one reason, and that the time is over another."""
    nothing: Any = None
    candidate: Any = SimpleNamespace(candidate="one more")

    def why_not(goal: Goal, budget: AlphaBudget) -> str | None:
        conditions = Conditions(subject=nothing, goal=goal)
        test = GoldenTest(conditions=conditions, log=nothing, kept=AnswerCache(), evaluate=validate_variants)
        return test.why_not(candidate, budget)

    assert why_not(Goal(), AlphaBudget(0.05, 8, set("abcdefgh"))) == "8 candidates were asked already"
    late = Goal(budget_seconds=1.0, began=time.monotonic() - 2)
    assert why_not(late, AlphaBudget(0.05, 8)) == "the budget of 1.00 s is used up"


def test_a_question_that_cannot_be_asked_is_refused_before_the_search(tmp_path: Path) -> None:
    """What was asked for and is not known leaves the verdict open, as in `validate`: nothing could be accepted."""
    passed, unknown = (
        Gate(name="accuracy", outcome="passed", says=""),
        Gate(name="robustness", outcome="skipped", says=""),
    )
    assert verdict_of([passed, unknown]) == ("inconclusive", "robustness")
    flat = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "flat",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
    )  # fmt: skip
    onnx.save(
        helper.make_model(flat, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "flat.onnx"
    )
    golden = Golden(name="rows", inputs=np.ones((40, 3), np.float32), labels=np.zeros(40, np.int64), sha256="")
    with pytest.raises(
        SettingsError, match=r"--robustness cannot be asked: not known: float32\[40, 3\] are no pictures"
    ):
        optimize(
            tmp_path / "flat.onnx",
            store=ArtifactStore(tmp_path / "artifacts"),
            goal=Goal(robustness=True),
            golden=golden,
        )


def test_nets_have_all_classes(case: Any, nets: ModuleType) -> None:
    """Else the golden set would tell little."""
    assert len(set(case.golden.labels.tolist())) >= 3


def test_what_was_not_tried_is_kept_with_its_reason(case: Any, ledger: Ledger, tmp_path: Path) -> None:
    """What is missing, what the search had no cause for, and what would change it."""
    searched(case, ledger, tmp_path, calibration=None)
    kept = {event.technique: event for event in ledger.events.events("skip")}
    assert "give --data" in kept["int8"].says
    assert kept["int8-equalized"].says == "int8 was not tried, or is not wrong"
    assert "recipe" in kept["pruned"].would_change
    assert all(event.would_change for event in kept.values())


def test_what_a_processor_lacks_is_kept_as_any_reason(case: Any, ledger: Ledger, tmp_path: Path) -> None:
    """Without bfloat16 the search goes on, and says so in document and ledger, with what would change it."""
    bfloat16 = Methods(of_the_file=tuple(one for one in LADDER if one.name == "bf16"))
    with measuring.using(cpu_flags=lambda: frozenset({"avx2"})):
        document = searched(case, ledger, tmp_path, methods=bfloat16)
    (kept,) = ledger.events.events("skip", technique="bf16")
    assert "does not compute in bfloat16" in kept.says
    assert kept.would_change.startswith("a processor with one of")
    assert kept.says.encode() in msgspec.json.encode(document)


@pytest.mark.full
def test_what_the_golden_set_was_not_asked_about_is_kept(case: Any, ledger: Ledger, tmp_path: Path) -> None:
    """With the reason, which is told; it is no use of the golden set, and the next search judges it anew."""
    few = Methods(max_untrained=1)
    searched(case, ledger, tmp_path, methods=few)
    document = searched(
        case, ledger, tmp_path, methods=few
    )  # what was asked before counts: there is no second question
    told = " ".join(as_text(document, None).split())
    assert ": not asked on the golden set: 1 candidate was asked already" in told
    asked = [one for one in ledger.attempts.attempts() if one.drop is not None]
    (unasked, *_) = [one for one in ledger.attempts.attempts() if one.says.startswith("not asked on the golden set: ")]
    assert unasked.verdict == "inconclusive"
    assert ledger.attempts.golden_uses(case.golden.sha256) == len(asked) == 1
    again = searched(case, ledger, tmp_path)
    assert not next(one for one in again.attempts if one.candidate == unasked.candidate).is_recalled


@pytest.mark.full
def test_a_noisy_minute_is_judged_again(
    case: Any, ledger: Ledger, tmp_path: Path, speeds: dict[tuple[str, bool], float]
) -> None:
    """Both outcomes are kept, and the newer one is recalled afterwards."""
    quiet = dict(speeds)
    speeds.update(dict.fromkeys(speeds, 0.5))
    assert searched(case, ledger, tmp_path).recommended is None
    speeds.update(quiet)
    assert searched(case, ledger, tmp_path).recommended is None
    anew = searched(case, ledger, tmp_path, goal=Goal(max_drop=0.02, batch=8, again=True))
    assert anew.recommended is not None
    kept = [one.verdict for one in ledger.attempts.attempts() if one.candidate == anew.recommended]
    assert kept == ["accept", "reject"]
    later = searched(case, ledger, tmp_path)
    assert (later.recommended, {one.is_recalled for one in later.attempts}) == (anew.recommended, {True})


def test_what_was_expected_is_kept(case: Any, ledger: Ledger, tmp_path: Path) -> None:
    """Of the model alone, with what it was measured on; end to end only where a run is given."""
    searched(case, ledger, tmp_path)
    kept = {one.technique: one.predicted for one in ledger.attempts.attempts()}
    assert kept["int8"] is not None
    assert (kept["int8"].low, kept["int8"].high, kept["int8"].whole_low) == (1.6, 8.3, None)
    assert "ResNet-18" in kept["int8"].source
