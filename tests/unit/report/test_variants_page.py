"""The page of a search: what it says, and that nothing from outside is markup."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from headrace.report.ledger_page import render_ledger
from headrace.report.markup import DASH
from headrace.report.variants_page import render_variants
from headrace.runs.formats.decisions import Decision
from headrace.runs.formats.optimization import Artifact, Asked, Attempt, OptimizationDocument, RunOff, Skipped
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.variants import Gate, ValidationDocument, VariantSide, WorstItem

SIDE = VariantSide(name="net.onnx@onnx", variant={"engine": "onnx"}, open_seconds=0.1)


def attempt(technique: str, **fields: Any) -> Attempt:
    """Return an attempt; keywords replace fields."""
    gate = Gate(name="parity", outcome="passed", says="relative L2 0.01 <script>")
    known: dict[str, Any] = {
        "id": "a1", "model": "ab" * 32, "technique": technique, "kind": "lossy", "hypothesis": "is faster",
        "candidate": technique, "settings": {"engine": "onnx"}, "verdict": "accept", "says": "yes", "seconds": 3.0,
        "artifact": Artifact(sha256="cd" * 32, file="int8.onnx", num_bytes=25, parameters={"pairs": 3}),
        "speedup": Estimate(1.9, 2.0, 2.1), "drop": Estimate(0.0, 0.001, 0.002),
        "validation": ValidationDocument(
            a=SIDE, b=SIDE, verdict="accept", says="yes", gates=(gate,), batch=8, golden="g.npz", num_items=64
        ),
    }  # fmt: skip
    return Attempt(**{**known, **fields})


def document(*attempts: Attempt, **fields: Any) -> OptimizationDocument:
    """Return a search."""
    known: dict[str, Any] = {
        "baseline": SIDE, "model": Artifact(sha256="ab" * 32, file="net.onnx", num_bytes=100), "objective": "throughput",
        "max_drop": 0.005, "batch": 8, "golden": "g.npz", "attempts": attempts, "front": ("int8",), "recommended": "int8",
        "says": "int8 is 2 times as fast", "skipped": (Skipped(technique="bf16", why="no <flag>"),),
    }  # fmt: skip
    return OptimizationDocument(**{**known, **fields})


def charts_of(page: str) -> list[dict[str, Any]]:
    """Return the charts' data."""
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page)
    assert found is not None
    return list(json.loads(found[1]))


def test_the_page_says_what_was_found_and_why() -> None:
    """The recommendation, every attempt with its gates, what was not tried, and decisions."""
    broken = attempt("int8-raw", id="a2", verdict="reject", gate="parity", drop=None)
    decision = Decision(1, 1.8e9, "plan.toml", "accept", 1, "anna", "twice as fast", None, "x")
    page = render_variants(document(attempt("int8"), broken), [decision])
    for expected in (
        "A better variant was found",
        "int8 ← use this",
        "rejected by parity",
        "no &lt;flag&gt;",
        "twice as fast",
    ):
        assert expected in page
    assert "<script>" not in page.split("</main>")[0].split("<body>")[1]


def test_points_stand_where_they_were_measured() -> None:
    """Times as fast to the right, points won upwards; who was not judged is in the other picture alone."""
    page = render_variants(document(attempt("int8"), attempt("slow", drop=None, speedup=Estimate(0.5, 0.6, 0.7))))
    pareto, by_size, _ = charts_of(page)
    points = [one["data"][0]["value"] for one in pareto["option"]["series"] if one["type"] == "scatter"]
    assert points == [[1.0, 0.0], [2.0, -0.1]]
    shares = [one["data"][0]["value"] for one in by_size["option"]["series"] if one["type"] == "scatter"]
    assert shares == [[1.0, 1.0], [2.0, 0.25], [0.6, 0.25]]


def test_the_engine_is_the_one_that_ran() -> None:
    """A model as given that runs on PyTorch is not said to run on ONNX Runtime; of one that told nothing there is a dash."""
    for variant, expected in (({"engine": "torch"}, "torch"), ({}, DASH)):
        page = render_variants(document(attempt("int8"), baseline=msgspec.structs.replace(SIDE, variant=variant)))
        first = re.search(r"0 \(as given\)</td><td>(.*?)</td>", page)
        assert first is not None
        assert first[1] == expected


def test_a_search_that_found_nothing_has_a_page() -> None:
    """Without pictures."""
    page = render_variants(document(recommended=None, front=("baseline",)))
    assert "No better variant was proved" in page
    assert charts_of(page) == []


def test_items_that_lost_most_are_shown_as_pictures() -> None:
    """Beside what both answered; the policy lets such pictures in, and nothing else."""
    lost = WorstItem(item=41, file="<b>.jpg", label="cat", a="cat", b="dog", loss=1.0)
    one = attempt("int8")
    one = msgspec.structs.replace(one, validation=msgspec.structs.replace(one.validation, worst=(lost,)))
    page = render_variants(document(one), (), {lost: "data:image/jpeg;base64,AAAA"})
    assert 'src="data:image/jpeg;base64,AAAA"' in page
    assert "img-src data:;" in page
    assert "&lt;b&gt;.jpg" in page
    assert "img-src" not in render_variants(document(one))


def test_a_failure_stands_at_the_edge_and_presses_nobody_into_one_line() -> None:
    """46 points lost where half a point is allowed: a triangle two points down, with its real number under the pointer."""
    failed = attempt("raw", verdict="reject", gate="accuracy", drop=Estimate(0.45, 0.46, 0.47))
    pareto = charts_of(render_variants(document(attempt("int8"), failed)))[0]["option"]
    assert pareto["yAxis"]["min"] == -2
    edge = next(one for one in pareto["series"] if one.get("symbol") == "triangle")
    assert edge["data"][0]["value"] == [2.0, -2.0]
    assert "-46.00" in edge["data"][0]["tip"][2][1]


