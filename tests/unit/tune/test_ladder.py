"""The ladder's arithmetic and its words."""

from __future__ import annotations

import math

import pytest

from headrace.cli.ladder_text import as_text
from headrace.compare.blocks import fewest_items
from headrace.compare.contenders import Blocks
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.tuning import LadderDocument, LadderStep
from headrace.tune.ladder import LadderSettings, ratio_of
from headrace.tune.ladder_words import describe, verdict


def step(name: str, throughput: float | None, before: Estimate | None, **others: object) -> LadderStep:
    """Return a step; what is not given is not known."""
    values: dict[str, object] = {
        "settings": (),
        "ratio_first": before,
        "ratio_alone": None,
        "cost_per_thousand": None,
        "says": f"what {name} is",
        "num_agreeing": 20,
        "num_checked": 20,
    }
    return LadderStep(name=name, throughput=throughput, ratio_before=before, **(values | others))  # type: ignore[arg-type]


def ladder(*steps: LadderStep, **others: object) -> LadderDocument:
    """Return a described document."""
    values: dict[str, object] = {"price_per_hour": None, "num_items": 40, "num_rounds": 8}
    return describe(LadderDocument(pipeline="app:pipeline", headrace_version="1", steps=steps, **(values | others)))  # type: ignore[arg-type]


def test_a_ratio_is_that_of_the_rounds() -> None:
    """Rates that double in each round, whatever the machine does meanwhile, give 2 with no width."""
    found = ratio_of([(2 * rate, rate) for rate in (10.0, 7.0, 12.0, 9.0, 3.0, 11.0)])
    assert found is not None
    assert (found.low, found.mid, found.high) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))


def test_rounds_that_lack_one_side_are_left_out() -> None:
    """An interrupted round has no pair, and fewer than six pairs give their range instead of an interval."""
    found = ratio_of([(None, 10.0), (20.0, 10.0), (30.0, 10.0), (5.0, None)])
    assert found is not None
    assert found.low == pytest.approx(2)
    assert found.mid == pytest.approx(math.sqrt(6))
    assert found.high == pytest.approx(3)
    assert ratio_of([(None, 1.0)]) is None


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (Estimate(0.98, 1.01, 1.03), "no change"),
        (Estimate(1.01, 1.5, 2.0), "faster"),
        (Estimate(0.8, 0.9, 0.99), "slower"),
    ],
)
def test_no_change_is_said_when_the_interval_holds_1(ratio: Estimate, says: str) -> None:
    """What may be nothing is called nothing."""
    assert verdict(step("overlap", 10.0, ratio), 8).startswith(says)
    assert "so far" in verdict(step("overlap", 10.0, ratio), 2)


def test_differing_results_are_named() -> None:
    """Threads must not change an answer; another scale may, and is to be looked at."""
    gain = Estimate(1.9, 2.0, 2.1)
    document = ladder(
        step("sequential", 3.0, None),
        step("threads", 6.0, gain, num_agreeing=19),
        step("decode at scale", 12.0, gain, num_agreeing=18),
    )
    said = " ".join(document.says)
    assert "threads: 19 of 20 results agree with those of the first step, and this step must not change any" in said
    assert "decode at scale: 18 of 20" in said
    assert "may change some" in said


def test_the_whole_and_the_errors_are_summed_up() -> None:
    """First and last rate, the ratio between them, and how far off the predictions were."""
    document = ladder(
        step("sequential", 3.0, None, cost_per_thousand=0.07),
        step("threads", 9.0, Estimate(2.9, 3.0, 3.1), prediction_error=-0.02, cost_per_thousand=0.02),
        step("overlap", 21.0, Estimate(6.9, 7.0, 7.1), prediction_error=0.06, cost_per_thousand=0.01),
        interrupted=True,
    )
    said = " ".join(document.says)
    assert "From 3/s to 21/s: x7.00 (6.90 to 7.10)" in said
    assert "mean error 4.0%, largest 6.0%; 1 of 2 lie within the measured intervals" in said
    assert "1,000 items cost 0.07 at first and 0.01 at the end" in said
    assert "interrupted" in said


@pytest.mark.parametrize("price", [None, 0.75])
def test_the_text_fits_a_terminal(price: float | None) -> None:
    """80 columns with every column filled, bars in what is left, and the longest bar for the fastest step."""
    told = Estimate(1234.5, 2345.6, 3456.7)
    gain = Estimate(1.9, 2.0, 2.1)
    settings = tuple(f"stages.a_long_name.{key}=12345" for key in ("workers", "queue_items", "queue_bytes")) * 3
    steps = [
        step(
            name, 1000.0 * 2**number, gain, predicted=told, prediction_error=-0.123, ratio_alone=gain, settings=settings
        )
        for number, name in enumerate(["threads", "overlap", "batch", "decode at scale", "engine"])
    ]
    if price:
        steps = [step("sequential", 500.0, None, cost_per_thousand=0.000123), *steps]
    text = as_text(ladder(*steps, price_per_hour=price, is_emulated=True))
    assert max(len(line) for line in text.splitlines()) <= 80
    bars = [line.count("#") for line in text.splitlines() if "#" in line]
    assert bars == sorted(bars)
    assert text.splitlines()[0].endswith("(the device was emulated)")
    assert "and 3 more" in text


def test_a_step_that_was_not_predicted_says_why() -> None:
    """A refusal stands beside the step, with its reason."""
    document = ladder(
        step("sequential", 3.0, None), step("engine", 6.0, Estimate(1, 2, 3), refused="no curve; record one")
    )
    assert "not predicted: no curve; record one" in as_text(document)


def test_blocks_have_several_rounds_of_workers_and_batches() -> None:
    """Four times the most items that a stage works on at once; inline stages have none of their own."""
    from headrace.base.plan import Plan

    settings = ["fetch.workers=10", "process.workers=1", "process.batch=16", "glue.executor=inline", "glue.workers=99"]
    assert fewest_items(Plan().with_settings(settings)) == 64
    assert fewest_items(Plan()) == 12


def test_rounds_are_checked() -> None:
    """Fewer than six rounds give no interval, and are refused before anything runs."""
    with pytest.raises(ValueError, match="--blocks"):
        LadderSettings(blocks=Blocks(pairs=5))
    with pytest.raises(ValueError, match="--items"):
        Blocks(items=3)
    with pytest.raises(ValueError, match="--seconds"):
        Blocks(seconds=0)
