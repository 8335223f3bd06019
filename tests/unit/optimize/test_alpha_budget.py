"""How many candidates the golden set is asked about, in which order, and with what share of the error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.cli.optimization_text import as_text
from headrace.ledger.ledger import Ledger
from headrace.optimize.alpha_budget import AlphaBudget, count_tests
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.attempt_log import AttemptLog
from headrace.optimize.catalogue import METHODS, Methods
from headrace.optimize.conditions import Conditions
from headrace.optimize.goal import Goal
from headrace.optimize.search import Search, has_one_family, optimize
from headrace.runs.formats.optimization import Attempt, OptimizationDocument
from headrace.validate import measuring, noninferiority
from headrace.validate.model_speed import Speed
from headrace.validate.variants import validate_variants

#: Of files by their name, on ONNX Runtime; a tenth less on OpenVINO.
SPEEDS = {"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0}


def known(
    candidate: str, verdict: str, alpha: float, *, asked: bool = True, file: str = "", side: int | None = None
) -> Any:
    """Return as much of an attempt as is asked of it."""
    return SimpleNamespace(
        candidate=candidate, verdict=verdict, asked=SimpleNamespace(alpha=alpha), drop=0.0 if asked else None,
        validation=SimpleNamespace(golden_sha256="g"), artifact=SimpleNamespace(sha256=file or candidate),
        settings={} if side is None else {"input_side": side},
    )  # fmt: skip


def test_the_error_is_shared_among_the_questions() -> None:
    """No more are asked than it is divided by, and who was asked about may be asked about again."""
    budget = AlphaBudget(0.04, 2)
    assert budget.alpha == pytest.approx(0.02)
    budget.tested |= {"a", "b"}
    assert budget.why_not("a") is None
    assert budget.why_not("c") == "2 candidates were asked already"


def test_what_was_accepted_before_stands_at_no_larger_alpha() -> None:
    """What was turned down stands in any case; all of them are questions, and no more are than may be asked."""
    budget = AlphaBudget(0.04, 4)
    assert budget.accepts_earlier(known("a", "accept", 0.01))
    assert not budget.accepts_earlier(known("b", "accept", 0.02))
    assert budget.accepts_earlier(known("c", "reject", 0.02))
    assert budget.tested == {"a", "b", "c"}
    full = AlphaBudget(0.04, 1, {"d"})
    assert not full.accepts_earlier(known("e", "accept", 0.001))
    assert full.why_not("e") is not None


def test_a_file_is_one_question_unless_each_is_some_use() -> None:
    """On however many engines; on images of another size it answers otherwise; what was asked on two engines counts twice."""
    waiting = [known(name, "inconclusive", 0.0, asked=False, file=name[0]) for name in ("a1", "a2", "b1")]
    assert count_tests(waiting, each=False) == 2
    assert count_tests(waiting, each=True) == 3
    sizes = [known(f"a{side}", "inconclusive", 0.0, asked=False, file="a", side=side) for side in (160, 128)]
    assert count_tests([*waiting, *sizes], each=False) == 4
    before = [known(name, "reject", 0.01, file="c") for name in ("c1", "c2")]
    assert count_tests([*waiting, *before], each=False) == 4
    assert count_tests([], each=False) == 1


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_a_family_accepts_a_wrong_one_no_oftener_than_its_share(correlation: float) -> None:
    """Twelve that lose the very margin: in 5 % of searches at most, and in more of them if each had the whole share."""
    margin, items, searches, most = 0.05, 400, 400, 12
    random = np.random.default_rng(7)
    budget = AlphaBudget(0.05, most)
    wrong = {alpha: np.zeros(searches, bool) for alpha in (budget.alpha, budget.share)}
    common = random.random((searches, items))
    for _ in range(most):
        drawn = np.where(random.random((searches, items)) < correlation, common, random.random((searches, items)))
        differences = np.select(
            [drawn < 0.07, drawn > 0.98], [-1.0, 1.0], 0.0
        )  # 7 % lost, 2 % won: a drop of the margin
        for (number, values), (alpha, found) in itertools.product(enumerate(differences), wrong.items()):
            goal = -math.log(alpha)
            stakes = noninferiority._bets(values, goal)  # as of a golden set, which is all that there will be
            found[number] |= bool((noninferiority._wealth(values, margin, stakes) >= goal).any())
    assert wrong[budget.alpha].mean() <= budget.share
    assert wrong[budget.share].mean() > wrong[budget.alpha].mean() + 0.01


# --- in a search


@pytest.fixture
def files(case: Any, nets: ModuleType, tmp_path: Path) -> dict[str, Path]:
    """Other models, of which `a` and `b` are wrong, and `c` and `d` as right as the model as given."""
    right = nets.make_weights()
    found = {}
    for number, name in enumerate(SPEEDS):
        weights = right if name in "cd" else nets.make_weights(seed=5 + number)
        scaled = {key: value * np.float32(1 + number * 1e-6) for key, value in weights.items()}
        found[name] = nets.save_net(tmp_path / f"{name}.onnx", scaled)
    return found


@pytest.fixture(autouse=True)
def _known_speeds() -> Iterator[None]:
    def measured(a: Any, b: Any, batch: Any, **_: Any) -> Speed:
        ratio = SPEEDS.get(Path(b.variant["artifact"]).stem, 1.0) * (0.9 if b.variant["engine"] == "openvino" else 1.0)
        return Speed(
            ratio=ratio,
            low=0.99 * ratio,
            high=1.01 * ratio,
            noise=0.01,
            a_seconds=0.01,
            b_seconds=0.01 / ratio,
            rounds=16,
        )

    with measuring.using(measure_speed=measured, cpu_flags=frozenset):
        yield


class Asked:
    """What the golden set was asked, and with what alpha; it may be interrupted at a question."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, float]] = []
        self.interrupted_at = 0

    def evaluate(self, a: Any, b: Any, golden: Any, policy: Any, **named: Any) -> Any:
        """Note what is asked, and ask it."""
        name = f"{Path(b.model.artifact).stem} on {b.model.engine}"
        self.questions.append((name, policy.alpha))
        if len(self.questions) == self.interrupted_at:
            raise KeyboardInterrupt
        return validate_variants(a, b, golden, policy, **named)

    def taken(self) -> list[tuple[str, float]]:
        """Return them, and forget them."""
        taken, self.questions = self.questions, []
        return taken