def test_who_cannot_be_told_from_the_one_to_use_is_named() -> None:
    """An accepted variant whose speed overlaps is a tie; a faster one that was rejected is none."""
    tie, other = attempt("bf16", speedup=Estimate(1.8, 1.95, 2.0)), attempt("raw", verdict="reject", gate="parity")
    page = render_variants(document(attempt("int8"), tie, other))
    assert "2 bf16 on onnx is as fast as the one to use" in page
    assert "3 raw on onnx is as fast" not in page
    for objective in ("size", "cost"):  # speed has not chosen
        assert "2 bf16 on onnx is as fast" not in render_variants(
            document(attempt("int8"), tie, other, objective=objective)
        )


def test_what_a_run_off_told_apart_is_no_tie() -> None:
    """Where it stayed open it is one."""
    pair = document(attempt("int8"), attempt("bf16", speedup=Estimate(1.8, 1.95, 2.0)))
    for ratio, is_tie in ((Estimate(0.92, 0.94, 0.97), False), (Estimate(0.97, 0.99, 1.01), True)):
        run_off = RunOff(a="int8", b="bf16", ratio=ratio, rounds=24, chosen="int8", says="")
        page = render_variants(msgspec.structs.replace(pair, run_offs=(run_off,)))
        assert ("2 bf16 on onnx is as fast as the one to use" in page) == is_tie


def test_what_a_plan_uses_is_not_called_the_model_as_given() -> None:
    """Speeds are over it: its engine, its file's size and its own drop stand where the model as given would."""
    used = attempt(
        "in-use", candidate="used", settings={"engine": "openvino"}, speedup=Estimate(1.0, 1.0, 1.0),
        drop=Estimate(0.002, 0.003, 0.004), artifact=Artifact(sha256="ef" * 32, file="used.onnx", num_bytes=50),
    )  # fmt: skip
    page = render_variants(document(attempt("int8"), in_use=used), [])
    assert "times as fast as what the Plan uses" in page
    assert "times as fast as the model as given" not in page
    first = re.search(r"<tr>(?:(?!</tr>).)*0 \(in use\).*?</tr>", page, re.DOTALL)
    assert first is not None
    assert "openvino" in first[0]
    assert "-0.3" in first[0]
    assert "0 (as given)" not in page


def test_the_ledger_says_what_speeds_are_over() -> None:
    """Attempts of searches in which a Plan named another variant are held against that one: "as given" would be wrong."""
    page = render_ledger("ledger.sqlite", [attempt("int8")], [])
    (pareto,) = charts_of(page)
    assert pareto["option"]["xAxis"]["name"] == "times as fast as what was in use"
    assert ">as given<" not in page


def test_the_ledger_draws_together_what_was_held_against_the_same() -> None:
    """Twice as fast as the model as given and twice as fast as what replaced it are not the same: each its picture."""
    used = {"artifact": "kept/int8.onnx", "engine": "openvino", "threads": 1, "options": {}, "sha256": "cd" * 32}
    machine = {"max_drop": 0.005, "alpha": 0.05, "machine": "AMD 9"}
    first = attempt(
        "int8", id="a1", settings={"engine": "openvino", "options": {}}, asked=Asked(**machine), hardware="one"
    )
    same = attempt("bf16", id="a2", asked=Asked(**machine), hardware="one")
    later = attempt("pruned", id="a3", asked=Asked(**machine, against=used), hardware="one")
    elsewhere = attempt("int8", id="a4", hardware="another")
    page = render_ledger("ledger.sqlite", [elsewhere, later, same, first], [])
    drawn = [
        [one["label"]["formatter"] for one in chart["option"]["series"] if one["type"] == "scatter"]
        for chart in charts_of(page)
    ]
    assert drawn == [["0", "a4"], ["0", "a3"], ["0", "a1", "a2"]]
    for told in (
        "1 attempt, held against the model as given, 8 items a call, on machine another",
        "1 attempt, held against int8.onnx on openvino (threads 1), 8 items a call, on AMD 9",
        "2 attempts, held against the model as given, 8 items a call, on AMD 9",
    ):
        assert told in page
    points = [chart["option"]["series"][0]["data"][0]["value"] for chart in charts_of(page)]
    assert points == [[1.0, 0.0], [1.0, -0.1], [1.0, 0.0]]  # what was in use had lost a tenth of a point already


def test_what_was_in_use_is_known_by_the_size_of_its_images_too() -> None:
    """The same file on smaller images has lost other points: they are not drawn as its own."""
    used = {"artifact": "int8.onnx", "engine": "openvino", "options": {}, "sha256": "cd" * 32, "input_side": 160}
    large = attempt("int8", id="a1", settings={"engine": "openvino", "options": {}})
    later = attempt("pruned", id="a2", asked=Asked(max_drop=0.005, alpha=0.05, against=used))
    page = render_ledger("l", [later, large], [])
    assert "held against int8.onnx on openvino (input_side 160)" in page
    drawn = [
        [one["label"]["formatter"] for one in chart["option"]["series"] if one["type"] == "scatter"]
        for chart in charts_of(page)
    ]
    assert drawn[0] == ["a2"]


def test_what_was_in_use_has_no_point_where_its_own_loss_is_not_known() -> None:
    """A point at 0 would say that it had lost nothing."""
    used = {"artifact": "other.onnx", "engine": "onnx", "sha256": "99" * 32}
    page = render_ledger("l", [attempt("int8", asked=Asked(max_drop=0.005, alpha=0.05, against=used))], [])
    (pareto,) = charts_of(page)
    assert [one["label"]["formatter"] for one in pareto["option"]["series"] if one["type"] == "scatter"] == ["a1"]
