"""Whether `headrace compare` can be believed on this machine: false alarms of A against A, and a change of 5 % found.

Two pipelines are compared again and again with the command's own settings: `python`, a pure Python stage that holds the GIL
(the noisiest kind), and `emulated`, which sleeps (the quietest). Each A/A comparison runs one pipeline against itself; each
A/B one against the same with 5 % more work in its stage. The pairs of all A/A comparisons, drawn again with a true change
added, tell how often a comparison would find 5 % at the noise of this machine.

    python -m benchmarks.compare_power --write    # 20 A/A and 4 A/B, half an hour; wants a quiet machine
    python -m benchmarks.compare_power --quick    # 2 A/A and 2 A/B with few short blocks, a smoke run
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import headrace as hr
from benchmarks import measure
from headrace.base.plan import Plan
from headrace.compare.blocks import Contender
from headrace.compare.comparison import Question, answer, compare_pipelines
from headrace.compare.contenders import Blocks
from headrace.runs.formats.comparison import ComparisonDocument
from headrace.sources.finite import Entry, FiniteSource

#: What B has more to do in the A/B comparisons.
CHANGE = 0.05
#: Turns of the loop of the Python stage: about half a millisecond.
TURNS = 20_000
SLEEP_SECONDS = 0.003
RESAMPLES = 400


class Numbers(FiniteSource):
    """A hundred items without content."""

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        return (Entry(str(number), b"") for number in range(100))


@dataclass(frozen=True)
class Length:
    """How much is run."""

    a_a: int
    """A/A comparisons, shared among the pipelines."""
    a_b: int
    blocks: Blocks


FULL = Length(20, 4, Blocks())
QUICK = Length(2, 2, Blocks(pairs=8, seconds=0.2))


def spinning(turns: int) -> hr.Pipeline:
    """Return a pipeline of one pure Python stage."""

    def spin(value: bytes) -> bytes:
        for _ in range(turns):
            pass
        return value

    return hr.Pipeline(Numbers(), stages=[hr.stage("spin", spin)], name=f"spin {turns}")


def sleeping(seconds: float) -> hr.Pipeline:
    """Return a pipeline of one stage that sleeps."""
    return hr.Pipeline(Numbers(), stages=[hr.emulated("sleep", seconds=seconds)], name=f"sleep {seconds}")


PIPELINES: dict[str, Callable[[float], hr.Pipeline]] = {
    "python": lambda work: spinning(round(TURNS * work)),
    "emulated": lambda work: sleeping(SLEEP_SECONDS * work),
}


def compare(name: str, change: float, blocks: Blocks) -> ComparisonDocument:
    """Compare a pipeline with itself doing so much more work, as a share."""
    before, after = PIPELINES[name](1.0), PIPELINES[name](1.0 + change)
    a = Contender(name="A", pipeline=before, plan=Plan())
    b = Contender(name="B", pipeline=after, plan=Plan())
    return compare_pipelines(a, b, Numbers(), blocks=blocks)


def log_ratios(documents: Sequence[ComparisonDocument]) -> np.ndarray:
    """Return the log-ratios of all pairs: float64, (pairs,)."""
    pairs = [(a, b) for one in documents for a, b in zip(one.a.values, one.b.values, strict=True)]
    return np.array([math.log(b / a) for a, b in pairs])


def spread(ratios: np.ndarray) -> float:
    """Return the standard deviation that the middle half of the log-ratios suggests."""
    low, high = np.quantile(ratios, [0.25, 0.75])
    return float((high - low) / 1.349)


def power(ratios: np.ndarray, num_pairs: int, random: np.random.Generator) -> float:
    """Return how often a loss of `CHANGE` would be called worse, by drawing pairs again from those of A/A."""
    found = 0
    for _ in range(RESAMPLES):
        drawn = random.choice(ratios, num_pairs) * random.choice([-1, 1], num_pairs)  # which is A is arbitrary
        pairs = [(1.0, math.exp(ratio) / (1 + CHANGE)) for ratio in drawn]
        found += answer(pairs, Question())[1].verdict == "worse"
    return found / RESAMPLES


def _row(document: ComparisonDocument) -> dict[str, Any]:
    return {
        "verdict": document.verdict,
        "ratio": document.ratio,
        "low": document.ratio_low,
        "high": document.ratio_high,
        "other_cpu_cores": document.environment["other_cpu_cores"],
        "block_seconds": document.environment["block_seconds"],
        "items_per_block": document.environment["items_per_block"],
    }


def measure_one(name: str, length: Length) -> dict[str, Any]:
    """Run the comparisons of one pipeline and return what came of them."""
    random = np.random.default_rng(0)
    a_a, a_b = [], []
    for number in range(length.a_a // len(PIPELINES)):
        a_a.append(compare(name, 0.0, length.blocks))
        _say(f"{name}, A/A {number + 1}: {a_a[-1].says[0]}")
    for number in range(length.a_b // len(PIPELINES)):
        a_b.append(compare(name, CHANGE, length.blocks))
        _say(f"{name}, A/B {number + 1}: {a_b[-1].says[0]}")
    ratios = log_ratios(a_a)
    return {
        "a_a": [_row(document) for document in a_a],
        "a_b": [_row(document) for document in a_b],
        "false_alarms": sum(document.verdict in ("better", "worse") for document in a_a),
        "found": sum(document.verdict == "worse" for document in a_b),
        "pair_spread": spread(ratios),
        "largest_pair_difference": float(np.abs(ratios).max()),
        "power": power(ratios, length.blocks.pairs, random),
    }


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    length = QUICK if quick else FULL
    pipelines = {name: measure_one(name, length) for name in PIPELINES}
    return {
        "num_a_a": sum(len(one["a_a"]) for one in pipelines.values()),
        "false_alarms": sum(one["false_alarms"] for one in pipelines.values()),
        "num_a_b": sum(len(one["a_b"]) for one in pipelines.values()),
        "found": sum(one["found"] for one in pipelines.values()),
        "change": CHANGE,
        "pairs": length.blocks.pairs,
        "block_seconds": length.blocks.seconds,
        "pipelines": pipelines,
        "quick": quick,
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    lines = [
        "# What `headrace compare` finds, and what it makes up",
        "",
        (
            f"{result['num_a_a']} comparisons of a pipeline with itself raised {result['false_alarms']} false alarms; of "
            f"{result['num_a_b']} with {result['change']:.0%} more work {result['found']} were called worse. "
            f"{result['pairs']} pairs of blocks of {result['block_seconds']:g} s each."
        ),
        "",
        "| pipeline | A/A verdicts | A/B verdicts | spread of pairs | largest | 5 % would be found | others' cores |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in result["pipelines"].items():
        others = measure.spread(row["other_cpu_cores"] or 0.0 for row in [*one["a_a"], *one["a_b"]])
        lines.append(
            f"| {name} | {_verdicts(one['a_a'])} | {_verdicts(one['a_b'])} | {one['pair_spread']:.1%} | "
            f"{one['largest_pair_difference']:.1%} | {one['power']:.0%} of {RESAMPLES} | {others:.2f} |"
        )
    lines += [
        "",
        "Spread: of the log-ratios B/A of the A/A pairs, from their middle half. Found: pairs drawn again from those, with 5 %",
        "added. Rows of each comparison are in the JSON file beside this one.",
    ]
    return "\n".join(lines)


def _verdicts(rows: Sequence[dict[str, Any]]) -> str:
    counts = Counter(row["verdict"] for row in rows)
    return ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in counts.most_common()) or "-"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark from the command line; status 1 when more than 3 of 20 A/A comparisons raise an alarm."""
    result = measure.run_benchmark("compare_power", __doc__.splitlines()[0], measure_all, as_text)
    return int(result["false_alarms"] > 3)


if __name__ == "__main__":
    sys.exit(main())