@pytest.fixture
def asked() -> Asked:
    """The golden set, listened to."""
    return Asked()


def searched(
    case: Any, folder: Path, also: list[Path], asked: Asked | None, ledger: Ledger | None = None, **goal: Any
) -> OptimizationDocument:
    """Search among other models, without int8, which needs calibration data."""
    return optimize(
        case.model, store=ArtifactStore(folder / "artifacts"), goal=Goal(max_drop=0.02, batch=8, also=tuple(also), **goal),
        golden=case.golden, memory=ledger.attempts if ledger else None,
        methods=Methods(evaluate=asked.evaluate) if asked else METHODS,
    )  # fmt: skip


def named(document: OptimizationDocument, technique: str, engine: str) -> Attempt:
    """Return one attempt."""
    return next(one for one in document.attempts if (one.technique, one.settings["engine"]) == (technique, engine))


def test_they_are_asked_from_the_fastest_down_to_the_first_that_is_right(
    case: Any, files: dict[str, Path], asked: Asked, tmp_path: Path
) -> None:
    """Each with a fourth of half of the error, which is written down; a file once, and slower ones not at all."""
    document = searched(case, tmp_path, list(files.values()), asked)
    each = pytest.approx(0.025 / 4)
    assert asked.taken() == [("a on onnx", each), ("b on onnx", each), ("c on onnx", each)]
    chosen = named(document, "also-c", "onnx")
    assert document.recommended == chosen.candidate
    assert chosen.asked is not None
    assert chosen.asked.alpha == each
    told = {
        (name, engine): named(document, f"also-{name}", engine) for name in "abcd" for engine in ("onnx", "openvino")
    }
    assert "the same file was not accepted on onnx" in told["a", "openvino"].says
    assert "also-c on onnx is accepted and as fast" in told["d", "onnx"].says
    assert told["d", "onnx"].asked is not None
    assert told["d", "onnx"].asked.alpha == 0.0
    assert "not asked on the golden set" in " ".join(as_text(document, None).split())


def test_for_the_smallest_each_is_asked(case: Any, files: dict[str, Path], asked: Asked, tmp_path: Path) -> None:
    """A slower one may be the smallest; then a file that is accepted on one engine is asked on the other too."""
    searched(case, tmp_path, [files["a"], files["c"]], asked, objective="size")
    each = pytest.approx(0.025 / 4)
    assert asked.taken() == [("a on onnx", each), ("c on onnx", each), ("c on openvino", each)]


