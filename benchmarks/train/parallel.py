"""Whether the bubble of a pipeline is predicted: `headrace train parallel` on stages that sleep, predicted against measured.

Ranks share the cores of this machine, so a layer's device is emulated by a sleep: stages then take no core from each other, and
the bubble can be measured. That of real layers is not measured here.

    python -m benchmarks.train.parallel [--quick] [--json] [--write]
"""

from __future__ import annotations

from typing import Any

from benchmarks import measure
from benchmarks.train import parallel_recipes
from headrace.train.ranks.parallel import ParallelSettings, measure_ways

#: (recipe, ranks, micro-batches)
CASES = (("make_even", 2, 4), ("make_uneven", 2, 4), ("make_even", 2, 8), ("make_even", 4, 8), ("make_uneven", 4, 4))

COLUMNS = (
    "training", "ranks", "way", "micro-batches", "of one rank", "bubble", "predicted", "formula", "error", "step off by",
    "kept", "loss off by",
)  # fmt: skip


def run(quick: bool) -> dict[str, Any]:
    """Return bubbles, predicted and measured.

    Args:
        quick: Three cases, one round each.
    """
    rows = []
    for recipe, ranks, micro_batches in CASES[: 3 if quick else None]:
        settings = ParallelSettings(
            recipe=f"{parallel_recipes.__file__}:{recipe}",
            ranks=ranks,
            micro_batches=micro_batches,
            steps=5,
            rounds=1 if quick else 3,
        )
        document = measure_ways(settings)
        one = document.ways[0]
        rows += [
            {
                "recipe": recipe,
                "ranks": ranks,
                "micro_batches": way.micro_batches,
                "way": str(way.way),
                "of_one": way.samples_per_second / one.samples_per_second,
                "bubble": None if way.bubble is None else way.bubble.measured,
                "predicted": None if way.bubble is None else way.bubble.predicted,
                "by_formula": None if way.bubble is None else way.bubble.by_formula,
                "error": None if way.bubble is None else way.bubble.predicted / way.bubble.measured - 1,
                "seconds_error": None
                if way.predicted_seconds is None
                else way.predicted_seconds / way.measured_seconds - 1,
                "kept": way.kept,
                "loss_error": abs(way.loss / one.loss - 1),
            }
            for way in document.ways
        ]
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    return {"rows": rows, "largest_error": max(errors), "num_bubbles": len(errors), "quick": quick}


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [
        "# The bubble of a pipeline, predicted and measured",
        "",
        "Gloo ranks on the CPU; layers sleep in place of a device. Predicted from stages timed alone. Error: of the bubble.",
        "",
        f"Largest error of {result['num_bubbles']} bubbles: {result['largest_error']:.1%} of the bubble.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for row in result["rows"]:
        bubble = (
            "- | - | - | - | -"
            if row["bubble"] is None
            else f"{row['bubble']:.1%} | {row['predicted']:.1%} | {row['by_formula']:.1%} | {row['error']:+.1%} | "
            f"{row['seconds_error']:+.1%}"
        )
        lines.append(
            f"| {row['recipe'].removeprefix('make_')} | {row['ranks']} | {row['way']} | {row['micro_batches']} | "
            f"x{row['of_one']:.2f} | {bubble} | {row['kept']} | {row['loss_error']:.1e} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("train.parallel", __doc__.splitlines()[0], run, as_text)
