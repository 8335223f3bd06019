"""What people read of the stage benchmark."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from headrace.base.records import Job
from headrace.profiler.stage_bench import as_text
from headrace.profiler.stage_bench.document import document
from headrace.profiler.stage_bench.inputs import Inputs, StageInputs
from headrace.profiler.stage_bench.words import describe_ratio, differs, explain
from headrace.runs.formats.isolation import IsolationDocument, StageAlone, Variation
from headrace.stages.stage import stage


def compared(name: str, ratio: float, low: float | None = None, high: float | None = None) -> Variation:
    """Return a variation with this ratio to the pipeline as it is, at 100/s."""
    return Variation(
        name=name,
        throughput=100 * ratio,
        throughput_low=90 * ratio,
        throughput_high=110 * ratio,
        ratio=ratio,
        ratio_low=low or ratio,
        ratio_high=high or ratio,
    )


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (compared("a", 1.4, 1.2, 1.5), True),
        (compared("a", 0.7, 0.6, 0.8), True),
        (compared("a", 1.4, 0.9, 1.6), False),
        (compared("a", 1.03), False),
        (Variation(name="a", throughput=None), False),
    ],
)
def test_a_difference_is_clear_and_its_interval_to_one_side(one: Variation, expected: bool) -> None:
    """More than 5 %, and the whole interval on one side of 1."""
    assert differs(one) is expected


def test_headroom_is_told() -> None:
    """With its interval."""
    (sentence,) = explain([compared("cached_items", 1.4, 1.3, 1.5)])
    assert sentence == "fed perfectly the device would give 140/s, x1.40 (1.30-1.50) of now"


def test_noise_is_called_noise() -> None:
    """No gain is promised from a difference that goes both ways."""
    sentences = explain(
        [
            compared("cached_items", 1.2, 0.8, 1.4),
            compared("emulated_model", 1.2, 0.8, 1.4),
            compared("cold_files", 0.9, 0.7, 1.1),
        ]
    )
    assert ["noise" in sentence for sentence in sentences] == [True, True, True]


def test_perfect_feeding_is_told_from_what_noise_hides() -> None:
    """No difference is one thing; a large one that could not be told from noise, or was measured once, another."""
    once = Variation(name="cached_items", throughput=400.0, ratio=4.0)
    (same,), (hidden,) = explain([compared("cached_items", 1.02, 0.98, 1.06)]), explain([once])
    assert same.startswith("the device is fed well")
    assert hidden == "from memory the device gives 400/s, x4.00 of now: a difference that could not be told from noise"


def test_feeding_is_not_called_good_where_noise_hides_the_headroom() -> None:
    """A middle of x1.02 whose interval reaches x1.6 rules no headroom out."""
    (sentence,) = explain([compared("cached_items", 1.02, 0.65, 1.6)])
    assert "could not be told from noise" in sentence


def test_a_device_that_is_slower_from_memory_is_told() -> None:
    """A clear loss is no noise, and no question of feeding."""
    (sentence,) = explain([compared("cached_items", 0.8, 0.75, 0.85)])
    assert sentence.startswith("from memory the device gives 80/s, x0.80 (0.75-0.85) of now: less than")


def test_cold_files_and_accelerators_are_told() -> None:
    """Each where it makes a difference; made-up times are called so."""
    sentences = explain([compared("cold_files", 0.5), compared("emulated_model", 2.0)], emulated=True)
    assert sentences[0].startswith("an accelerator as fast as this device")
    assert sentences[0].endswith("would give 200/s, x2.00 (2.00-2.00) of now")
    assert sentences[1:] == [
        "with files that are not in memory it gives 50/s, x0.50 (0.50-0.50) of now",
        "the device is emulated: its times are made up",
    ]


def test_what_was_not_compared_is_not_spoken_of() -> None:
    """Nothing was measured, nothing is said."""
    assert explain([Variation(name="cached_items", throughput=None)], emulated=True) == []
    assert describe_ratio(Variation(name="a", throughput=1.0)) == "-"


def test_the_document_says_what_is_missing(bench: Callable) -> None:
    """Stopped, cut by memory, failed items."""
    made = bench([stage("a", abs)])
    failed = StageInputs(made.pipeline.stages[0], num_failed=2, first_error="a: broken")
    inputs = Inputs([Job("0", 1)], {"a": failed}, num_jobs=5, is_cut=True, no_route=1)
    said = document(made, inputs, [], [], stopped=True).says
    assert any("stopped" in sentence for sentence in said)
    assert any("memory sufficed for the inputs of 5 items" in sentence for sentence in said)
    assert "3 items failed and are left out, the first: a: broken" in said


def test_headroom_is_that_of_cached_items(bench: Callable) -> None:
    """And None where they were not run."""
    made = bench([stage("a", abs)])
    inputs = Inputs([], {})
    found = document(made, inputs, [], [compared("cached_items", 1.5)])
    assert (found.device_ceiling, found.feeding_headroom) == (150.0, 1.5)
    nothing = document(made, inputs, [], [Variation(name="cached_items", throughput=None, says="why")])
    assert (nothing.device_ceiling, nothing.feeding_headroom) == (None, None)


def test_text_shows_all(point: Callable) -> None:
    """Each stage with its curve, each variation with its reason, `-` for what was not measured."""
    alone = StageAlone(
        name="decode",
        kind="cpu",
        executor="thread",
        cpu_demand=0.012,
        wait_demand=None,
        curve=(point(1, 80.0, cpu=0.012), point(2, 160.0, cpu=0.012)),
        knee_workers=None,
        best_throughput=160.0,
        says="still rising",
    )
    device = StageAlone(
        name="process",
        kind="device",
        executor="thread",
        cpu_demand=None,
        wait_demand=None,
        curve=(),
        knee_workers=None,
        best_throughput=None,
        says="not run alone: no item came through it",
    )
    shown = IsolationDocument(
        pipeline="photos",
        plan_id="abc",
        num_items=64,
        stages=(alone, device),
        variations=(compared("as_is", 1.0), Variation(name="cold_files", throughput=None, says="not possible here")),
        device_ceiling=None,
        feeding_headroom=None,
        says=("fed perfectly",),
    )
    text = as_text(shown)
    for part in ("12.0 ms", ">=2", "160/s", "still rising", "no item came through", "cold_files: not possible here"):
        assert part in text
    assert text.endswith("fed perfectly\n")
    assert "inputs of 1 item, Plan" in as_text(msgspec.structs.replace(shown, num_items=1))
    assert max(map(len, text.splitlines())) < 100


def test_a_document_survives_json(bench: Callable) -> None:
    """What is written is read back the same."""
    made = bench([stage("a", abs)])
    before = document(made, Inputs([], {}), [], [compared("cached_items", 1.5)])
    assert msgspec.json.decode(msgspec.json.encode(before), type=IsolationDocument) == before