def test_what_was_asked_before_an_interruption_counts(
    case: Any, files: dict[str, Path], asked: Asked, tmp_path: Path
) -> None:
    """The search goes on with the same share for each, and asks about none twice; once more, it asks nothing."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        asked.interrupted_at = 2
        assert searched(case, tmp_path, list(files.values()), asked, ledger).interrupted
        asked.interrupted_at = 0
        first, each = asked.taken(), pytest.approx(0.025 / 4)
        document = searched(case, tmp_path, list(files.values()), asked, ledger)
        assert (first, asked.taken()) == (
            [("a on onnx", each), ("b on onnx", each)],
            [("b on onnx", each), ("c on onnx", each)],
        )
        again = searched(case, tmp_path, list(files.values()), asked, ledger)
        assert asked.taken() == []
        assert again.recommended == document.recommended == named(again, "also-c", "onnx").candidate


def test_what_was_accepted_with_a_larger_share_is_asked_again(
    case: Any, files: dict[str, Path], asked: Asked, tmp_path: Path
) -> None:
    """Alone it had half of the error; among four it has a fourth of that, and with that smaller share it stands later on."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        searched(case, tmp_path, [files["c"]], asked, ledger)
        assert asked.taken() == [("c on onnx", pytest.approx(0.025))]
        among = searched(case, tmp_path, [files["c"], files["d"]], asked, ledger)
        assert asked.taken() == [("c on onnx", pytest.approx(0.025 / 2))]
        kept = named(among, "also-c", "onnx")
        assert (kept.verdict, kept.candidate) == ("accept", among.recommended)
        assert [gate.name for gate in kept.validation.gates].count("accuracy") == 1
        alone = searched(case, tmp_path, [files["c"]], asked, ledger)
        assert asked.taken() == []
        assert alone.recommended == kept.candidate


def test_what_the_ladder_accepted_alone_is_asked_again_beside_others(
    case: Any, files: dict[str, Path], asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, with half of the share that it had."""
    monkeypatch.setitem(SPEEDS, "net", 3.0)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        searched(case, tmp_path, [], asked, ledger)
        assert asked.taken() == [("net on openvino", pytest.approx(0.05 / 8))]
        document = searched(case, tmp_path, [files["d"]], asked, ledger)
    assert asked.taken() == [("net on openvino", pytest.approx(0.025 / 8))]
    assert document.recommended == named(document, "openvino", "openvino").candidate


def test_training_for_int8_is_a_question_though_it_was_not_needed() -> None:
    """Else the number of questions, and with it the share of each, would depend on what the golden set said of int8."""
    subject: Any = SimpleNamespace(recipe=object())
    accepted: Any = SimpleNamespace(technique="int8", verdict="accept", settings={"engine": "onnx"})
    nothing: Any = None
    log = AttemptLog("", Goal(), attempts=[accepted])

    def num_held_back(why: str | None) -> int:
        methods = Methods(qat=replace(METHODS.qat, why_not=lambda subject: why))
        conditions = Conditions(subject=subject, goal=Goal())
        return Search(conditions, log, methods, nothing, nothing, AlphaBudget(0.05, 8)).num_held_back()

    assert num_held_back(None) == 1
    assert num_held_back("no fit") == 0


def test_the_ladder_has_all_of_the_error_where_nothing_else_can_come(case: Any, files: dict[str, Path]) -> None:
    """Which is known before anything is asked."""
    alone = SimpleNamespace(recipe=None, input_sizes=(), also=())
    assert has_one_family(alone)  # type: ignore[arg-type]
    for more in ({"recipe": object()}, {"input_sizes": (160,)}, {"also": (files["a"],)}):
        assert not has_one_family(SimpleNamespace(**{**vars(alone), **more}))  # type: ignore[arg-type]


def test_what_the_golden_set_can_show_is_said_for_each_family(
    case: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    """Of the ladder before anything is tried, of the others as soon as their number is known."""
    said: list[str] = []
    optimize(
        case.model, store=ArtifactStore(tmp_path / "artifacts"), golden=case.golden, say=said.append,
        goal=Goal(max_drop=0.02, batch=8, also=(files["c"], files["d"])),
    )  # fmt: skip
    ladder, others = (line for line in said if "golden items, a drop of" in line)
    assert ladder.startswith("variants of the model as given: 600 golden items")
    assert ladder.endswith("for 8 candidates may be asked about")
    assert others.startswith("smaller models and trained ones: 600 golden items")
    assert others.endswith("for 2 candidates may be asked about")


def test_a_golden_set_is_worn_out_by_more_than_the_questions_it_was_shared_among(
    case: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    """Those of one search are accounted for, and are no cause for a warning."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = searched(case, tmp_path, list(files.values()), None, ledger)
        assert document.golden_uses == 3
        for number in range(10):
            ledger.attempts.write_attempt(msgspec.structs.replace(named(document, "also-c", "onnx"), key=f"k{number}"))
        worn = searched(case, tmp_path, list(files.values()), None, ledger)
    assert not any("has judged" in one for one in document.warnings)
    assert any("this golden set has judged 13 attempts" in one for one in worn.warnings)
